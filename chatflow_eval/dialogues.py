"""Dialogues with the agent that should answer each turn, one JSON object a line, as a scenario file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from chatflow_eval.document import MAX_PROBLEMS, quoted
from chatflow_eval.errors import ScenarioError, ScenarioErrors
from chatflow_eval.fields import Name, shown, suggestion

Style: TypeAlias = Literal["swarm", "hub"]
"""Who can hand off to whom: everybody to everybody, or specialists only back to triage."""

Expect: TypeAlias = Literal["ends_at", "route"]
"""What is expected of a turn: who has it at its end, or the way there from whoever was right for the turn before."""

TRIAGE = "TriageAgent"
"""In `accept`: to stay with triage, whatever the agent is called that the dialogues start with."""


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: what the user says, and the agents that are right for it."""

    user: str
    accept: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One row, its names checked."""

    id: str
    start: str
    turns: tuple[Said, ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogues:
    """All rows, and the agents that they are about."""

    triage: str
    agents: Mapping[str, str]
    """Name to description, the triage left out unless it is described."""
    dialogues: tuple[Dialogue, ...]


def read(files: Sequence[Path], agents: Path) -> Dialogues:
    """The dialogues of the files, in order.

    `agents` is a JSON object: agent to description, or a data set's name (the start of its files' names) to such an
    object.

    Raises:
        ScenarioError: a file cannot be read; `ScenarioErrors`, each with file and line, where several rows are wrong.
    """
    described = _descriptions(agents, files)
    reader = _Reader(described)
    for path in files:
        for line, row in _rows(path, reader.problems):
            reader.add(row, path, line)
    if reader.problems:
        problems = reader.problems[:MAX_PROBLEMS]
        raise problems[0] if len(problems) == 1 else ScenarioErrors(problems)
    if not reader.dialogues:
        raise ScenarioError("no dialogue in it, expected one JSON object a line", path=files[-1])
    return Dialogues(triage=reader.triage or TRIAGE, agents=described, dialogues=tuple(reader.dialogues))


def render(found: Dialogues, style: Style = "swarm", expect: Expect = "ends_at") -> str:
    """The dialogues as a scenario file, every text of theirs in quotes."""
    return "".join(f"{line}\n" for line in (*_agents(found, style), *_scenarios(found, style, expect)))


# What is written.


def _agents(found: Dialogues, style: Style) -> Iterator[str]:
    specialists = [name for name in found.agents if name != found.triage]
    everybody = [found.triage, *specialists]
    # One sentence that names the agents, so that the keyword router takes none of it for the triage's own work.
    duty = f"Hand each message to the agent it is for, and keep what is for none of {', '.join(specialists)}."
    yield "agents:"
    for agent in everybody:
        peers = [name for name in everybody if name != agent]
        if style == "hub" and agent != found.triage:
            peers = [found.triage]
        yield f"  {quoted(agent)}:"
        yield f"    instructions: {quoted(found.agents.get(agent, duty))}"
        yield "    handoffs:" if peers else "    handoffs: []"
        for peer in peers:
            # Small words only, which the keyword router passes over: nobody says "else" to be given to triage.
            back = "For what is of no other agent."
            if style == "hub":
                back = f"For what is of these: {', '.join(name for name in specialists if name != agent)}."
            described = back if peer == found.triage else found.agents[peer]
            yield f"      - {{agent: {quoted(peer)}, description: {quoted(described)}}}"


def _scenarios(found: Dialogues, style: Style, expect: Expect) -> Iterator[str]:
    yield "scenarios:"
    for dialogue in found.dialogues:
        yield f"  - id: {quoted(dialogue.id)}"
        if dialogue.start != found.triage:
            yield f"    start: {quoted(dialogue.start)}"
        if dialogue.tags:
            yield f"    tags: {_listed(dialogue.tags)}"
        yield "    turns:"
        before: tuple[str, ...] = (dialogue.start,)
        for turn in dialogue.turns:
            yield f"      - user: {quoted(turn.user)}"
            route = _route(before, turn.accept, found.triage, style) if expect == "route" else None
            wanted = f"ends_at: {_listed(turn.accept)}" if route is None else f"route: {quoted(route)}"
            yield f"        expect: {{{wanted}}}"
            before = turn.accept


def _listed(texts: Iterable[str]) -> str:
    return f"[{', '.join(quoted(text) for text in texts)}]"


def _route(before: Sequence[str], accept: Sequence[str], triage: str, style: Style) -> str | None:
    """The way from whoever was right before; `None` where it depends on which of them it was."""
    if tuple(before) == tuple(accept) and len(accept) == 1:
        return _either(accept)
    if set(before) & set(accept):
        return None
    stops = [_either(before), _either(accept)]
    if style == "hub" and [triage] not in (list(before), list(accept)):
        stops.insert(1, _either([triage]) + ("?" if triage in (*before, *accept) else ""))
    return " -> ".join(stops)


def _either(names: Iterable[str]) -> str:
    return " | ".join(name if _PLAIN_NAME.fullmatch(name) else _in_quotes(name) for name in names)


def _in_quotes(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_PLAIN_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


# What is read.


def _descriptions(path: Path, files: Sequence[Path]) -> dict[str, str]:
    """The descriptions of the agents that the files are about."""
    found = _json(_text(path), path)
    if not isinstance(found, dict) or not found:
        raise ScenarioError(f"expected a JSON object of agents and their descriptions, found {shown(found)}", path=path)
    if any(isinstance(value, dict) for value in found.values()):
        sections = {_section(found, file, path) for file in files}
        if len(sections) > 1:
            listed = ", ".join(shown(name) for name in sorted(sections))
            raise ScenarioError(f"one scenario file has the agents of one data set, found {listed}", path=path)
        found = found[sections.pop()]
    for name, description in found.items() if isinstance(found, dict) else ():
        if problem := _name_problem(name):
            raise ScenarioError(problem, path=path)
        if not isinstance(description, str) or not description.strip():
            raise ScenarioError(f"{shown(name)}: expected a description, found {shown(description)}", path=path)
        if _HALF.search(description):
            raise ScenarioError(f"{shown(name)}: half of a surrogate pair is no character", path=path)
    if not isinstance(found, dict) or not found:
        raise ScenarioError(f"expected agents and their descriptions, found {shown(found)}", path=path)
    return dict(found)


def _section(sections: Mapping[str, object], file: Path, path: Path) -> str:
    """The data set that a file is of: the longest whose name the file's begins with."""
    stem = file.name.partition(".")[0]
    fits = [name for name in sections if stem == name or stem.startswith(f"{name}_")]
    if not fits:
        raise ScenarioError(
            f"no data set in it is called like {shown(file.name)}{suggestion(stem, sections)} "
            "(or give a file that holds these agents and their descriptions alone)",
            path=path,
        )
    return max(fits, key=len)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror or error}", path=path) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"byte 0x{error.object[error.start]:02x} is not UTF-8", path=path, line=line) from None


