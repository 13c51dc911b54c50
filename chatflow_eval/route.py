"""Route patterns over agent names: parse, match, align, explain.

    A -> B            B comes next, by a transfer or by a call        A => B      A calls B and gets control back
    B?  B+  B*        skipped or not; once or more; any number        A | B       either; binds tighter than arrows
    ~A  ~(A | B)      any agent but those                             _  ...      any one agent; any number of them
    (A -> B)+         parentheses group                               "x -> y"    quotes, for names with signs in them

A pattern becomes a small program (Thompson's construction), which is run for all its alternatives at once (Pike), so
that matching is linear in the route whatever the pattern says.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from heapq import heappop, heappush
from itertools import count, product
from operator import or_
from typing import Literal, NamedTuple, NoReturn, TypeAlias

from chatflow_eval.errors import ScenarioError
from chatflow_eval.trace import Trace, TurnTrace

MAX_NESTING = 50
"""Parentheses within parentheses that a pattern may have."""

MAX_STATES = 10_000
"""States of a pattern's automaton that are remembered; more only cost time."""

MAX_REPAIRS = 4
"""Repairs that an explanation lists one by one."""

NOBODY = -1
"""The depth of the agent in control before the first visit."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One agent being given the conversation."""

    agent: str
    kind: Literal["start", "transfer", "call"]
    depth: int = 0
    """Calls around it: a start's is 0, a call's target is one deeper than its source, a transfer's is as deep."""


ARROWS = {"start": "->", "transfer": "->", "call": "=>"}
"""How the way to a visit is written."""


def route_text(visits: Sequence[Visit]) -> str:
    """A route as it is written in a scenario: `A -> B`, `A => B` for a call."""
    if not visits:
        return "(nobody)"
    return visits[0].agent + "".join(f" {ARROWS[visit.kind]} {visit.agent}" for visit in visits[1:])


def visits_of_turn(turn: TurnTrace) -> tuple[Visit, ...]:
    """The route of a turn: its start, then the target of every accepted hop."""
    return (
        Visit(turn.start_agent, "start"),
        *(Visit(hop.target, hop.kind, hop.depth) for hop in turn.accepted),
    )


