"""Assertions about a conversation's routing, for plain tests; a failure shows the route and the transcript."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from chatflow_eval import incidents
from chatflow_eval.incidents import Incident
from chatflow_eval.route import Route, Visit, route_text, visits_of_trace, visits_of_turn
from chatflow_eval.trace import Trace, TurnTrace
from chatflow_eval.transcript import transcript_of_trace, transcript_of_turn


class HasTrace(Protocol):
    """Anything that tells what happened so far: the `chatflow` fixture's conversations do."""

    @property
    def trace(self) -> Trace:
        """The conversation so far."""
        ...


Conversed: TypeAlias = HasTrace | Trace
"""What the assertions look at."""


def assert_handed_off_to(conversation: Conversed, agent: str) -> None:
    """Asserts that in the last turn some accepted handoff led to `agent`."""
    __tracebackhide__ = True
    turn = _last_turn(conversation)
    if not any(hop.target == agent for hop in turn.accepted):
        reached = ", ".join(dict.fromkeys(hop.target for hop in turn.accepted)) or "nobody"
        refused = [hop for hop in turn.hops if not hop.accepted and hop.target == agent]
        because = f" (refused: {refused[0].message})" if refused else ""
        raise AssertionError(
            f"expected a handoff to {agent}, the turn handed off to {reached}{because}\n\n{transcript_of_turn(turn)}"
        )


def assert_route(conversation: Conversed, route: str | list[str] | Route, *, whole: bool = False) -> None:
    """Asserts that the last turn's route, or the whole conversation's, fits the pattern."""
    __tracebackhide__ = True
    pattern = route if isinstance(route, Route) else Route.parse(route)
    trace, turn = _trace(conversation), _last_turn(conversation)
    visits: tuple[Visit, ...] = visits_of_trace(trace) if whole else visits_of_turn(turn)
    if not pattern.match(visits):
        shown = transcript_of_trace(trace) if whole else transcript_of_turn(turn)
        raise AssertionError(
            f"expected route {pattern}, actual route {route_text(visits)}: {pattern.explain(visits)}\n\n{shown}"
        )


def assert_ends_at(conversation: Conversed, agent: str) -> None:
    """Asserts that `agent` wrote the last turn's reply."""
    __tracebackhide__ = True
    turn = _last_turn(conversation)
    if turn.end_agent != agent:
        raise AssertionError(
            f"expected the turn to end at {agent}, it ended at {turn.end_agent}\n\n{transcript_of_turn(turn)}"
        )


def assert_no_loops(conversation: Conversed) -> None:
    """Asserts that no turn of the conversation went in circles."""
    __tracebackhide__ = True
    _assert_none(conversation, "loop", "no loops")


def assert_within_limits(conversation: Conversed) -> None:
    """Asserts that no turn of the conversation hit a limit."""
    __tracebackhide__ = True
    _assert_none(conversation, "limit_hit", "no limit to be hit")


def _assert_none(conversation: Conversed, kind: str, expected: str) -> None:
    __tracebackhide__ = True
    trace = _trace(conversation)
    found: list[Incident] = [incident for incident in incidents.find(trace) if incident.kind == kind]
    if found:
        told = "; ".join(f"turn {incident.turn}: {incident.message}" for incident in found)
        raise AssertionError(f"expected {expected}: {told}\n\n{transcript_of_trace(trace)}")


def _trace(conversation: Conversed) -> Trace:
    return conversation if isinstance(conversation, Trace) else conversation.trace


def _last_turn(conversation: Conversed) -> TurnTrace:
    turns = _trace(conversation).turns
    if not turns:
        raise ValueError("the conversation has no turn yet: say something first")
    return turns[-1]
