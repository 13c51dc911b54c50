"""Outcomes to rows: what is counted of each trial, turn, handoff and model call, as they stream by."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import pandas as pd

from chatflow_eval.checks import Verdict
from chatflow_eval.demand import ASKS, Demand
from chatflow_eval.incidents import KINDS
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.route import Route, Visit
from chatflow_eval.trace import Hop, HopKind, ModelStep, Topology, TurnTrace

STATUSES: tuple[Status, ...] = ("passed", "failed", "errored", "skipped")
ROUTING_CHECKS = frozenset({"route", "stay", "starts_at", "ends_at"})

DecisionEnd: TypeAlias = Literal["agent", "stayed", "none", "error"]
ENDS: tuple[DecisionEnd, ...] = get_args(DecisionEnd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What went along one edge of one target's graph, beside what was expected to."""

    source: str
    target: str
    """The agent; the pattern's words where several were accepted, and none of them came."""
    declared: tuple[HopKind, ...]
    """How the target declares it; not at all: it does not."""
    transfers: int
    """Handoffs that happened, in turns judged for their route and in others."""
    calls: int
    refused: int
    """Handoffs that were tried and refused."""
    wanted: int
    """Handoffs that were expected, in turns with a route or stay check that were reached and did not error."""
    made: int
    """Handoffs that happened in these turns."""
    right: int
    """Those that were both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What of one target's graph the suite expects by name, and what happened."""

    target: str
    files: tuple[str, ...]
    """The scenario files that test it."""
    starts: tuple[str, ...]
    """The agents that conversations start at."""
    agents: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    agents_expected: tuple[str, ...]
    agents_exercised: tuple[str, ...]
    edges_expected: tuple[tuple[str, str], ...]
    edges_exercised: tuple[tuple[str, str], ...]
    visits: dict[str, int]
    """Agent to how often it had the conversation: at the start of a turn, or by a handoff."""
    traffic: tuple[Traffic, ...]
    """Of every edge that is declared, expected or tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The rows behind the numbers, those of yardsticks included; texts are categories."""

    trials: pd.DataFrame
    """One row a trial: file, scenario, target, model, repeat, status, replayed, seconds, baseline, tags (their place in
    `tuples`); `cluster` numbers scenarios, `unit` scenarios on one model."""
    turns: pd.DataFrame
    """One row a turn with a routing check: judged, right, errored, unreached, fresh (the one before was right), asks
    (its place in `ASKS`), unmoved, ends (their place in `tuples`)."""
    hops: pd.DataFrame
    """One row a place of an alignment after the start: wanted, made, ok, and the agents before and at the place."""
    calls: pd.DataFrame
    """One row a model call: agent, model, tokens (-1: unknown), seconds (NaN: unknown), off the route (-1: unknown),
    replayed, source (who handed off to the agent, if anybody did in the turn), visit (numbers the handoffs of the
    trial, starts of turns included)."""
    incidents: pd.DataFrame
    """One row an incident: its kind as its place in `incidents.KINDS`."""
    switches: pd.DataFrame
    """One row a boundary between two turns: whether the agent changed, and was to change (-1: unknown)."""
    bounces: pd.DataFrame
    """One row three turns in a row: whether they bounced, and were to (-1: unknown)."""
    tuples: tuple[tuple[str, ...], ...]
    answering: frozenset[str]
    """Names of the models that gave answers."""
    coverage: tuple[Coverage, ...]


@dataclass(slots=True)
class _Table:
    """Growing columns of numbers."""

    columns: dict[str, array[float]]

    @classmethod
    def of(cls, **types: str) -> _Table:
        return cls({name: array(code) for name, code in types.items()})

    def add(self, *values: float) -> None:
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame({name: np.array(column) for name, column in self.columns.items()})


