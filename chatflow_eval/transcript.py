"""A trace as plain text: who was active, who said what, which tools ran, which handoffs were accepted or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from chatflow_eval.route import ARROWS, route_text, visits_of_turn
from chatflow_eval.trace import HistoryFault, Hop, LimitStep, ModelStep, Step, ToolStep, Trace, TurnTrace, WarningStep

LONGEST_TEXT = 400
"""Characters of one text that a transcript shows."""


def transcript_of_trace(trace: Trace) -> str:
    """Every turn of a trace, under its number."""
    return "\n".join(f"turn {number}\n{transcript_of_turn(turn)}" for number, turn in enumerate(trace.turns, 1))


def transcript_of_turn(turn: TurnTrace) -> str:
    """One turn: its route, then what was said and done, one line each."""
    return "\n".join(f"  {line}" for line in _lines(turn))


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text on one line, with a note of how much was cut."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}... ({len(line) - longest} more characters)"


def _lines(turn: TurnTrace) -> Iterator[str]:
    yield f"route: {route_text(visits_of_turn(turn))}"
    yield f"user: {cut(turn.user)}"
    for step in turn.steps:
        line = _line(step)
        if line is not None:
            yield line
    if turn.failure is not None:
        yield f"failed: {turn.failure.exception}: {cut(turn.failure.message)}"
    else:
        yield f"reply by {turn.end_agent}: {cut(turn.reply)}"


def _line(step: Step) -> str | None:
    match step:
        case ModelStep(calls=calls, text=text):
            # A text without calls is the reply, which has a line of its own.
            return f"{step.agent}: {cut(text)}" if text and calls else None
        case ToolStep():
            outcome = "error" if step.is_error else "returned"
            return f"{step.agent} called {step.tool}({_data(step.arguments)}): {outcome} {_data(step.result)}"
        case Hop(accepted=True):
            reason = f" (reason: {cut(step.reason)})" if step.reason else ""
            failed = f": failed: {cut(step.error)}" if step.error else ""
            return f"{step.source} {ARROWS[step.kind]} {step.target} by {step.tool}{reason}{failed}"
        case Hop():
            return f"{step.source} -x-> {step.target} by {step.tool}: refused: {cut(step.message)}"
        case LimitStep():
            return f"limit: {step.limit} = {step.value} reached at {step.agent}"
        case WarningStep():
            return f"warning: {cut(step.message)}"
        case HistoryFault():
            return f"invalid history: {cut(step.message)}"


def _data(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
