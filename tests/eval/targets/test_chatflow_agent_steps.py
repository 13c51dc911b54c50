"""Whatever agents on chatflow-agent do comes out as steps, and ends at most the turn."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from chatflow_eval import outcome, trial
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import RunFolder
from chatflow_eval.scenario import Scenario, Turn
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trace import Hop, Step, ToolStep, WarningStep

chatflow_agent = pytest.importorskip("chatflow_agent", reason="chatflow-agent is not installed (extra chatflow-agent)")

FRAMEWORK: Literal["chatflow_agent"] = "chatflow_agent"


def attempt(target: Any, *turns: Turn, **more: Any) -> Outcome:
    given = Scenario(**{"id": "one", "target": target, "turns": turns, "expect": "none", **more})
    (found,) = outcome.collect(trial.plan([given], root=Path(), frameworks=[FRAMEWORK], mode="live"))
    return found


def steps(found: Outcome, turn: int = 1) -> tuple[Step, ...]:
    assert found.trace is not None, found.why
    return found.trace.turns[turn - 1].steps


def warnings(found: Outcome, turn: int = 1) -> list[str]:
    return [step.message for step in steps(found, turn) if isinstance(step, WarningStep)]


def with_tool(tool: Callable[..., Any]) -> Callable[[], Any]:
    def build() -> Any:
        a = chatflow_agent.Agent("A", "You are A.", tools=[tool])
        a.add_handoff(chatflow_agent.Agent("B", "You are B."))
        return a

    return build


class Order(BaseModel):
    number: int


class Odd:
    def __repr__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, None),
        (True, True),
        (2.5, 2.5),
        (float("nan"), "nan"),
        (Order(number=3), "number=3"),
        (b"\xff\x00", "b'\\xff\\x00'"),
        (Decimal("1.10"), "1.10"),
        (Odd(), "odd"),
        ("x" * 1_000_000, "x" * 1_000_000),
        ([1, {"a": None}], [1, {"a": None}]),
        ("\ud800", "\ud800"),
    ],
)
def test_what_a_tool_returns_is_told_and_can_be_written(result: object, told: object, tmp_path: Path) -> None:
    """A result that is no JSON is told as its model reads it, and no run folder breaks of it."""

    def give() -> object:
        return result

    found = attempt(with_tool(give), Turn("hi", script=[{"call": "give"}, {"say": "Done."}]))
    assert found.status == "passed", found.why
    assert [step.result for step in steps(found) if isinstance(step, ToolStep)] == [told]
    folder = RunFolder.create(tmp_path / "run", command=["run"], planned=1)
    folder.append(found)
    folder.close()


class Own(BaseException):
    pass


@pytest.mark.parametrize("raised", [SystemExit(3), Own("own"), asyncio.CancelledError("mine"), ValueError("no")])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_tool_raises_ends_at_most_its_turn(raised: BaseException, is_async: bool) -> None:
    """Other trials go on, and the run neither hangs nor exits."""

    def fail() -> None:
        raise raised

    async def fail_later() -> None:
        raise raised

    tool: Any = fail_later if is_async else fail
    turns = {
        "bad": Turn("hi", script=[{"call": tool.__name__}, {"say": "Hello."}]),
        "good": Turn("hi", script=[{"say": "Hello."}]),
    }
    given = [
        Scenario(id=name, target=with_tool(tool), turns=[turn], expect="none") for name, turn in sorted(turns.items())
    ]
    found = outcome.collect(trial.plan(given, root=Path(), frameworks=[FRAMEWORK]), concurrency=1)
    by_name = {each.scenario: each for each in found}
    assert by_name["good"].status == "passed"
    if isinstance(raised, Exception):
        assert by_name["bad"].status == "passed", "its model is told of it"
    else:
        assert by_name["bad"].failure is not None
        assert (by_name["bad"].failure.kind, by_name["bad"].failure.exception) == ("agent", type(raised).__name__)


def test_a_transfer_is_told_that_no_result_tells_of() -> None:
    """The conversation was given away, and the next call of the same answer ended the turn."""

    def leave() -> None:
        sys.exit(1)

    answers: list[Any] = [[{"transfer": "B"}, {"call": "leave"}]]
    found = attempt(with_tool(leave), Turn("hi", script=answers))
    assert [(step.source, step.target) for step in steps(found) if isinstance(step, Hop)] == [("A", "B")]


def test_a_tool_that_talks_like_a_transfer_is_none() -> None:
    def claim() -> dict[str, str]:
        return {"status": "HANDOFF_SUCCESS", "transferred_to": "B"}

    found = attempt(with_tool(claim), Turn("hi", script=[{"call": "claim"}, {"say": "Done."}], expect={"stay": True}))
    assert found.status == "passed", found.why
    assert [type(step).__name__ for step in steps(found)] == ["ModelStep", "ToolStep", "ModelStep"]


def test_instructions_that_fail_are_the_trials_error_and_nobody_elses() -> None:
    def instructions() -> str:
        raise RuntimeError("none today")

    def build() -> Any:
        a = chatflow_agent.Agent("A", "You are A.")
        a.add_handoff(chatflow_agent.Agent("B", instructions))
        return a

    found = attempt(build, Turn("hi", script=[{"say": "Done."}]))
    assert found.status == "errored"
    assert "none today" in found.why


def test_an_agent_that_offers_only_some_of_its_tools_is_taken_at_its_word() -> None:
    class Picky(chatflow_agent.Agent):  # type: ignore[misc,name-defined]
        def get_all_tools(self) -> list[Any]:
            return [tool for tool in super().get_all_tools() if tool.name.startswith("transfer")]

    def look() -> str:
        return "found"

    def build() -> Any:
        a = Picky("A", "You are A.", tools=[look])
        a.add_handoff(chatflow_agent.Agent("B", "You are B."))
        return a

    found = attempt(build, Turn("hi", script=[{"call": "look"}, {"transfer": "B"}, {"say": "Done."}]))
    assert [step.known for step in steps(found) if isinstance(step, ToolStep)] == [False]
    assert [step.target for step in steps(found) if isinstance(step, Hop)] == ["B"]


def test_a_log_record_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def log() -> str:
        logging.getLogger("chatflow_agent.shop").warning("%d orders", "three")
        return "logged"

    found = attempt(with_tool(log), Turn("hi", script=[{"call": "log"}, {"say": "Done."}]))
    assert [step.result for step in steps(found) if isinstance(step, ToolStep)] == ["logged"]


def test_the_users_logging_is_as_it_was() -> None:
    def fail() -> None:
        raise ValueError("no")

    logger = logging.getLogger("chatflow_agent")
    before = (list(logger.handlers), logger.level, logger.propagate, logger.disabled, list(logging.root.handlers))
    found = attempt(with_tool(fail), Turn("hi", script=[{"call": "fail"}, {"say": "Hello."}]))
    assert len(warnings(found)) == 1
    now = (list(logger.handlers), logger.level, logger.propagate, logger.disabled, list(logging.root.handlers))
    assert now == before


def test_a_model_that_says_nothing_is_an_error_and_no_pass() -> None:
    with ScriptedServer([Reply(body='{"choices": []}')]) as server:
        found = attempt(
            lambda: chatflow_agent.Agent("A", "You are A.", base_url=server.url, api_key="x"),
            Turn("hi", expect={"stay": True}),
        )
    assert found.failure is not None
    assert (found.failure.kind, found.failure.exception) == ("model", "EmptyResponseError")


# Faults of its sessions.


def test_cf_10_a_failed_turn_of_a_pruned_history_stays_in_it() -> None:
    replies = [Reply(text="One."), Reply(status=400, body="no")]
    with ScriptedServer(replies) as server:

        def build() -> Any:
            a = chatflow_agent.Agent("A", "You are A.", base_url=server.url, api_key="x")
            return chatflow_agent.Runner(a, session_store=chatflow_agent.SessionStore(default_max_turns=1))

        found = attempt(build, Turn("one"), Turn("two", expect={"error": "ProviderError"}))
    assert warnings(found, 2) == [
        "The turn failed, and 1 of its messages stayed in the history.",
        "The turn failed, and 2 earlier messages are gone from the history.",
    ]


@pytest.mark.parametrize("is_durable", [True, False])
def test_cf_11_two_turns_of_one_session_at_once(is_durable: bool, tmp_path: Path) -> None:
    """Its store on disk locks each turn by itself; the one in memory keeps them apart."""

    class Twice(chatflow_agent.Runner):  # type: ignore[misc,name-defined]
        async def run_async(self, session_id: str, user_message: str, metadata: Any = None) -> Any:
            turn = super().run_async
            both = [turn(session_id, f"{user_message} {number}", metadata) for number in (1, 2)]
            return (await asyncio.gather(*both))[1]

    with ScriptedServer([Reply(text="One."), Reply(text="Two.")], latency=0.05) as server:

        def build() -> Any:
            path = str(tmp_path / "sessions.db")
            store = chatflow_agent.SQLiteSessionStore(path) if is_durable else chatflow_agent.SessionStore()
            a = chatflow_agent.Agent("A", "You are A.", base_url=server.url, api_key="x")
            return Twice(a, session_store=store)

        found = attempt(build, Turn("hi"))
    assert found.status == "passed", found.why
    assert any("while this one was going on" in warning for warning in warnings(found)) == is_durable


def test_cf_17_another_runner_on_the_same_store_takes_its_agents_away(tmp_path: Path) -> None:
    def build() -> Any:
        store = chatflow_agent.SQLiteSessionStore(str(tmp_path / "sessions.db"))
        a, b = chatflow_agent.Agent("A", "You are A."), chatflow_agent.Agent("B", "You are B.")
        a.add_handoff(b)

        def open_another() -> str:
            chatflow_agent.Runner(chatflow_agent.Agent("C", "You are C."), session_store=store)
            return "opened"

        b.add_tool(open_another)
        return chatflow_agent.Runner(a, session_store=store)

    script = [{"transfer": "B"}, {"call": "open_another"}, {"say": "Done."}]
    found = attempt(
        build,
        Turn("one", script=script, expect={"route": "A -> B"}),
        Turn("two", script=[{"say": "Here."}], expect={"starts_at": "B"}),
    )
    assert found.status == "failed"
    assert found.trace is not None
    assert found.trace.turns[1].start_agent == "A"
