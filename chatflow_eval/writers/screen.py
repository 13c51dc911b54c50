"""What a summary is shown on, a terminal or a pipe: its width, its characters, and whether in colour."""

from __future__ import annotations

import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TextIO, TypeAlias

from tabulate import tabulate
from wcwidth import wcwidth

from chatflow_eval.outcome import Status
from chatflow_eval.writers import words

WIDTH, NARROWEST, WIDEST = 80, 30, 100
"""Columns of what does not tell its width, and between which a width is kept."""

GLUE = "\N{NO-BREAK SPACE}"

Colour: TypeAlias = Status | Literal["heading"]

_COLOURS: dict[Colour, str] = {"passed": "32", "failed": "31", "errored": "35", "skipped": "2", "heading": "1"}
_ASCII = str.maketrans({"✓": "+", "✗": "x", "○": "o", "…": "...", "→": "->"})
_COMMAND = re.compile(r"^(\s*):(?=:)|##(?=\[)", re.MULTILINE)
"""What GitHub's runner takes for a command of the job in what a step prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Lays text out; what comes from outside is first made `plain`."""

    width: int = WIDTH
    colour: bool = False
    encoding: str = "utf-8"

    @classmethod
    def of(cls, stream: TextIO) -> Screen:
        """As wide as `COLUMNS` or the terminal says; in colour on a terminal whose user has not asked for none."""
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"  # no-color.org
        return cls(
            width=min(max(width, NARROWEST), WIDEST),
            colour=stream.isatty() and not plain,
            encoding=stream.encoding or "utf-8",
        )

    def paint(self, text: str, colour: Colour) -> str:
        """The text in a colour, where there are colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour else text

    def sign(self, status: Status) -> str:
        """The sign of a status, in its colour."""
        return self.paint(self.encodable(words.SYMBOLS[status]), status)

    def plain(self, text: str) -> str:
        """The text in one line, without control characters, in characters that the encoding has."""
        return self.encodable(words.one_line(text))

    def encodable(self, text: str) -> str:
        """The text, or what the encoding has of it: signs of ours in ASCII, other characters as escapes."""
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return text.translate(_ASCII).encode(self.encoding, "backslashreplace").decode(self.encoding)
        return text

    def fit(self, text: str, width: int) -> str:
        """The plain text, cut to so many columns."""
        text, rest = text[: _most(width)], text[_most(width) :]
        ends = list(accumulate(map(_columns, text)))
        if not rest and (not ends or ends[-1] <= width):
            return text
        more = self.encodable("…")[: max(width, 0)]
        return text[: bisect_right(ends, width - len(more))] + more

    def fit_end(self, text: str, width: int) -> str:
        """The plain text, its beginning cut where it takes more than so many columns."""
        return self.fit(text[::-1], width)[::-1]

    def lines(self, text: str, *, indent: int = 0, hanging: int = 0, at_most: int = 2) -> Iterator[str]:
        """The text in so many lines at most, those after the first indented by `hanging` more; none ends at `GLUE`."""
        width = self.width - indent - hanging
        parts = text[: _most(self.width * at_most)].split(GLUE)
        pieces = GLUE.join(map(self.plain, parts)).split(" ")
        wrapped = _wrap([piece.replace(GLUE, " ").strip() for piece in pieces], width)
        for number, line in enumerate(wrapped, 1):
            margin = " " * (indent + (hanging if number > 1 else 0))
            if number == at_most and (more := next(wrapped, None)) is not None:
                yield margin + self.fit(f"{line} {more}", width)
                return
            yield margin + line

    def table(self, rows: Sequence[Sequence[object]], align: str, header: Sequence[str] = ()) -> Iterator[str]:
        """The rows in columns, `<` or `>` for each; where those are too wide, the others below the first."""
        cells = [[self.encodable(str(cell)) for cell in row] for row in ([header, *rows] if header else rows)]
        widths = [max(map(columns, column)) for column in zip(*cells, strict=True)]
        if 2 * len(widths) + sum(widths) > self.width:
            yield from self._stacked(cells[1:] if header else cells, header)
            return
        sides = ["right" if side == ">" else "left" for side in align]
        # Cells are shown as they are: tabulate would take what looks like a number for one.
        shown = tabulate(cells, tablefmt="plain", colalign=sides, disable_numparse=True, preserve_whitespace=True)
        yield from (f"  {line}".rstrip() for line in shown.splitlines())

    def _stacked(self, rows: Sequence[Sequence[str]], header: Sequence[str]) -> Iterator[str]:
        for first, *others in rows:
            yield self.fit(f"  {first}", self.width)
            heads = header[1:] or [""] * len(others)
            *told, last = (f"{head} {cell}".strip() for head, cell in zip(heads, others, strict=True))
            pieces = [*(f"{piece}," for piece in told if piece), last]
            yield from (f"    {line}" for line in _wrap(pieces, self.width - 4))

    def write(self, lines: Iterator[str] | Sequence[str], stream: TextIO) -> None:
        """The lines to the stream."""
        text = self.encodable("\n".join(lines) + "\n")
        stream.write(_COMMAND.sub(r"\g<0> ", text) if os.environ.get("GITHUB_ACTIONS") else text)
        stream.flush()


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    return 1 if character.isascii() else max(wcwidth(character), 0)


def _most(width: int) -> int:
    """Characters that are looked at: marks without a width could go on for ever."""
    return 8 * max(width, 1)


def _wrap(pieces: Iterable[str], width: int) -> Iterator[str]:
    """Lines of so many columns; only what is longer than a line is broken within a piece."""
    line, used = "", 0
    for word in pieces:
        gap, length = (1 if line else 0), columns(word)
        if used + gap + length <= width:
            line, used = f"{line}{' ' * gap}{word}", used + gap + length
            continue
        if length <= width:
            yield line
            line, used = word, length
            continue
        line, used = f"{line}{' ' * gap}", used + gap
        for character in word:
            if used + _columns(character) > width:
                yield line.rstrip()
                line, used = "", 0
            line, used = line + character, used + _columns(character)
    if line:
        yield line
