"""A cassette as people read it: exchanges laid out as a conversation, bodies as structures; and two compared."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from chatflow_eval.cassette import REFERENCE, Cassette, Exchange, Origin, ToolExchange, shown
from chatflow_runtime.types import Json

_INDENT = "    "


def lay_out(cassette: Cassette, *, whole: bool = False) -> str:
    """The cassette as text; what an exchange repeats of earlier ones is left out unless it is wanted `whole`."""
    head = [shown(cassette.path), *([_origin(cassette.origin)] if cassette.origin else [])]
    return "\n".join([*head, *_body(cassette, whole=whole)]) + "\n"


def compare(old: Cassette, new: Cassette) -> str:
    """What differs between two cassettes as a unified diff of their texts; nothing where they say the same."""
    one, other = list(_body(old, whole=True)), list(_body(new, whole=True))
    lines = difflib.unified_diff(one, other, shown(old.path), shown(new.path), lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _origin(origin: Origin) -> str:
    repeat = f", repeat {origin.repeat}" if origin.repeat > 1 else ""
    recorded = f", recorded {origin.recorded}" if origin.recorded else ""
    target = f", {origin.target}" if origin.target != REFERENCE else ""
    return f"{origin.file}::{origin.scenario}{target}, {origin.model}{repeat}{recorded}"


def _body(cassette: Cassette, *, whole: bool) -> Iterator[str]:
    turn: int | None = None
    before = _Before()
    for number, exchange in enumerate(cassette.exchanges, 1):
        if exchange.turn != turn:
            turn = exchange.turn
            yield ""
            yield f"turn {turn}" if turn is not None else "turn unknown"
        yield ""
        yield f"{number}. {exchange.agent or 'somebody'}: {exchange.method} {exchange.uri}"
        yield from _request(exchange, _Before() if whole else before, whole=whole)
        yield from _answer(exchange)
        before.add(exchange)
    if cassette.tools is not None:
        yield ""
        yield "what tools returned"
        for tool in cassette.tools:
            yield from _tool(tool)


@dataclass(slots=True)
class _Before:
    """What earlier exchanges said, which later ones repeat."""

    messages: list[Json] = field(default_factory=list)
    settings: dict[str, Json] = field(default_factory=dict)

    def add(self, exchange: Exchange) -> None:
        messages = _messages(exchange)
        if isinstance(exchange.body, dict) and messages:
            self.messages += [_essence(message) for message in (*messages, *_answered(exchange))]
            self.settings = {key: value for key, value in exchange.body.items() if key not in ("messages", "tools")}


def _request(exchange: Exchange, before: _Before, *, whole: bool) -> Iterator[str]:
    body = exchange.body
    messages = _messages(exchange)
    if not isinstance(body, dict) or not messages:
        if body is not None:
            yield from _structure(body, _INDENT)
        return
    repeated = 0
    for message in messages:
        if _essence(message) in before.messages:
            repeated += 1
        else:
            yield from _message(message)
    if repeated:
        yield f"{_INDENT}({repeated} message{'s' if repeated > 1 else ''} as before)"
    for key, value in body.items():
        if key == "tools" and not whole and isinstance(value, list):
            yield f"{_INDENT}tools: {', '.join(map(_tool_name, value))}"
        elif key != "messages" and (key, value) not in before.settings.items():
            yield from _structure({key: value}, _INDENT)


def _messages(exchange: Exchange) -> list[Json]:
    messages = exchange.body.get("messages") if isinstance(exchange.body, dict) else None
    return messages if isinstance(messages, list) else []


def _answered(exchange: Exchange) -> list[Json]:
    """The messages in a chat's answer."""
    if isinstance(exchange.answer, bytes):
        return []
    try:
        return [choice["message"] for choice in _choices(json.loads(exchange.answer))]
    except (ValueError, RecursionError):
        return []


