"""The httpx client through which a framework under test asks its models: ours to set, to hear and to answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from chatflow_eval.retries import CallLimits, persist, status_may_pass
from chatflow_eval.scenario import SettingsSpec
from chatflow_eval.targets.certificates import certificates
from chatflow_runtime.completions import render_completion
from chatflow_runtime.engine import Engine, ModelRequest
from chatflow_runtime.types import Json

_ON_THE_WIRE = ("temperature", "top_p", "seed", "max_tokens")


@dataclass(frozen=True, slots=True)
class Wire:
    """What holds for every chat request of one conversation."""

    settings: SettingsSpec
    limits: CallLimits
    sent: Callable[[Mapping[str, Json]], None]
    """Is told the body of every request, before it goes out."""
    tell: Callable[[str], None]
    """Is told of every attempt that failed and is made again."""


class ChatClient(httpx.AsyncClient):
    """Sends chat requests with the scenario's settings, and again where that may help."""

    def __init__(self, wire: Wire, *, through: httpx.AsyncClient | None = None) -> None:
        # How long a call may take is counted around it.
        super().__init__(timeout=None, verify=certificates())
        self._wire = wire
        self._post = through.post if through is not None else super().post

    async def post(self, url: Any, *, json: Any = None, **options: Any) -> httpx.Response:
        """The answer to one chat request, the last one where none was good."""
        body = with_settings(json, self._wire.settings)
        self._wire.sent(body)

        async def once() -> httpx.Response:
            response = await self._post(url, json=body, **options)
            if status_may_pass(response.status_code):
                raise _Refused(response)
            if response.is_success and not _is_object(response.text):
                raise _Unreadable(response)
            return response

        try:
            return await persist(once, self._wire.limits, tell=self._wire.tell)
        except (_Refused, _Unreadable) as refused:
            return refused.response


class AnsweringClient(httpx.AsyncClient):
    """Answers a chat request from an engine of ours, in the form that a provider would; nothing goes out."""

    def __init__(
        self,
        engine: Engine,
        read: Callable[[Mapping[str, Json]], ModelRequest],
        sent: Callable[[Mapping[str, Json]], None],
    ) -> None:
        super().__init__(transport=httpx.AsyncBaseTransport())
        self._engine = engine
        self._read = read
        self._sent = sent

    async def post(self, url: Any, *, json: Any = None, **options: Any) -> httpx.Response:
        """What the engine answers to the request that this body stands for."""
        self._sent(json)
        request = self._read(json)
        body = render_completion(await self._engine.answer(request), request.model)
        return httpx.Response(200, json=body, request=httpx.Request("POST", url))


class _Refused(Exception):
    """An answer after which asking again may help."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response
        self.status_code = response.status_code


class _Unreadable(ConnectionError):
    """A good answer that breaks off, or is none, as from a proxy: asking again may help."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__("the answer is no JSON object")
        self.response = response


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def with_settings(body: Mapping[str, Json], settings: SettingsSpec) -> dict[str, Json]:
    """The chat request with what the scenario says of how models are called."""
    more: dict[str, Json] = {name: value for name in _ON_THE_WIRE if (value := getattr(settings, name)) is not None}
    if "tools" in body:
        if settings.parallel_tool_calls is not None:
            more["parallel_tool_calls"] = settings.parallel_tool_calls
        choice = settings.tool_choice
        if choice in ("auto", "none", "required"):
            more["tool_choice"] = choice
        elif choice is not None and choice in _offered(body):
            # A choice by name is meant for the agents that have the tool; a provider refuses it from the others.
            more["tool_choice"] = {"type": "function", "function": {"name": choice}}
    return {**body, **more}


def _offered(body: Mapping[str, Json]) -> set[object]:
    tools = body.get("tools")
    functions = (tool.get("function") for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
    return {function.get("name") for function in functions if isinstance(function, dict)}


def as_chat(body: Mapping[str, Json]) -> dict[str, Json]:
    """The chat request that says what this one says to Anthropic's Messages API."""
    chat: list[Json] = [{"role": "system", "content": body["system"]}] if "system" in body else []
    for message in _dicts(body.get("messages")):
        chat += _as_chat_messages(str(message["role"]), message["content"])
    request: dict[str, Json] = {"model": f"anthropic/{body.get('model')}", "messages": chat}
    if tools := _dicts(body.get("tools")):
        request["tools"] = [
            {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
            for tool in tools
        ]
    return request


def _as_chat_messages(role: str, content: Json) -> Iterator[Json]:
    blocks = _dicts(content)
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
    texts = [str(block.get("text")) for block in blocks if block.get("type") == "text"]
    calls: list[Json] = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input"))},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    if calls:
        yield {"role": role, "content": "".join(texts) or None, "tool_calls": calls}
    elif texts or not blocks:
        yield {"role": role, "content": "".join(texts) if blocks else content}


def _dicts(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
