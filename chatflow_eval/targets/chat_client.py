"""The httpx client through which a framework under test asks its models: ours to set, to hear and to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from chatflow_eval.retries import CallLimits, persist
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
    sent: Callable[[Mapping[str, object]], None]
    """Is told the body of every request, before it goes out."""
    tell: Callable[[str], None]
    """Is told of every attempt that failed and is made again."""


class ChatClient(httpx.AsyncClient):
    """Sends chat requests with the scenario's settings, and again where that may help."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(timeout=wire.limits.timeout, verify=certificates())
        self._wire = wire

    async def post(self, url: Any, *, json: Any = None, **options: Any) -> httpx.Response:
        """The answer to one chat request, the last one where none was good."""
        body = with_settings(json, self._wire.settings)
        self._wire.sent(body)

        async def once() -> httpx.Response:
            response = await httpx.AsyncClient.post(self, url, json=body, **options)
            if response.status_code in (408, 429) or response.status_code >= 500:
                raise _Refused(response)
            return response

        try:
            return await persist(once, self._wire.limits, tell=self._wire.tell)
        except _Refused as refused:
            return refused.response


class AnsweringClient(httpx.AsyncClient):
    """Answers a chat request from an engine of ours, in the form that a provider would; nothing goes out."""

    def __init__(self, engine: Engine, request: ModelRequest, sent: Callable[[Mapping[str, object]], None]) -> None:
        super().__init__(transport=httpx.AsyncBaseTransport())
        self._engine = engine
        self._request = request
        self._sent = sent

    async def post(self, url: Any, *, json: Any = None, **options: Any) -> httpx.Response:
        """What the engine answers to the request that this client was made for."""
        self._sent(json)
        answer = await self._engine.answer(self._request)
        body = render_completion(answer, self._request.model)
        return httpx.Response(200, json=body, request=httpx.Request("POST", url))


class _Refused(Exception):
    """An answer after which asking again may help."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response
        self.status_code = response.status_code


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
