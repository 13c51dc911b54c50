"""YAML as plain data with places: text as written, one document, nothing silently lost, and safe with any bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatflow_eval import document
from chatflow_eval.document import Document, Map, Seq, parse, read
from chatflow_eval.errors import ScenarioError, ScenarioErrors
from chatflow_eval.fields import Cut, Plain

HERE = Path("some.scenario.yaml")


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers that PyYAML may have."""
    if request.param == "python":
        monkeypatch.setattr(document, "_Events", yaml.SafeLoader)
    return str(request.param)


def problem(text: str) -> tuple[int | None, int | None, str]:
    """The one thing that is wrong with the text, and where."""
    try:
        found = parse(text, HERE).problems
    except ScenarioError as error:
        found = (error,)
    assert len(found) == 1
    assert str(found[0]).startswith(f"{HERE}:{found[0].line}:{found[0].column}: ")
    return found[0].line, found[0].column, found[0].problem


@pytest.mark.usefixtures("parser")
class TestData:
    def test_scalars_mappings_and_lists(self) -> None:
        root = parse("a: no\nb: 'no'\nc: [1, \"1\", {d: }]\n", HERE).root
        assert root == {"a": "no", "b": "no", "c": ["1", "1", {"d": ""}]}
        assert [type(root["a"]), type(root["b"]), type(root["c"][0]), type(root["c"][1])] == [Plain, str, Plain, str]
        assert isinstance(root, Map)
        assert isinstance(root["c"], Seq)

    def test_places_count_from_one(self) -> None:
        root = parse("a: x\nbb:\n  - y\n  - {c: 'z'}\n", HERE).root
        assert (root.place, root.keys_at["bb"], root.values_at["a"]) == ((1, 1), (2, 1), (1, 4))
        assert root["bb"].items_at == [(3, 5), (4, 5)]
        assert (root["bb"][1].keys_at["c"], root["bb"][1].values_at["c"]) == ((4, 6), (4, 9))

    def test_columns_count_characters(self) -> None:
        assert parse("{🚀é: x, b: y}", HERE).root.keys_at["b"] == (1, 9)

    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
    def test_lines_end_as_they_like(self, ending: str) -> None:
        root = parse(ending.join(["a: x", "b: |", "  one", "  two", "c: z # t", ""]), HERE).root
        assert root == {"a": "x", "b": "one\ntwo\n", "c": "z"}
        assert root.keys_at["c"] == (5, 1)
        assert root["c"].comment == "# t"

    def test_a_comment_behind_a_plain_scalar_is_remembered(self) -> None:
        """E02."""
        text = "a: refund #42\nb: 'refund' #42\nc: refund#42\nd: [refund #42\n ]\n"
        root = parse(text + "e: multi\n   line #42\nf: |\n  x #42\ng:  #42\n", HERE).root
        cut = {key: value.comment for key, value in root.items() if isinstance(value, Cut)}
        assert cut == {"a": "#42", "e": "#42", "g": "#42"}
        assert root["d"][0].comment == "#42"
        assert (root["c"], root["e"], root["f"], root["g"]) == ("refund#42", "multi line", "x #42\n", "")

    def test_text_is_kept_byte_for_byte(self) -> None:
        """B124."""
        texts = ["{{name}}", "{#", "{% raw %}", "<b>&", "$HOME", "${X}", "\\n", "\u202eabc", "👩‍🚀", "a\u00a0b"]
        root = parse("".join(f"- '{text}'\n" for text in texts), HERE).root
        assert root == texts

    def test_anchors(self) -> None:
        root = parse("a: &x {b: 1}\nc: *x\nd: [*x, *x]\ne: &t text\nf: *t\n", HERE).root
        assert root == {"a": {"b": "1"}, "c": {"b": "1"}, "d": [{"b": "1"}] * 2, "e": "text", "f": "text"}

    def test_merge_keys_give_way_to_the_mappings_own(self) -> None:
        root = parse("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  x: 3\n  <<: [*a, *b]\nd: {<<: *a}\n", HERE).root
        assert root["c"] == {"x": "3", "y": "1", "z": "2"}
        assert root["d"] == {"x": "1", "y": "1"}
        assert root["c"].values_at["z"] == (2, 17)
        assert set(root["c"].keys_at) == set(root["c"].values_at) == {"x", "y", "z"}

    def test_one_document_with_its_marks(self) -> None:
        assert parse("---\na: x\n...\n", HERE).root == {"a": "x"}


