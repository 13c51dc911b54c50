"""The scripted model server: it answers as told, says when its script is over, and leaves nothing open."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import threading
import urllib.error
import urllib.request
import warnings
from typing import Any

import pytest

from chatflow_eval.testing import Reply, ScriptedServer


def post(server: ScriptedServer, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{server.url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_replies_come_in_order_and_requests_are_kept() -> None:
    with ScriptedServer([Reply(text="one"), Reply(calls=(("look", {"id": 1}),))]) as server:
        first, second = post(server, model="m"), post(server, model="m", messages=[])
    assert first["choices"][0]["message"]["content"] == "one"
    assert second["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"id": 1}'}
    assert server.requests == [{"model": "m"}, {"model": "m", "messages": []}]


def test_past_its_script_it_says_so() -> None:
    with ScriptedServer([]) as server, pytest.raises(urllib.error.HTTPError) as refused:
        post(server)
    assert refused.value.code == 500
    assert b"no more replies" in refused.value.read()
    refused.value.close()


def test_answers_may_be_made_of_the_request() -> None:
    with ScriptedServer(lambda body: Reply(text=body["model"].upper())) as server:
        assert post(server, model="m")["choices"][0]["message"]["content"] == "M"


def test_clients_that_come_while_it_closes_are_not_left_behind() -> None:
    """asyncio of Python 3.11 drops a connection that it has accepted when its server is closed, and leaves it open."""
    for _ in range(10):
        clients: list[socket.socket] = []
        over = threading.Event()
        with ScriptedServer([]) as server:

            def come(port: int = server.port, clients: list[socket.socket] = clients, over: Any = over) -> None:
                with contextlib.suppress(OSError):
                    while not over.is_set():
                        clients.append(socket.create_connection(("127.0.0.1", port), 0.2))

            coming = threading.Thread(target=come)
            coming.start()
            while not clients:
                pass
        over.set()
        coming.join()
        for client in clients:
            client.close()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert not [str(each.message) for each in told if each.category is ResourceWarning]
