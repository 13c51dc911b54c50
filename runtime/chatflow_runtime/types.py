"""The values that travel: messages, tool calls and results, handoffs, usage, responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NoReturn, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What `json.loads` returns."""

HandoffKind: TypeAlias = Literal["transfer", "call"]
"""`transfer` moves control for good; `call` gets it back when the target has answered."""


def encodable(text: str) -> str:
    """The text without lone surrogates (half an emoji, left by a cut answer), which no file or request can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def encodable_json(data: Json) -> Json:
    """The same data without lone surrogates in its texts."""
    if isinstance(data, str):
        return encodable(data)
    if isinstance(data, list):
        return [encodable_json(item) for item in data]
    if isinstance(data, dict):
        return {encodable(key): encodable_json(item) for key, item in data.items()}
    return data


def copy_json(value: object, where: str) -> Json:
    """A deep copy of JSON data; raises TypeError naming the place of anything that is none."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {_checked_key(key, where): copy_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__}, expected JSON data.")


def _checked_key(key: object, where: str) -> str:
    if isinstance(key, str):
        return key
    raise TypeError(f"{where} has the key {key!r}, expected text.")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to run a tool, exactly as the provider sent it."""

    id: str
    name: str
    arguments: str = "{}"
    """Raw JSON text; it may be empty, cut or no object at all."""

    def parsed(self) -> Json:
        """The arguments as JSON data, or the raw text where they are no JSON."""
        try:
            data: Json = json.loads(self.arguments, parse_constant=_refuse_constant)
            return encodable_json(data) if "\\u" in self.arguments else data
        except (ValueError, RecursionError):
            return encodable(self.arguments)


def _refuse_constant(name: str) -> NoReturn:
    # NaN and Infinity are Python's own; no provider reads them back.
    raise ValueError(name)


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said."""

    text: str
    tool_calls: ClassVar[tuple[ToolCall, ...]] = ()


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What one agent's model said, its text and its tool calls."""

    agent: str
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one tool call; `content` is what the model reads."""

    call_id: str
    name: str
    content: Json
    is_error: bool = False
    tool_calls: ClassVar[tuple[ToolCall, ...]] = ()


Message: TypeAlias = UserMessage | AssistantMessage | ToolResult


@dataclass(frozen=True, slots=True)
class Handoff:
    """The wish to pass the conversation to another agent, as transfer tools return it (first seed document)."""

    target_agent_name: str
    reason: str | None = None
    context_updates: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens one model call took; `None` is unknown, which is not 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None

    def __add__(self, other: Usage) -> Usage:
        return Usage(_sum(self.input_tokens, other.input_tokens), _sum(self.output_tokens, other.output_tokens))


UNKNOWN = Usage()
"""Tokens that nobody counted."""


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


LimitName: TypeAlias = Literal["max_handoffs_per_turn", "max_tool_iterations", "max_depth", "step_limit"]


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A limit that refused something: which, its value, and the agent who was active."""

    limit: LimitName
    value: int
    agent: str


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """What one user turn came to (first seed document)."""

    content: str
    active_agent_name: str
    handoffs: tuple[Handoff, ...] = ()
    tool_calls_executed: tuple[str, ...] = ()
    """Names of the tools called this turn, refused and unknown ones included, in call order."""
    limit_hits: tuple[LimitReached, ...] = ()
    usage: Usage = UNKNOWN

    @property
    def handoff(self) -> Handoff | None:
        """The last handoff of this turn."""
        return self.handoffs[-1] if self.handoffs else None