def _json(text: str, path: Path, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ScenarioError(
            f"no JSON: {error.msg}", path=path, line=line + error.lineno - 1, column=error.colno
        ) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"no JSON that can be read: {error}", path=path, line=line) from None


def _rows(path: Path, problems: list[ScenarioError]) -> Iterator[tuple[int, Any]]:
    """The values of a file's lines and their numbers; blank lines are left out."""
    for line, text in enumerate(_text(path).split("\n"), 1):
        if not text.strip():
            continue
        try:
            yield line, _json(text, path, line)
        except ScenarioError as error:
            problems.append(error)


class _Wrong(Exception):
    """What is wrong with a row, for a person."""


@dataclass(slots=True)
class _Reader:
    """Checks rows one by one; the first start that is not described is the triage."""

    agents: Mapping[str, str]
    triage: str | None = None
    dialogues: list[Dialogue] = field(default_factory=list)
    problems: list[ScenarioError] = field(default_factory=list)
    _seen: dict[str, tuple[Path, int]] = field(default_factory=dict)

    def add(self, row: Any, path: Path, line: int) -> None:
        try:
            dialogue = self._dialogue(row)
            first, at = self._seen.setdefault(dialogue.id, (path, line))
            if (first, at) != (path, line):
                raise _Wrong(f"`id` {shown(dialogue.id)} is given twice, here and at {first}:{at}")
            self.dialogues.append(dialogue)
        except _Wrong as wrong:
            self.problems.append(ScenarioError(str(wrong), path=path, line=line))

    def _dialogue(self, row: Any) -> Dialogue:
        if not isinstance(row, dict):
            raise _Wrong(f"expected an object with `id`, `start` and `turns`, found {shown(row)}")
        start = _named(row, "start")
        if start not in self.agents:
            self.triage = self.triage or start
            self._known(start, "`start`")
        for name in _texts(row, "agents", required=False):
            self._known(name, "`agents`")
        turns = _get(row, "turns")
        if not isinstance(turns, list) or not turns:
            raise _Wrong(f"`turns`: expected a list of turns, found {shown(turns or None)}")
        tags = list(_texts(row, "tags", required=False))
        said = []
        for number, turn in enumerate(turns, 1):
            try:
                said.append(self._turn(turn))
                tags += _texts(turn, "tags", required=False)
            except _Wrong as wrong:
                raise _Wrong(f"turn {number}: {wrong}") from None
        # Scenarios keep such an end for the numbers of phrasings.
        name = _NUMBERED.sub(r"(\1)", _named(row, "id"))
        return Dialogue(id=name, start=start, turns=tuple(said), tags=tuple(dict.fromkeys(tags)))

    def _turn(self, turn: Any) -> Said:
        if not isinstance(turn, dict):
            raise _Wrong(f"expected an object with `user` and `accept`, found {shown(turn)}")
        user = _get(turn, "user")
        if not isinstance(user, str):
            raise _Wrong(f"`user`: expected text, found {shown(user)}")
        if _HALF.search(user):
            raise _Wrong("`user`: half of a surrogate pair is no character")
        accept = _texts(turn, "accept")
        if not accept:
            raise _Wrong("`accept`: expected at least one agent, found an empty list")
        return Said(user, tuple(dict.fromkeys(self._known(name, "`accept`") for name in accept)))

    def _known(self, name: str, key: str) -> str:
        """The agent that a name in a row stands for."""
        triage = self.triage or TRIAGE
        if name in self.agents or name == triage:
            return name
        if name == TRIAGE and key != "`start`":
            return triage
        raise _Wrong(f"{key}: unknown agent {shown(name)}{suggestion(name, [triage, *self.agents])}")