@pytest.mark.usefixtures("parser")
class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "column", "words"),
        [
            ("@Bot", 7, "cannot start with @; quote this: '@Bot'"),
            ("`tick`", 7, "cannot start with `; quote this"),
            ("%x", 7, "cannot start with %; quote this"),
            ("*Star", 7, "quote a text that starts with `*`"),
            ("!Bot x", 7, "quote a text that starts with `!`"),
            ("! x", 7, "quote a text that starts with `!`"),
            ("!!python/object:os.system x", 7, "tags are not read"),
            ("!!binary aGk=", 7, "tags are not read"),
            ("&c hello", 7, "quote a text that starts with `&`"),
            ("&c. hello", None, "quote a text that starts with `&`"),
            ("I said: hello", 13, "`: ` cannot stand within a plain text; quote the text"),
            ("- hi", 7, "`- ` starts a list"),
            ("? what", 7, "quote a text that starts with it"),
            ("> hi", None, "quote a text that starts with them"),
            ("| hi", None, "quote a text that starts with them"),
            ('"a" b', 11, "quote the whole"),
            ('"never', 7, "never closed"),
            ('"bad \\q"', None, "use single quotes"),
            ("[hi", 7, "`[` starts a list, expected `,` or `]`"),
            ("{hi", 7, "`{` starts a mapping, expected `,` or `}`"),
            ("{{name}}", 8, "quote a text that starts with `{`"),
            ("{% raw %}", 8, "cannot start with %"),
            ("[[a], {b: [c]}]: x", None, "quote the text"),
        ],
    )
    def test_text_that_yaml_reads_otherwise_needs_quotes(self, value: str, column: int | None, words: str) -> None:
        """E04, B102."""
        line, at, said = problem(f"a: x\nuser: {value}\nb: y\n")
        assert line == 2
        assert column in (None, at)
        assert words in said

    @pytest.mark.parametrize("text", ["a:\n\tb: x\n", "a:\n  b: x\n\tc: y\n", "a:\n \t- x\n"])
    def test_tabs_do_not_indent(self, text: str) -> None:
        """E04."""
        assert "indent with spaces" in problem(text)[2]

    @pytest.mark.parametrize("text", ["", "\n\n", "# only a remark\n", "---\n...\n"[:0]])
    def test_an_empty_file(self, text: str) -> None:
        assert problem(text) == (1, 1, "the file is empty, expected scenarios")

    def test_several_documents(self) -> None:
        assert problem("a: x\n---\nb: y\n")[::2] == (2, "a second YAML document begins here, expected one per file")

    def test_duplicate_keys_name_both_lines(self) -> None:
        """B121."""
        assert problem("user: a\nb: x\nuser: b\n") == (3, 1, "`user` is given twice, here and on line 1")
        assert problem("a: {user: x, 'user': y}\n") == (1, 14, "`user` is given twice, here and on line 1")
        assert "twice" in problem("a: &a {x: 1}\nb: {<<: *a, <<: *a}\n")[2]

    def test_several_problems_are_told_together(self) -> None:
        problems = parse("a: !x y\na: z\na: z\n", HERE).problems
        assert [(each.line, each.column) for each in problems] == [(1, 4), (2, 1), (3, 1)]

    def test_a_flood_of_problems_stops(self) -> None:
        with pytest.raises(ScenarioError) as caught:
            parse("a: x\n" * 1_000, HERE)
        assert len(str(caught.value).splitlines()) == document.MAX_PROBLEMS

    @pytest.mark.parametrize("text", ["a: {<<: x}\n", "a: {<<: [x]}\n"])
    def test_only_mappings_merge(self, text: str) -> None:
        assert "takes the keys of mappings" in problem(text)[2]

    @pytest.mark.parametrize("letter", ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\ufeff", "\uffff"])
    def test_characters_that_nobody_sees(self, letter: str) -> None:
        line, column, said = problem(f"a: x\nb: 'é{letter}'\n")
        assert (line, column) == (2, 6)
        assert f"\\u{ord(letter):04x}" in said

    def test_half_a_character(self) -> None:
        assert problem('a: "\\ud83d"\n')[0] == 1

    def test_another_version_of_yaml(self) -> None:
        assert "incompatible YAML" in problem("%YAML 2.0\n---\na: x\n")[2]


@pytest.mark.usefixtures("parser")
class TestBombs:
    """B102."""

    def test_aliases_that_multiply(self) -> None:
        levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
        line, _, said = problem(f"a0: &a0 x\n{levels}")
        assert line == 8
        assert "more than 1000000 values" in said

    def test_an_anchor_that_refers_to_itself(self) -> None:
        assert problem("a: &x [*x]\n") == (1, 8, "`*x` stands within `&x`, which it refers to")
        assert problem("a: &x {b: {c: *x}}\n")[0] == 1
        assert problem("&x {<<: *x}\n")[0] == 1

    @pytest.mark.parametrize(
        "text", ["[" * 5_000, "{a: " * 5_000, "- " * 5_000, "a:\n" + "".join(" " * n + "a:\n" for n in range(1, 100))]
    )
    def test_depth(self, text: str) -> None:
        assert "more than 60 deep" in problem(text)[2]

    def test_depth_by_aliases(self) -> None:
        levels = "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100))
        assert "more than 60 deep, aliases followed" in problem(f"a0: &a0 [x]\n{levels}")[2]

    def test_ordinary_anchors_many_times(self) -> None:
        text = "a: &x {b: [1, 2, 3]}\nc:\n" + "- *x\n" * 2_000
        assert len(parse(text, HERE).root["c"]) == 2_000

    def test_a_long_line_of_spaces(self) -> None:
        assert parse("a: 'x'" + " " * 500_000 + "\n", HERE).root == {"a": "x"}


class TestFiles:
    def test_utf8_with_and_without_its_mark(self, tmp_path: Path) -> None:
        for mark in (b"", b"\xef\xbb\xbf"):
            (tmp_path / "a.yaml").write_bytes(mark + "a: é\n".encode())
            assert read(tmp_path / "a.yaml").root == {"a": "é"}
            assert read(tmp_path / "a.yaml").root.place == (1, 1)

    @pytest.mark.parametrize(
        ("content", "line", "column", "words"),
        [
            ("a: x\n".encode("utf-16"), 1, 1, "UTF-16, expected UTF-8"),
            (b"a: x\nb: caf\xe9\n", 2, 7, "byte 0xe9 is not UTF-8"),
            (b"\xff", 1, 1, "not UTF-8"),
        ],
    )
    def test_other_encodings(self, tmp_path: Path, content: bytes, line: int, column: int, words: str) -> None:
        path = tmp_path / "a.yaml"
        path.write_bytes(content)
        with pytest.raises(ScenarioError, match=words) as caught:
            read(path)
        assert (caught.value.path, caught.value.line, caught.value.column) == (path, line, column)

    def test_too_large(self, tmp_path: Path) -> None:
        """B102."""
        (tmp_path / "a.yaml").write_bytes(b"#" * 10_000_001)
        with pytest.raises(ScenarioError, match="more than 10 MB"):
            read(tmp_path / "a.yaml")

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ScenarioError, match="no such file"):
            read(tmp_path / "gone.yaml")
        with pytest.raises(ScenarioError, match="a folder"):
            read(tmp_path)
        with pytest.raises(ScenarioError, match="ordinary file"):
            read(Path("/dev/null"))


