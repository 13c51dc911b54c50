"""What providers accept as a history: the projection that is sent, and the one validator for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from chatflow_runtime.naming import clean_tool_name, is_tool_name
from chatflow_runtime.types import AssistantMessage, Json, Message, ToolCall, ToolResult, UserMessage, encodable

FaultCode: TypeAlias = Literal[
    "no_messages",  # nothing but system messages
    "user_not_first",  # Anthropic and Gemini: somebody else than the user begins
    "nothing_to_answer",  # Anthropic and Gemini: the last words are the assistant's
    "misplaced_call",  # Gemini: a call follows the assistant's own words, not the user's or a result
    "unknown_role",
    "blank_content",  # a user or assistant message that says nothing, or blank text beside calls
    "unanswered_call",  # a call without its result before the next message
    "orphan_result",  # a result whose call is not in the assistant message before it
    "answered_twice",
    "duplicate_id",  # two calls with one id
    "bad_id",  # an id that the provider's rule excludes
    "bad_name",  # a called or offered tool's name that some provider refuses
    "bad_arguments",  # arguments that are no JSON object
    "duplicate_tool",  # two offered tools with one name
    "bad_parameters",  # an offered tool whose parameters are no object schema
    "tools_missing",  # calls in the history, but no tools offered
]
"""Why a provider would refuse a request."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason for which a provider would refuse a request; `index` counts messages from 0, `None` is the tools."""

    code: FaultCode
    index: int | None
    message: str


def project(history: Sequence[Message], *, has_tools: bool, model: str) -> list[dict[str, Json]]:
    """The chat-completions messages of a history, valid for `model`'s provider whatever the models before it said."""
    if not has_tools:
        # Several providers refuse calls in the history of a request that offers no tools: a leaf agent reads them
        # as text.
        return list(_told(history))
    rule = _id_rule(model)
    return [_message(message, rule) for message in history]


def conversation(history: Sequence[Message], *, has_tools: bool, model: str) -> list[dict[str, Json]]:
    """The messages of a request that asks a model to go on with a history, which may begin and end with anybody."""
    begin = next((index for index, message in enumerate(history) if isinstance(message, UserMessage)), len(history))
    messages = [*_told(history[:begin]), *project(history[begin:], has_tools=has_tools, model=model)]
    # Some providers refuse an assistant's words at either end, others go on with the last as if they were their own.
    for end in (0, -1):
        if history and isinstance(said := history[end], AssistantMessage) and "tool_calls" not in messages[end]:
            messages[end] = {"role": "user", "content": f"{encodable(said.agent)}: {messages[end]['content']}"}
    return _joined(messages)


def faults(request: Mapping[str, object]) -> tuple[Fault, ...]:
    """Everything for which OpenAI, Anthropic or Gemini would refuse a chat-completions request body, in order.

    Where their rules differ, those of the body's model count. That roles alternate is nobody's rule any more.
    """
    messages, tools, model = request.get("messages"), request.get("tools"), str(request.get("model"))
    entries = [_mapping(entry) for entry in _list(messages)]
    offered = [_mapping(_mapping(tool).get("function")) for tool in _list(tools)]
    return (
        *_message_faults(entries, _id_rule(model)),
        *_order_faults(entries, model.lower()),
        *_tool_faults(entries, offered),
    )


# --- projection


def _message(message: Message, rule: re.Pattern[str]) -> dict[str, Json]:
    match message:
        case UserMessage(text):
            return {"role": "user", "content": encodable(text)}
        case AssistantMessage(_, text, ()):
            return {"role": "assistant", "content": encodable(text or "")}
        case AssistantMessage(_, text, calls):
            content = encodable(text) if text and text.strip() else None
            return {"role": "assistant", "content": content, "tool_calls": [_call(call, rule) for call in calls]}
        case ToolResult(call_id, _, content):
            return {"role": "tool", "tool_call_id": _wire_id(call_id, rule), "content": _result_text(content)}


