"""Loops, limit hits, refused, dangling and unannounced handoffs found in a trace, asked for or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from chatflow_eval.trace import Hop, LimitStep, ModelStep, ToolStep, Topology, Trace, TurnTrace

IncidentKind: TypeAlias = Literal[
    "loop",
    "limit_hit",
    "not_allowed",
    "unregistered_target",
    "self_handoff",
    "multiple_transfers",
    "unknown_tool",
]

KINDS: tuple[IncidentKind, ...] = get_args(IncidentKind)
"""Every kind, those that fail a scenario by default first."""

FAILING: frozenset[IncidentKind] = frozenset({"loop", "limit_hit", "not_allowed", "unregistered_target"})
"""The kinds that fail a scenario unless it requires or allows them, or the suite moves them; the others only warn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something wrong in a trace that no scenario need have asked about, with its evidence."""

    kind: IncidentKind
    turn: int
    """Counts from 1."""
    agents: tuple[str, ...]
    """Who took part: a loop's cycle once around (`A`, `B`), a refused hop's source and target, a limit's agent."""
    message: str
    """One sentence for a person."""
    route: tuple[str, ...] = ()
    """The turn's route up to where it was found."""
    limit: str | None = None
    value: int | None = None
    tool: str | None = None
    times: int | None = None
    """How many whole times a loop went round."""
    reasons: tuple[str, ...] = ()
    """The reasons given for the handoffs of a loop, first to last, or for the one handoff that is wrong."""
    model_calls: int = 0
    """Model calls a loop took, from the first agent of the cycle to the last handoff; calls before a limit was hit."""
    tokens: int | None = None
    """Tokens those calls took; `None` is unknown."""


def find(trace: Trace) -> tuple[Incident, ...]:
    """Every incident of the trace, in order of turn, and of place within the turn."""
    return tuple(
        incident for number, turn in enumerate(trace.turns, 1) for incident in _of_turn(turn, number, trace.topology)
    )


def _of_turn(turn: TurnTrace, number: int, topology: Topology) -> list[Incident]:
    found = [*_loops(turn, number), *_limit_hits(turn, number), *_hops(turn, number, topology)]
    found += _tools(turn, number, topology)
    return [incident for _, incident in sorted(found, key=lambda place: (place[0], KINDS.index(place[1].kind)))]


_Placed: TypeAlias = tuple[int, Incident]
"""The index of the step where an incident was found, and the incident."""


@dataclass(slots=True)
class _Visit:
    """One agent given the conversation by a transfer, and the step that gave it; -1 is the turn's start."""

    agent: str
    step: int
    reason: str = ""


def _loops(turn: TurnTrace, number: int) -> Iterator[_Placed]:
    for visits in _transfer_chains(turn):
        for start, stop, period in repetitions([visit.agent for visit in visits]):
            cycle = tuple(visit.agent for visit in visits[start : start + period])
            times = (stop - start) // period
            last = visits[stop - 1].step
            calls, tokens = _cost(turn, visits[start].step, last)
            spent = f"{calls} model calls" if tokens is None else f"{calls} model calls, {tokens} tokens"
            yield (
                last,
                Incident(
                    kind="loop",
                    turn=number,
                    agents=cycle,
                    message=f"{' -> '.join(cycle)} went round {times} times in one turn ({spent}).",
                    route=_route(turn, last),
                    times=times,
                    reasons=tuple(visit.reason for visit in visits[start + 1 : stop]),
                    model_calls=calls,
                    tokens=tokens,
                ),
            )


def _transfer_chains(turn: TurnTrace) -> list[list[_Visit]]:
    """The agents that passed control for good to one another: one chain for the turn, one for each call inside it.

    A call comes back to its source, so calling the same agent twice is no way round.
    """
    chains = [[_Visit(turn.start_agent, -1)]]
    open_at_depth = {0: chains[0]}
    for index, step in enumerate(turn.steps):
        if not isinstance(step, Hop) or not step.accepted:
            continue
        called = step.kind == "call"
        depth = max(step.depth, 1) if called else step.depth  # whatever a target says, a call is inside its source
        if called or depth not in open_at_depth:
            chains.append([_Visit(step.target if called else step.source, index)])
            open_at_depth[depth] = chains[-1]
        chain = open_at_depth[depth]
        if chain[-1].agent != step.target:
            chain.append(_Visit(step.target, index, step.reason))
    return chains


