"""What a call's target sees of the conversation: filters over chat messages, pure, in any order (second document)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from chatflow_runtime.limits import check_count
from chatflow_runtime.types import AssistantMessage, Json, Message, ToolCall, ToolResult, UserMessage

if TYPE_CHECKING:
    from chatflow_runtime.agent import Agent

ChatMessage: TypeAlias = dict[str, Any]
"""A message as chat-completions APIs have it; an assistant's `name` is the agent's."""


@dataclass(slots=True)
class HandoffInputData:
    """What a filter is given and gives back: the messages for the target, and where they come from."""

    messages: list[ChatMessage]
    context: dict[str, Json] = field(default_factory=dict)
    """What the model, or the program, gave along with the handoff."""
    source_agent: Agent | None = None
    handoff_depth: int = 0
    """How many handoffs enclose the target, this one included."""
    handoff_chain: tuple[str, ...] = ()
    """The agents whose handoffs are under way, the source last."""
    max_depth: int | None = None
    """How many handoffs may enclose the target."""

    @property
    def depth(self) -> int:
        """Another name for `handoff_depth`."""
        return self.handoff_depth

    @property
    def chain(self) -> tuple[str, ...]:
        """Another name for `handoff_chain`."""
        return self.handoff_chain


Filter: TypeAlias = Callable[[HandoffInputData], HandoffInputData]


def remove_all_tools(data: HandoffInputData) -> HandoffInputData:
    """Without tool calls and their results; what was said beside a call stays."""
    kept = []
    for message in data.messages:
        if message.get("role") == "tool":
            continue
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        if not message.get("tool_calls") or _text(plain.get("content")).strip():
            kept.append(plain)
    return replace(data, messages=copy.deepcopy(kept))


def keep_last_n_messages(n: int) -> Filter:
    """A filter that keeps the last `n` messages; a call and its results that do not all fit are left out together."""
    check_count("keep_last_n_messages", n, least=0)

    def keep(data: HandoffInputData) -> HandoffInputData:
        return replace(data, messages=copy.deepcopy(last(data.messages, n)))

    return keep


def remove_system_messages(data: HandoffInputData) -> HandoffInputData:
    """Without system messages."""
    kept = [message for message in data.messages if not is_system(message)]
    return replace(data, messages=copy.deepcopy(kept))


def compress_history(data: HandoffInputData) -> HandoffInputData:
    """One user message that tells what each of the others said and called; none where there are none."""
    told = [line for message in data.messages for line in _told(message)]
    summary = {"role": "user", "content": "\n".join(["Previous conversation summary:", *told])}
    return replace(data, messages=[summary] if told else [])


def last(messages: Sequence[ChatMessage], n: int) -> list[ChatMessage]:
    """The last `n` messages, without the rest of a tool exchange that begins before them."""
    kept = list(messages[len(messages) - min(n, len(messages)) :])
    while kept and kept[0].get("role") == "tool":
        del kept[0]
    return kept


def is_system(message: ChatMessage) -> bool:
    """Whether the message is an instruction rather than something said."""
    return message.get("role") in ("system", "developer")


# --- between the runtime's messages and chat messages


def settled(history: Sequence[Message]) -> list[Message]:
    """The messages without calls that have no result, results that have no call, and blank texts."""
    kept: list[Message] = []
    seen: set[str] = set()
    place = 0
    while place < len(history):
        message = history[place]
        place += 1
        if isinstance(message, ToolResult):
            continue
        if isinstance(message, UserMessage) or not message.tool_calls:
            if (message.text or "").strip():
                kept.append(message)
            continue
        results: dict[str, ToolResult] = {}
        while place < len(history) and isinstance(result := history[place], ToolResult):
            results.setdefault(result.call_id, result)
            place += 1
        calls = tuple(call for call in message.tool_calls if call.id in results and call.id not in seen)
        seen.update(call.id for call in calls)
        if calls or (message.text or "").strip():
            kept.append(replace(message, tool_calls=calls))
        kept += [results[call.id] for call in calls]
    return kept


def as_chat(history: Iterable[Message]) -> list[ChatMessage]:
    """The messages as chat messages; their tool calls keep the arguments as they were sent."""
    return [_as_chat(message) for message in history]


def from_chat(messages: Iterable[Mapping[str, Any]], speaker: str) -> tuple[str, list[Message]]:
    """The texts of system messages, and the other messages as the runtime's, those of nobody said by `speaker`.

    Raises ValueError for a role that there is none of.
    """
    instructions: list[str] = []
    found: list[Message] = []
    for message in messages:
        text = _text(message.get("content"))
        match message.get("role"):
            case "system" | "developer":
                instructions.append(text)
            case "user":
                found.append(UserMessage(text))
            case "assistant":
                calls = tuple(_tool_call(call) for call in message.get("tool_calls") or ())
                found.append(AssistantMessage(str(message.get("name") or speaker), text or None, calls))
            case "tool":
                call_id, name = str(message.get("tool_call_id")), str(message.get("name") or "")
                found.append(ToolResult(call_id, name, text, bool(message.get("is_error"))))
            case role:
                raise ValueError(f"A message has the role {role!r}, expected system, user, assistant or tool.")
    return "\n\n".join(text for text in instructions if text.strip()), settled(found)


def _as_chat(message: Message) -> ChatMessage:
    match message:
        case UserMessage(text):
            return {"role": "user", "content": text}
        case AssistantMessage(agent, text, ()):
            return {"role": "assistant", "name": agent, "content": text or ""}
        case AssistantMessage(agent, text, calls):
            called = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
            return {"role": "assistant", "name": agent, "content": text, "tool_calls": called}
        case ToolResult(call_id, name, content, is_error):
            told = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            error = {"is_error": True} if is_error else {}
            return {"role": "tool", "tool_call_id": call_id, "name": name, "content": told, **error}


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    return ToolCall(str(call.get("id")), str(function.get("name")), str(function.get("arguments", "{}")))


def _text(content: object) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _told(message: ChatMessage) -> Iterator[str]:
    if text := _text(message.get("content")).strip():
        yield f"[{message.get('role')}]: {text}"
    for call in message.get("tool_calls") or ():
        made = _tool_call(call)
        yield f"[{message.get('role')} called {made.name}]: {made.arguments}"
