"""A real OpenAI-compatible server on loopback with the answers you give it, for tests without a model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias

from aiohttp import web

from chatflow_runtime.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer of the server: text, tool calls (name and arguments), or any HTTP status and body."""

    text: str | None = None
    calls: tuple[tuple[str, Mapping[str, Json] | str], ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent as it is, instead of a chat completion."""

    def render(self, number: int, model: str) -> str:
        """The response's body: an OpenAI chat completion unless `body` says otherwise."""
        if self.body is not None:
            return self.body
        calls = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(dict(arguments)),
                },
            }
            for index, (name, arguments) in enumerate(self.calls)
        ]
        message = {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}
        return json.dumps(
            {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": 0,
                "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        )


Answering: TypeAlias = Callable[[dict[str, Any]], Reply]
"""From a request's parsed body to the reply."""


class ScriptedServer:
    """Serves `POST /v1/chat/completions` on a free loopback port while used as a context manager.

    Answers come from a function of the request's body, or from a sequence of replies in order; past its end the server
    answers 500 and says so. `requests` holds the bodies received, `latency` is in seconds.
    """

    def __init__(self, answers: Answering | Iterable[Reply], *, latency: float = 0.0) -> None:
        self._answer = answers if callable(answers) else _in_order(iter(answers))
        self._latency = latency
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-server", daemon=True)
        self._runner: web.AppRunner | None = None
        self._door: socket.socket | None = None
        self.requests: list[dict[str, Any]] = []
        self.port = 0

    @property
    def url(self) -> str:
        """What a client takes for its API base."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._door = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(self._runner, self._door).start()
        self.port = self._door.getsockname()[1]

    async def _stop(self) -> None:
        if self._runner is None or self._runner.server is None or self._door is None:
            return
        # asyncio drops connections that are on their way in when it is told to close: nobody new comes in, and who is
        # on the way is let in first. All of it takes rounds of the loop, and there are none once it stops.
        self._loop.remove_reader(self._door)
        await _rounds()
        open_ones = [connection.transport for connection in self._runner.server.connections]
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for transport in open_ones:
            if transport is not None:
                transport.abort()
        await _rounds()

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        number = len(self.requests)
        if self._latency:
            await asyncio.sleep(self._latency)
        reply = self._answer(body)
        return web.Response(
            text=reply.render(number, str(body.get("model", ""))),
            status=reply.status,
            headers={"Content-Type": "application/json", **reply.headers},
        )


async def _rounds() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _in_order(replies: Iterator[Reply]) -> Answering:
    def answer(_: dict[str, Any]) -> Reply:
        spent = Reply(status=500, body=json.dumps({"error": {"message": "the server's script has no more replies"}}))
        return next(replies, spent)

    return answer