def repetitions(route: Sequence[str]) -> list[tuple[int, int, int]]:
    """Every maximal stretch that is a cycle standing twice in a row or more: start, stop, length of the cycle."""
    found: dict[tuple[int, int], int] = {}
    for period in range(1, len(route) // 2 + 1):
        start = 0
        for index in range(len(route) - period + 1):
            if index < len(route) - period and route[index] == route[index + period]:
                continue
            if index - start >= period:  # a multiple of the shortest cycle covers the very same stretch
                found.setdefault((start, index + period), period)
            start = index + 1
    return sorted((start, stop, period) for (start, stop), period in found.items())


def _limit_hits(turn: TurnTrace, number: int) -> Iterator[_Placed]:
    for index, step in enumerate(turn.steps):
        if isinstance(step, LimitStep):
            route = _route(turn, index)
            calls, tokens = _cost(turn, -1, index)
            yield (
                index,
                Incident(
                    kind="limit_hit",
                    turn=number,
                    agents=(step.agent,),
                    message=f"{step.agent} reached {step.limit} ({step.value}) after {' -> '.join(route)}.",
                    route=route,
                    limit=step.limit,
                    value=step.value,
                    model_calls=calls,
                    tokens=tokens,
                ),
            )


def _hops(turn: TurnTrace, number: int, topology: Topology) -> Iterator[_Placed]:
    declared = {(edge.source, edge.target) for edge in topology.edges}
    asked = transferred = False
    for index, step in enumerate(turn.steps):
        if isinstance(step, ModelStep):
            asked, transferred = True, False
        if not isinstance(step, Hop):
            continue
        kind, what = _wrong_with(step, declared)
        if kind is None and step.accepted and step.kind == "transfer" and asked and transferred:
            kind, what = "multiple_transfers", "another transfer of the same answer had taken effect"
        transferred |= step.accepted and step.kind == "transfer"
        if kind is not None:
            done = "handed off" if step.accepted else "was refused a handoff"
            yield (
                index,
                Incident(
                    kind=kind,
                    turn=number,
                    agents=(step.source, step.target),
                    message=f"{step.source} {done} to {step.target}: {what}.",
                    route=_route(turn, index),
                    tool=step.tool,
                    reasons=(step.reason,) if step.reason else (),
                ),
            )


def _wrong_with(hop: Hop, declared: set[tuple[str, str]]) -> tuple[IncidentKind | None, str]:
    """What is wrong with the hop by itself; a topology without any edge declares nothing to hold hops against."""
    if hop.why == "self" or (hop.accepted and hop.source == hop.target):
        return "self_handoff", "it is the active agent already"
    if hop.why == "not_allowed":
        return "not_allowed", "this agent does not have that handoff"
    if hop.why == "unregistered":
        return "unregistered_target", "no agent has that name"
    if hop.why == "already_transferred":
        return "multiple_transfers", "another transfer of the same answer had taken effect"
    if hop.accepted and declared and (hop.source, hop.target) not in declared:
        return "not_allowed", "the agents declare no such handoff, and it happened all the same"
    return None, ""


def _tools(turn: TurnTrace, number: int, topology: Topology) -> Iterator[_Placed]:
    for index, step in enumerate(turn.steps):
        if not isinstance(step, ToolStep):
            continue
        kind: IncidentKind
        if not step.known:
            kind, what = "unknown_tool", "which it does not have"
        elif topology.tools and step.tool not in topology.tools.get(step.agent, ()):
            kind, what = "not_allowed", "which the agents do not declare for it, and it ran all the same"
        else:
            continue
        yield (
            index,
            Incident(
                kind=kind,
                turn=number,
                agents=(step.agent,),
                message=f"{step.agent} called {step.tool}, {what}.",
                route=_route(turn, index),
                tool=step.tool,
            ),
        )


def _route(turn: TurnTrace, index: int) -> tuple[str, ...]:
    """The agents given the conversation up to and including the step."""
    hops = (step for step in turn.steps[: index + 1] if isinstance(step, Hop) and step.accepted)
    return (turn.start_agent, *(hop.target for hop in hops))


def _cost(turn: TurnTrace, after: int, before: int) -> tuple[int, int | None]:
    """Model calls between two steps, and their tokens; the tokens of no call at all are unknown too."""
    steps = [step for step in turn.steps[after + 1 : before] if isinstance(step, ModelStep)]
    tokens = 0
    for step in steps:
        if step.input_tokens is None or step.output_tokens is None:
            return len(steps), None
        tokens += step.input_tokens + step.output_tokens
    return len(steps), tokens if steps else None
