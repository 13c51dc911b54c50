"""Check, Verdict, judge; the built-in checks and their names in YAML."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from chatflow_eval.errors import ScenarioError
from chatflow_eval.expectations import Call, Calls, Expectations, HandoffCount, IncidentPolicy, Place, Wording
from chatflow_eval.fields import Value, json_text, same, shown, subset
from chatflow_eval.incidents import KINDS, Incident
from chatflow_eval.route import ARROWS, Aligned, Route, Visit, route_text, visits_of_trace, visits_of_turn
from chatflow_eval.trace import Hop, ToolStep, Trace, TurnTrace

VerdictStatus: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one check said of one turn, or of the whole conversation, and why."""

    check: str
    """The check's name in YAML: route, stay, starts_at, ends_at, handoffs, visits, avoids, calls, reply, incidents."""
    turn: int | None
    """Counts from 1; `None` for the whole conversation."""
    status: VerdictStatus
    """`skipped` when the turn was not reached or errored."""
    expected: str
    actual: str = ""
    why: str = ""
    """The reason in words, always there when not passed."""
    alignment: tuple[Aligned, ...] = ()
    """Of `route` and `stay` checks."""
    after_failure: bool = False
    """An earlier turn of this trial had failed."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a check looks at: one turn, or all turns of a conversation."""

    trace: Trace
    turn: int | None = None
    """Counts from 1; `None`: the whole conversation."""

    @property
    def turns(self) -> tuple[TurnTrace, ...]:
        """The turns to look at."""
        return self.trace.turns if self.turn is None else (self.trace.turns[self.turn - 1],)

    @property
    def visits(self) -> tuple[Visit, ...]:
        """The route of these turns."""
        return visits_of_trace(self.trace) if self.turn is None else visits_of_turn(self.trace.turns[self.turn - 1])

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Every accepted handoff, in order."""
        return tuple(hop for turn in self.turns for hop in turn.accepted)

    @property
    def calls(self) -> tuple[ToolStep, ...]:
        """Every call of a domain tool that its agent has, in order."""
        steps = (step for turn in self.turns for step in turn.steps)
        return tuple(step for step in steps if isinstance(step, ToolStep) and step.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found; an empty `why` is a pass."""

    expected: str
    actual: str
    why: str = ""
    alignment: tuple[Aligned, ...] = ()


Check: TypeAlias = Callable[[Span, Any], Finding]
"""A named pure judgement."""


def route(span: Span, pattern: Route) -> Finding:
    """The route matches the pattern."""
    visits = span.visits
    return Finding(
        expected=str(pattern),
        actual=route_text(visits),
        why="" if pattern.match(visits) else pattern.explain(visits),
        alignment=pattern.align(visits),
    )


def stay(span: Span, _: Literal[True]) -> Finding:
    """Nobody hands off."""
    visits = span.visits
    first, *others = visits
    return Finding(
        expected=first.agent,
        actual=route_text(visits),
        why=f"{first.agent} was to keep the conversation, and it went to {route_text(others)}" if others else "",
        alignment=(
            Aligned(expected=first.agent, actual=first.agent, ok=True),
            *(Aligned(expected=None, actual=other.agent, ok=False) for other in others),
        ),
    )


def starts_at(span: Span, agents: tuple[str, ...]) -> Finding:
    """This agent is active at the start."""
    return _one_of(span.turns[0].start_agent, agents, "was active at the start")


def ends_at(span: Span, agents: tuple[str, ...]) -> Finding:
    """This agent writes the reply."""
    return _one_of(span.turns[-1].end_agent, agents, "wrote the reply")


def handoffs(span: Span, count: HandoffCount) -> Finding:
    """So many handoffs are accepted; coming back from a call is none."""
    made = [hop for hop in span.hops if count.kind in (None, hop.kind)]
    listed = ", ".join(f"{hop.source} {ARROWS[hop.kind]} {hop.target}" for hop in made)
    why = f"expected {count}, found {len(made)}{f' ({listed})' if made else ''}"
    return Finding(expected=str(count), actual=str(len(made)), why="" if count.accepts(len(made)) else why)


def visits(span: Span, places: tuple[Place, ...]) -> Finding:
    """These agents and hops are on the route, in any order."""
    missed = [str(place) for place in places if not place.on(span.turns)]
    return _route_has(span, places, why=f"lacks {', '.join(missed)}" if missed else "")


def avoids(span: Span, places: tuple[Place, ...]) -> Finding:
    """None of these agents and hops is on the route."""
    met = [str(place) for place in places if place.on(span.turns)]
    return _route_has(span, places, why=f"has {', '.join(met)}" if met else "", expected="not ")


