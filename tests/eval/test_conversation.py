"""Conversations in plain tests: recorded and replayed like a scenario's trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatflow_eval.cassette import read
from chatflow_eval.conversation import Conversations, name_of
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trial import Mode
from chatflow_runtime import Agent
from chatflow_runtime.engine import Answer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda body: Reply(text=f"echo {body['messages'][-1]['content']}")) as running:
        yield running


class Client:
    """A model's client of the user's own, which makes of every failure an answer."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def answer(self, request: Any) -> Answer:
        with suppress(Exception):
            async with httpx.AsyncClient() as client:
                found = await client.post(f"{self.url}/chat/completions", json=request.projection())
            return Answer(text=found.json()["choices"][0]["message"]["content"])
        return Answer(text="I am sorry.")


def conversations(root: Path, mode: Mode) -> Conversations:
    return Conversations(root=root, file="tests/test_it.py", name="test_it", mode=mode)


def say(root: Path, mode: Mode, url: str, *texts: str) -> list[str]:
    opened = conversations(root, mode)
    talk = opened(lambda: Agent("Triage", "Echo.", engine=Client(url)))
    try:
        return [talk.say(text).reply for text in texts]
    finally:
        opened.close()


def test_what_was_said_is_recorded_and_said_again(server: ScriptedServer, tmp_path: Path) -> None:
    for mode in ("all", "none", "once", "new_episodes"):
        assert say(tmp_path, mode, server.url, "one", "two") == ["echo one", "echo two"]
    assert len(server.requests) == 2
    (cassette,) = (tmp_path / "cassettes" / "tests" / "test_it").rglob("*.json")
    origin = read(cassette).origin
    assert origin is not None
    assert (origin.file, origin.scenario) == ("tests/test_it.py", "test_it")


def test_a_miss_fails_the_turn_whatever_the_client_makes_of_it(server: ScriptedServer, tmp_path: Path) -> None:
    say(tmp_path, "all", server.url, "one")
    with pytest.raises(AssertionError, match=r"CassetteMismatch: .*recorded 'one', now 'other'"):
        say(tmp_path, "none", server.url, "other")
    assert len(server.requests) == 1


def test_new_episodes_go_on_live(server: ScriptedServer, tmp_path: Path) -> None:
    say(tmp_path, "all", server.url, "one", "two")
    assert say(tmp_path, "new_episodes", server.url, "one", "other") == ["echo one", "echo other"]
    assert len(server.requests) == 3
    assert say(tmp_path, "none", server.url, "one", "other") == ["echo one", "echo other"]


def test_a_second_conversation_of_a_test_has_a_recording_of_its_own(server: ScriptedServer, tmp_path: Path) -> None:
    opened = conversations(tmp_path, "all")
    for text in ("one", "two"):
        opened(lambda: Agent("Triage", "Echo.", engine=Client(server.url))).say(text)
    opened.close()
    folder = tmp_path / "cassettes" / "tests" / "test_it"
    assert sorted(path.parent.name for path in folder.rglob("*.json")) == ["test_it", "test_it-2"]


async def test_in_a_loop_it_is_the_same(server: ScriptedServer, tmp_path: Path) -> None:
    for mode in ("all", "none"):
        talk = conversations(tmp_path, mode)(lambda: Agent("Triage", "Echo.", engine=Client(server.url)))
        assert (await talk.say_async("one")).reply == "echo one"
        await talk.close_async()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "test_it"),
        ({"classes": ["TestShop", "TestCart"]}, "TestShop.TestCart.test_it"),
        ({"parameters": {"b": 1, "a": "x"}, "mark": "1-x"}, "test_it[a=x,b=1]"),
        ({"parameters": {"a": "x", "b": 1}, "mark": "x-1"}, "test_it[a=x,b=1]"),
        ({"parameters": {"a": object()}, "mark": "a0"}, "test_it[a0]"),
    ],
)
def test_recordings_are_called_like_no_other_test_of_the_file(given: dict[str, Any], name: str) -> None:
    """B131, B133: tests of one function or one name record apart, whatever order pytest has for parameters."""
    assert name_of("test_it", **given) == name
