"""What happened in one trial, turn by turn, step by step, in order; judges nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

HopKind: TypeAlias = Literal["transfer", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """One answer of a model."""

    step: Literal["model"] = "model"
    agent: str
    model: str
    text: str | None = None
    calls: tuple[str, ...] = ()
    """Names of the tools it called."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStep:
    """One domain tool call and its answer; `known` is False when the agent has no such tool."""

    step: Literal["tool"] = "tool"
    agent: str
    tool: str
    arguments: Any = None
    result: Any = None
    is_error: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One handoff, accepted or refused; a hop of kind `call` comes back to its source."""

    step: Literal["hop"] = "hop"
    source: str
    target: str
    kind: HopKind = "transfer"
    accepted: bool = True
    tool: str | None = None
    reason: str = ""
    why: str | None = None
    """Refusal code of a refused hop: already_transferred, self, not_allowed, unregistered, limit,
    invalid_arguments, cycle, callback_failed; of an accepted one, that it was refused and happened all the same."""
    message: str = ""
    depth: int = 0
    """How many calls enclose the target: a call's target is one deeper than its source, a transfer's as deep."""
    withheld: tuple[str, ...] = ()
    """The target's domain tools that a call does not let it use."""
    error: str = ""
    """What a call that was accepted failed with; empty when its target answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStep:
    """A limit refused something."""

    step: Literal["limit"] = "limit"
    agent: str
    limit: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningStep:
    """Something the target repaired on the way."""

    step: Literal["warning"] = "warning"
    agent: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFault:
    """One reason for which a provider would refuse the request that was about to go out."""

    step: Literal["fault"] = "fault"
    agent: str
    code: str
    """As `chatflow_runtime.history.FaultCode` has it."""
    message: str


Step: TypeAlias = Annotated[
    ModelStep | ToolStep | Hop | LimitStep | WarningStep | HistoryFault, Field(discriminator="step")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The exception that ended a turn: its class name, its text, and what kind of trouble it is."""

    kind: Literal["agent", "model", "network", "timeout", "cassette", "harness"]
    exception: str
    message: str
    status_code: int | None = None
    edit: str | None = None
    """Of a stale recording: what was edited since, alike for all trials that it made stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """One user turn: who was active, what happened, who replied."""

    user: str
    start_agent: str
    end_agent: str
    """Who wrote the reply; the active agent where the runner wrote it or the turn failed."""
    reply: str = ""
    steps: tuple[Step, ...] = ()
    failure: Failure | None = None
    context: dict[str, Any] = field(default_factory=dict)
    """Session context after the turn."""
    seconds: float = 0.0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Every attempted handoff, in order."""
        return tuple(step for step in self.steps if isinstance(step, Hop))

    @property
    def accepted(self) -> tuple[Hop, ...]:
        """The handoffs that happened, in order."""
        return tuple(step for step in self.steps if isinstance(step, Hop) and step.accepted)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents given the conversation in this turn, the one active at its start first."""
        return (self.start_agent, *(hop.target for hop in self.accepted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One declared handoff: from an agent, to an agent, through a tool."""

    source: str
    target: str
    tool: str | None = None
    kind: HopKind = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Agents, their domain tools and their edges, as the target declares them."""

    start: str
    agents: tuple[str, ...]
    tools: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Agent name to the names of its domain tools."""
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One trial's facts: the topology it ran on and its turns; turns never reached are absent."""

    topology: Topology
    turns: tuple[TurnTrace, ...] = ()
