"""What a scenario's fields hold: text stays text, data becomes values, and both compare as JSON does."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from chatflow_eval.fields import (
    Cut,
    Many,
    Name,
    Pattern,
    Plain,
    Prose,
    Some,
    Text,
    ToolName,
    data,
    json_text,
    same,
    shown,
    subset,
    suggestion,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def refused(type_: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(type_).validate_python(value)
    return str(caught.value.errors()[0]["msg"])


class TestData:
    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ("20", 20), ("-3", -3), ("0", 0), ("2.50", 2.5), ("1e3", 1000.0), ("-1.5E-2", -0.015),
            ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("Null", None),
        ],
    )  # fmt: skip
    def test_plain_scalars_are_the_values_that_json_has_a_word_for(self, written: str, value: object) -> None:
        assert data(Plain(written)) == value
        assert type(data(Plain(written))) is type(value)

    @pytest.mark.parametrize(
        "text",
        [
            "no",
            "on",
            "yes",
            "y",
            "12:30",
            "2026-01-01",
            "007",
            "+1",
            "1_000",
            ".nan",
            ".inf",
            "0x1f",
            "1e999",
            "tRUE",
            "nUll",
        ],
    )
    def test_the_rest_stays_text(self, text: str) -> None:
        """B120."""
        assert data(Plain(text)) == text
        assert type(data(Plain(text))) is str

    def test_a_number_of_any_length_is_read_or_left(self) -> None:
        assert data(Plain("9" * 400)) == int("9" * 400)
        assert data(Plain("9" * 5000)) == "9" * 5000

    @settings(deadline=None)
    @given(st.text())
    def test_quoted_scalars_stay_text(self, text: str) -> None:
        assert data(text) == text

    @settings(deadline=None)
    @given(JSON)
    def test_python_values_pass_as_they_are(self, value: Any) -> None:
        assert data(value) == value

    def test_nested(self) -> None:
        value: dict[str, Any] = {Plain("a"): [Plain("1"), "1", {"b": Plain("true")}]}
        assert json.dumps(data(value)) == '{"a": [1, "1", {"b": true}]}'
        assert [type(key) for key in data(value)] == [str]


class TestText:
    @pytest.mark.parametrize(
        "text", ["no", "on", "12:30", "2026-01-01", "null", "~", "5", "1.0", "  a ", "{{x}} $HOME <b>&"]
    )
    def test_text_is_kept_as_written(self, text: str) -> None:
        """B120, B124."""
        for type_ in (Prose, Text):
            kept = TypeAdapter[str](type_).validate_python(Plain(text))
            assert kept == text
            assert type(kept) is str

    def test_nothing_is_no_text_and_an_empty_text_is(self) -> None:
        assert "found nothing" in refused(Prose, Plain(""))
        assert TypeAdapter[str](Prose).validate_python("") == ""

    @pytest.mark.parametrize(
        ("comment", "prose", "name"), [("#42", False, False), ("# a remark", False, True), ("#", False, True)]
    )
    def test_a_comment_may_have_been_meant_as_text(self, comment: str, prose: bool, name: bool) -> None:
        """E02: in prose always; in a name where `#` touches the next letter."""
        for type_, accepted in ((Prose, prose), (Name, name), (Text, name)):
            value = Cut.of("refund", comment)
            if accepted:
                assert TypeAdapter[str](type_).validate_python(value) == "refund"
            else:
                assert "quote this" in refused(type_, value)

    @pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x1b[31m", "Bill\u202egniling", "a\u2066b", "\u2028"])
    def test_names_hold_nothing_that_nobody_sees(self, name: str) -> None:
        assert refused(Name, name)

    @pytest.mark.parametrize("name", ["Łódź", "🚀", "規劃", "שירות", "الفواتير", "A -> B", "a b"])
    def test_names_are_of_any_language(self, name: str) -> None:
        assert TypeAdapter[str](Name).validate_python(name) == name

    @pytest.mark.parametrize("name", ["2nd", "a b", "", "é", "a" * 65, "a.b"])
    def test_tools_have_names_that_every_provider_takes(self, name: str) -> None:
        assert "name" in refused(ToolName, name)
        assert TypeAdapter[str](ToolName).validate_python("issue_refund-2") == "issue_refund-2"

    @pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<a>", "(" * 3000, "a{99999999999}"])
    def test_expressions_are_checked(self, pattern: str) -> None:
        assert "no regular expression" in refused(Pattern, pattern)

    def test_an_expression_that_a_later_python_reads_otherwise_is_one(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert TypeAdapter[str](Pattern).validate_python("[[a]") == "[[a]"


def test_one_thing_needs_no_list() -> None:
    for type_ in (Many[Name], Some[Name]):
        assert TypeAdapter[tuple[str, ...]](type_).validate_python("a") == ("a",)
        assert TypeAdapter[tuple[str, ...]](type_).validate_python(["a", "b"]) == ("a", "b")
    assert TypeAdapter[tuple[str, ...]](Many[Name]).validate_python([]) == ()
    assert refused(Some[Name], [])


class TestMessages:
    def test_values_are_shown_short_and_visible(self) -> None:
        assert shown("a\x1b\u202eb\n") == "`a\\u001b\\u202eb\\u000a`"
        assert len(shown("x" * 500)) < 70
        values: tuple[Any, ...] = ("", None, [1], {}, 5)
        assert [shown(value) for value in values] == [
            "nothing",
            "nothing",
            "a list",
            "a mapping",
            "`5`",
        ]

    def test_the_nearest_word_is_suggested(self) -> None:
        known = ["TriageAgent", "BillingAgent"]
        assert suggestion("triageagnt", known) == "; did you mean `TriageAgent`?"
        assert suggestion("x", known) == "; known: `TriageAgent`, `BillingAgent`"
        assert suggestion("x", []) == ""

    def test_what_is_no_json_is_shown_as_python_does(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        assert json_text({"a": "é"}) == '{"a": "é"}'
        assert json_text({(1, 2): 3}) == "{(1, 2): 3}"
        assert json_text(endless) == "[[...]]"


class TestComparing:
    @pytest.mark.parametrize(
        ("actual", "expected", "equal"),
        [
            (20, 20.0, True),
            (20, "20", False),
            (True, 1, False),
            (0, False, False),
            (None, None, True),
            (None, 0, False),
            ([1, 2], (1, 2), True),
            ([1, 2], [2, 1], False),
            ([1], [1, 2], False),
            ("ab", ["a", "b"], False),
            ({"a": [1.0]}, {"a": [1]}, True),
            ({"a": 1}, {"a": 1, "b": 2}, False),
            ({"a": True}, {"a": 1}, False),
            ([], {}, False),
        ],
    )
    def test_same(self, actual: Any, expected: Any, equal: bool) -> None:
        assert same(actual, expected) is equal

    @settings(deadline=None)
    @given(JSON)
    def test_everything_is_the_same_as_itself(self, value: Any) -> None:
        assert same(value, json.loads(json.dumps(value)))

    @pytest.mark.parametrize(
        ("actual", "expected", "fits"),
        [
            ({"a": 1, "b": 2}, {"a": 1}, True),
            ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
            ({"a": 1}, {}, True),
            ({"a": [1, 2]}, {"a": [1]}, False),
            ({"a": 1}, {"b": 1}, False),
            ("a", {}, False),
            ({"a": "x"}, {"a": {}}, False),
        ],
    )
    def test_subset(self, actual: Any, expected: dict[str, Any], fits: bool) -> None:
        assert subset(actual, expected) is fits
