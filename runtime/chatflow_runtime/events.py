"""What a runner tells its observers, in the order it happens.

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
]
"""Why a handoff did not happen."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ModelAsked:
    agent: str
    model: str
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    agent: str
    model: str
    text: str | None
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    seconds: float


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


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    agent: str
    call_id: str
    tool: str
    content: Json
    is_error: bool


@dataclass(frozen=True, slots=True)
class HandoffAccepted:
    source: str
    target: str
    tool: str
    reason: str
    kind: HandoffKind
    call_id: str


@dataclass(frozen=True, slots=True)
class HandoffReturned:
    """A call came back: `target` answered and control is with `source` again."""

    source: str
    target: str
    call_id: str


@dataclass(frozen=True, slots=True)
class HandoffRefused:
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


@dataclass(frozen=True, slots=True)
class LimitHit:
    agent: str
    limit: LimitName
    value: int


@dataclass(frozen=True, slots=True)
class Warned:
    """Something was repaired on the way: unusable arguments, a repeated call id."""

    agent: str
    message: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    agent: str
    """The agent who is active when the turn ends."""
    text: str
    by_runner: bool = False
    """True when the runner wrote the text itself, because a limit ended the turn."""


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

Observer: TypeAlias = Callable[[Event], None]
