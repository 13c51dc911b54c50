"""One interception for the process: overlapping trials keep their tapes apart, and nothing stays patched."""

from __future__ import annotations

import asyncio
import contextvars
import gzip
import http.client
import http.server
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import httpx
import openai
import pytest
import requests
import urllib3
import vcr

from chatflow_eval import guard
from chatflow_eval.cassette import Cassette, Exchange, Origin, read, write
from chatflow_eval.errors import CassetteMismatch, NetworkRefused
from chatflow_eval.recorder import KEYS, interception, keeping, renew
from chatflow_eval.tape import RecordingTape, Reel, ReplayTape, playing
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_runtime.litellm_engine import load


def body(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def echo(request: dict[str, Any]) -> Reply:
    return Reply(text=f"echo {request['messages'][-1]['content']}")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(echo, latency=0.005) as running:
        yield running


def said(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def ask(client: httpx.AsyncClient, url: str, text: str) -> str:
    return said((await client.post(f"{url}/chat/completions", json=body(text))).json())


def reel(path: Path) -> Reel:
    origin = Origin(file="a.scenario.yaml", scenario=path.stem, model="m", repeat=1)
    return Reel(path=path, origin=origin, rerecord="chatflow-eval record")


def recording(path: Path) -> RecordingTape:
    return RecordingTape(reel(path))


def replaying(path: Path) -> ReplayTape:
    return ReplayTape.load(reel(path))


async def test_two_hundred_overlapping_trials_record_and_replay_apart(server: ScriptedServer, tmp_path: Path) -> None:
    """In one loop, half of them recording what the other half has recorded and replays; with two clients."""
    trials, turns = 200, 3

    async def take(number: int, tape: RecordingTape | ReplayTape) -> list[str]:
        url, heard = f"{server.url}/chat/completions", []
        with playing(tape):
            for turn in range(turns):
                text = f"{number}-{turn}"
                if number % 2:
                    heard.append(await ask(client, server.url, text))
                else:
                    async with session.post(url, json=body(text)) as answer:
                        heard.append(said(await answer.json()))
        if isinstance(tape, RecordingTape):
            tape.save()
        return heard

    def path(number: int) -> Path:
        return tmp_path / f"{number}.json"

    async with httpx.AsyncClient() as client, aiohttp.ClientSession() as session:
        with interception(), guard.watching():
            before = range(trials // 2)
            await asyncio.gather(*(take(number, recording(path(number))) for number in before))
            sent = len(server.requests)
            tapes = [
                replaying(path(number)) if number in before else recording(path(number)) for number in range(trials)
            ]
            heard = await asyncio.gather(*(take(number, tape) for number, tape in enumerate(tapes)))
    assert heard == [[f"echo {number}-{turn}" for turn in range(turns)] for number in range(trials)]
    assert sent == trials // 2 * turns
    assert len(server.requests) == trials * turns
    assert [len(read(path(number)).exchanges) for number in range(trials)] == [turns] * trials


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, n)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("client", [requests.Session, httpx.Client])
def test_threads_started_with_the_context_keep_their_tapes(
    server: ScriptedServer, tmp_path: Path, client: Callable[[], Any]
) -> None:
    """vcrpy alone loses requests of requests here, as it unpatches the process while one thread connects."""
    heard: dict[tuple[int, int], str] = {}

    def ask_all(number: int, tape: RecordingTape | ReplayTape) -> None:
        with playing(tape), client() as session:
            for turn in range(10):
                answer = session.post(f"{server.url}/chat/completions", json=body(f"{number}-{turn}"))
                heard[number, turn] = said(answer.json())

    def record(number: int) -> None:
        tape = recording(tmp_path / f"{number}.json")
        ask_all(number, tape)
        tape.save()

    expected = {(number, turn): f"echo {number}-{turn}" for number in range(8) for turn in range(10)}
    with interception():
        in_threads(8, record)
        assert heard == expected
        heard.clear()
        in_threads(8, lambda number: ask_all(number, replaying(tmp_path / f"{number}.json")))
    assert heard == expected
    assert len(server.requests) == 80


def test_threads_of_one_trial_share_its_tape(server: ScriptedServer, tmp_path: Path) -> None:
    def ask_all(tape: RecordingTape | ReplayTape) -> list[str]:
        with playing(tape), httpx.Client() as client, ThreadPoolExecutor(8) as pool:
            contexts = [contextvars.copy_context() for _ in range(40)]
            url = f"{server.url}/chat/completions"
            answers = [pool.submit(each.run, client.post, url, json=body("same")) for each in contexts]
            return [said(answer.result().json()) for answer in answers]

    tape = recording(tmp_path / "c.json")
    with interception():
        ask_all(tape)
        tape.save()
        assert ask_all(replaying(tmp_path / "c.json")) == ["echo same"] * 40
    assert len(server.requests) == 40


def test_processes_at_once_keep_their_cassettes(server: ScriptedServer, tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import httpx
        from chatflow_eval.cassette import Origin
        from chatflow_eval.recorder import interception
        from chatflow_eval.tape import RecordingTape, Reel, playing

        url, folder, name = sys.argv[1:]
        origin = Origin(file="a", scenario=name, model="m", repeat=1)
        tape = RecordingTape(Reel(path=Path(folder, f"{name}.json"), origin=origin, rerecord=""))
        with interception(), playing(tape), httpx.Client() as client:
            for turn in range(5):
                message = {"role": "user", "content": f"{name}-{turn}"}
                client.post(f"{url}/chat/completions", json={"model": "m", "messages": [message]})
        tape.save()
    """)
    commands = [[sys.executable, "-c", script, server.url, str(tmp_path), str(number)] for number in range(3)]
    for process in [subprocess.Popen(command) for command in commands]:
        assert process.wait(timeout=60) == 0
    for number in range(3):
        bodies = [exchange.body for exchange in read(tmp_path / f"{number}.json").exchanges]
        assert bodies == [body(f"{number}-{turn}") for turn in range(5)]


@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_workers_of_xdist_replay_apart(pytester: pytest.Pytester, server: ScriptedServer) -> None:
    agents = "agents:\n  A:\n    instructions: Say {user}.\n"
    scenarios = "".join(
        f"  - id: s{number}\n    turns: [{{user: say {number}, expect: {{reply: {{contains: say {number}}}}}}}]\n"
        for number in range(12)
    )
    head = f"models: openai/m\nsettings: {{api_base: '{server.url}'}}\n"
    pytester.makefile(".scenario.yaml", a=f"{head}{agents}scenarios:\n{scenarios}")
    pytester.makefile(".toml", pyproject="")

    def run(*options: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess("a.scenario.yaml", "-n", "2", "-p", "no:asyncio", *options)

    run("--chatflow-record-mode", "all").assert_outcomes(passed=12)
    asked = len(server.requests)
    run().assert_outcomes(passed=12)
    assert len(server.requests) == asked == 12


STREAM = "".join(
    f"data: {json.dumps(chunk)}\n\n"
    for chunk in (
        {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": stop}],
        }
        for text, stop in (("one ", None), ("two ", None), ("three", "stop"))
    )
)
STREAMED = Reply(headers={"Content-Type": "text/event-stream"}, body=f"{STREAM}data: [DONE]\n\n")
HI: list[Any] = [{"role": "user", "content": "hi"}]


def answer(request: dict[str, Any]) -> Reply:
    return STREAMED if request.get("stream") else echo(request)


def by_httpx(url: str) -> str:
    with httpx.Client() as client:
        return said(client.post(f"{url}/chat/completions", json=body("hi")).json())


def by_httpx_async(url: str) -> str:
    async def go() -> str:
        async with httpx.AsyncClient() as client:
            return await ask(client, url, "hi")

    return asyncio.run(go())


def by_httpx_stream(url: str) -> str:
    async def go() -> str:
        request = {**body("hi"), "stream": True}
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{url}/chat/completions", json=request) as answer,
        ):
            return "|".join([line async for line in answer.aiter_lines()])

    return asyncio.run(go())


def by_aiohttp(url: str) -> str:
    async def go() -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/chat/completions", json=body("hi")) as answer,
        ):
            return said(await answer.json())

    return asyncio.run(go())


def by_requests(url: str) -> str:
    return said(requests.post(f"{url}/chat/completions", json=body("hi"), timeout=10).json())


def by_urllib3(url: str) -> str:
    with urllib3.PoolManager() as pool:
        return said(pool.request("POST", f"{url}/chat/completions", json=body("hi")).json())


def by_urllib(url: str) -> str:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body("hi")).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return said(json.load(answer))


def by_openai(url: str) -> str:
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        return str(client.chat.completions.create(model="m", messages=HI).choices[0].message.content)


def by_openai_async(url: str) -> str:
    async def go() -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            found = await client.chat.completions.create(model="m", messages=HI)
            return str(found.choices[0].message.content)

    return asyncio.run(go())


def by_openai_stream(url: str) -> str:
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        chunks = client.chat.completions.create(model="m", messages=HI, stream=True)
        return "|".join(str(chunk.choices[0].delta.content) for chunk in chunks)


LITELLM: dict[str, Any] = {"model": "openai/m", "messages": HI, "api_key": "x", "max_retries": 0}


def _litellm() -> Any:
    load()
    return importlib.import_module("litellm")


def _close_litellm() -> None:
    """It keeps its clients, and their connections, for as long as the process lives."""
    clients = _litellm().in_memory_llm_clients_cache
    for client in clients.cache_dict.values():
        if isinstance(client, openai.OpenAI):
            client.close()
    clients.flush_cache()


def by_litellm(url: str) -> str:
    found = _litellm().completion(api_base=url, **LITELLM)
    _close_litellm()
    return str(found.choices[0].message.content)


def by_litellm_stream(url: str) -> str:
    chunks = list(_litellm().completion(api_base=url, stream=True, **LITELLM))
    _close_litellm()
    return "|".join(str(chunk.choices[0].delta.content) for chunk in chunks)


def _asked_async(url: str, **more: Any) -> Any:
    async def go() -> Any:
        found = await _litellm().acompletion(api_base=url, **LITELLM, **more)
        texts = [str(chunk.choices[0].delta.content) async for chunk in found] if more else []
        await _litellm().close_litellm_async_clients()
        return "|".join(texts) if more else str(found.choices[0].message.content)

    return asyncio.run(go())


def by_litellm_async(url: str) -> str:
    return str(_asked_async(url))


def by_litellm_async_stream(url: str) -> str:
    return str(_asked_async(url, stream=True))


CLIENTS = [
    by_httpx,
    by_httpx_async,
    by_httpx_stream,
    by_aiohttp,
    by_requests,
    by_urllib3,
    by_urllib,
    by_openai,
    by_openai_async,
    by_openai_stream,
    by_litellm,
    by_litellm_stream,
    by_litellm_async,
    by_litellm_async_stream,
]


@pytest.mark.parametrize(
    ("client", "transport"),
    [*((client, "aiohttp") for client in CLIENTS), (by_litellm_async, "httpx"), (by_litellm_async_stream, "httpx")],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_a_client_hears_is_recorded_once_and_heard_again_with_the_server_gone(
    tmp_path: Path, client: Callable[[str], str], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B088, B089: sync, async and streamed, and litellm on both of its transports."""
    if client.__name__.startswith("by_litellm"):
        monkeypatch.setattr(_litellm(), "disable_aiohttp_transport", transport == "httpx")
    path = tmp_path / "c.json"
    tape = recording(path)
    with ScriptedServer(answer) as server:
        url = server.url
        with interception(), playing(tape):
            heard = client(url)
        assert len(server.requests) == 1
    assert "echo hi" in heard or "three" in heard
    tape.save()
    assert len(read(path).exchanges) == 1
    with interception(), guard.watching(), playing(replaying(path)):
        assert client(url) == heard


class Messages(http.server.BaseHTTPRequestHandler):
    """Answers as Anthropic does."""

    message: ClassVar = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "echo hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(self.message).encode())

    def log_message(self, *args: object) -> None:
        pass


def test_the_anthropic_sdk_is_heard_as_well(tmp_path: Path) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")

    def ask_once(url: str) -> str:
        with anthropic.Anthropic(base_url=url, api_key="planted-canary", max_retries=0) as client:
            return str(client.messages.create(model="m", max_tokens=5, messages=HI).content[0].text)

    tape = recording(tmp_path / "c.json")
    with http.server.HTTPServer(("127.0.0.1", 0), Messages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with interception(), playing(tape):
            assert ask_once(url) == "echo hi"
        server.shutdown()
    tape.save()
    assert b"canary" not in (tmp_path / "c.json").read_bytes()
    with interception(), guard.watching(), playing(replaying(tmp_path / "c.json")):
        assert ask_once(url) == "echo hi"


async def test_a_recording_says_who_asked_and_in_which_turn(server: ScriptedServer, tmp_path: Path) -> None:
    tape = recording(tmp_path / "c.json")
    tape.turn = 2
    async with httpx.AsyncClient() as client:
        with interception(), playing(tape):
            tape.agent = "Billing"
            await ask(client, server.url, "x")
    tape.save()
    (exchange,) = read(tmp_path / "c.json").exchanges
    assert (exchange.agent, exchange.turn) == ("Billing", 2)


async def test_a_miss_reaches_no_network_and_is_kept_on_the_tape(server: ScriptedServer, tmp_path: Path) -> None:
    tape = recording(tmp_path / "c.json")
    async with httpx.AsyncClient() as client:
        with interception():
            with playing(tape):
                await ask(client, server.url, "recorded")
            tape.save()
            replay = replaying(tmp_path / "c.json")
            with playing(replay), pytest.raises(CassetteMismatch, match="recorded 'recorded', now 'new'"):
                await ask(client, server.url, "new")
    assert isinstance(replay.error, CassetteMismatch)
    assert len(server.requests) == 1


async def test_outside_a_trial_nothing_is_recorded(server: ScriptedServer, tmp_path: Path) -> None:
    tape = recording(tmp_path / "c.json")
    async with httpx.AsyncClient() as client:
        with interception():
            with playing(tape):
                pass
            assert await ask(client, server.url, "x") == "echo x"
    assert tape.exchanges == []


def test_a_request_outside_of_any_trial_is_refused_while_trials_are_replayed(server: ScriptedServer) -> None:
    with (
        interception(),
        guard.watching(),
        httpx.Client() as client,
        pytest.raises(
            NetworkRefused, match=r"test_recorder\.py:\d+ in .* outside of any trial while trials are replayed"
        ),
    ):
        client.post(f"{server.url}/chat/completions", json=body("x"))
    assert server.requests == []


async def test_hosts_that_are_allowed_are_neither_recorded_nor_replayed(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    allowing = Reel(path=path, origin=reel(path).origin, rerecord="", allow_hosts=("127.0.0.1",))
    async with httpx.AsyncClient() as client:
        with interception(), guard.watching():
            for tape in (RecordingTape(allowing), ReplayTape.load(allowing)):
                with playing(tape):
                    assert await ask(client, server.url, "x") == "echo x"
    assert len(server.requests) == 2
    assert not path.exists()


def patched() -> tuple[object, ...]:
    return (
        httpx.HTTPTransport.handle_request,
        httpx.AsyncHTTPTransport.handle_async_request,
        aiohttp.ClientSession._request,
        http.client.HTTPSConnection,
        urllib3.connection.HTTPSConnection,
        urllib3.HTTPSConnectionPool.ConnectionCls,
        urllib3.HTTPConnectionPool._get_conn,
    )


def test_patches_go_whatever_the_order_of_closing() -> None:
    before = patched()
    one, other, keeper = ExitStack(), ExitStack(), ExitStack()
    one.enter_context(interception())
    other.enter_context(interception())
    keeper.enter_context(keeping())
    during = patched()
    assert all(was is not now for was, now in zip(before, during, strict=True))
    one.close()
    assert patched() == during
    other.close()
    assert patched() == during, "kept for whoever comes next"
    other.enter_context(interception())
    keeper.close()
    assert patched() == during
    other.close()
    assert patched() == before


# Cassettes that others open with vcrpy itself, before, within and around ours.


def post(url: str, text: str) -> str:
    return said(requests.post(f"{url}/chat/completions", json=body(text), timeout=10).json())


def users(path: Path) -> Any:
    return vcr.use_cassette(str(path), match_on=["method", "uri", "body"])


def asked(tape: RecordingTape) -> list[str]:
    bodies: list[Any] = [exchange.body for exchange in tape.exchanges]
    return [each["messages"][-1]["content"] for each in bodies]


def heard(cassette: Any) -> list[str]:
    return [json.loads(request.body)["messages"][-1]["content"] for request in cassette.requests]


async def test_a_tool_that_records_for_itself_hears_itself_alone(server: ScriptedServer, tmp_path: Path) -> None:
    """B131: a cassette of one trial's tool is not the others', however they overlap."""
    tapes = {number: recording(tmp_path / f"{number}.json") for number in range(12)}
    recorded: dict[int, list[str]] = {}

    async def trial(number: int) -> None:
        async with httpx.AsyncClient() as client:
            with playing(tapes[number]):
                await ask(client, server.url, f"{number} before")
                if number % 3 == 0:
                    with users(tmp_path / f"{number}.yaml") as cassette:
                        await ask(client, server.url, f"{number} within")
                        await asyncio.to_thread(post, server.url, f"{number} in a thread")
                    recorded[number] = heard(cassette)
                else:
                    await asyncio.to_thread(post, server.url, f"{number} in a thread")
                await ask(client, server.url, f"{number} after")

    before = patched()
    with interception():
        await asyncio.gather(*(trial(number) for number in tapes))
    assert patched() == before
    for number, tape in tapes.items():
        inner = [] if number % 3 == 0 else [f"{number} in a thread"]
        assert asked(tape) == [f"{number} before", *inner, f"{number} after"]
        if not inner:
            assert recorded[number] == [f"{number} within", f"{number} in a thread"]


def test_a_test_that_records_around_ours_hears_what_is_no_trials(server: ScriptedServer, tmp_path: Path) -> None:
    before, tape = patched(), recording(tmp_path / "ours.json")
    with users(tmp_path / "theirs.yaml") as cassette:
        post(server.url, "first")
        with interception():
            with playing(tape):
                post(server.url, "ours")
            post(server.url, "between")
        post(server.url, "last")
    assert (heard(cassette), asked(tape)) == (["first", "between", "last"], ["ours"])
    assert patched() == before


def test_a_cassette_that_is_opened_within_ours_outlives_them(server: ScriptedServer, tmp_path: Path) -> None:
    before, tape = patched(), recording(tmp_path / "ours.json")
    ours = ExitStack()
    ours.enter_context(interception())
    with users(tmp_path / "theirs.yaml") as cassette:
        with playing(tape):
            post(server.url, "ours")
        ours.close()
        post(server.url, "theirs")
    assert (heard(cassette), asked(tape)) == (["theirs"], ["ours"])
    assert patched() == before


def test_a_cassette_from_before_that_closes_first_takes_nothing_with_it(server: ScriptedServer, tmp_path: Path) -> None:
    before, tape = patched(), recording(tmp_path / "ours.json")
    ours, theirs = ExitStack(), ExitStack()
    theirs.enter_context(users(tmp_path / "theirs.yaml"))
    ours.enter_context(interception())
    theirs.close()
    renew()
    with playing(tape):
        post(server.url, "ours")
    ours.close()
    assert asked(tape) == ["ours"]
    assert patched() == before


def test_a_cassette_of_the_users_replays_in_a_trial_that_replays(server: ScriptedServer, tmp_path: Path) -> None:
    with users(tmp_path / "theirs.yaml"):
        post(server.url, "theirs")
    count = len(server.requests)
    with (
        guard.watching(),
        interception(),
        playing(replaying(tmp_path / "none.json")),
        users(tmp_path / "theirs.yaml") as cassette,
    ):
        assert post(server.url, "theirs") == "echo theirs"
        with pytest.raises(vcr.errors.CannotOverwriteExistingCassetteException, match=r"theirs\.yaml"):
            post(server.url, "another")
    assert cassette.play_count == 1
    assert len(server.requests) == count


def test_keeping_alone_patches_nothing() -> None:
    before = patched()
    with keeping():
        assert patched() == before


def test_clients_find_a_key_while_replaying_and_none_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "of my own")
    with interception(replaying=True):
        with interception(replaying=True):
            pass
        assert os.environ["OPENAI_API_KEY"] == "of my own"
        assert "ANTHROPIC_API_KEY" in os.environ
    assert [name for name in KEYS if name in os.environ] == ["OPENAI_API_KEY"]


async def test_an_attempt_that_was_repeated_with_success_is_not_kept(tmp_path: Path) -> None:
    replies = [Reply(status=429, body="slow down"), Reply(text="fine")]
    tape = recording(tmp_path / "c.json")
    with ScriptedServer(replies) as server:
        async with httpx.AsyncClient() as client:
            with interception(), playing(tape):
                for _ in range(2):
                    await client.post(f"{server.url}/chat/completions", json=body("x"))
    tape.save()
    assert [exchange.status for exchange in read(tmp_path / "c.json").exchanges] == [200]


async def serving(answer: bytes) -> tuple[asyncio.Server, str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    return listening, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_compressed_answers_are_stored_readable(tmp_path: Path) -> None:
    """B094."""
    packed = gzip.compress(json.dumps({"choices": []}).encode())
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    listening, url = await serving(head.encode() + packed)
    tape = recording(tmp_path / "c.json")
    async with listening, httpx.AsyncClient() as client:
        with interception(), playing(tape):
            assert (await client.get(url)).json() == {"choices": []}
        tape.save()
        with interception(), playing(replaying(tmp_path / "c.json")):
            assert (await client.get(url)).json() == {"choices": []}
    assert read(tmp_path / "c.json").exchanges[0].answer == '{"choices": []}'


async def test_an_answer_that_breaks_off_is_an_error_and_not_recorded(tmp_path: Path) -> None:
    """B088."""
    listening, url = await serving(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\ndata: 1\n\ndata: 2\n\n")
    tape = recording(tmp_path / "c.json")
    async with listening, httpx.AsyncClient() as client:
        with interception(), playing(tape), pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)
    assert tape.exchanges == []


@pytest.mark.parametrize("client", ["httpx", "aiohttp", "requests"])
def test_redirects_are_followed_again(tmp_path: Path, client: str) -> None:
    path = tmp_path / "c.json"
    there = Exchange(
        method="GET", uri="http://shop/there", body=None, status=200, answer="7", content_type="text/plain"
    )
    here = Exchange(method="GET", uri="http://shop/here", body=None, status=302, headers=(("location", "/there"),))
    write(Cassette(path, (here, there)))

    async def by_aiohttp() -> str:
        async with aiohttp.ClientSession() as session, session.get("http://shop/here") as answer:
            return await answer.text()

    with interception(), guard.watching(), playing(replaying(path)):
        if client == "httpx":
            found = httpx.get("http://shop/here", follow_redirects=True).text
        elif client == "requests":
            found = requests.get("http://shop/here", timeout=1).text
        else:
            found = asyncio.run(by_aiohttp())
    assert found == "7"


def test_a_secure_connection_is_replayed_without_one(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    uri = "https://api.example.org/v1/x"
    write(Cassette(path, tuple(Exchange(method="GET", uri=uri, body=None, status=200, answer="7") for _ in range(3))))
    with interception(), guard.watching(), playing(replaying(path)):
        assert httpx.get(uri).text == "7"
        assert requests.get(uri, timeout=1).text == "7"
        with urllib.request.urlopen(uri) as answer:
            assert answer.read() == b"7"


async def test_a_body_that_only_its_client_can_send_is_refused_and_not_guessed(tmp_path: Path) -> None:
    tape = recording(tmp_path / "c.json")
    form = aiohttp.FormData({"a": "b"})
    async with aiohttp.ClientSession() as session:
        with interception(), playing(tape), pytest.raises(Exception, match="can be neither recorded nor replayed"):
            await session.post("http://127.0.0.1:9/", data=form)
    assert tape.error is not None