def visits_of_trace(trace: Trace) -> tuple[Visit, ...]:
    """The route of a conversation: its turns' routes joined, a start merged with the equal agent before it."""
    joined: list[Visit] = []
    for turn in trace.turns:
        start, *hops = visits_of_turn(turn)
        if not joined or joined[-1].agent != start.agent:
            joined.append(start)
        joined += hops
    return tuple(joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """One place of the cheapest alignment between a route pattern and an actual route."""

    expected: str | None
    """What the pattern wants here, in its own words (`B`, `B | C`, `~A`); `None`: nothing was expected."""
    actual: str | None
    """The agent that came; `None`: nobody did."""
    ok: bool
    """False with the same name on both sides: the right agent, but not by the call that `=>` insists on."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the routes that follow a pattern have in common, among agents that are known."""

    empty: bool = False
    """Nobody at all follows it: of a part of a pattern that may be left out."""
    alone: frozenset[str] = frozenset()
    """Who follows it by handing off to nobody."""
    longer: bool = False
    """Somebody may hand off."""
    starts: frozenset[str] = frozenset()
    """Who may be the first."""
    ends: frozenset[str] = frozenset()
    """Who may be in control at the end; after a call that is the caller again."""
    enters: frozenset[str] = frozenset()
    leaves: frozenset[str] = frozenset()
    """Of `starts` and `ends`, those that the pattern names as expected."""
    hops: frozenset[tuple[str, str]] = frozenset()
    """Handoffs between agents that the pattern names as expected."""


class Mention(NamedTuple):
    """An agent's name in a pattern's text."""

    name: str
    offset: int
    length: int
    """Of the text, quotes included."""


class RouteSyntaxError(ScenarioError):
    """A route pattern that cannot be read."""

    def __init__(self, problem: str, *, offset: int = 0, item: int | None = None) -> None:
        super().__init__(problem)
        self.offset = offset
        """0-based in the pattern's text; its length where the text ends too early."""
        self.item = item
        """0-based, of the list item that `offset` counts in; `None` for a pattern that is one text."""


# The pattern as a tree. Parentheses that change nothing leave no trace in it, so that equal trees print the same.


@dataclass(frozen=True, slots=True)
class _Agents:
    """Any one agent of a set, or any one outside it."""

    names: frozenset[str]
    outside: bool
    text: str

    def accepts(self, agent: str) -> bool:
        return (agent in self.names) != self.outside

    @property
    def label(self) -> str:
        """The pattern's own words; a name alone without its quotes, so that it can be compared with an agent's."""
        return self.text if self.outside or len(self.names) > 1 else next(iter(self.names))

    def __or__(self, other: _Agents) -> _Agents:
        text = f"{self.text} | {other.text}"
        match self.outside, other.outside:
            case False, False:
                return _Agents(self.names | other.names, False, text)
            case True, True:
                return _Agents(self.names & other.names, True, text)
            case True, False:
                return _Agents(self.names - other.names, True, text)
            case _:
                return _Agents(other.names - self.names, True, text)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Any number of agents."""


@dataclass(frozen=True, slots=True)
class _Either:
    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    item: _Node
    sign: str


@dataclass(frozen=True, slots=True)
class _Steps:
    """Arrows read from left to right; each comes with what it leads to."""

    first: _Node
    rest: tuple[tuple[str, _Node], ...]


_Node: TypeAlias = _Agents | _Gap | _Either | _Repeat | _Steps

_ANYONE = _Agents(frozenset(), True, "_")
_GAP = _Agents(frozenset(), True, "...")


def _text(node: _Node) -> str:
    match node:
        case _Agents():
            return node.text
        case _Gap():
            return "..."
        case _Either():
            return " | ".join(f"({_text(item)})" if isinstance(item, _Steps) else _text(item) for item in node.options)
        case _Repeat():
            return f"{_text(node.item) if isinstance(node.item, _Agents) else f'({_text(node.item)})'}{node.sign}"
        case _Steps():
            rest = (
                f" {arrow} ({_text(x)})" if isinstance(x, _Steps) else f" {arrow} {_text(x)}" for arrow, x in node.rest
            )
            return _text(node.first) + "".join(rest)


# Reading.

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<arrow>->|=>|[→⇒])
  | (?P<gap>\.\.\.|…)
  | (?P<sign>[?+*|()~])
  | (?P<quoted>"(?:[^"\\]|\\.)*")
  | (?P<word>(?:(?!->|\.\.\.)[^\s→⇒…?+*|()~"=<>,])+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_READ_AS = {"->": "->", "→": "->", "=>": "=>", "⇒": "=>"}
_ESCAPED = re.compile(r'\\(["\\])')


_OTHER_THAN = "`~A` is any agent but A, `~(A | B)` any but those, and no other group can follow `~`"
_OTHER_QUOTES = "'\N{LEFT SINGLE QUOTATION MARK}\N{LEFT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}\xab"


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def _tokens(pattern: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(pattern):
        if found.lastgroup and found.lastgroup != "space":
            yield _Token(found.lastgroup, found.group(), *found.span())


def _objection(words: Sequence[str]) -> tuple[int, str] | None:
    """Why these words make no name without quotes, and which of them is to blame."""
    if words[0].startswith("!"):
        return 0, "a name cannot start with `!` unless it is quoted; any agent but A is written `~A`"
    if words[0][0] in _OTHER_QUOTES:
        return 0, f'names are quoted with `"`, not with `{words[0][0]}`'
    for index, word in enumerate(words):
        if not word.strip("-") or (word.endswith("-") and index == len(words) - 1):
            return index, "a name cannot end with `-` or hold one by itself unless it is quoted; the arrow is `->`"
        if word == "_" and len(words) > 1:
            return index, "`_` stands by itself for any one agent; put an arrow beside it, or quotes around the name"
        for letter in word:
            if not letter.isascii() and re.search("RIGHTWARDS.* ARROW", unicodedata.name(letter, "")):
                return index, f"`{letter}` is no arrow here; write `->`, or quotes around the name"
    return None


def _quoted(name: str) -> str:
    """The name as a pattern has it, in quotes where it needs them."""
    tokens = list(_tokens(name))
    words = [token.text for token in tokens]
    bare = all(token.kind == "word" for token in tokens) and " ".join(words) == name
    if bare and name != "_" and not _objection(words):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shown(text: str) -> str:
    return f"`{text}`" if text.isprintable() else ascii(text)


class _Parser:
    """Recursive descent over one pattern; every error says where, what was expected, and how to mend it."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.tokens = [*_tokens(pattern), _Token("end", "", len(pattern), len(pattern))]
        self.at = 0
        self.nesting = 0
        self.mentions: list[Mention] = []

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def parse(self) -> _Node:
        if len(self.tokens) == 1:
            self.fail("the pattern is empty, expected an agent's name (a list without items, `[]`, says: no handoff)")
        node = self.steps()
        if self.token.text == ")":
            self.fail("`)` closes nothing; drop it, or open a `(` before it")
        if self.token.kind != "end":
            self.unexpected("`->`, `=>` or `|`")
        return node

    def steps(self) -> _Node:
        first = self.either()
        rest: list[tuple[str, _Node]] = []
        while self.token.kind == "arrow":
            arrow = _READ_AS[self.take().text]
            rest.append((arrow, self.either()))
        if not rest:
            return first
        if isinstance(first, _Steps):
            return _Steps(first.first, (*first.rest, *rest))
        return _Steps(first, tuple(rest))

    def either(self) -> _Node:
        options = [self.repeat()]
        while self.token.text == "|":
            self.take()
            options.append(self.repeat())
        if len(options) == 1:
            return options[0]
        return _Either(tuple(part for x in options for part in (x.options if isinstance(x, _Either) else (x,))))

    def repeat(self) -> _Node:
        item = self.single()
        if self.token.text not in ("?", "+", "*"):
            return item
        if isinstance(item, _Gap):
            self.fail(
                f"`...` is any number of agents already; drop the `{self.token.text}`, or write `_` for one agent"
            )
        sign = self.take().text
        if self.token.text in ("?", "+", "*"):
            self.fail(
                f"`{self.token.text}` after `{sign}`, expected one sign at most; drop one (`*` is any number), "
                "or quote the name that they belong to"
            )
        return _Repeat(item, sign)

    def single(self) -> _Node:
        match self.token:
            case _Token("gap"):
                self.take()
                return _Gap()
            case _Token(text="~"):
                return self.other_than()
            case _Token(text="("):
                return self.group()
        return self.name("an agent")

    def group(self) -> _Node:
        opened = self.take().start
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail(f"parentheses are nested more than {MAX_NESTING} deep; split the route into turns", opened)
        node = self.steps()
        self.close(opened, "`->`, `=>`, `|` or `)`")
        self.nesting -= 1
        return node

    def other_than(self) -> _Agents:
        self.take()
        if self.token.text != "(":
            excluded = [self.excluded()]
        else:
            opened = self.take().start
            excluded = [self.excluded()]
            while self.token.text == "|":
                self.take()
                excluded.append(self.excluded())
            self.close(opened, "`|` or `)`", _OTHER_THAN)
        text = " | ".join(name.text for name in excluded)
        names = frozenset().union(*(name.names for name in excluded))
        return _Agents(names, True, f"~({text})" if len(excluded) > 1 else f"~{text}")

    def excluded(self) -> _Agents:
        start = self.token.start
        name = self.name("an agent's name", _OTHER_THAN)
        if name is _ANYONE:
            self.fail(f"`_` after `~`, expected an agent's name; {_OTHER_THAN}", start)
        return name

    def close(self, opened: int, expected: str, hint: str = "") -> None:
        if self.token.kind == "end":
            self.fail(f"`(` at character {opened + 1} is never closed, expected `)`; add it")
        if self.token.text != ")":
            self.unexpected(expected, hint)
        self.take()

    def name(self, expected: str, hint: str = "") -> _Agents:
        """One agent, whose name is one pair of quotes or a run of words; or any agent, for `_`."""
        if self.token.kind not in ("word", "quoted"):
            self.unexpected(expected, hint)
        first = last = self.take()
        if first.kind == "quoted":
            name = _ESCAPED.sub(r"\1", first.text[1:-1])
            if not name:
                self.fail('`""` names no agent, expected a name between the quotes', first.start)
            text = _quoted(name)
        else:
            words = [first]
            while self.token.kind == "word":
                words.append(last := self.take())
            objection = _objection([word.text for word in words])
            if objection:
                self.fail(objection[1], words[objection[0]].start)
            name = text = " ".join(word.text for word in words)
            if name == _ANYONE.text:
                return _ANYONE
        self.mentions.append(Mention(name, first.start, last.end - first.start))
        return _Agents(frozenset([name]), False, text)

    def take(self) -> _Token:
        token = self.token
        self.at += 1
        return token

    def unexpected(self, expected: str, hint: str = "") -> NoReturn:
        """Fail at the token that is there instead of what was expected."""
        before = _shown(self.tokens[self.at - 1].text) if self.at else ""
        place = f"after {before}" if before else "at the start"
        match self.token:
            case _Token("end"):
                self.fail(f"the pattern ends {place}, expected {expected}; {hint or f'add it, or drop the {before}'}")
            case _Token(text='"'):
                self.fail(
                    r'a quoted name begins here and never ends, expected `"`; add it (`\"` is a quote in the name)'
                )
            case _Token(text="=" | "<" | ">"):
                hint = f"the arrows are `->` and `=>`; a name with `{self.token.text}` in it needs quotes"
            case _Token(text=","):
                hint = "agents in order are written `A -> B`; a name with a comma in it needs quotes"
            case _Token("word" | "quoted" | "gap") | _Token(text="(" | "~"):
                hint = hint or "put an arrow between the two, or quotes around a name that has signs in it"
            case _:
                hint = hint or ("drop one of the two, or put an agent between them" if before else "drop it")
        self.fail(f"{_shown(self.token.text)} {place}, expected {expected}; {hint}")

    def fail(self, problem: str, offset: int | None = None) -> NoReturn:
        offset = self.token.start if offset is None else offset
        shown = self.pattern if len(self.pattern) <= 80 else self.pattern[:77] + "..."
        raise RouteSyntaxError(f"route {shown!r}, character {offset + 1}: {problem}", offset=offset)


# What follows a pattern.


def _reach(node: _Node, agents: frozenset[str]) -> Reach:
    match node:
        case _Agents():
            accepted = frozenset(agent for agent in agents if node.accepts(agent))
            named = frozenset() if node.outside else node.names
            return Reach(alone=accepted, starts=accepted, ends=accepted, enters=named, leaves=named)
        case _Gap():
            return Reach(empty=True, alone=agents, longer=True, starts=agents, ends=agents)
        case _Either():
            return reduce(_or, (_reach(option, agents) for option in node.options))
        case _Repeat(item, sign):
            once = _reach(item, agents)
            often = once if sign == "?" else _then(once, once, call=False)
            return replace(often, empty=once.empty or sign != "+", alone=once.alone)
        case _Steps():
            done = _reach(node.first, agents)
            for arrow, item in node.rest:
                done = _then(done, _reach(item, agents), call=arrow == "=>")
            return done


def _or(one: Reach, other: Reach) -> Reach:
    return Reach(*(getattr(one, each.name) | getattr(other, each.name) for each in fields(Reach)))


def _then(done: Reach, item: Reach, *, call: bool) -> Reach:
    """A part and another one after it; a call gives control back."""
    none: frozenset[str] = frozenset()
    return Reach(
        empty=done.empty and item.empty,
        alone=(done.alone if item.empty else none) | (item.alone if done.empty else none),
        longer=done.longer or item.longer or bool(done.alone and item.alone),
        starts=done.starts | (item.starts if done.empty else none),
        ends=done.ends if call else item.ends | (done.ends if item.empty else none),
        enters=done.enters | (item.enters if done.empty else none),
        leaves=done.leaves if call else item.leaves | (done.leaves if item.empty else none),
        hops=done.hops | item.hops | frozenset(product(done.leaves, item.enters)),
    )


# Running.


@dataclass(frozen=True, slots=True)
class _Op:
    """One instruction: what it does, whom it takes, and where it leads."""

    does: Literal["take", "fork", "call", "back", "end"]
    to: tuple[int, ...] = ()
    agents: _Agents | None = None


class _Thread(NamedTuple):
    """One way of having read the visits so far."""

    at: int
    """The instruction it has come to."""
    control: tuple[int, ...]
    """Depths: of the agent in control, last; before it, of those who wait for a call to come back, outermost first."""
    calling: int
    """How many calls were begun since the last visit: the next visit must be a call by the agent in control."""


def _program(root: _Node) -> tuple[tuple[_Op, ...], int]:
    """The instructions of a pattern, and the first of them; built from its end, so that each knows what follows."""
    ops: list[_Op] = [_Op("end")]

    def add(op: _Op) -> int:
        ops.append(op)
        return len(ops) - 1

    def loop(item: _Node, after: int) -> tuple[int, int]:
        """The fork that enters the item again or goes on, and the item's first instruction."""
        fork = add(_Op("fork"))
        entry = build(item, fork)
        ops[fork] = _Op("fork", (entry, after))
        return fork, entry

    def build(node: _Node, after: int) -> int:
        match node:
            case _Agents():
                return add(_Op("take", (after,), node))
            case _Gap():
                fork = add(_Op("fork"))
                ops[fork] = _Op("fork", (after, add(_Op("take", (fork,), _GAP))))
                return fork
            case _Either():
                sets = [option for option in node.options if isinstance(option, _Agents)]
                if len(sets) == len(node.options):
                    return build(reduce(or_, sets), after)
                return add(_Op("fork", tuple(build(option, after) for option in node.options)))
            case _Repeat(item, "?"):
                return add(_Op("fork", (build(item, after), after)))
            case _Repeat(item, "*"):
                return loop(item, after)[0]
            case _Repeat(item):
                return loop(item, after)[1]
            case _Steps():
                for arrow, item in reversed(node.rest):
                    if arrow == "->":
                        after = build(item, after)
                    else:
                        after = add(_Op("call", (build(item, add(_Op("back", (after,)))),)))
                return build(node.first, after)

    start = build(root, 0)
    return tuple(ops), start


def _onward(op: _Op, thread: _Thread) -> list[_Thread]:
    """Where an instruction leads that needs no visit."""
    _, control, calling = thread
    if op.does == "call":
        control, calling = (*control, control[-1]), calling + 1
    elif op.does == "back":
        control, calling = control[:-1], max(calling - 1, 0)
    return [_Thread(at, control, calling) for at in op.to]


def _taken(op: _Op, thread: _Thread, visit: Visit) -> _Thread:
    """Where an instruction leads that took the visit."""
    return _Thread(op.to[0], (*thread.control[:-1], visit.depth), 0)


def _admits(thread: _Thread, visit: Visit, *, first: bool) -> bool:
    """Whether the visit came the way that the thread wants: by the call it is about to see, within the one it is in."""
    if thread.calling and not first:
        return visit.kind == "call" and visit.depth == thread.control[-1] + 1
    return len(thread.control) == 1 or visit.depth > thread.control[-2]


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Every way of having read some visits, each of them waiting to take one more, or at the end."""

    threads: tuple[_Thread, ...]
    ends: bool
    after: dict[tuple[str | None, bool, int], _State] = field(default_factory=dict)
    """What each next visit led to: its agent (`None`: one the pattern does not name), whether a call, and its depth."""


class _Automaton:
    """A pattern's instructions, and the states that routes have led to so far (a lazy deterministic automaton)."""

    def __init__(self, root: _Node, names: frozenset[str]) -> None:
        self.names = names
        self.ops, entry = _program(root)
        self.start = _Thread(entry, (NOBODY,), 0)
        self.states: dict[tuple[_Thread, ...], _State] = {}
        self.first = self.at(self.settled([self.start]))
        """Kept apart: a route may come to the same threads again, but only its first visit needs no caller."""

    def state(self, visits: Iterable[Visit]) -> _State:
        """Where these visits lead."""
        if len(self.states) > MAX_STATES:
            self.states.clear()
            self.first.after.clear()
        state = self.first
        for visit in visits:
            key = (visit.agent if visit.agent in self.names else None, visit.kind == "call", visit.depth)
            known = state.after.get(key)
            if known is None:
                threads = self.settled(self.taken(state.threads, visit, first=state is self.first))
                known = state.after[key] = self.states.setdefault(threads, self.at(threads))
            state = known
        return state

    def taken(self, threads: Iterable[_Thread], visit: Visit, *, first: bool) -> list[_Thread]:
        """What becomes of the threads that can take the visit."""
        return [
            _taken(op, thread, visit)
            for thread in threads
            if (op := self.ops[thread.at]).agents is not None
            and op.agents.accepts(visit.agent)
            and _admits(thread, visit, first=first)
        ]

    def settled(self, threads: Sequence[_Thread]) -> tuple[_Thread, ...]:
        """The threads after every instruction that needs no visit, in the pattern's order."""
        seen: set[_Thread] = set()
        settled: list[_Thread] = []
        pending = [*reversed(threads)]
        while pending:
            thread = pending.pop()
            if thread in seen:
                continue
            seen.add(thread)
            op = self.ops[thread.at]
            if op.does in ("take", "end"):
                settled.append(thread)
            else:
                pending += reversed(_onward(op, thread))
        return tuple(settled)

    def at(self, threads: tuple[_Thread, ...]) -> _State:
        return _State(threads, any(self.ops[thread.at].does == "end" for thread in threads))


@dataclass(frozen=True, eq=False, repr=False)
class Route:
    """A pattern over the agents that are given the conversation; immutable, equal to every other that reads the same.

    Raises `RouteSyntaxError`.
    """

    pattern: str
    """As it was written."""
    name_offsets: tuple[Mention, ...] = field(init=False)
    """Every name in the pattern, from left to right, with its place in the text."""
    _root: _Node = field(init=False)

    def __post_init__(self) -> None:
        parser = _Parser(self.pattern)
        object.__setattr__(self, "_root", parser.parse())
        object.__setattr__(self, "name_offsets", tuple(parser.mentions))

    @classmethod
    def parse(cls, value: str | Sequence[str]) -> Route:
        """A pattern as text, or as a list of agents in order; one without items is any agent who hands nothing off.

        Raises `RouteSyntaxError`; for a list, with the item that it is about.
        """
        if isinstance(value, str):
            return cls(value)
        for index, item in enumerate(value):
            arrow = next((token for token in _tokens(item) if token.kind == "arrow"), None)
            if arrow:
                raise RouteSyntaxError(
                    f"item {index + 1} of the list, {item!r}, has an arrow, expected one agent, as a list is in order "
                    "already; make it two items, or write the whole route as one text (a name with an arrow is quoted)",
                    offset=arrow.start,
                    item=index,
                )
            try:
                cls(item)
            except RouteSyntaxError as error:
                problem = f"item {index + 1} of the list: {error.problem}"
                raise RouteSyntaxError(problem, offset=error.offset, item=index) from None
        return cls(" -> ".join(value) or _ANYONE.text)

    def __str__(self) -> str:
        return _text(self._root)

    def __repr__(self) -> str:
        return f"Route({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._root == other._root if isinstance(other, Route) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[Route], tuple[str]]:
        return Route, (self.pattern,)

    @property
    def names(self) -> frozenset[str]:
        """Every agent that the pattern mentions, those it excludes included."""
        return frozenset(mention.name for mention in self.name_offsets)

    def match(self, visits: Sequence[Visit]) -> bool:
        """Whether the whole route follows the pattern; linear in the route."""
        if self._literal is not None:
            return self._literal == tuple([visit.agent for visit in visits])
        return self._automaton.state(visits).ends

    def align(self, visits: Sequence[Visit]) -> tuple[Aligned, ...]:
        """The cheapest alignment of the route with the pattern: every place `ok` if and only if it matches.

        A wrong agent in place of the expected one, one too many and one missing cost the same; of equally cheap
        alignments, the one with the fewest too many or missing is taken, and of those the one that has them latest.
        """
        if self._literal is not None and self.match(visits):
            return tuple(Aligned(expected=visit.agent, actual=visit.agent, ok=True) for visit in visits)
        ops = self._automaton.ops
        reached: dict[_Reading, _Link | None] = {}
        order = count()
        ahead: list[tuple[_Cost, int, _Reading, _Link | None]] = []

        def reach(reading: _Reading, cost: _Cost, link: _Link | None) -> None:
            if reading not in reached:
                heappush(ahead, (cost, next(order), reading, link))

        reach((0, self._automaton.start), (0, 0, 0), None)
        while True:
            cost, _, reading, link = heappop(ahead)
            if reading in reached:
                continue
            reached[reading] = link
            done, thread = reading
            op = ops[thread.at]
            if op.does not in ("take", "end"):
                for onward in _onward(op, thread):
                    reach((done, onward), cost, (reading, None))
                continue
            edits, moves, shifted = cost[0] + 1, cost[1] + 1, cost[2] + len(visits) - done
            visit = visits[done] if done < len(visits) else None
            if visit is not None:
                surplus = Aligned(expected=None, actual=visit.agent, ok=False)
                reach((done + 1, thread), (edits, moves, shifted), (reading, surplus))
            elif op.does == "end":
                return _places(reached, reading)
            if op.agents is not None:
                missing = Aligned(expected=op.agents.label, actual=None, ok=False)
                reach((done, thread._replace(at=op.to[0])), (edits, moves, shifted), (reading, missing))
                if visit is not None:
                    ok = op.agents.accepts(visit.agent) and _admits(thread, visit, first=done == 0)
                    place = Aligned(expected=op.agents.label, actual=visit.agent, ok=ok)
                    taken = done + 1, _taken(op, thread, visit)
                    reach(taken, cost if ok else (edits, *cost[1:]), (reading, place))

    def explain(self, visits: Sequence[Visit]) -> str:
        """Where the route left the pattern, what was expected there and what came; then what to add and to drop."""
        places = self.align(visits)
        wrong = next((index for index, place in enumerate(places) if not place.ok), None)
        if wrong is None:
            return "The route follows the pattern."
        done = sum(place.actual is not None for place in places[:wrong])
        before, coming = visits[:done], visits[done : done + 1]
        threads = self._automaton.state(before).threads
        if coming and self._automaton.taken(threads, coming[0], first=not before):
            # The pattern could have gone on, only to end worse: what should have come instead, the alignment knows.
            wanted = [_spoken(place.expected) for place in places[wrong:] if place.expected is not None][:1]
        else:
            wanted = [_want(self._automaton.ops[thread.at].agents, thread, before, coming) for thread in threads]
        where = f"after {before[-1].agent}" if before else "at the start"
        what = f"{where[0].upper()}{where[1:]}, {_came(before, coming[0])}" if coming else f"The route ended {where}"
        return f"{what}, where {_listed(wanted)} was expected. To follow the pattern: {_repairs(places)}."

    def reach(self, agents: Iterable[str]) -> Reach:
        """What routes over these agents, and those that the pattern names, follow the pattern."""
        return _reach(self._root, self.names.union(agents))

    @cached_property
    def _automaton(self) -> _Automaton:
        return _Automaton(self._root, self.names)

    @cached_property
    def _literal(self) -> tuple[str, ...] | None:
        """The agents of a pattern that is nothing but names and `->`."""
        steps = self._root if isinstance(self._root, _Steps) else _Steps(self._root, ())
        names: list[str] = []
        for arrow, item in (("->", steps.first), *steps.rest):
            if arrow != "->" or not isinstance(item, _Agents) or item.outside:
                return None
            names += item.names
        return tuple(names)


_Reading: TypeAlias = tuple[int, _Thread]
"""How many visits were read, and a way of having read them."""
_Link: TypeAlias = tuple[_Reading, Aligned | None]
"""The reading before, and the place of the alignment between the two."""
_Cost: TypeAlias = tuple[int, int, int]
"""Of an alignment: places that are not ok; those of them with one too many or missing; visits that follow these."""


def _places(reached: Mapping[_Reading, _Link | None], last: _Reading) -> tuple[Aligned, ...]:
    """The alignment that led to the last reading."""
    places: list[Aligned] = []
    link = reached[last]
    while link is not None:
        before, place = link
        if place is not None:
            places.append(place)
        link = reached[before]
    return tuple(reversed(places))


# Explaining.


def _want(agents: _Agents | None, thread: _Thread, before: Sequence[Visit], coming: Sequence[Visit]) -> str:
    """What the thread waits for, in words."""
    if agents is None:
        return "the end"
    name = _spoken(agents.label)
    if thread.calling and before:
        return f"a call of {name} by {_in_control(before, thread.control[-1])}"
    if any(agents.accepts(visit.agent) for visit in coming):
        return f"{name} within the call by {_in_control(before, thread.control[-2])}"
    return name


def _came(before: Sequence[Visit], visit: Visit) -> str:
    if visit.kind == "call":
        return f"{_in_control(before, visit.depth - 1)} called {visit.agent}"
    return f"{visit.agent} came"


def _in_control(before: Sequence[Visit], depth: int) -> str:
    """Who answers at that depth after these visits."""
    return next((visit.agent for visit in reversed(before) if visit.depth == depth), "nobody")


def _repairs(places: Iterable[Aligned]) -> str:
    repairs: list[str] = []
    before = ""
    for place in places:
        expected = _spoken(place.expected or "")
        if place.ok:
            before = place.actual or ""
            continue
        if place.expected is None:
            repairs.append(f"drop {place.actual}")
            continue
        if place.actual is None:
            repairs.append(f"add {expected} after {before}" if before else f"begin with {expected}")
        elif place.actual == place.expected:
            repairs.append(f"reach {expected} by that call")
        else:
            repairs.append(f"put {expected} in place of {place.actual}")
        before = expected
    shown = repairs if len(repairs) <= MAX_REPAIRS else [*repairs[:MAX_REPAIRS], f"{len(repairs) - MAX_REPAIRS} more"]
    return ", ".join(shown)


def _listed(items: Iterable[str]) -> str:
    """Each item once, with commas and `or`; `the end` where there is none."""
    *most, last = dict.fromkeys(items) or ["the end"]
    return f"{', '.join(most)} or {last}" if most else last


def _spoken(label: str) -> str:
    return "any agent" if label in (_ANYONE.text, _GAP.text) else label