_Edge: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Covered:
    """What is covered of one graph so far."""

    files: set[str] = field(default_factory=set)
    starts: set[str] = field(default_factory=set)
    declared: dict[_Edge, set[HopKind]] = field(default_factory=dict)
    agents_expected: set[str] = field(default_factory=set)
    edges_expected: set[_Edge] = field(default_factory=set)
    visits: Counter[str] = field(default_factory=Counter)
    transfers: Counter[_Edge] = field(default_factory=Counter)
    calls: Counter[_Edge] = field(default_factory=Counter)
    refused: Counter[_Edge] = field(default_factory=Counter)
    wanted: Counter[_Edge] = field(default_factory=Counter)
    made: Counter[_Edge] = field(default_factory=Counter)
    right: Counter[_Edge] = field(default_factory=Counter)

    def add(self, outcome: Outcome, topology: Topology, turns: Sequence[TurnTrace], decisions: Iterable[Place]) -> None:
        self.files.add(outcome.file)
        self.starts.add(topology.start)
        for edge in topology.edges:
            self.declared.setdefault((edge.source, edge.target), set()).add(edge.kind)
        for demand in outcome.demands:
            self.agents_expected.update(demand.agents)
            self.edges_expected.update(demand.hops)
        for turn in turns:
            self.visits[turn.start_agent] += 1
            for hop in turn.hops:
                tried = self.refused if not hop.accepted else self.calls if hop.kind == "call" else self.transfers
                tried[hop.source, hop.target] += 1
                self.visits[hop.target] += hop.accepted
        for place in decisions:
            if place.wanted and place.source_expected is not None and place.expected is not None:
                self.wanted[place.source_expected, place.expected] += 1
            if place.made and place.source is not None and place.actual is not None:
                self.made[place.source, place.actual] += 1
                self.right[place.source, place.actual] += place.ok and place.source == place.source_expected

    def coverage(self, target: str, agents: tuple[str, ...], edges: tuple[_Edge, ...]) -> Coverage:
        exercised = {*self.transfers, *self.calls}
        counted = (self.edges_expected, self.wanted, self.made, self.transfers, self.calls, self.refused)
        others = sorted({edge for each in counted for edge in each}.difference(edges))
        return Coverage(
            target=target,
            files=tuple(sorted(self.files)),
            starts=tuple(sorted(self.starts)),
            agents=agents,
            edges=edges,
            agents_expected=tuple(agent for agent in agents if agent in self.agents_expected),
            agents_exercised=tuple(agent for agent in agents if self.visits[agent]),
            edges_expected=tuple(edge for edge in edges if edge in self.edges_expected),
            edges_exercised=tuple(edge for edge in edges if edge in exercised),
            visits=dict(sorted((agent, count) for agent, count in self.visits.items() if count)),
            traffic=tuple(
                Traffic(
                    source=edge[0],
                    target=edge[1],
                    declared=tuple(sorted(self.declared.get(edge, ()), reverse=True)),
                    transfers=self.transfers[edge],
                    calls=self.calls[edge],
                    refused=self.refused[edge],
                    wanted=self.wanted[edge],
                    made=self.made[edge],
                    right=self.right[edge],
                )
                for edge in (*edges, *others)
            ),
        )


_Graph: TypeAlias = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""A target's name, its agents and its edges."""


def _graph(target: str, topology: Topology) -> _Graph:
    return target, topology.agents, tuple(dict.fromkeys((edge.source, edge.target) for edge in topology.edges))