_NUMBERED = re.compile(r"\[(\d+)\]$")
_HALF = re.compile("[\ud800-\udfff]")


def _get(row: Mapping[str, Any], key: str) -> Any:
    if key in row:
        return row[key]
    near = suggestion(key, row) if row else ""
    raise _Wrong(f"`{key}` is missing{near.replace('did you mean', 'is it') if 'did you mean' in near else ''}")


def _named(row: Mapping[str, Any], key: str) -> str:
    return _checked(_get(row, key), key)


def _texts(row: Mapping[str, Any], key: str, *, required: bool = True) -> tuple[str, ...]:
    texts = _get(row, key) if required else row.get(key, [])
    if not isinstance(texts, list):
        raise _Wrong(f"`{key}`: expected a list of names, found {shown(texts)}")
    return tuple(_checked(text, key) for text in texts)


def _checked(value: Any, key: str) -> str:
    problem = _name_problem(value)
    if problem:
        raise _Wrong(f"`{key}`: {problem}")
    return str(value)


_NAME = TypeAdapter[str](Name)


def _name_problem(value: Any) -> str:
    if not isinstance(value, str):
        return f"expected a name, found {shown(value)}"
    if _HALF.search(value):
        return "half of a surrogate pair is no character"
    try:
        _NAME.validate_python(value)
    except ValidationError as error:
        return error.errors()[0]["msg"]
    return ""
