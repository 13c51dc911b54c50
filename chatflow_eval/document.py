"""A YAML text as plain data that knows where each of its values stands; strict, and safe with any bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import yaml

from chatflow_eval.errors import ScenarioError, ScenarioErrors
from chatflow_eval.fields import Cut, Plain, shown

MAX_BYTES = 10_000_000
"""Of a file."""
MAX_DEPTH = 60
"""Of lists and mappings within each other, aliases followed."""
MAX_VALUES = 1_000_000
"""In a file, those that aliases stand for counted each time."""
MAX_PROBLEMS = 50
"""Of a file that are told at once."""

_Events = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Place(NamedTuple):
    """A line and a column, both counted from 1."""

    line: int
    column: int


class Map(dict[str, Any]):
    """A mapping, the place of each key and of each value."""

    __slots__ = ("keys_at", "place", "values_at")
    place: Place
    keys_at: dict[str, Place]
    values_at: dict[str, Place]


class Seq(list[Any]):
    """A list and the place of each item."""

    __slots__ = ("items_at", "place")
    place: Place
    items_at: list[Place]


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds: mappings as `Map`, lists as `Seq`, scalars as `str`, those without quotes as `Plain`."""

    path: Path
    lines: tuple[str, ...]
    root: Any
    problems: tuple[ScenarioError, ...]
    """What is wrong with it, short of being unreadable: keys given twice, tags."""


def read(path: Path) -> Document:
    """The document in a file.

    Raises:
        ScenarioError: it cannot be read, or not as one YAML document.
    """
    try:
        if path.is_dir() or not path.exists():
            raise ScenarioError(
                "there is no such file" if not path.exists() else "a folder, expected a file", path=path
            )
        if not path.is_file():
            raise ScenarioError("expected an ordinary file", path=path)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror or error}", path=path) from None
    if len(content) > MAX_BYTES:
        raise ScenarioError(f"more than {MAX_BYTES // 1_000_000} MB; split it into several files", path=path)
    return parse(_decode(content, path), path)


def _decode(content: bytes, path: Path) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ScenarioError("the file is UTF-16, expected UTF-8", path=path, line=1, column=1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = _LINE.split(error.object[: error.start].decode("utf-8"))
        raise ScenarioError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8",
            path=path,
            line=len(before),
            column=len(before[-1]) + 1,
        ) from None


_LINE = re.compile(r"\r\n|\r|\n")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def parse(text: str, path: Path) -> Document:
    """The one YAML document that a text holds; `path` is for messages.

    Raises:
        ScenarioError: it is none.
    """
    return _Composer(text, path).compose()


