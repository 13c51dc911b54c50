"""The chat-completions answer that nearly every provider gives, whole or as a stream, read whatever it leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chatflow_runtime.engine import Answer
from chatflow_runtime.types import UNKNOWN, Json, ToolCall, Usage, encodable

# litellm invents such an id, another one each time, where the provider sent none.
_INVENTED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def parse_completion(payload: Mapping[str, object]) -> Answer:
    """The answer in a chat-completions response body; what is missing or malformed reads as absent, never raises.

    Calls count because they are there, whatever `finish_reason` says; a missing id is empty, for the runner to fill.
    """
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = _mapping(_mapping(first).get("message"))
    return Answer(
        text=_text(message.get("content")) or _text(message.get("refusal")),
        tool_calls=tuple(_tool_call(_mapping(call)) for call in _list(message.get("tool_calls"))),
        usage=_usage(_mapping(payload.get("usage"))),
    )


def render_completion(answer: Answer, model: str) -> dict[str, Json]:
    """A chat-completions response body that `parse_completion` reads as this answer."""
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.tool_calls
    ]
    message: dict[str, Json] = {"role": "assistant", "content": answer.text}
    if calls:
        message["tool_calls"] = calls
    choice: dict[str, Json] = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    body: dict[str, Json] = {"object": "chat.completion", "model": model, "choices": [choice]}
    if answer.usage != UNKNOWN:
        used, made = answer.usage.input_tokens, answer.usage.output_tokens
        body["usage"] = {"prompt_tokens": used, "completion_tokens": made}
    return body


def join_completion(chunks: Iterable[Mapping[str, object]]) -> Answer:
    """The answer in the chunks of a streamed chat completion, read as `parse_completion` reads a whole one.

    Raises ConnectionError when the stream says that it failed, or ends before any chunk has a `finish_reason`: half an
    answer is none.
    """
    answer = _Streamed()
    for chunk in chunks:
        answer.add(chunk)
    if not answer.is_finished:
        raise ConnectionError(f"The model's answer broke off after {answer.count} chunks, before its finish_reason.")
    return parse_completion(answer.payload())


@dataclass(slots=True)
class _StreamedCall:
    """One tool call as far as it was streamed."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Streamed:
    """An answer as far as it was streamed."""

    count: int = 0
    is_finished: bool = False
    _content: str = ""
    _refusal: str = ""
    _calls: list[_StreamedCall] = field(default_factory=list)
    _at: dict[int, _StreamedCall] = field(default_factory=dict)
    """The last call of each index; providers leave it out, start at 1, or say 0 for all."""
    _usage: object = None

    def add(self, chunk: Mapping[str, object]) -> None:
        if error := chunk.get("error"):
            told = _mapping(error).get("message") or json.dumps(error, default=str)
            raise ConnectionError(f"The model's answer broke off after {self.count} chunks: {told}")
        self.count += 1
        self._usage = chunk.get("usage") or self._usage
        for choice in map(_mapping, _list(chunk.get("choices"))):
            if choice.get("index") not in (0, None):
                continue
            delta = _mapping(choice.get("delta"))
            self._content += _joined(delta.get("content"))
            self._refusal += _joined(delta.get("refusal"))
            for part in map(_mapping, _list(delta.get("tool_calls"))):
                self._add_to_call(part)
            self.is_finished = self.is_finished or bool(choice.get("finish_reason"))

    def _add_to_call(self, part: Mapping[str, object]) -> None:
        function, index = _mapping(part.get("function")), part.get("index")
        piece = _StreamedCall(
            _string(part.get("id")), _string(function.get("name")), _arguments(function.get("arguments"))
        )
        call = self._at.get(index) if isinstance(index, int) else next(reversed(self._calls), None)
        if call is not None and call.id and piece.id and call.id != piece.id:
            call = next((known for known in self._calls if known.id == piece.id), None)
        if call is None or _begins_another(call, piece):
            call = _StreamedCall()
            self._calls.append(call)
        if isinstance(index, int):
            self._at[index] = call
        call.id = call.id or piece.id
        call.name = call.name or piece.name
        call.arguments += piece.arguments

    def payload(self) -> dict[str, object]:
        """The body that a provider would have sent at once."""
        calls = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in self._calls
            if call != _StreamedCall()
        ]
        # A character may have come as two halves, in two chunks.
        content = self._content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        message = {"content": content, "refusal": self._refusal, "tool_calls": calls}
        return {"choices": [{"message": message}], "usage": self._usage}


def _begins_another(call: _StreamedCall, piece: _StreamedCall) -> bool:
    """Whether a piece with a name begins another call; some providers repeat the name with every piece of one."""
    if not piece.name or not call.name:
        return False
    if piece.name != call.name:
        return True
    is_whole = isinstance(ToolCall("", "", call.arguments).parsed(), dict)
    return not piece.id and is_whole and bool(piece.arguments.strip())


def _text(content: object) -> str | None:
    text = _joined(content)
    return text if text.strip() else None


def _joined(content: object) -> str:
    if isinstance(content, list):
        parts = (_mapping(part).get("text") for part in content)
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _tool_call(call: Mapping[str, object]) -> ToolCall:
    call_id = _string(call.get("id"))
    function = _mapping(call.get("function"))
    return ToolCall(
        id="" if _INVENTED_ID.fullmatch(call_id) else call_id,
        name=encodable(_string(function.get("name"))),
        arguments=_arguments(function.get("arguments")),
    )


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


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


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
