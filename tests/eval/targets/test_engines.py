"""Who answers for a model: the recording while there is one, litellm with retries after that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chatflow_eval.cassette import Cassette, Exchange, Origin, write
from chatflow_eval.errors import CassetteMismatch, CassetteMissing
from chatflow_eval.recorder import interception
from chatflow_eval.retries import CallLimits
from chatflow_eval.tape import ForkingTape, RecordingTape, Reel, ReplayTape, playing
from chatflow_eval.targets.engines import LiveEngine, ReplayEngine
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_runtime.engine import ModelRequest, Settings
from chatflow_runtime.litellm_engine import close_connections
from chatflow_runtime.types import UserMessage

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

Told = list[tuple[str, str]]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda body: Reply(text=f"live {body['messages'][-1]['content']}")) as running:
        yield running


def asking(text: str, url: str | None = None) -> ModelRequest:
    history = (UserMessage(text),)
    settings = Settings(api_base=url)
    return ModelRequest(agent="Triage", model="openai/m", instructions="Route.", history=history, settings=settings)


def reel(path: Path) -> Reel:
    origin = Origin(file="a", scenario="x", model="m", repeat=1)
    return Reel(path=path, origin=origin, rerecord="chatflow-eval record a")


def recorded(path: Path, text: str) -> Reel:
    body = {**asking(text).projection(), "model": "m"}
    answer = '{"choices": [{"message": {"content": "recorded"}}]}'
    uri = "http://127.0.0.1:1/v1/chat/completions"
    write(Cassette(path, (Exchange(method="POST", uri=uri, body=body, status=200, answer=answer),)))
    return reel(path)


def live(told: Told | None = None, sent: Told | None = None, **limits: int) -> LiveEngine:
    return LiveEngine(
        CallLimits(**limits),
        lambda agent, message: None if told is None else told.append((agent, message)),
        lambda agent, request: None if sent is None else sent.append((agent, str(request["messages"][-1]["content"]))),  # type: ignore[index]
    )


async def test_a_recording_answers_without_anybody(tmp_path: Path) -> None:
    engine = ReplayEngine(ReplayTape.load(recorded(tmp_path / "c.json", "hi")), live())
    assert (await engine.answer(asking("hi"))).text == "recorded"
    with pytest.raises(CassetteMismatch, match="agent Triage, turn unknown: stale"):
        await ReplayEngine(ReplayTape.load(reel(tmp_path / "c.json")), live()).answer(asking("ho"))


async def test_nothing_recorded_is_nothing_asked(tmp_path: Path) -> None:
    with pytest.raises(CassetteMissing):
        await ReplayEngine(ReplayTape.load(reel(tmp_path / "c.json")), live()).answer(asking("hi"))


async def test_what_the_tape_lets_out_is_asked_and_kept(server: ScriptedServer, tmp_path: Path) -> None:
    tape = ForkingTape.load(recorded(tmp_path / "c.json", "hi"))
    sent: Told = []
    engine = ReplayEngine(tape, live(sent=sent))
    with interception(), playing(tape):
        assert (await engine.answer(asking("hi", server.url))).text == "recorded"
        assert (await engine.answer(asking("ho", server.url))).text == "live ho"
        assert (await engine.answer(asking("hi", server.url))).text == "live hi"
    await close_connections()
    assert [exchange.is_chat for exchange in tape.exchanges] == [True, True]
    assert sent == [("Triage", "hi"), ("Triage", "ho"), ("Triage", "hi")], "each once, replayed or not"


async def test_what_the_engine_asks_is_told_from_what_others_ask(server: ScriptedServer, tmp_path: Path) -> None:
    import httpx

    tape = RecordingTape(reel(tmp_path / "c.json"))
    with interception(), playing(tape):
        await live().answer(asking("hi", server.url))
        async with httpx.AsyncClient() as client:
            await client.post(f"{server.url}/chat/completions", json=asking("hi").projection())
    await close_connections()
    assert [exchange.aside for exchange in tape.exchanges] == [False, True]


async def test_retries_are_told_with_the_agent_that_asked() -> None:
    told: Told = []
    replies = [Reply(status=503, body="{}", headers={"Retry-After": "0"}), Reply(text="fine")]
    with ScriptedServer(replies) as server:
        assert (await live(told, retries=1).answer(asking("hi", server.url))).text == "fine"
    await close_connections()
    assert told == [("Triage", "attempt 1 of 2: ServiceUnavailableError 503; asked again after 0.0 s")]