def quoted(text: str) -> str:
    """The text as a scalar in double quotes on one line, which is read back as it is."""
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read."""

    value: Map | Seq
    anchor: str | None
    before: int
    """Values that the whole file had before this one."""
    height: int = 1
    """Of the lists and mappings in it, itself counted."""
    key: str | None = None
    """The key whose value comes next."""
    key_at: Place | None = None


class _Anchored(NamedTuple):
    value: Any
    size: int
    height: int


class _Composer:
    """Builds the data from libyaml's events, without recursion, so that no file is too deep for it."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.text = text
        self.lines = tuple(_LINE.split(text))
        self.commented = {number for number, line in enumerate(self.lines) if " #" in line or "\t#" in line}
        self.problems: list[ScenarioError] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, _Anchored | None] = {}
        self.unused: dict[str, Place] = {}
        self.count = 0
        self.root: Any = None
        self.documents = 0

    def compose(self) -> Document:
        if found := _FORBIDDEN.search(self.text):
            before = _LINE.split(self.text[: found.start()])
            code = f"\\u{ord(found[0]):04x}"
            self.fail(
                f"the file holds the character {code}, which nobody sees; write it as {code} in double quotes",
                Place(len(before), len(before[-1]) + 1),
            )
        for event in self.events():
            self.take(event)
        if not self.documents:
            self.fail("the file is empty, expected scenarios", Place(1, 1))
        for name, place in self.unused.items():
            self.note(
                f"`&{name}` is read as an anchor, and no `*{name}` uses it; quote a text that starts with `&`", place
            )
        return Document(self.path, self.lines, self.root, tuple(self.problems))

    def events(self) -> Iterator[Any]:
        parser = _Events(self.text)
        try:
            while parser.check_event():
                yield parser.get_event()
        except yaml.MarkedYAMLError as error:
            never_closed = "flow" in (error.context or "") or "end of stream" in (error.problem or "")
            mark = (error.context_mark if never_closed else None) or error.problem_mark or error.context_mark
            place = _place(mark) if mark is not None else Place(1, 1)
            raise ScenarioError(
                self.explain(error, place), path=self.path, line=place.line, column=place.column
            ) from None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            self.fail(f"no YAML: {error}", Place(1, 1))
        finally:
            parser.dispose()

    def take(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self.scalar(event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self.open(event)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self.close()
        elif kind is yaml.AliasEvent:
            self.alias(event)
        elif kind is yaml.DocumentStartEvent:
            self.documents += 1
            if self.documents > 1:
                self.fail("a second YAML document begins here, expected one per file", _place(event.start_mark))

    def scalar(self, event: Any) -> None:
        place = _place(event.start_mark)
        value: str = event.value
        if event.tag is not None:
            self.tag(event, place)
        if not event.style:
            comment = self.comment(event.end_mark) if event.end_mark.line in self.commented else ""
            value = Cut.of(value, comment) if comment else Plain(value)
        elif event.style == '"' and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.fail("half of a surrogate pair is no character; write \\U and eight hex digits", place)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(value, 1, 0)
            if not event.style:
                self.unused[event.anchor] = place
        self.add(value, place)

    def comment(self, end: Any) -> str:
        """The comment that follows on the line where a plain scalar ends."""
        found = _COMMENT.match(self.lines[end.line], end.column)
        return found[1] if found else ""

    def tag(self, event: Any, place: Place) -> None:
        written = event.tag.replace("tag:yaml.org,2002:", "!!")
        self.note(f"{shown(written)} is a YAML tag, and tags are not read; quote a text that starts with `!`", place)

    def open(self, event: Any) -> None:
        place = _place(event.start_mark)
        if event.tag is not None:
            self.tag(event, place)
        if len(self.stack) >= MAX_DEPTH:
            self.fail(f"lists and mappings more than {MAX_DEPTH} deep", place)
        value: Map | Seq
        if type(event) is yaml.MappingStartEvent:
            value = Map()
            value.keys_at, value.values_at = {}, {}
        else:
            value = Seq()
            value.items_at = []
        value.place = place
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        before = self.count
        self.add(value, place)
        self.stack.append(_Open(value, event.anchor, before))

    def close(self) -> None:
        closed = self.stack.pop()
        if self.stack:
            self.stack[-1].height = max(self.stack[-1].height, closed.height + 1)
        if isinstance(closed.value, Map) and _MERGE in closed.value:
            self.merge(closed.value)
        if closed.anchor is not None:
            self.anchors[closed.anchor] = _Anchored(closed.value, self.count - closed.before, closed.height)

    def alias(self, event: Any) -> None:
        place = _place(event.start_mark)
        if event.anchor not in self.anchors:
            self.fail(
                f"`*{event.anchor}` refers to an anchor that is not there; quote a text that starts with `*`", place
            )
        anchored = self.anchors[event.anchor]
        if anchored is None:
            self.fail(f"`*{event.anchor}` stands within `&{event.anchor}`, which it refers to", place)
        self.unused.pop(event.anchor, None)
        if len(self.stack) + anchored.height > MAX_DEPTH:
            self.fail(f"lists and mappings more than {MAX_DEPTH} deep, aliases followed", place)
        if self.stack:
            self.stack[-1].height = max(self.stack[-1].height, anchored.height + 1)
        self.count += anchored.size - 1
        self.add(anchored.value, place)

    def add(self, value: Any, place: Place) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            self.fail(f"more than {MAX_VALUES} values, those that aliases stand for counted each time", place)
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        into = top.value
        if isinstance(into, Seq):
            into.append(value)
            into.items_at.append(place)
        elif top.key is None or top.key_at is None:
            if not isinstance(value, str):
                self.fail("expected a key, found a list or mapping; quote a text that starts with `{` or `[`", place)
            top.key, top.key_at = str(value), place
        else:
            self.put(into, top.key, value, key_at=top.key_at, place=place)
            top.key = None

    def put(self, into: Map, key: str, value: Any, *, key_at: Place, place: Place) -> None:
        if key in into:
            self.note(f"{shown(key)} is given twice, here and on line {into.keys_at[key].line}", key_at)
            return
        into[key] = value
        into.keys_at[key] = key_at
        into.values_at[key] = place

    def merge(self, into: Map) -> None:
        """What `<<` leads to becomes the mapping's own, save the keys that it has itself."""
        place = into.values_at.pop(_MERGE)
        del into.keys_at[_MERGE]
        value = into.pop(_MERGE)
        for source in value if isinstance(value, Seq) else [value]:
            if not isinstance(source, Map):
                self.note(f"`<<` takes the keys of mappings, found {shown(source)}", place)
                continue
            for key in source:
                if key not in into:
                    into[key], into.keys_at[key], into.values_at[key] = (
                        source[key],
                        source.keys_at[key],
                        source.values_at[key],
                    )

    def note(self, problem: str, place: Place) -> None:
        self.problems.append(ScenarioError(problem, path=self.path, line=place.line, column=place.column))
        if len(self.problems) >= MAX_PROBLEMS:
            raise ScenarioErrors(self.problems)

    def fail(self, problem: str, place: Place) -> NoReturn:
        raise ScenarioError(problem, path=self.path, line=place.line, column=place.column)

    def explain(self, error: yaml.MarkedYAMLError, place: Place) -> str:
        """The parser's problem in a person's words, with the way out."""
        line = self.lines[place.line - 1] if place.line <= len(self.lines) else ""
        rest = line[place.column - 1 :]
        said = f"{error.context or ''} {error.problem or ''}"
        if rest.startswith("\t") or (_TAB_INDENT.match(line) and "token" in said):
            return "a tab, expected spaces: indent with spaces"
        if rest[:1] in _SIGNS and "token" in said:
            return f"a plain text cannot start with {rest[0]}; quote this: '{rest.strip()[:40]}'"
        for words, advice in _ADVICE:
            if words in said:
                return advice
        return f"no YAML: {error.problem or error.context}"


_MERGE = "<<"
_COMMENT = re.compile(r"[ \t]+(#.*)")
_TAB_INDENT = re.compile(r" *\t")
_SIGNS = "@`%"
_ADVICE = (
    ("mapping values are not", "`: ` cannot stand within a plain text; quote the text, or check the indentation"),
    ("sequence entries are not", "`- ` starts a list, which cannot stand here; quote a text that starts with it"),
    ("mapping keys are not", "`? ` starts a key, which cannot stand here; quote a text that starts with it"),
    ("block scalar", "a text after `|` or `>` stands on the next lines, indented; quote a text that starts with them"),
    ("nesting depth", f"lists and mappings more than {MAX_DEPTH} deep"),
    ("an alias", "`*` starts an alias; quote a text that starts with `*`"),
    ("an anchor", "`&` starts an anchor; quote a text that starts with `&`"),
    ("tag", "`!` starts a tag, and tags are not read; quote a text that starts with `!`"),
    ("directive", "`%` starts a directive; quote a text that starts with `%`"),
    ("unexpected end of stream", "a quote is opened and never closed; close it"),
    ("escape", "`\\` starts an escape in double quotes, and this is none; use single quotes, or `\\\\`"),
    ("a simple key", "expected `key: value`; further lines of a text are indented deeper than its key"),
    ("flow sequence", "`[` starts a list, expected `,` or `]`; quote a text that starts with `[`"),
    ("flow mapping", "`{` starts a mapping, expected `,` or `}`; quote a text that starts with `{`"),
    ("a block", "expected a key or `- ` at this indentation; quote the whole of a text that has quotes in it"),
    ("<document start>", "expected one mapping; check the indentation of this line"),
)
"""What the parser says, and what a person needs to know."""

_Mark: TypeAlias = Any


def _place(mark: _Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)
