"""Demand: what a scenario's expectations ask of the routing, turn by turn, whatever is then answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from chatflow_eval.expectations import Expectations
from chatflow_eval.scenario import Scenario
from chatflow_eval.trace import Topology

Asks: TypeAlias = Literal["first", "switch", "stay", "either"]

ASKS: tuple[Asks, ...] = get_args(Asks)
"""Leave the conversation's start for the first time; change agent; do not change; both accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of one turn, or of the whole conversation."""

    turn: int | None
    """Counts from 1; `None` for the whole conversation."""
    asks: Asks | None = None
    """`None` where the turn is not judged for routing."""
    ends: tuple[str, ...] = ()
    """Who may have the conversation when the turn ends, those first whom the expectation names first; none: anybody."""
    unmoved: bool = False
    """True when it is met by who goes to the right agent the first time, and then never hands off."""
    agents: tuple[str, ...] = ()
    """Agents that are expected by name."""
    hops: tuple[tuple[str, str], ...] = ()
    """Handoffs that are expected by name."""


def demands(scenario: Scenario, topology: Topology) -> tuple[Demand, ...]:
    """What the scenario's expectations ask of a swarm like this one: of each turn, then of the whole conversation."""
    return tuple(_demands(scenario, topology))


def _demands(scenario: Scenario, topology: Topology) -> Iterator[Demand]:
    known, start = frozenset(topology.agents), topology.start
    before: frozenset[str] | None = frozenset({start})
    baseline: str | None = start
    left = False
    for number, turn in enumerate(scenario.turns, 1):
        agents, hops = _named(turn.expect, known)
        wanted = _wanted(turn.expect, known)
        if wanted is None:
            before = None
            yield Demand(turn=number, agents=agents, hops=hops)
            continue
        asks = _asks(wanted, before)
        if asks == "switch" and not left and (wanted.starts is None or start in wanted.starts):
            asks, left = "first", True
            baseline = next(iter(wanted.order), None)
        yield Demand(
            turn=number,
            asks=asks,
            ends=() if wanted.ends == known else wanted.order,
            unmoved=asks == "first" or wanted.keeps is None or baseline in wanted.keeps,
            agents=agents,
            hops=hops,
        )
        before = before if wanted.ends is None else wanted.ends
    if scenario.expect is not None:
        agents, hops = _named(scenario.expect, known)
        yield Demand(turn=None, agents=agents, hops=hops)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The routing checks of one turn, taken together; `None` for a set of agents is anybody."""

    keeps: frozenset[str] | None
    """Who may keep the conversation all through the turn."""
    moves: bool | None
    """Whether somebody may hand off; `None`: it depends on who has the conversation."""
    starts: frozenset[str] | None
    ends: frozenset[str] | None
    order: tuple[str, ...]
    """`ends`, those first that the expectation names first."""


def _wanted(expect: Expectations | None, known: frozenset[str]) -> _Wanted | None:
    """`None` where the turn is not judged for routing."""
    if expect is None or not (expect.route or expect.stay or expect.starts_at or expect.ends_at):
        return None
    keeps = starts = ends = moves = None
    names: tuple[str, ...] = ()
    if expect.route is not None:
        reach = expect.route.reach(known)
        keeps, starts, ends, moves = reach.alone, reach.starts, reach.ends, reach.longer
        names = tuple(mention.name for mention in expect.route.name_offsets)
    ends = _common(ends, expect.ends_at)
    return _Wanted(
        keeps=_common(_common(keeps, expect.starts_at), expect.ends_at),
        moves=False if expect.stay else moves,
        starts=_common(starts, expect.starts_at),
        ends=ends,
        order=tuple(
            name for name in dict.fromkeys((*expect.ends_at, *names, *sorted(ends or ()))) if name in (ends or ())
        ),
    )


def _common(agents: frozenset[str] | None, named: Sequence[str]) -> frozenset[str] | None:
    if not named:
        return agents
    return frozenset(named) if agents is None else agents.intersection(named)


def _asks(wanted: _Wanted, before: frozenset[str] | None) -> Asks:
    """Of a route by what it allows; where only its end is expected, by where the conversation was expected before."""
    if wanted.moves is False:
        return "stay"
    if wanted.moves:
        return "either" if wanted.keeps else "switch"
    if before is None or wanted.ends is None:
        return "either"
    if not before & wanted.ends:
        return "switch"
    return "stay" if before == wanted.ends and len(before) == 1 else "either"


def _named(expect: Expectations | None, known: frozenset[str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The agents and the handoffs that are expected by name, in order of their names."""
    if expect is None:
        return (), ()
    hops = {(place.source, place.agent) for place in expect.visits if place.source is not None}
    agents = {*expect.starts_at, *expect.ends_at, *(place.agent for place in expect.visits)}
    if expect.route is not None:
        reach = expect.route.reach(known)
        hops |= reach.hops
        agents |= reach.enters | reach.leaves
    agents.update(agent for hop in hops for agent in hop)
    return tuple(sorted(agents)), tuple(sorted(hops))