@dataclass(slots=True)
class Tally:
    """Outcomes counted as they stream by; keeps numbers in columns, and no trace."""

    unexpected: array[int] = field(default_factory=lambda: array("I"))
    """Which outcomes are not as expected, by their place."""
    with_incidents: array[int] = field(default_factory=lambda: array("I"))
    """Which outcomes have incidents, by their place."""
    _texts: dict[str, int] = field(default_factory=dict)
    _tuples: dict[tuple[str, ...], int] = field(default_factory=dict)
    _trials: _Table = field(
        default_factory=lambda: _Table.of(
            file="i",
            scenario="i",
            target="i",
            model="i",
            repeat="i",
            status="b",
            replayed="b",
            seconds="d",
            baseline="b",
            line="i",
            tags="i",
        )
    )
    _turns: _Table = field(
        default_factory=lambda: _Table.of(
            trial="i", judged="b", right="b", errored="b", unreached="b", fresh="b", asks="b", unmoved="b", ends="i"
        )
    )
    _hops: _Table = field(
        default_factory=lambda: _Table.of(
            trial="i", wanted="b", made="b", ok="b", source_expected="i", source="i", expected="i", actual="i", end="b"
        )
    )
    _calls: _Table = field(
        default_factory=lambda: _Table.of(
            trial="i",
            agent="i",
            model="i",
            input="q",
            output="q",
            seconds="d",
            off="b",
            replayed="b",
            source="i",
            visit="i",
        )
    )
    _incidents: _Table = field(default_factory=lambda: _Table.of(trial="i", kind="b"))
    _switches: _Table = field(default_factory=lambda: _Table.of(trial="i", seen="b", wanted="b"))
    _bounces: _Table = field(default_factory=lambda: _Table.of(trial="i", seen="b", wanted="b"))
    _answering: set[str] = field(default_factory=set)
    _covered: dict[_Graph, _Covered] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        trial = len(self._trials)
        self._trials.add(
            *(self._code(text) for text in (outcome.file, outcome.scenario, outcome.target, outcome.model)),
            outcome.repeat,
            STATUSES.index(outcome.status),
            outcome.replayed,
            outcome.seconds,
            outcome.baseline,
            outcome.line,
            self._place(outcome.tags),
        )
        if not outcome.ok:
            self.unexpected.append(trial)
        if outcome.incidents and not outcome.baseline:
            self.with_incidents.append(trial)
        if outcome.status == "skipped":
            return
        self._add_turns(trial, outcome)
        decisions = list(places(outcome))
        for place in decisions:
            self._hops.add(
                trial,
                place.wanted,
                place.made,
                place.ok,
                *(self._code(name) for name in (place.source_expected, place.source, place.expected, place.actual)),
                ENDS.index(place.end),
            )
        for incident in outcome.incidents:
            self._incidents.add(trial, KINDS.index(incident.kind))
        for step, off, source, visit in _model_calls(outcome):
            self._calls.add(
                trial,
                self._code(step.agent),
                self._code(step.model),
                -1 if step.input_tokens is None else step.input_tokens,
                -1 if step.output_tokens is None else step.output_tokens,
                float("nan") if step.seconds is None else step.seconds,
                off,
                outcome.replayed,
                self._code(source),
                visit,
            )
            self._answering.add(step.model)
        answered, may = _answerers(outcome)
        for first, second in zip(pairwise(answered), pairwise(may), strict=True):
            self._switches.add(trial, _changed(*first), _disjoint(*second))
        for one, other in zip(_triples(answered), _triples(may), strict=True):
            self._bounces.add(trial, _bounced(*one), _to_bounce(*other))
        if outcome.trace is not None and not outcome.baseline:
            graph = _graph(outcome.target, outcome.trace.topology)
            covered = self._covered.setdefault(graph, _Covered())
            covered.add(outcome, outcome.trace.topology, outcome.trace.turns, decisions)

    def frames(self) -> Frames:
        """The rows counted so far."""
        trials, turns, hops, calls = (table.frame() for table in (self._trials, self._turns, self._hops, self._calls))
        incidents, switches, bounces = (table.frame() for table in (self._incidents, self._switches, self._bounces))
        trials["cluster"] = trials.groupby(["file", "scenario"]).ngroup()
        trials["unit"] = trials.groupby(["file", "scenario", "target", "model"], sort=False).ngroup()
        for rows in (turns, hops, calls, switches, bounces):
            rows["cluster"] = trials["cluster"].to_numpy()[rows["trial"].to_numpy()]
        texts = pd.Index(list(self._texts), dtype="str")
        for rows, names in ((trials, _TRIAL_TEXTS), (hops, _HOP_TEXTS), (calls, _CALL_TEXTS)):
            for name in names:
                rows[name] = pd.Categorical.from_codes(rows[name].to_numpy(), categories=texts)
        return Frames(
            trials=trials,
            turns=turns,
            hops=hops,
            calls=calls,
            incidents=incidents,
            switches=switches,
            bounces=bounces,
            tuples=tuple(self._tuples),
            answering=frozenset(self._answering),
            coverage=tuple(
                covered.coverage(target, agents, edges)
                for (target, agents, edges), covered in sorted(self._covered.items(), key=lambda item: item[0])
            ),
        )

    def _add_turns(self, trial: int, outcome: Outcome) -> None:
        fresh = True
        demands = {demand.turn: demand for demand in outcome.demands}
        for turn in judged_turns(outcome):
            demand = demands.get(turn.number, _NO_DEMAND)
            self._turns.add(
                trial,
                turn.judged,
                turn.right,
                turn.errored,
                turn.unreached,
                fresh,
                -1 if demand.asks is None else ASKS.index(demand.asks),
                -1 if demand.asks is None else demand.unmoved,
                self._place(demand.ends),
            )
            fresh = turn.right if turn.judged else fresh

    def _code(self, text: str | None) -> int:
        return -1 if text is None else self._texts.setdefault(text, len(self._texts))

    def _place(self, texts: tuple[str, ...]) -> int:
        return self._tuples.setdefault(texts, len(self._tuples))


_NO_DEMAND = Demand(turn=None)


class JudgedTurn(NamedTuple):
    """What came of one turn that is judged for routing."""

    number: int
    """Counts from 1."""
    judged: bool
    right: bool
    errored: bool
    unreached: bool
    """An error kept it from being reached."""