def _call(call: ToolCall, rule: re.Pattern[str]) -> dict[str, Json]:
    function: dict[str, Json] = {"name": clean_tool_name(call.name), "arguments": _object_text(call)}
    return {"id": _wire_id(call.id, rule), "type": "function", "function": function}


def _told(history: Sequence[Message]) -> Iterator[dict[str, Json]]:
    results: list[str] = []
    for message in history:
        if isinstance(message, ToolResult):
            results.append(f"[{clean_tool_name(message.name)} returned {_result_text(message.content)}]")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        if isinstance(message, UserMessage):
            yield {"role": "user", "content": encodable(message.text)}
        else:
            said = [message.text] if message.text and message.text.strip() else []
            called = [f"[called {clean_tool_name(call.name)} {_object_text(call)}]" for call in message.tool_calls]
            yield {"role": "assistant", "content": encodable("\n".join([*said, *called]))}
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _joined(messages: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
    """The messages with an assistant's words right before its next ones in one message, so that calls follow a user."""
    joined: list[dict[str, Json]] = []
    for message in messages:
        before = joined[-1] if joined else {}
        if before.get("role") == message["role"] == "assistant" and "tool_calls" not in before:
            texts = (before["content"], message["content"])
            joined[-1] = {**message, "content": "\n".join(text for text in texts if isinstance(text, str) and text)}
        else:
            joined.append(message)
    return joined


def _object_text(call: ToolCall) -> str:
    return encodable(call.arguments) if isinstance(call.parsed(), dict) else "{}"


def _result_text(content: Json) -> str:
    # Blank results are refused by some providers; the JSON of an empty string is not blank.
    if isinstance(content, str) and content.strip():
        return encodable(content)
    return encodable(json.dumps(content, ensure_ascii=False))


_ANY_ID = re.compile(r".+", re.DOTALL)
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_COMMON_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


def _id_rule(model: str) -> re.Pattern[str]:
    # Gemini has no ids, and litellm carries its thought signatures in them: they must come back as they went.
    name = model.lower()
    if "gemini" in name:
        return _ANY_ID
    return _MISTRAL_ID if name.startswith(("mistral", "codestral")) else _COMMON_ID


def _wire_id(call_id: str, rule: re.Pattern[str]) -> str:
    if rule.fullmatch(call_id):
        return call_id
    return "c" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def refusals(request: Mapping[str, object]) -> tuple[Fault, ...]:
    """The faults for which the request's own provider refuses it, as far as the model's name tells which that is.

    Blank text beside calls, and calls in a request without tools, are refused by Anthropic's models and those of
    Bedrock; servers of OpenAI's form take them.
    """
    found = faults(request)
    if re.search(r"claude|anthropic|bedrock", str(request.get("model")).lower()):
        return found
    messages = [_mapping(message) for message in _list(request.get("messages"))]

    def is_taken(fault: Fault) -> bool:
        if fault.code == "blank_content":
            return fault.index is not None and bool(messages[fault.index].get("tool_calls"))
        return fault.code == "tools_missing"

    return tuple(fault for fault in found if not is_taken(fault))


# --- validation


def _message_faults(messages: Sequence[Mapping[str, object]], rule: re.Pattern[str]) -> Iterator[Fault]:
    if all(message.get("role") in _SYSTEM for message in messages):
        yield Fault("no_messages", None, "There is no message to answer.")
    seen: set[str] = set()
    pending: dict[str, bool] = {}
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in pending:
                yield Fault("orphan_result", index, f"The result {call_id!r} answers no call of the message before it.")
            elif pending[call_id]:
                yield Fault("answered_twice", index, f"The call {call_id!r} is answered a second time.")
            pending[call_id] = True
            continue
        yield from _unanswered(pending, index)
        pending = {}
        if role == "assistant":
            calls = [_mapping(call) for call in _list(message.get("tool_calls"))]
            yield from _content_faults(message, index, has_calls=bool(calls))
            for call in calls:
                yield from _call_faults(call, index, seen=seen, rule=rule)
            pending = {str(call.get("id")): False for call in calls}
        elif role == "user":
            yield from _content_faults(message, index, has_calls=False)
        elif role not in _SYSTEM:
            yield Fault("unknown_role", index, f"The role is {role!r}, expected system, user, assistant or tool.")
    yield from _unanswered(pending, len(messages))


def _order_faults(messages: Sequence[Mapping[str, object]], model: str) -> Iterator[Fault]:
    is_gemini = "gemini" in model
    if not is_gemini and "claude" not in model and "anthropic" not in model:
        return
    spoken = [(index, message) for index, message in enumerate(messages) if message.get("role") not in _SYSTEM]
    for index, message in spoken[:1]:
        if message.get("role") != "user":
            yield Fault(
                "user_not_first", index, f"The first message is of role {message.get('role')!r}, not the user's."
            )
    for (_, before), (index, message) in pairwise(spoken):
        if is_gemini and message.get("tool_calls") and before.get("role") == "assistant":
            yield Fault("misplaced_call", index, "A call follows the assistant's own words.")
    for index, message in spoken[-1:]:
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            yield Fault(
                "nothing_to_answer", index, "The last words are the assistant's, so there is nothing to answer."
            )


def _unanswered(pending: Mapping[str, bool], index: int) -> Iterator[Fault]:
    for call_id, answered in pending.items():
        if not answered:
            yield Fault("unanswered_call", index, f"The call {call_id!r} has no result before the next message.")


def _content_faults(message: Mapping[str, object], index: int, *, has_calls: bool) -> Iterator[Fault]:
    content = message.get("content")
    if has_calls and content is None:
        return
    if not _says_something(content):
        yield Fault("blank_content", index, f"The {message.get('role')} message has blank content.")


def _says_something(content: object) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    parts = [_mapping(part) for part in _list(content)]
    return any(part.get("type") != "text" or str(part.get("text") or "").strip() for part in parts)


def _call_faults(call: Mapping[str, object], index: int, *, seen: set[str], rule: re.Pattern[str]) -> Iterator[Fault]:
    call_id = call.get("id")
    function = _mapping(call.get("function"))
    name = function.get("name")
    if not isinstance(call_id, str) or not rule.fullmatch(call_id):
        yield Fault("bad_id", index, f"The call id is {call_id!r}, which the provider refuses.")
    if str(call_id) in seen:
        yield Fault("duplicate_id", index, f"The call id {call_id!r} was used before.")
    seen.add(str(call_id))
    if not isinstance(name, str) or not is_tool_name(name):
        yield Fault("bad_name", index, f"The called tool is named {name!r}, which some provider refuses.")
    if not _is_object_text(function.get("arguments")):
        yield Fault("bad_arguments", index, f"The arguments of {name!r} are no JSON object.")


def _is_object_text(arguments: object) -> bool:
    return isinstance(arguments, str) and isinstance(ToolCall("", "", arguments).parsed(), dict)


def _tool_faults(messages: Sequence[Mapping[str, object]], offered: Sequence[Mapping[str, object]]) -> Iterator[Fault]:
    seen: set[str] = set()
    for function in offered:
        name = function.get("name")
        if not isinstance(name, str) or not is_tool_name(name):
            yield Fault("bad_name", None, f"An offered tool is named {name!r}, which some provider refuses.")
        if str(name) in seen:
            yield Fault("duplicate_tool", None, f"Two offered tools are named {name!r}.")
        seen.add(str(name))
        parameters = _mapping(function.get("parameters"))
        if parameters.get("type") != "object" or not isinstance(parameters.get("properties"), Mapping):
            yield Fault("bad_parameters", None, f"The parameters of {name!r} are no object schema.")
    if not offered and any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
        yield Fault("tools_missing", None, "The history has tool calls, but no tools are offered.")


_SYSTEM = ("system", "developer")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
