"""The chat-completions answer that nearly every provider or gateway gives, read whatever it leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from chatflow_runtime.engine import Answer
from chatflow_runtime.types import UNKNOWN, ToolCall, Usage, encodable

# litellm invents such an id, another one each time, where the provider sent none.
_INVENTED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def parse_completion(payload: Mapping[str, object]) -> Answer:
    """The answer in a chat-completions response body; what is missing or malformed reads as absent, never raises.

    Calls count because they are there, whatever `finish_reason` says; a missing id is empty, for the runner to fill.
    """
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = _mapping(_mapping(first).get("message"))
    calls = message.get("tool_calls")
    return Answer(
        text=_text(message.get("content")) or _text(message.get("refusal")),
        tool_calls=tuple(_tool_call(_mapping(call)) for call in calls) if isinstance(calls, list) else (),
        usage=_usage(_mapping(payload.get("usage"))),
    )


def _text(content: object) -> str | None:
    if isinstance(content, list):
        parts = (_mapping(part).get("text") for part in content)
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) and content.strip() else None


def _tool_call(call: Mapping[str, object]) -> ToolCall:
    call_id = call.get("id")
    function = _mapping(call.get("function"))
    name = function.get("name")
    return ToolCall(
        id=call_id if isinstance(call_id, str) and not _INVENTED_ID.fullmatch(call_id) else "",
        name=encodable(name) if isinstance(name, str) else "",
        arguments=_arguments(function.get("arguments")),
    )


def _arguments(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json.dumps(arguments)


def _usage(usage: Mapping[str, object]) -> Usage:
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    # No prompt takes 0 tokens: 0 is how a client that was told nothing says so.
    if not isinstance(prompt, int) or prompt <= 0:
        return UNKNOWN
    return Usage(prompt, completion if isinstance(completion, int) else None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
