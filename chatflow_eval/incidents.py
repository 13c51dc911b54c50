"""What is wrong in a trace, asked for or not: loops, limits, handoffs refused, undeclared or never made, and more."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from chatflow_eval import claims
from chatflow_eval.trace import (
    Edge,
    HistoryFault,
    Hop,
    LimitStep,
    ModelStep,
    Step,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
)

if TYPE_CHECKING:
    from chatflow_runtime.history import Fault

IncidentKind: TypeAlias = Literal[
    "loop",
    "limit_hit",
    "not_allowed",
    "unregistered_target",
    "invalid_history",
    "error_masked",
    "self_handoff",
    "multiple_transfers",
    "unknown_tool",
    "announced_not_made",
    "repeated_call",
    "stuck",
    "bounce",
]

KINDS: tuple[IncidentKind, ...] = get_args(IncidentKind)
"""Every kind, those that fail a scenario by default first."""

FAILING: frozenset[IncidentKind] = frozenset(KINDS[: KINDS.index("self_handoff")])
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
    """How many whole times a loop went round; how often a call was made; for how many turns somebody was stuck."""
    reasons: tuple[str, ...] = ()
    """The reasons given for the handoffs of a loop, first to last, or for the one handoff that is wrong."""
    quotes: tuple[str, ...] = ()
    """What was said, called and answered: the announcement; the failure and the claim; the call and its result."""
    model_calls: int = 0
    """Model calls it took: a loop from the first agent of the cycle to the last handoff; before a limit was hit; from
    the first of repeated calls to the last."""
    tokens: int | None = None
    """Tokens those calls took; `None` is unknown."""


def find(trace: Trace, ends: Sequence[Collection[str]] = ()) -> tuple[Incident, ...]:
    """Every incident of the trace, in order of turn, and of place within the turn.

    `ends`: who may have the conversation at the end of each turn, as far as that is known; nobody: anybody may.
    """
    found = [
        (number, *placed)
        for number, turn in enumerate(trace.turns, 1)
        for placed in _of_turn(turn, number, trace.topology)
    ]
    found += [(incident.turn, _AFTER, incident) for incident in (*_stuck(trace, ends), *_bounces(trace))]
    found.sort(key=lambda place: (*place[:2], KINDS.index(place[2].kind)))
    return tuple(incident for *_, incident in found)


_AFTER = 1 << 31
"""The place of what shows only when a turn has ended."""


def _of_turn(turn: TurnTrace, number: int, topology: Topology) -> Iterator[_Placed]:
    yield from _loops(turn, number)
    yield from _limit_hits(turn, number)
    yield from _hops(turn, number, topology)
    yield from _tools(turn, number, topology)
    yield from _faults(turn, number)
    yield from _masked(turn, number)
    yield from _announced(turn, number, topology)
    yield from _repeated(turn, number)


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
        kind, what = _wrong_with(step, declared, topology.agents)
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


def _wrong_with(hop: Hop, declared: set[tuple[str, str]], agents: tuple[str, ...]) -> tuple[IncidentKind | None, str]:
    """What is wrong with the hop by itself; a topology without any edge declares nothing to hold hops against."""
    if hop.accepted and hop.why is not None:
        return "not_allowed", f"it had been refused ({hop.why}), and happened all the same"
    if hop.why == "self" or (hop.accepted and hop.source == hop.target):
        return "self_handoff", "it is the active agent already"
    if hop.why == "not_allowed":
        return "not_allowed", "this agent does not have that handoff"
    if hop.why == "unregistered":
        return "unregistered_target", "no agent has that name"
    if hop.why == "already_transferred":
        return "multiple_transfers", "another transfer of the same answer had taken effect"
    if hop.accepted and agents and hop.target not in agents:
        return "unregistered_target", "no agent of that name is declared, and it happened all the same"
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


def _faults(turn: TurnTrace, number: int) -> Iterator[_Placed]:
    """Each reason once a turn, as every later request repeats it."""
    told: set[str] = set()
    for index, step in enumerate(turn.steps):
        if isinstance(step, HistoryFault) and step.message not in told:
            told.add(step.message)
            yield (
                index,
                Incident(
                    kind="invalid_history",
                    turn=number,
                    agents=(step.agent,),
                    message=f"{step.agent} asked its model what a provider would refuse ({step.code}): {step.message}",
                    route=_route(turn, index),
                    quotes=(step.code,),
                ),
            )


def history_faults(request: Mapping[str, object], agent: str) -> tuple[HistoryFault, ...]:
    """What a provider would refuse of the chat-completions request that an agent sends, as steps of a trace."""
    from chatflow_runtime.history import faults

    return _as_steps(faults(request), agent)


def refusals(request: Mapping[str, object], agent: str) -> tuple[HistoryFault, ...]:
    """What the model's own provider would refuse of a framework's chat-completions request, as steps of a trace."""
    from chatflow_runtime import history

    return _as_steps(history.refusals(request), agent)


def _as_steps(found: Iterable[Fault], agent: str) -> tuple[HistoryFault, ...]:
    return tuple(HistoryFault(agent=agent, code=fault.code, message=fault.message) for fault in found)


def _masked(turn: TurnTrace, number: int) -> Iterator[_Placed]:
    """A tool or a handoff failed, nothing made up for it, and the reply states success about it, or about all."""
    if turn.failure is not None or all(_failure(step) is None for step in turn.steps):
        return
    said = claims.success(turn.reply)
    if not said:
        return
    for index, step in enumerate(turn.steps):
        failure = _failure(step)
        if failure is None or _made_up_for(step, turn.steps[index + 1 :]):
            continue
        name = step.target if isinstance(step, Hop) else step.tool if isinstance(step, ToolStep) else ""
        about = [sentence for sentence in said if claims.is_about(sentence, name)]
        # Who was refused a handoff may well do without it, and who has something else to show may speak of that.
        vague = not isinstance(step, Hop) and not any(
            isinstance(other, ToolStep) and _failure(other) is None for other in turn.steps
        )
        claim = next(iter(about or (said if vague else ())), None)
        if claim is not None:
            yield (
                index,
                Incident(
                    kind="error_masked",
                    turn=number,
                    agents=(turn.end_agent,),
                    message=f"{turn.end_agent} said {_cut(claim)}, though {name} had failed: {_cut(failure)}.",
                    route=_route(turn, index),
                    tool=step.tool if isinstance(step, ToolStep | Hop) else None,
                    quotes=(failure, claim),
                ),
            )
            return


def _failure(step: Step) -> str | None:
    """What a call or a handoff failed with; looking something up in vain is no failure that could be masked."""
    if isinstance(step, Hop):
        return None if step.accepted or step.why in ("self", "already_transferred") else step.message or step.why
    if not isinstance(step, ToolStep) or claims.only_looks(step.tool):
        return None
    if step.is_error or _tells_of_error(step.result):
        return _text(step.result) or "an error"
    return None


def _tells_of_error(result: Any) -> bool:
    """Tools that answer with an error instead of raising one, as most frameworks have them do."""
    if isinstance(result, str):
        return result.lstrip().lower().startswith(("error:", "error -", "error "))
    if isinstance(result, Mapping):
        status = str(result.get("status", "")).lower()
        return bool(result.get("error")) or result.get("success") is False or status in ("error", "failed", "failure")
    return False


def _made_up_for(failed: Step, later: Sequence[Step]) -> bool:
    if isinstance(failed, ToolStep):
        return any(isinstance(step, ToolStep) and step.tool == failed.tool and _failure(step) is None for step in later)
    return isinstance(failed, Hop) and any(
        isinstance(step, Hop) and step.accepted and step.target == failed.target for step in later
    )


def _announced(turn: TurnTrace, number: int, topology: Topology) -> Iterator[_Placed]:
    """A text states that it hands off to an agent, and nobody in the turn so much as tried to."""
    if turn.failure is not None:
        return
    tried = {hop.target for hop in turn.hops} | {turn.end_agent}
    texts = [(index, step.agent, step.text) for index, step in enumerate(turn.steps) if isinstance(step, ModelStep)]
    if turn.reply not in (text for *_, text in texts):
        texts.append((len(turn.steps), turn.end_agent, turn.reply))
    told: set[str] = set()
    for index, speaker, text in texts:
        others = [agent for agent in topology.agents if agent != speaker and agent not in tried and agent not in told]
        for agent, sentence in claims.announced(text or "", others):
            told.add(agent)
            yield (
                index,
                Incident(
                    kind="announced_not_made",
                    turn=number,
                    agents=(speaker, agent),
                    message=f"{speaker} said {_cut(sentence)}, and no handoff to {agent} was made.",
                    route=_route(turn, index),
                    quotes=(sentence,),
                ),
            )


def _repeated(turn: TurnTrace, number: int) -> Iterator[_Placed]:
    """The same call by the same agent with the same answer: whatever came between made no difference to it."""
    made: dict[tuple[str, str, str], list[int]] = {}
    for index, step in enumerate(turn.steps):
        if isinstance(step, ToolStep) and step.known:
            made.setdefault((step.agent, step.tool, _text(step.arguments)), []).append(index)
    for (agent, tool, arguments), places in made.items():
        answers = [_text(step.result) for place in places if isinstance(step := turn.steps[place], ToolStep)]
        again = [place for place, (before, now) in zip(places[1:], pairwise(answers), strict=True) if before == now]
        if not again:
            continue
        calls, tokens = _cost(turn, places[0], again[-1])
        times = len(again) + 1
        yield (
            again[0],
            Incident(
                kind="repeated_call",
                turn=number,
                agents=(agent,),
                message=f"{agent} called {tool} {times} times with {_cut(arguments)}, and got the same answer again.",
                route=_route(turn, again[0]),
                tool=tool,
                times=times,
                quotes=(arguments, answers[0]),
                model_calls=calls,
                tokens=tokens,
            ),
        )


def _stuck(trace: Trace, ends: Sequence[Collection[str]]) -> Iterator[Incident]:
    """Somebody has the conversation from whom no declared handoffs lead to anybody who may; told once a stretch."""
    if not trace.topology.edges:
        return
    stretch: Incident | None = None
    for number, (turn, wanted) in enumerate(zip(trace.turns, ends, strict=False), 1):
        here = turn.agents[-1] if turn.failure is not None else turn.end_agent
        if not wanted or not _reachable(here, trace.topology.edges).isdisjoint(wanted):
            if stretch is not None:
                yield stretch
            stretch = None
            continue
        if stretch is None or stretch.agents != (here, *wanted):
            if stretch is not None:
                yield stretch
            stretch = Incident(
                kind="stuck",
                turn=number,
                agents=(here, *wanted),
                message=f"{here} has the conversation, and no handoffs lead from it to {' or '.join(wanted)}.",
                route=turn.agents,
                times=0,
            )
        stretch = replace(stretch, times=(stretch.times or 0) + 1)
    if stretch is not None:
        yield stretch


@lru_cache(maxsize=1024)
def _reachable(agent: str, edges: tuple[Edge, ...]) -> frozenset[str]:
    """The agent itself, and everyone that handoffs lead to from it."""
    found, waiting = {agent}, [agent]
    while waiting:
        source = waiting.pop()
        for edge in edges:
            if edge.source == source and edge.target not in found:
                found.add(edge.target)
                waiting.append(edge.target)
    return frozenset(found)


def _bounces(trace: Trace) -> Iterator[Incident]:
    """Of three turns in a row, the first and the last are answered by one agent, and that between by another."""
    answered = [None if turn.failure is not None else turn.end_agent for turn in trace.turns]
    for number, (first, between, last) in enumerate(zip(answered, answered[1:], answered[2:], strict=False), 3):
        if first is not None and between is not None and first == last != between:
            yield Incident(
                kind="bounce",
                turn=number,
                agents=(first, between),
                message=f"{first}, {between} and {first} again answered turns {number - 2} to {number}.",
                route=trace.turns[number - 1].agents,
            )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str) if value is not None else ""


def _cut(text: str, longest: int = 120) -> str:
    line = " ".join(text.split()).rstrip(".")
    return f"`{line}`" if len(line) <= longest else f"`{line[:longest]}...`"


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