def _choices(answer: Json) -> list[dict[str, Json]]:
    """The choices of a chat completion; none where the answer is something else."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    listed = choices if isinstance(choices, list) else []
    chosen = [choice for choice in listed if isinstance(choice, dict) and isinstance(choice.get("message"), dict)]
    return chosen if len(chosen) == len(listed) else []


def _essence(message: Json) -> Json:
    """A message without what differs between its being answered and its being sent back."""
    if not isinstance(message, dict):
        return message
    calls = message.get("tool_calls")
    listed = calls if isinstance(calls, list) else []
    functions = [call.get("function") if isinstance(call, dict) else call for call in listed]
    return [message.get("role"), message.get("content") or None, message.get("tool_call_id"), functions]


def _message(message: Json) -> Iterator[str]:
    if not isinstance(message, dict):
        yield from _structure(message, _INDENT)
        return
    who = str(message.get("role", "?"))
    if "tool_call_id" in message:
        who += f" {message['tool_call_id']}"
    yield from _said(who, message.get("content") or None)
    yield from _calls(who, message.get("tool_calls"))
    for key, value in message.items():
        if key not in ("role", "content", "tool_calls", "tool_call_id"):
            yield from _structure({f"{who} {key}": value}, _INDENT)


def _said(who: str, content: Json) -> Iterator[str]:
    if isinstance(content, str):
        first, *rest = content.split("\n")
        yield f"{_INDENT}{who}: {first}"
        yield from (f"{_INDENT}{' ' * len(who)}  {line}" for line in rest)
    elif content is not None:
        yield from _structure({who: content}, _INDENT)


def _calls(who: str, calls: Json) -> Iterator[str]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(call, dict) and isinstance(function, dict):
            yield f"{_INDENT}{who}: calls {function.get('name')} {function.get('arguments')} ({call.get('id')})"
        else:
            yield from _structure({f"{who} calls": call}, _INDENT)


def _tool_name(tool: Json) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    named = function.get("name") if isinstance(function, dict) else None
    return str(named) if named is not None else json.dumps(tool, ensure_ascii=False)


def _answer(exchange: Exchange) -> Iterator[str]:
    status = f"{exchange.status} {exchange.reason}".rstrip()
    if isinstance(exchange.answer, bytes):
        yield f"  {status}: {len(exchange.answer)} bytes of {exchange.content_type or 'unknown type'}"
        return
    try:
        answer: Json = json.loads(exchange.answer)
    except (ValueError, RecursionError):
        yield f"  {status}"
        yield from (f"{_INDENT}{line}" for line in exchange.answer.split("\n"))
        return
    yield f"  {status}"
    choices = _choices(answer)
    if not isinstance(answer, dict) or not choices:
        yield from _structure(answer, _INDENT)
        return
    for choice in choices:
        yield from _message(choice["message"])
        if choice.get("finish_reason") is not None:
            yield f"{_INDENT}finish_reason: {choice['finish_reason']}"
    for key, value in answer.items():
        if key not in ("choices", "id", "object", "created", "model"):
            yield from _structure({key: value}, _INDENT)


def _tool(tool: ToolExchange) -> Iterator[str]:
    place = f"turn {tool.turn}, " if tool.turn is not None else ""
    yield f"  {place}{tool.agent}: {tool.tool} {json.dumps(tool.arguments, ensure_ascii=False)}"
    if tool.error is not None:
        yield f"{_INDENT}raised {tool.error}"
    elif tool.handoff is not None:
        yield f"{_INDENT}handed off to {tool.handoff.get('target')}"
    else:
        yield from _structure(tool.result, _INDENT)
    if tool.context:
        yield from _structure({"context": tool.context}, _INDENT)
    if tool.dropped:
        yield f"{_INDENT}context without: {', '.join(tool.dropped)}"


def _structure(value: Json, indent: str) -> Iterator[str]:
    """JSON with a line for each value, and long texts on lines of their own."""
    match value:
        case dict() if value:
            for key, item in value.items():
                yield from _item(f"{key}:", item, indent)
        case list() if value:
            for item in value:
                yield from _item("-", item, indent)
        case str():
            yield from (f"{indent}{line}" for line in value.split("\n"))
        case _:
            yield f"{indent}{json.dumps(value, ensure_ascii=False)}"


def _item(mark: str, item: Json, indent: str) -> Iterator[str]:
    if (isinstance(item, dict | list) and item) or (isinstance(item, str) and "\n" in item):
        yield f"{indent}{mark}"
        yield from _structure(item, f"{indent}  ")
    else:
        yield f"{indent}{mark} {item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)}"
