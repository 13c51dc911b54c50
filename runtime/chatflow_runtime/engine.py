"""Who answers for the model: the Engine protocol, its request and answer, and the scripted engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from chatflow_runtime.types import Json, Message, ToolCall, Usage


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    target: str | None = None
    """The agent a transfer tool leads to; `None` for a domain tool. Never sent to a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a model is called; `None` leaves the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    api_base: str | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model: who asks, with which instructions, history and tools."""

    agent: str
    model: str
    instructions: str
    history: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said: text, tool calls, or both."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()


class Engine(Protocol):
    """Answers for a model."""

    async def answer(self, request: ModelRequest) -> Answer:
        """One answer to one request; raises whatever the provider's failure is."""
        ...
