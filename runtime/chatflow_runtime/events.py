"""What a runner tells its observers, in the order it happens.

`within` are the ids of the calls around an event, outermost first: calls that run at once mix in time, never in there.
Traces are made of these; nobody parses a history to find out what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chatflow_runtime.types import HandoffKind, Json, LimitName, ToolCall, Usage

Refusal: TypeAlias = Literal[
    "already_transferred",  # another transfer of the same response already took effect
    "self",  # the target is already active
    "not_allowed",  # an edge or a transfer tool this agent does not have
    "unregistered",  # no agent of that name is registered
    "limit",  # a limit refused it
    "invalid_arguments",  # a typed handoff's payload did not fit its schema
    "cycle",  # the target's own handoff is under way
    "callback_failed",  # a callback or filter of the handoff raised
]
"""Why a handoff did not happen."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A user's message, or a caller's, is about to be answered by `agent`."""

    agent: str
    text: str
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """An agent's model is asked; `tools` are the names offered to it."""

    agent: str
    model: str
    tools: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """A model answered, with its calls as the provider sent them; `seconds` is how long it took."""

    agent: str
    model: str
    text: str | None
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    seconds: float
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A domain tool is about to run, or an unknown name is about to be refused."""

    agent: str
    call_id: str
    tool: str
    arguments: Json
    """The parsed arguments, or the raw text where they are no JSON."""
    known: bool
    """False when the agent has no such tool."""
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    """A domain tool's result, or the error in its place, as the model reads it."""

    agent: str
    call_id: str
    tool: str
    content: Json
    is_error: bool
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandoffAccepted:
    """Control is with `target` now: for good, or until it has answered, as `kind` says."""

    source: str
    target: str
    tool: str
    reason: str
    kind: HandoffKind
    call_id: str
    withheld: tuple[str, ...] = ()
    """The target's domain tools that it may not use in this call."""
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandoffReturned:
    """A call came back: `target` answered, or failed, and control is with `source` again."""

    source: str
    target: str
    call_id: str
    error: str = ""
    """What went wrong; empty when it answered."""
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandoffRefused:
    """Control stays with `source`, and why."""

    source: str
    target: str
    """The agent that was asked for; the tool's name where no agent is known for it."""
    tool: str
    reason: str
    kind: HandoffKind
    call_id: str
    why: Refusal
    message: str
    """What the model was told."""
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit refused something, for the first time in this turn."""

    agent: str
    limit: LimitName
    value: int
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warned:
    """Something was repaired on the way: unusable arguments, a repeated call id."""

    agent: str
    message: str
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over; `text` is the reply."""

    agent: str
    """The agent who is active when the turn ends."""
    text: str
    by_runner: bool = False
    """True when the runner wrote the text itself, because a limit ended the turn."""
    within: tuple[str, ...] = ()


Event: TypeAlias = (
    TurnStarted
    | ModelAsked
    | ModelAnswered
    | ToolCalled
    | ToolAnswered
    | HandoffAccepted
    | HandoffReturned
    | HandoffRefused
    | LimitHit
    | Warned
    | TurnEnded
)
"""Anything that happens in a turn."""

Observer: TypeAlias = Callable[[Event], None]
"""Who is told; what it raises ends the turn, which leaves the session as it was."""
