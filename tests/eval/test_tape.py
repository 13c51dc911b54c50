"""What a trial is answered from in each mode, what is kept, and where a run leaves its recording."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chatflow_eval.cassette import Cassette, Exchange, Origin, ToolExchange, read, write
from chatflow_eval.errors import CassetteDamaged, CassetteMismatch, CassetteMissing
from chatflow_eval.player import Asked, AskedTool
from chatflow_eval.tape import (
    ForkingTape,
    LiveTape,
    Parting,
    RecordingTape,
    RecordMode,
    Reel,
    ReplayTape,
    current,
    failure_of,
    is_allowed,
    open_tape,
    playing,
)

URL = "http://127.0.0.1:1/v1/chat/completions"


def origin(repeat: int = 1) -> Origin:
    return Origin(file="a.scenario.yaml", scenario="x", model="declared", repeat=repeat)


def reel(path: Path, **more: Any) -> Reel:
    return Reel(path=path, origin=origin(), rerecord="chatflow-eval record a", **more)


def chat(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def exchange(text: str, *, answer: str = '{"choices": []}') -> Exchange:
    return Exchange(method="POST", uri=URL, body=chat(text), status=200, answer=answer, agent="Triage", turn=1)


def asked(text: str) -> Asked:
    return Asked(chat(text), uri=URL, agent="Triage", turn=1)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "c.json"
    write(Cassette(path, tuple(exchange(text) for text in ("one", "two", "three")), origin=origin()))
    return path


@pytest.mark.parametrize(
    ("mode", "without", "with_one"),
    [
        ("none", ReplayTape, ReplayTape),
        ("once", RecordingTape, ReplayTape),
        ("new_episodes", ForkingTape, ForkingTape),
        ("all", RecordingTape, RecordingTape),
    ],
)
def test_each_mode_has_its_tape(
    tmp_path: Path, recorded: Path, mode: RecordMode, without: type, with_one: type
) -> None:
    assert type(open_tape(reel(tmp_path / "no.json"), mode)) is without
    assert type(open_tape(reel(recorded), mode)) is with_one


def test_nothing_recorded_is_an_error_only_when_something_is_asked(tmp_path: Path) -> None:
    """B086."""
    tape = open_tape(reel(tmp_path / "no.json"), "none")
    assert tape.error is None
    with pytest.raises(CassetteMissing, match="chatflow-eval record a"):
        tape.replay(asked("one"))
    assert isinstance(tape.error, CassetteMissing)


def test_a_damaged_cassette_is_never_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("", encoding="utf-8")
    for mode in ("none", "once", "new_episodes"):
        with pytest.raises(CassetteDamaged):
            open_tape(reel(path), mode).replay(asked("one"))


def test_a_copy_of_another_repeat_is_no_sample(recorded: Path, tmp_path: Path) -> None:
    copy = tmp_path / "c.2.json"
    copy.write_bytes(recorded.read_bytes())
    second = Reel(path=copy, origin=origin(2), rerecord="chatflow-eval record a --repeats 2")
    with pytest.raises(CassetteMissing, match=r"a copy of repeat 1.*record repeat 2 with: .* --repeats 2"):
        open_tape(second, "none").replay(asked("one"))


def test_a_recording_in_yaml_is_replayed_and_stays_yaml(tmp_path: Path) -> None:
    written = tmp_path / "c.yaml"
    write(Cassette(written, (exchange("one"),), origin=origin()))
    tape = open_tape(reel(tmp_path / "c.json"), "none")
    assert tape.replay(asked("one")) == exchange("one")
    again = open_tape(reel(tmp_path / "c.json"), "all")
    assert isinstance(again, RecordingTape)
    again.record(exchange("new"))
    again.save()
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    assert read(written).exchanges == (exchange("new"),)


def test_a_run_that_asks_what_was_recorded_leaves_the_file_alone(recorded: Path) -> None:
    before = recorded.read_bytes()
    tape = ForkingTape.load(reel(recorded))
    assert tape.replay(asked("one")) == exchange("one")
    tape.save()
    assert recorded.read_bytes() == before
    assert tape.parted is None


def test_from_the_first_miss_on_everything_is_live_and_what_was_replayed_is_kept(recorded: Path) -> None:
    tape = ForkingTape.load(reel(recorded))
    assert tape.replay(asked("one")) is not None
    assert tape.replay(asked("edited")) is None
    tape.record(exchange("edited"))
    assert tape.replay(asked("three")) is None, "recorded, and yet live: it followed from what was edited"
    tape.record(exchange("three", answer='{"choices": ["new"]}'))
    tape.save()
    assert [each.body for each in read(recorded).exchanges] == [chat("one"), chat("edited"), chat("three")]
    assert read(recorded).exchanges[-1].answer == '{"choices": ["new"]}'
    assert tape.parted is not None
    assert (tape.parted.replayed, "recorded 'two', now 'edited'" in tape.parted.why) == (1, True)


def test_a_run_with_nothing_recorded_records_all_and_parts_from_nothing(tmp_path: Path) -> None:
    tape = ForkingTape.load(reel(tmp_path / "c.json"))
    assert tape.replay(asked("one")) is None
    tape.record(exchange("one"))
    tape.save()
    assert tape.parted is None
    found = read(tmp_path / "c.json")
    assert found.exchanges == (exchange("one"),)
    assert found.origin is not None
    assert (found.origin.scenario, found.origin.repeat) == ("x", 1)


def test_what_is_recorded_says_whose_it_is_and_when(tmp_path: Path) -> None:
    tape = RecordingTape(reel(tmp_path / "c.json"))
    tape.record(exchange("one"))
    tape.save()
    found = read(tmp_path / "c.json").origin
    assert found is not None
    assert found.recorded.startswith("20")
    assert found == Origin(**{**vars_of(origin()), "recorded": found.recorded})


def vars_of(one: Origin) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("file", "scenario", "model", "repeat")}


def test_nothing_asked_writes_nothing(tmp_path: Path) -> None:
    RecordingTape(reel(tmp_path / "c.json")).save()
    ForkingTape.load(reel(tmp_path / "c.json")).save()
    assert list(tmp_path.iterdir()) == []


def test_tools_part_a_run_as_requests_do(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    tool = ToolExchange(agent="A", turn=1, tool="t", arguments={"n": 1}, result="old")
    write(Cassette(path, (exchange("one"),), (tool,), origin()))
    tape = ForkingTape.load(reel(path, tools=True))
    assert tape.replay_tool(AskedTool("A", 1, "t", {"n": 1})) == tool
    assert tape.replay_tool(AskedTool("A", 1, "t", {"n": 2})) is None
    assert tape.replay(asked("one")) is None
    tape.record_tool(ToolExchange(agent="A", turn=1, tool="t", arguments={"n": 2}, result="new"))
    tape.save()
    assert [each.result for each in read(path).tools or ()] == ["old", "new"]


def test_tools_are_kept_only_where_that_is_wanted(tmp_path: Path) -> None:
    for name, tools in (("with", True), ("without", False)):
        tape = RecordingTape(reel(tmp_path / f"{name}.json", tools=tools))
        tape.record(exchange("one"))
        tape.save()
        assert read(tmp_path / f"{name}.json").tools == (() if tools else None)


def test_the_first_error_is_the_one_that_counts(recorded: Path) -> None:
    tape = ReplayTape.load(reel(recorded))
    for text in ("first", "second"):
        with pytest.raises(CassetteMismatch):
            tape.replay(asked(text))
    assert "now 'first'" in str(tape.error)


def test_a_trials_tape_is_its_contexts() -> None:
    one, other = LiveTape(), LiveTape()
    assert current() is None
    with playing(one):
        with playing(other):
            assert current() is other
        assert current() is one
    assert current() is None


async def test_agents_that_are_asked_at_once_are_told_apart() -> None:
    tape = LiveTape()

    async def ask(agent: str) -> str | None:
        tape.agent = agent
        await asyncio.sleep(0)
        return tape.agent

    assert await asyncio.gather(*(ask(name) for name in "abc")) == ["a", "b", "c"]
    tape.agent = "d"
    assert await asyncio.to_thread(lambda: tape.agent) == "d"


@pytest.mark.parametrize(
    ("allowed", "host", "port", "is_let_out"),
    [
        ((), "example.org", 443, False),
        (("example.org",), "example.org", 443, True),
        (("example.org",), "EXAMPLE.ORG.", 443, True),
        (("example.org",), "www.example.org", 443, False),
        (("*.example.org",), "www.example.org", 443, True),
        (("example.org:8080",), "example.org", 443, False),
        (("example.org:443",), "example.org", 443, True),
        (("localhost",), "127.0.0.1", 1, True),
        (("127.0.0.1",), "[::1]", 1, True),
        (("localhost:8080",), "127.0.0.1", 1, False),
        (("/run/*.sock",), "/run/db.sock", None, True),
    ],
)
def test_hosts_are_allowed_by_name_with_or_without_port(
    allowed: tuple[str, ...], host: str, port: int | None, is_let_out: bool
) -> None:
    assert is_allowed(allowed, host, port) == is_let_out


def test_what_the_harness_could_not_do_is_a_failure_of_its_own_kind() -> None:
    stale = failure_of(CassetteMismatch("stale", edit="agent A: x"))
    assert (stale.kind, stale.exception, stale.edit) == ("cassette", "CassetteMismatch", "agent A: x")


def test_where_a_run_parted_counts_models_and_not_what_tools_asked(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    shop = Exchange(method="GET", uri="http://shop/stock", body=None, status=200, answer="7")
    write(Cassette(path, (shop, exchange("one")), origin=origin()))
    tape = ForkingTape.load(reel(path))
    tape.replay(Asked(None, method="GET", uri="http://shop/stock"))
    tape.replay(asked("one"))
    tape.replay(asked("two"))
    assert isinstance(tape.parted, Parting)
    assert tape.parted.replayed == 1
