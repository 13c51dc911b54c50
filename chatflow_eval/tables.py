"""Outcomes as flat tables of trials, turns and hops, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from chatflow_eval.outcome import Outcome
from chatflow_eval.tally import judged_turns
from chatflow_eval.trace import ModelStep, ToolStep

Cell: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Cell]

KEY = ("file", "scenario", "target", "model", "repeat")
"""The columns that every table starts with: what makes a trial itself."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "trials": {
        "line": "integer",
        "tags": "text",
        "status": "text",
        "why": "text",
        "xfail": "text",
        "replayed": "boolean",
        "baseline": "boolean",
        "turns": "integer",
        "turns_judged": "integer",
        "turns_right": "integer",
        "handoffs": "integer",
        "incidents": "text",
        "model_calls": "integer",
        "input_tokens": "integer",
        "output_tokens": "integer",
        "seconds": "number",
        "error": "text",
        "failed_turn": "integer",
    },
    "turns": {
        "turn": "integer",
        "user": "text",
        "asks": "text",
        "may_end_at": "text",
        "judged": "boolean",
        "right": "boolean",
        "errored": "boolean",
        "starts_at": "text",
        "route": "text",
        "ends_at": "text",
        "reply": "text",
        "model_calls": "integer",
        "tool_calls": "integer",
        "input_tokens": "integer",
        "output_tokens": "integer",
        "seconds": "number",
        "error": "text",
    },
    "hops": {
        "turn": "integer",
        "number": "integer",
        "source": "text",
        "agent": "text",
        "kind": "text",
        "accepted": "boolean",
        "tool": "text",
        "reason": "text",
        "refused_because": "text",
        "depth": "integer",
    },
}
"""Table to its columns after the key, with the type of each; a cell that says nothing is empty, never 0."""


def trials(outcomes: Iterable[Outcome]) -> Iterator[Row]:
    """One row a trial; several tags, or kinds of incidents, are parted by `;`."""
    for outcome in outcomes:
        turns = list(judged_turns(outcome))
        traces = outcome.trace.turns if outcome.trace else ()
        calls = [step for turn in traces for step in turn.steps if isinstance(step, ModelStep)]
        yield _key(outcome) | {
            "line": outcome.line,
            "tags": ";".join(outcome.tags),
            "status": outcome.status,
            "why": outcome.why,
            "xfail": outcome.xfail,
            "replayed": outcome.replayed,
            "baseline": outcome.baseline,
            "turns": len(traces),
            "turns_judged": sum(turn.judged for turn in turns),
            "turns_right": sum(turn.right for turn in turns),
            "handoffs": sum(len(turn.accepted) for turn in traces),
            "incidents": ";".join(incident.kind for incident in outcome.incidents),
            "model_calls": len(calls),
            **_tokens(calls),
            "seconds": outcome.seconds,
            "error": None if outcome.failure is None else outcome.failure.exception,
            "failed_turn": outcome.failed_turn,
        }


def turns(outcomes: Iterable[Outcome]) -> Iterator[Row]:
    """One row a planned turn, also where it was not reached; several agents that may end it are parted by `;`."""
    for outcome in outcomes:
        traces = outcome.trace.turns if outcome.trace else ()
        judged = {turn.number: turn for turn in judged_turns(outcome)}
        demands = {demand.turn: demand for demand in outcome.demands}
        for number, user in enumerate(outcome.users, 1):
            trace = traces[number - 1] if number <= len(traces) else None
            turn, demand = judged.get(number), demands.get(number)
            calls = [step for step in trace.steps if isinstance(step, ModelStep)] if trace else []
            yield _key(outcome) | {
                "turn": number,
                "user": user,
                "asks": demand.asks if demand else None,
                "may_end_at": ";".join(demand.ends) if demand else None,
                "judged": turn.judged if turn else False,
                "right": turn.right if turn and turn.judged else None,
                "errored": turn.errored if turn else False,
                "starts_at": trace.start_agent if trace else None,
                "route": " -> ".join(trace.agents) if trace else None,
                "ends_at": trace.end_agent if trace else None,
                "reply": trace.reply if trace else None,
                "model_calls": len(calls) if trace else None,
                "tool_calls": sum(isinstance(step, ToolStep) for step in trace.steps) if trace else None,
                **_tokens(calls),
                "seconds": trace.seconds if trace else None,
                "error": trace.failure.exception if trace and trace.failure else None,
            }


def hops(outcomes: Iterable[Outcome]) -> Iterator[Row]:
    """One row a handoff, accepted or refused, in the order in which they were tried."""
    for outcome in outcomes:
        for turn, trace in enumerate(outcome.trace.turns if outcome.trace else (), 1):
            for number, hop in enumerate(trace.hops, 1):
                yield _key(outcome) | {
                    "turn": turn,
                    "number": number,
                    "source": hop.source,
                    "agent": hop.target,
                    "kind": hop.kind,
                    "accepted": hop.accepted,
                    "tool": hop.tool,
                    "reason": hop.reason,
                    "refused_because": hop.why,
                    "depth": hop.depth,
                }


TABLES: Mapping[str, Callable[[Iterable[Outcome]], Iterator[Row]]] = {"trials": trials, "turns": turns, "hops": hops}
"""The tables by name."""


def _key(outcome: Outcome) -> Row:
    return dict(zip(KEY, outcome.key, strict=True))


def _tokens(calls: Iterable[ModelStep]) -> Row:
    """Tokens of the calls that reported them."""
    calls = list(calls)
    read = [step.input_tokens for step in calls if step.input_tokens is not None]
    written = [step.output_tokens for step in calls if step.output_tokens is not None]
    return {"input_tokens": sum(read) if read else None, "output_tokens": sum(written) if written else None}
