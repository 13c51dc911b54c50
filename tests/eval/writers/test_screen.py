"""Text laid out for a terminal or a pipe: how wide it is, what its encoding has, what is cut and what is whole."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.writers.screen import NARROWEST, WIDEST, Screen, columns

NARROW = Screen(width=30)


class Terminal(io.TextIOWrapper):
    """A stream of one encoding that is a terminal, or is none."""

    def __init__(self, encoding: str = "utf-8", *, tty: bool = False) -> None:
        self.bytes = io.BytesIO()
        self.tty = tty
        super().__init__(self.bytes, encoding=encoding, newline="\n")

    def isatty(self) -> bool:
        return self.tty

    @property
    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


# What is shown on.


def test_a_terminal_is_coloured_and_a_pipe_is_not() -> None:
    assert Screen.of(Terminal(tty=True)).colour
    assert not Screen.of(Terminal()).colour


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    screen = Screen.of(Terminal(tty=True))
    assert screen.paint("text", "failed") == "text"


@pytest.mark.parametrize(("asked", "width"), [("40", 40), ("80", 80), ("5", NARROWEST), ("500", WIDEST)])
def test_columns_are_what_was_asked_for_within_reason(monkeypatch: pytest.MonkeyPatch, asked: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", asked)
    assert Screen.of(Terminal()).width == width


# Columns (B136).


@pytest.mark.parametrize(
    ("text", "taken"),
    [("Tech", 4), ("\u898f\u5283", 4), ("e\u0301", 1), ("\u05d0\u05d1", 2), ("a\u200db", 2), ("\U0001f680", 2)],
)
def test_a_text_takes_columns_and_not_characters(text: str, taken: int) -> None:
    assert columns(text) == taken


TEXTS = st.text(
    st.one_of(st.sampled_from(" \u898f\u5283e\u0301\u05d0\U0001f680-"), st.characters(codec="utf-8")), max_size=200
)


@given(TEXTS, st.integers(4, 40))
def test_what_is_fitted_fits_and_what_fits_is_whole(text: str, width: int) -> None:
    plain = Screen().plain(text)
    for fitted in (Screen().fit(plain, width), Screen().fit_end(plain, width)):
        assert columns(fitted) <= width
        if columns(plain) <= width and len(plain) <= 8 * width:
            assert fitted == plain


@given(TEXTS, st.integers(0, 8), st.integers(0, 4))
def test_wrapped_lines_fit_and_hold_the_whole_text_in_order(text: str, indent: int, hanging: int) -> None:
    lines = list(NARROW.lines(text, indent=indent, hanging=hanging, at_most=1000))
    assert all(columns(line) <= NARROW.width for line in lines)
    assert "".join("".join(lines).split()) == "".join(NARROW.plain(text).split())


@given(TEXTS, st.integers(1, 3))
def test_no_more_lines_than_asked_for_and_a_cut_is_shown(text: str, at_most: int) -> None:
    lines = list(NARROW.lines(text, at_most=at_most))
    whole = list(NARROW.lines(text, at_most=1000))
    assert len(lines) == min(len(whole), at_most)
    assert lines == whole or lines[-1].endswith("\u2026")


def test_no_line_ends_where_words_are_glued_together() -> None:
    assert list(Screen(width=12).lines("in a file, turn\N{NO-BREAK SPACE}1")) == ["in a file,", "turn 1"]


def test_marks_without_a_width_do_not_go_on_for_ever() -> None:
    """B136: a letter may carry any number of accents."""
    endless = "e" + "\u0301" * 1_000_000
    assert len(NARROW.fit(endless, 20)) <= 8 * 20 + 1
    assert sum(map(len, NARROW.lines(endless))) <= 2_000


# Tables.

ROWS = [("TriageAgent", "58.3 %", 7), ("\u898f\u5283", "8.3 %", 12), ("e\u0301", "n/a", 0)]


def test_columns_of_a_table_are_aligned_by_what_the_text_takes() -> None:
    table = list(Screen().table(ROWS, "<>>", ("agent", "accuracy", "turns")))
    assert table == [
        "  agent        accuracy  turns",
        "  TriageAgent    58.3 %      7",
        "  \u898f\u5283            8.3 %     12",
        "  e\u0301                 n/a      0",
    ]


def test_a_table_that_is_too_wide_is_stacked() -> None:
    table = Screen(width=30).table([("a" * 40, "58.3 %", 7)], "<>>", ("agent", "accuracy", "turns"))
    assert list(table) == [f"  {'a' * 27}\u2026", "    accuracy 58.3 %, turns 7"]
    assert list(Screen(width=20).table([("accuracy", "58.3 %", "7/12 turns")], "<><")) == [
        "  accuracy",
        "    58.3 %,",
        "    7/12 turns",
    ]


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4))
def test_no_table_is_wider_than_the_screen(rows: list[tuple[str, str, str]]) -> None:
    plain = [tuple(map(NARROW.plain, row)) for row in rows]
    assert all(columns(line) <= NARROW.width for line in NARROW.table(plain, "<><"))


# Characters.


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    steering = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    shown = Screen().plain(text)
    assert not [c for c in shown if unicodedata.category(c) == "Cc" or unicodedata.bidirectional(c) in steering]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437", "utf-8", "shift_jis"])
@given(TEXTS)
def test_every_encoding_takes_what_is_laid_out(encoding: str, text: str) -> None:
    screen = Screen(width=40, encoding=encoding)
    shown = [*screen.lines(text), *screen.table([(screen.plain(text), 1)], "<>"), screen.sign("failed")]
    "\n".join(shown).encode(encoding)
    assert all(columns(line) <= 40 for line in shown)


def test_signs_become_ascii_where_there_is_nothing_else() -> None:
    screen = Screen(encoding="ascii", width=30)
    assert [screen.sign(status) for status in ("passed", "failed", "errored", "skipped")] == ["+", "x", "!", "o"]
    assert list(screen.lines("a word " * 20, at_most=1)) == ["a word a word a word a word..."]


def test_no_line_is_a_command_to_the_runner_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub's runner obeys what stands at the beginning of a line, and the older form wherever it stands."""
    lines = ["  ::error::boo", "a ::b", "##[error]boo", "::add-mask::x"]
    plain, job = Terminal(), Terminal()
    Screen().write(lines, plain)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    Screen().write(lines, job)
    assert plain.text.splitlines() == lines
    assert job.text.splitlines() == ["  : :error::boo", "a ::b", "## [error]boo", ": :add-mask::x"]