def calls(span: Span, wanted: tuple[Calls, ...]) -> Finding:
    """These domain tools run: by whom, with which arguments, how often."""
    why = []
    for call in wanted:
        times = sum(call.fits(step) for step in span.calls)
        if call.times is None and not times:
            why.append(f"{call} was not called{_nearly(span, call)}")
        elif call.times is not None and not call.times.accepts(times):
            why.append(f"{Call.__str__(call)} was called {times} times, expected {call.times}{_nearly(span, call)}")
    return _tools_ran(span, wanted, why="; ".join(why))


def avoids_calls(span: Span, unwanted: tuple[Call, ...]) -> Finding:
    """None of these domain tools runs."""
    made = [step for step in span.calls if any(call.fits(step) for call in unwanted)]
    return _tools_ran(span, unwanted, why=f"{_steps(made)}, which was to be avoided" if made else "", expected="not ")


def reply(span: Span, wording: Wording) -> Finding:
    """The reply says this; of a conversation, one of its replies does, and none says what it lacks."""
    return _worded([turn.reply for turn in span.turns], wording, "the reply")


def reason(span: Span, wording: Wording) -> Finding:
    """The reason of an accepted handoff says this."""
    return _worded([hop.reason for hop in span.hops], wording, "the reason")


def context(span: Span, expected: dict[str, Any]) -> Finding:
    """The session context after the turn holds these values, and maybe others."""
    actual = span.turns[-1].context
    wrong = [
        f"{key} is {json_text(actual[key])}, expected {json_text(value)}" if key in actual else f"{key} is not there"
        for key, value in expected.items()
        if key not in actual or not same(actual[key], value)
    ]
    return Finding(expected=json_text(expected), actual=json_text(actual), why="; ".join(wrong))


def error(span: Span, exception: str) -> Finding:
    """The turn ends with this exception."""
    raised = [turn.failure for turn in span.turns if turn.failure is not None]
    names = ", ".join(failure.exception for failure in raised) or "none"
    right = any(failure.exception.rpartition(".")[2] == exception.rpartition(".")[2] for failure in raised)
    return Finding(expected=exception, actual=names, why="" if right else f"expected {exception}, raised: {names}")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        route, stay, starts_at, ends_at, handoffs, visits, avoids, calls, avoids_calls, reply, reason, context, error
    )
}  # fmt: skip
"""Every built-in check by its name in YAML; `incidents` beside them looks at what was found in the trace."""


def _one_of(actual: str, agents: tuple[str, ...], did: str) -> Finding:
    expected = " | ".join(agents)
    return Finding(
        expected=expected, actual=actual, why="" if actual in agents else f"{actual} {did}, expected {expected}"
    )


def _route_has(span: Span, places: tuple[Place, ...], *, why: str, expected: str = "") -> Finding:
    actual = route_text(span.visits)
    listed = ", ".join(f"{expected}{place}" for place in places)
    return Finding(expected=listed, actual=actual, why=f"the route {actual} {why}" if why else "")


def _tools_ran(span: Span, asked: Sequence[Call], *, why: str, expected: str = "") -> Finding:
    listed = ", ".join(f"{expected}{call}" for call in asked)
    return Finding(expected=listed, actual=_steps(span.calls) or "no calls", why=why)


def _steps(steps: Sequence[ToolStep]) -> str:
    return ", ".join(f"{step.agent} called {step.tool}{json_text(step.arguments)}" for step in steps)


def _nearly(span: Span, call: Call) -> str:
    """The calls of the same tool that did not fit."""
    others = [step for step in span.calls if step.tool == call.tool and not call.fits(step)]
    if not others:
        return ""
    more = call.match == "exact" and any(subset(step.arguments, call.args or {}) for step in others)
    return f"; {_steps(others)}{' (`match: subset` allows further arguments)' if more else ''}"


def _worded(texts: Sequence[str], wording: Wording, what: str) -> Finding:
    wrong = list(wording.missed(texts))
    return Finding(
        expected=str(wording),
        actual=" | ".join(text for text in texts if text) or "nothing",
        why=f"{what} {' and '.join(wrong)}" if wrong else "",
    )


# Judging.


