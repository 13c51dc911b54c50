"""Who answers for the model: the Engine protocol, its request and answer, and the scripted engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TypeAlias, cast

from chatflow_runtime.exceptions import ScriptError
from chatflow_runtime.history import conversation
from chatflow_runtime.naming import tool_name
from chatflow_runtime.types import UNKNOWN, AssistantMessage, Json, Message, ToolCall, Usage, encodable


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    target: str | None = None
    """The agent a transfer tool leads to; `None` for a domain tool. Never sent to a provider."""

    def projection(self) -> dict[str, Json]:
        """The tool as chat-completions requests offer it."""
        function = {"name": self.name, "description": self.description, "parameters": cast(Json, self.parameters)}
        return {"type": "function", "function": cast(Json, function)}


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

    def projection(self) -> dict[str, Json]:
        """The canonical request: what every engine sends, and what recordings match."""
        system: list[dict[str, Json]] = []
        if self.instructions.strip():
            system.append({"role": "system", "content": encodable(self.instructions)})
        model = provider_model(self.model)
        messages = [*system, *conversation(self.history, has_tools=bool(self.tools), model=model)]
        request: dict[str, Json] = {"model": model, "messages": cast(Json, messages)}
        if self.tools:
            request["tools"] = [tool.projection() for tool in self.tools]
            if (choice := self._tool_choice()) is not None:
                request["tool_choice"] = choice
            if self.settings.parallel_tool_calls is not None:
                request["parallel_tool_calls"] = self.settings.parallel_tool_calls
        for name in ("temperature", "top_p", "seed", "max_tokens"):
            if (value := getattr(self.settings, name)) is not None:
                request[name] = value
        return request

    def _tool_choice(self) -> Json:
        choice = self.settings.tool_choice
        if choice is None or choice in ("auto", "none", "required"):
            return choice
        # A choice by name is meant for the agents that have the tool; a provider refuses it from the others.
        if any(tool.name == choice for tool in self.tools):
            return {"type": "function", "function": {"name": choice}}
        return None


def provider_model(model: str) -> str:
    """The model's name as litellm takes it: a bare `gemini-...`, as in the seed documents, means `gemini/...`."""
    return f"gemini/{model}" if model.startswith("gemini-") else model


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said: text, tool calls, or both."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = UNKNOWN


class Engine(Protocol):
    """Answers for a model."""

    async def answer(self, request: ModelRequest) -> Answer:
        """One answer to one request; raises whatever the provider's failure is."""
        ...


_engine_in_use: ContextVar[Engine | None] = ContextVar("chatflow_runtime.engine", default=None)


def engine_in_use() -> Engine | None:
    """The engine that `using` set for this task, if any."""
    return _engine_in_use.get()


@contextmanager
def using(engine: Engine) -> Iterator[Engine]:
    """Within the block, `engine` answers for every agent that has none of its own, nor its runner.

    Raises ScriptError at the end of the block when a scripted engine has answers left.
    """
    token = _engine_in_use.set(engine)
    try:
        yield engine
    finally:
        _engine_in_use.reset(token)
    if isinstance(engine, ScriptedEngine):
        engine.finish()


@dataclass(frozen=True, slots=True)
class Say:
    """A scripted text."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A scripted tool call; arguments given as text are sent as they are, be they JSON or not."""

    tool: str
    arguments: Mapping[str, Json] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A scripted call of the asking agent's transfer tool to `agent`, or of the name it would have."""

    agent: str
    reason: str | None = None


Line: TypeAlias = str | Say | Call | Transfer
Scripted: TypeAlias = Line | Sequence[Line] | Answer | BaseException | Callable[[ModelRequest], Answer]
"""One scripted answer: a text, a call, several of them at once, an exception to raise, or a function."""


class ScriptedEngine:
    """Answers from a script, in order; raises ScriptError when asked for more, or when finished with some left."""

    def __init__(self, script: Iterable[Scripted]) -> None:
        self._script = tuple(script)
        self._requests: list[ModelRequest] = []

    @property
    def requests(self) -> tuple[ModelRequest, ...]:
        """Everything that was asked so far."""
        return tuple(self._requests)

    @property
    def remaining(self) -> int:
        """How many scripted answers were not asked for yet."""
        return max(len(self._script) - len(self._requests), 0)

    async def answer(self, request: ModelRequest) -> Answer:
        """The next scripted answer."""
        position = len(self._requests)
        if position >= len(self._script):
            raise ScriptError(f"Agent '{request.agent}' asked for answer {position + 1}, the script has {position}.")
        self._requests.append(request)
        scripted = self._script[position]
        if isinstance(scripted, BaseException):
            raise scripted
        if isinstance(scripted, Answer):
            return scripted
        if callable(scripted):
            return scripted(request)
        if isinstance(scripted, str | Say | Call | Transfer):
            return _answer((scripted,), request)
        return _answer(scripted, request)

    def finish(self) -> None:
        """Raises ScriptError when scripted answers were not asked for."""
        if self.remaining:
            asked = len(self._requests)
            raise ScriptError(
                f"The script has {len(self._script)} answers, {asked} were asked for; next is {self._script[asked]!r}."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()


def _answer(lines: Sequence[Line], request: ModelRequest) -> Answer:
    texts: list[str] = []
    calls: list[ToolCall] = []
    made = sum(len(message.tool_calls) for message in request.history if isinstance(message, AssistantMessage))
    for line in lines:
        match line:
            case str(text) | Say(text):
                texts.append(text)
            case Call(tool, arguments, call_id):
                raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
                calls.append(ToolCall(call_id or f"call_{made + len(calls) + 1}", tool, raw))
            case Transfer(agent, reason):
                name = next((tool.name for tool in request.tools if tool.target == agent), tool_name(agent))
                raw = "{}" if reason is None else json.dumps({"reason": reason})
                calls.append(ToolCall(f"call_{made + len(calls) + 1}", name, raw))
    return Answer("\n".join(texts) or None, tuple(calls))