def judged_turns(outcome: Outcome) -> Iterator[JudgedTurn]:
    """The turns with a routing check, in order: right when every such check passed."""
    for turn, verdicts in _routing_verdicts(outcome).items():
        unjudged = not verdicts or any(verdict.status == "skipped" for verdict in verdicts)
        lost = outcome.status == "errored" and turn >= _failed_turn(outcome) and unjudged
        judged = not lost and any(verdict.status != "skipped" for verdict in verdicts)
        errored = lost and turn == _failed_turn(outcome)
        right = judged and all(verdict.status != "failed" for verdict in verdicts)
        yield JudgedTurn(turn, judged, right, errored, lost and not errored)


_TRIAL_TEXTS = ("file", "scenario", "target", "model")
_HOP_TEXTS = ("source_expected", "source", "expected", "actual")
_CALL_TEXTS = ("agent", "model", "source")


class _Call(NamedTuple):
    """One model call, and where on the route it was made."""

    step: ModelStep
    off: int
    """Whether its agent was off the route: 1, 0, or -1 where no route was expected."""
    source: str | None
    """Who handed the conversation to its agent; `None`: it had it when the turn started."""
    visit: int
    """Counts the trial's handoffs and starts of turns; calls of one visit share it."""


def _model_calls(outcome: Outcome) -> Iterator[_Call]:
    """Every model call."""
    alignments = {
        verdict.turn: verdict.alignment
        for verdict in outcome.verdicts
        if verdict.turn is not None and verdict.check in ("route", "stay") and verdict.status != "skipped"
    }
    before = 0
    for number, turn in enumerate(outcome.trace.turns if outcome.trace else (), 1):
        came = [place.ok for place in alignments.get(number, ()) if place.actual is not None]
        visited, sources = [turn.start_agent], [None, *(hop.source for hop in turn.accepted)]
        for step in turn.steps:
            if isinstance(step, Hop) and step.accepted:
                visited.append(step.target)
            elif isinstance(step, ModelStep):
                visit = _visit_of(step.agent, visited)
                off = -1 if not came else 0 if came[visit] else 1
                yield _Call(step, off, sources[visit] if visited[visit] == step.agent else None, before + visit)
        before += len(sources)


def _visit_of(agent: str, visited: Sequence[str]) -> int:
    """The last visit of the agent, as control comes back from calls; the last of all where it had none."""
    last = len(visited) - 1
    return next((index for index in range(last, -1, -1) if visited[index] == agent), last)


def _answerers(outcome: Outcome) -> tuple[list[str | None], list[tuple[str, ...]]]:
    """Turn by turn: who replied (`None`: nobody), and who may have, as far as the expectations say."""
    answered = [
        turn.end_agent if turn.failure is None else None for turn in (outcome.trace.turns if outcome.trace else ())
    ]
    may = [demand.ends for demand in outcome.demands if demand.turn is not None]
    turns = max(len(answered), len(may))
    return answered + [None] * (turns - len(answered)), may + [()] * (turns - len(may))


_T = TypeVar("_T")


def _triples(items: Sequence[_T]) -> Iterator[tuple[_T, _T, _T]]:
    return zip(items, items[1:], items[2:], strict=False)


def _changed(one: str | None, other: str | None) -> int:
    return -1 if one is None or other is None else one != other


