"""One scripted turn, and everything that it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import ModelRequest, Scripted, ScriptedEngine
from chatflow_runtime.events import Event
from chatflow_runtime.history import faults
from chatflow_runtime.runner import Runner
from chatflow_runtime.types import AgentResponse, ToolResult

E = TypeVar("E")


@dataclass
class Said:
    """What a scripted turn came to."""

    runner: Runner
    requests: tuple[ModelRequest, ...]
    response: AgentResponse
    events: list[Event]

    @property
    def results(self) -> list[ToolResult]:
        """What the session's own agents were told about their calls."""
        session = self.runner.get_session("s")
        assert session is not None
        return [message for message in session.history if isinstance(message, ToolResult)]

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def asked(self, agent: str) -> list[ModelRequest]:
        """What the agent's model was asked."""
        return [request for request in self.requests if request.agent == agent]


def said(start: Agent, *script: Scripted, text: str = "hi", **settings: Any) -> Said:
    """One turn in which the model answers from a script, all of it, with valid histories only."""
    engine = ScriptedEngine(script)
    runner = Runner(start, engine=engine, **settings)
    events: list[Event] = []
    response = runner.run("s", text, observer=events.append)
    engine.finish()
    assert [faults(request.projection()) for request in engine.requests] == [()] * len(script)
    return Said(runner, engine.requests, response, events)


@pytest.fixture
def converse() -> Callable[..., Said]:
    """One turn in which the model answers from a script, all of it, with valid histories only."""
    return said
