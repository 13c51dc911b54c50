"""One interception for the process: overlapping trials keep their tapes apart, and nothing stays patched."""

from __future__ import annotations

import asyncio
import contextvars
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from chatflow_eval.cassette import read
from chatflow_eval.errors import CassetteMismatch
from chatflow_eval.recorder import RecordingTape, ReplayTape, interception, playing
from chatflow_eval.testing import Reply, ScriptedServer


def body(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def echo(request: dict[str, Any]) -> Reply:
    return Reply(text=f"echo {request['messages'][0]['content']}")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(echo, latency=0.005) as running:
        yield running


def said(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def ask(client: httpx.AsyncClient, url: str, text: str) -> str:
    return said((await client.post(f"{url}/chat/completions", json=body(text))).json())


def replay_tape(path: Path) -> ReplayTape:
    return ReplayTape.load(path, rerecord="chatflow-eval record")


async def test_overlapping_trials_record_and_replay_apart(server: ScriptedServer, tmp_path: Path) -> None:
    async def record(number: int, client: httpx.AsyncClient) -> None:
        tape = RecordingTape(tmp_path / f"{number}.json")
        with playing(tape):
            for turn in range(3):
                assert await ask(client, server.url, f"{number}-{turn}") == f"echo {number}-{turn}"
        tape.save()

    async def replay(number: int, client: httpx.AsyncClient) -> list[str]:
        with playing(replay_tape(tmp_path / f"{number}.json")):
            return [await ask(client, server.url, f"{number}-{turn}") for turn in range(3)]

    async with httpx.AsyncClient() as client:
        with interception():
            await asyncio.gather(*(record(number, client) for number in range(20)))
            sent = len(server.requests)
            replayed = await asyncio.gather(*(replay(number, client) for number in range(20)))
    assert replayed == [[f"echo {number}-{turn}" for turn in range(3)] for number in range(20)]
    assert len(server.requests) == sent == 60


async def test_every_client_library_is_heard(server: ScriptedServer, tmp_path: Path) -> None:
    url = f"{server.url}/chat/completions"
    tape = RecordingTape(tmp_path / "c.json")
    with interception(), playing(tape):
        async with httpx.AsyncClient() as client:
            await client.post(url, json=body("httpx async"))
        with httpx.Client() as sync_client:
            await asyncio.to_thread(sync_client.post, url, json=body("httpx sync"))
        async with aiohttp.ClientSession() as session, session.post(url, json=body("aiohttp")) as answer:
            assert said(await answer.json()) == "echo aiohttp"
    assert [exchange.body for exchange in tape.exchanges] == [body("httpx async"), body("httpx sync"), body("aiohttp")]


async def test_a_recording_says_who_asked_and_in_which_turn(server: ScriptedServer, tmp_path: Path) -> None:
    tape = RecordingTape(tmp_path / "c.json", agent="Billing", turn=2)
    async with httpx.AsyncClient() as client:
        with interception(), playing(tape):
            await ask(client, server.url, "x")
    tape.save()
    (exchange,) = read(tmp_path / "c.json").exchanges
    assert (exchange.agent, exchange.turn) == ("Billing", 2)


async def test_a_miss_reaches_no_network_and_is_kept_on_the_tape(server: ScriptedServer, tmp_path: Path) -> None:
    recording = RecordingTape(tmp_path / "c.json")
    async with httpx.AsyncClient() as client:
        with interception():
            with playing(recording):
                await ask(client, server.url, "recorded")
            recording.save()
            tape = replay_tape(tmp_path / "c.json")
            with playing(tape), pytest.raises(CassetteMismatch, match="recorded 'recorded', now 'new'"):
                await ask(client, server.url, "new")
    assert isinstance(tape.error, CassetteMismatch)
    assert len(server.requests) == 1


async def test_outside_a_trial_nothing_is_recorded(server: ScriptedServer, tmp_path: Path) -> None:
    tape = RecordingTape(tmp_path / "c.json")
    async with httpx.AsyncClient() as client:
        with interception():
            with playing(tape):
                pass
            assert await ask(client, server.url, "x") == "echo x"
    assert tape.exchanges == []


def test_patches_go_whatever_the_order_of_closing() -> None:
    before = (httpx.HTTPTransport.handle_request, aiohttp.ClientSession._request)
    one, other = ExitStack(), ExitStack()
    one.enter_context(interception())
    other.enter_context(interception())
    assert httpx.HTTPTransport.handle_request is not before[0]
    one.close()
    assert httpx.HTTPTransport.handle_request is not before[0]
    other.close()
    assert (httpx.HTTPTransport.handle_request, aiohttp.ClientSession._request) == before


def test_threads_started_with_the_context_keep_their_tape(server: ScriptedServer, tmp_path: Path) -> None:
    def work(number: int) -> None:
        tape = RecordingTape(tmp_path / f"{number}.json")
        with playing(tape), httpx.Client() as client:
            client.post(f"{server.url}/chat/completions", json=body(str(number)))
        tape.save()

    with interception():
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(8):
        (exchange,) = read(tmp_path / f"{number}.json").exchanges
        assert exchange.body == body(str(number))


async def test_an_attempt_that_was_repeated_with_success_is_not_kept(tmp_path: Path) -> None:
    replies = [Reply(status=429, body="slow down"), Reply(text="fine")]
    tape = RecordingTape(tmp_path / "c.json")
    with ScriptedServer(replies) as server:
        async with httpx.AsyncClient() as client:
            with interception(), playing(tape):
                for _ in range(2):
                    await client.post(f"{server.url}/chat/completions", json=body("x"))
    tape.save()
    assert [exchange.status for exchange in read(tmp_path / "c.json").exchanges] == [200]


async def test_compressed_answers_are_stored_readable(tmp_path: Path) -> None:
    """B094."""
    packed = gzip.compress(json.dumps({"choices": []}).encode())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
        writer.write(head.encode() + packed)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    tape = RecordingTape(tmp_path / "c.json")
    async with listening, httpx.AsyncClient() as client:
        with interception(), playing(tape):
            assert (await client.get(f"http://127.0.0.1:{port}/")).json() == {"choices": []}
        tape.save()
        with interception(), playing(replay_tape(tmp_path / "c.json")):
            assert (await client.get(f"http://127.0.0.1:{port}/")).json() == {"choices": []}
    assert read(tmp_path / "c.json").exchanges[0].answer == '{"choices": []}'