def judge(
    trace: Trace,
    incidents: Sequence[Incident],
    *,
    turns: Sequence[Expectations | None],
    overall: Expectations | None,
    policy: IncidentPolicy | None = None,
) -> tuple[Verdict, ...]:
    """Every check of every turn, then of the whole conversation, then `incidents`, which is never left out."""
    verdicts: list[Verdict] = []
    failed = False
    incomplete = "" if trace.turns else "the conversation has no turns"
    for number, expectations in enumerate(turns, 1):
        span = Span(trace, number)
        lost = unjudged(span, (expectations, overall))
        asked = _verdicts(span, expectations, lost=lost, after_failure=failed)
        verdicts += asked
        incomplete = incomplete or lost
        errored = bool(lost) and number <= len(trace.turns)
        failed = failed or errored or any(verdict.status == "failed" for verdict in asked)
    verdicts += _verdicts(Span(trace), overall, lost=incomplete)
    policy = policy or IncidentPolicy()
    verdicts.append(_incidents(incidents, turns=turns, overall=overall, policy=policy, lost=incomplete))
    return tuple(verdicts)


def unjudged(span: Span, expectations: Iterable[Expectations | None]) -> str:
    """Why nothing can be said of the turn; an exception that was expected is no reason."""
    if span.turn is not None and span.turn > len(span.trace.turns):
        return f"turn {span.turn} was not reached"
    failure = span.turns[0].failure
    if failure is None or any(each and each.error and not error(span, each.error).why for each in expectations):
        return ""
    return f"turn {span.turn} ended with {failure.exception}: {failure.message}"


def _verdicts(
    span: Span, expectations: Expectations | None, *, lost: str, after_failure: bool = False
) -> list[Verdict]:
    if expectations is None:
        return []
    checks = [(name, CHECKS[name], value) for name, value in expectations.asked()]
    checks += [(each.reference, partial(_custom, each.reference), each.expected) for each in expectations.custom]
    raised = not lost and span.turn is not None and span.turns[0].failure is not None
    verdicts = []
    for name, check, expected in checks:
        unjudged = lost or ("the turn ended with the exception that was expected" if raised and name != "error" else "")
        found = Finding(expected=_words(expected), actual="", why=unjudged) if unjudged else check(span, expected)
        verdicts.append(
            Verdict(
                check=name,
                turn=span.turn,
                status="skipped" if unjudged else "failed" if found.why else "passed",
                expected=found.expected,
                actual=found.actual,
                why=found.why,
                alignment=found.alignment,
                after_failure=after_failure,
            )
        )
    return verdicts


def _words(expected: Any) -> str:
    """An expectation in words, where there is nothing to hold it against."""
    if isinstance(expected, tuple):
        return " | ".join(str(each) for each in expected)
    return str(expected) if isinstance(expected, (str, Route, Value)) else json_text(expected)


def _custom(reference: str, span: Span, expected: Any) -> Finding:
    module, _, name = reference.partition(":")
    try:
        why = getattr(importlib.import_module(module), name)(span, expected)
    except Exception as problem:  # the user's own code
        raise ScenarioError(f"check {reference}: {type(problem).__name__}: {problem}") from problem
    if why is not None and not isinstance(why, str):
        raise ScenarioError(f"check {reference}: expected the reason why not, or None, found {shown(why)}")
    return Finding(expected=json_text(expected), actual=route_text(span.visits), why=why or "")


def _incidents(
    found: Sequence[Incident],
    *,
    turns: Sequence[Expectations | None],
    overall: Expectations | None,
    policy: IncidentPolicy,
    lost: str,
) -> Verdict:
    """Failed by an incident of a failing kind that nobody required or allowed, and by a required one that is absent."""
    asked = {number: each.incidents for number, each in enumerate([overall, *turns]) if each and each.incidents}
    failing = policy.failing
    unwanted = [
        incident
        for incident in found
        if incident.kind in failing
        and not any(
            pattern.covers(incident)
            for number in (0, incident.turn)
            if number in asked
            for pattern in (*asked[number].require, *asked[number].allow)
        )
    ]
    required = [(number, pattern) for number, each in asked.items() for pattern in each.require]
    absent = [
        f"{pattern}{f' in turn {number}' if number else ''}"
        for number, pattern in required
        if not any(pattern.covers(incident) and number in (0, incident.turn) for incident in found)
    ]
    why = [f"turn {incident.turn}: {incident.message}" for incident in unwanted]
    if not lost:
        why += [f"{each} was required and did not happen" for each in absent]
    wanted = [f"{pattern}{f' in turn {number}' if number else ''}" for number, pattern in required]
    return Verdict(
        check="incidents",
        turn=None,
        status="failed" if why else "skipped" if lost else "passed",
        expected=", ".join([*wanted, f"no {'other ' if wanted else ''}{', '.join(k for k in KINDS if k in failing)}"]),
        actual=", ".join(f"{incident.kind} in turn {incident.turn}" for incident in found) or "none",
        why="; ".join(each.rstrip(".") for each in why) or lost,
    )