def _disjoint(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return -1 if not one or not other else set(one).isdisjoint(other)


def _bounced(one: str | None, between: str | None, other: str | None) -> int:
    return -1 if one is None or between is None or other is None else one == other != between


def _to_bounce(one: tuple[str, ...], between: tuple[str, ...], other: tuple[str, ...]) -> int:
    if not one or not between or not other:
        return -1
    return not set(one).isdisjoint(other) and set(between).isdisjoint({*one, *other})


def _failed_turn(outcome: Outcome) -> int:
    """The turn an errored trial stopped in: the first, when it stopped before any."""
    return outcome.failed_turn or 1


def _routing_verdicts(outcome: Outcome) -> dict[int, list[Verdict]]:
    """The routing verdicts of each turn that has any.

    A trial that errored before anything was judged has none: then every turn that it did not get through counts.
    """
    if outcome.status == "errored" and not outcome.verdicts:
        return {turn: [] for turn in range(_failed_turn(outcome), len(outcome.users) + 1)}
    turns: dict[int, list[Verdict]] = {}
    for verdict in outcome.verdicts:
        if verdict.turn is not None and verdict.check in ROUTING_CHECKS:
            turns.setdefault(verdict.turn, []).append(verdict)
    return dict(sorted(turns.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place of an alignment: was a hop to somebody wanted here, was one made, and between whom."""

    wanted: bool = False
    made: bool = False
    ok: bool = False
    source_expected: str | None = None
    source: str | None = None
    expected: str | None = None
    actual: str | None = None
    end: DecisionEnd = "agent"


def places(outcome: Outcome) -> Iterator[Place]:
    """The decisions of every turn: from route and stay checks; else from ends_at; else those of the conversation."""
    by_turn = _routing_verdicts(outcome)
    aligned = False
    for turn, verdicts in by_turn.items():
        alignments = [verdict for verdict in verdicts if verdict.check in ("route", "stay")]
        aligned |= bool(alignments)
        for verdict in alignments[:1] or [verdict for verdict in verdicts if verdict.check == "ends_at"][:1]:
            if verdict.status == "skipped":
                if outcome.status == "errored" and turn == _failed_turn(outcome):
                    yield from (Place(expected=agent, end="error") for agent in _wanted(outcome, turn, verdict))
            elif verdict.check == "ends_at":
                yield _ending(outcome, turn, verdict)
            else:
                yield from _aligned_places(outcome, verdict)
    if not aligned:
        for verdict in outcome.verdicts:
            if verdict.turn is None and verdict.check == "route" and verdict.status != "skipped":
                yield from _aligned_places(outcome, verdict)


def _aligned_places(outcome: Outcome, verdict: Verdict) -> Iterator[Place]:
    alignment = verdict.alignment
    hops = next((demand.hops for demand in outcome.demands if demand.turn == verdict.turn), ())
    sources = iter(_sources(outcome, verdict))
    expected_before = actual_before = None
    decided, ok_before = False, False
    last_actual = max((index for index, item in enumerate(alignment) if item.actual is not None), default=-1)
    for index, item in enumerate(alignment):
        expected = item.actual if item.ok else item.expected
        wanted = expected is not None and expected_before is not None
        made = item.actual is not None and actual_before is not None
        source = (next(sources, None) if item.actual is not None else None) or actual_before
        if wanted or made:
            decided = True
            named = {start for start, end in hops if end == expected}
            yield Place(
                wanted=wanted,
                made=made,
                ok=wanted and made and item.ok,
                source_expected=source
                if made and item.ok and ok_before
                else named.pop()
                if len(named) == 1
                else expected_before,
                source=source,
                expected=expected,
                actual=item.actual,
                end="agent" if item.actual is not None else "stayed" if index > last_actual else "none",
            )
        expected_before, actual_before = expected or expected_before, item.actual or actual_before
        ok_before = item.ok
    if alignment and not decided:
        yield Place(end="stayed", ok=True)


def _sources(outcome: Outcome, verdict: Verdict) -> list[str | None]:
    """Who gave the conversation to each agent of the alignment, as a call comes back; `None` at a turn's start."""
    turns = outcome.trace.turns if outcome.trace else ()
    if verdict.turn is not None:
        turns = turns[verdict.turn - 1 : verdict.turn]
    sources: list[str | None] = []
    last: str | None = None
    for turn in turns:
        sources += [None] if turn.start_agent != last else []
        sources += [hop.source for hop in turn.accepted]
        last = turn.agents[-1]
    return sources if len(sources) == sum(place.actual is not None for place in verdict.alignment) else []


def _ending(outcome: Outcome, turn: int, verdict: Verdict) -> Place:
    trace = outcome.trace.turns[turn - 1] if outcome.trace and turn <= len(outcome.trace.turns) else None
    actual = trace.end_agent if trace else verdict.actual
    if verdict.status == "passed":
        return Place(expected=actual, actual=actual)
    stayed = trace is not None and actual == trace.start_agent
    return Place(expected=verdict.expected, actual=None if stayed else actual, end="stayed" if stayed else "agent")


def _wanted(outcome: Outcome, turn: int, verdict: Verdict) -> Sequence[str | None]:
    """The agents that were to come in a turn that errored: what a route that stays at its start would leave out."""
    if verdict.check == "stay":
        return (None,)
    if verdict.check == "ends_at":
        return (verdict.expected,)
    if outcome.trace is None or turn > len(outcome.trace.turns):
        return (verdict.expected,)
    start = Visit(outcome.trace.turns[turn - 1].start_agent, "start")
    return [place.expected for place in Route(verdict.expected).align((start,)) if place.actual is None] or (None,)