def parsed(text: str) -> Document | ScenarioError:
    try:
        return parse(text, HERE)
    except ScenarioError as error:
        return error


def walk(found: Document, value: Any) -> None:
    """All of a document is text, lists and mappings with a place for everything in them."""
    if isinstance(value, Map):
        assert value.keys() == value.keys_at.keys() == value.values_at.keys()
        for key, item in value.items():
            assert type(key) is str
            assert 1 <= value.keys_at[key].line <= len(found.lines)
            walk(found, item)
    elif isinstance(value, Seq):
        assert len(value) == len(value.items_at)
        for item in value:
            walk(found, item)
    else:
        assert isinstance(value, str)


SIGNS = st.text(st.sampled_from(list("ab: -[]{},#&*!|>'\"%@`?~<\\\n\t \u2028é")), max_size=60)


@settings(deadline=None)
@given(SIGNS | st.text(max_size=60))
@example("a: &a [*a]")
@example("? |\n ? x\n: : -")
@example("&a &b x")
@example("%TAG ! tag:x,2000:\n---\n!y z")
def test_any_text_is_data_or_a_placed_error(text: str) -> None:
    found = parsed(text)
    if isinstance(found, Document):
        walk(found, found.root)
    else:
        assert found.line is not None or isinstance(found, ScenarioErrors)


@settings(deadline=None)
@given(
    st.recursive(
        st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    )
)
def test_what_yaml_writes_is_read_back(value: Any) -> None:
    written = yaml.safe_dump(value, allow_unicode=False, default_style='"')
    assert parse(written, HERE).root == value
