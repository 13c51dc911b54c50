"""Systems under test: what a target is, and which target a scenario names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from chatflow_eval.errors import TargetError
from chatflow_eval.matching import Ignore
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import REFERENCE, Framework, Limits, ScriptedAnswer, Service, SettingsSpec, TargetSpec
from chatflow_eval.tape import Tape
from chatflow_eval.trace import Topology, TurnTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a fresh conversation starts: everything a scenario may say about it."""

    models: Mapping[str, str] = field(default_factory=dict)
    """Agent name (`*` for the rest) to the model that answers for it; an absent agent keeps what it declares."""
    limits: Limits
    settings: SettingsSpec
    context: Mapping[str, Any] = field(default_factory=dict)
    tape: Tape | None = None
    """Where the model's answers come from or go to; `None`: live, with nothing recorded."""
    calls: CallLimits = field(default_factory=CallLimits)
    """How often, and how long, a model is asked for one answer."""


class Conversation(Protocol):
    """One fresh conversation with the system under test."""

    @property
    def topology(self) -> Topology:
        """The agents, tools and edges as this conversation's system declares them."""
        ...

    async def say(
        self, text: str, *, script: Sequence[ScriptedAnswer] | None = None, within: float | None = None
    ) -> TurnTrace:
        """One user turn, `within` so many seconds; what the system under test raises is in the trace, not raised."""
        ...


class Target(Protocol):
    """The system under test."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def varies(self) -> tuple[Ignore, ...]:
        """What of its requests is another text each time, and is ignored when they are matched with recorded ones."""
        ...

    def topology(self) -> Topology:
        """The agents, tools and edges that it declares, without a conversation.

        Raises:
            TargetError: the agents could not be found, imported or built.
        """
        ...

    def open(self, opening: Opening) -> AbstractAsyncContextManager[Conversation]:
        """A fresh conversation.

        Raises:
            TargetError: the agents could not be found, imported or built.
        """
        ...


def target_of(spec: TargetSpec, framework: Framework = REFERENCE) -> Target:
    """The target that a scenario's `target` or `agents` stands for, on that framework.

    Raises:
        TargetError: the framework is not installed.
    """
    if isinstance(spec, Service):
        from chatflow_eval.targets.http import ServiceTarget

        return ServiceTarget(spec)
    if framework == "chatflow_agent":
        try:
            from chatflow_eval.targets.chatflow_agent import ChatflowAgentTarget
        except ModuleNotFoundError as error:
            if error.name != "chatflow_agent":
                raise
            install = 'pip install "chatflow-eval[chatflow-agent]"'
            raise TargetError(f"chatflow-agent is not installed, on which agents are to run; {install}") from None

        return ChatflowAgentTarget(spec)
    from chatflow_eval.targets.reference import ReferenceTarget

    return ReferenceTarget(spec)


async def close_connections() -> None:
    """Closes what model clients keep open, at the end of an event loop's last conversation."""
    from chatflow_runtime import litellm_engine

    await litellm_engine.close_connections()
