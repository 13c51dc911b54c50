"""Sessions are kept whole, apart from one another, and one turn at a time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import Call, ScriptedEngine
from chatflow_runtime.exceptions import DefinitionError, SessionError
from chatflow_runtime.history import faults, project
from chatflow_runtime.memory import SessionContext, SessionStore, last_turns
from chatflow_runtime.runner import Runner
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage


def test_what_is_loaded_and_saved_shares_nothing_with_the_store() -> None:
    store = SessionStore()
    session = SessionContext("s", "A", [UserMessage("hi")], {"seen": [1]})
    store.save(session)
    session.context["seen"] = []
    session.add_message(UserMessage("more"))
    loaded = store.load("s")
    assert loaded == SessionContext("s", "A", [UserMessage("hi")], {"seen": [1]})
    assert loaded is not None
    loaded.context["seen"].append(2)  # type: ignore[union-attr]
    loaded.set_active_agent("B")
    assert store.load("s") == SessionContext("s", "A", [UserMessage("hi")], {"seen": [1]})


def test_sessions_are_listed_and_forgotten() -> None:
    store = SessionStore()
    for name in ("b", "a", "b"):
        store.save(SessionContext(name, "A"))
    assert store.session_ids() == ("b", "a")
    store.delete("b")
    store.delete("never there")
    assert store.load("b") is None
    assert store.session_ids() == ("a",)


def test_ids_compare_by_code_point() -> None:
    store = SessionStore()
    store.save(SessionContext("\N{LATIN SMALL LETTER E WITH ACUTE}", "A"))
    assert store.load("e\N{COMBINING ACUTE ACCENT}") is None


def test_a_new_active_agent_brings_its_updates() -> None:
    session = SessionContext("s", "A", context={"tier": "gold", "seen": 1})
    updates: dict[str, Any] = {"seen": [2]}
    session.set_active_agent(Agent("B"), updates)
    updates["seen"].append(3)
    assert (session.active_agent_name, session.context) == ("B", {"tier": "gold", "seen": [2]})


@pytest.mark.parametrize(
    ("context", "place"),
    [
        ({"when": {"at": object()}}, r"context\['when'\]\['at'\] is a object"),
        ({"items": ["a", {1}]}, r"context\['items'\]\[1\] is a set"),
        ({"map": {5: "x"}}, r"context\['map'\] has the key 5"),
    ],
)
def test_a_context_holds_json_data_only(context: dict[str, Any], place: str) -> None:
    with pytest.raises(SessionError, match=place):
        SessionStore().save(SessionContext("s", "A", context=context))


def test_a_context_that_holds_itself_is_an_error() -> None:
    context: dict[str, Any] = {}
    context["self"] = context
    with pytest.raises(SessionError, match="JSON data only"):
        SessionStore().save(SessionContext("s", "A", context=context))


# --- the window over user turns


def exchange(call_id: str, *within: Message) -> list[Message]:
    """A call and its result, and what was said between them: a call that comes back has a history of its own."""
    return [AssistantMessage("A", None, (ToolCall(call_id, "ask"),)), *within, ToolResult(call_id, "ask", "done")]


def turn(number: int, *exchanges: list[Message]) -> list[Message]:
    inner = [message for each in exchanges for message in each]
    return [UserMessage(f"question {number}"), *inner, AssistantMessage("A", f"answer {number}")]


def test_the_last_turns_are_whole() -> None:
    first, second, third = turn(1, exchange("a")), turn(2, exchange("b"), exchange("c")), turn(3)
    history = first + second + third
    assert [last_turns(history, count) for count in range(5)] == [[], third, second + third, history, history]


def test_what_is_said_within_a_call_starts_no_turn() -> None:
    asked = turn(2, exchange("b", UserMessage("for you"), AssistantMessage("B", "I see.")))
    assert last_turns(turn(1) + asked, 1) == asked
    assert last_turns(asked, 1) == asked


def test_a_turn_whose_calls_are_open_is_never_cut() -> None:
    history = [*turn(1), UserMessage("question 2"), AssistantMessage("A", None, (ToolCall("x", "ask"),))]
    assert last_turns(history, 1) == history[2:]


@st.composite
def turns(draw: st.DrawFn) -> list[list[Message]]:
    """Whole turns with any number of exchanges, several calls in one answer, and words within them."""
    found: list[list[Message]] = []
    made = 0
    for number in range(draw(st.integers(0, 6))):
        exchanges = []
        for _ in range(draw(st.integers(0, 3))):
            ids = [f"call_{made + index}" for index in range(draw(st.integers(1, 3)))]
            made += len(ids)
            within: list[Message] = [UserMessage("for you"), AssistantMessage("B", "I see.")] * draw(st.integers(0, 1))
            calls = AssistantMessage("A", None, tuple(ToolCall(call_id, "ask") for call_id in ids))
            exchanges.append([calls, *within, *(ToolResult(call_id, "ask", 1) for call_id in ids)])
        found.append(turn(number, *exchanges))
    return found


@given(turns(), st.integers(0, 8))
def test_a_window_is_the_last_turns_and_nothing_else(found: list[list[Message]], count: int) -> None:
    """B040, CF-10: also 0 turns, where a slice from -0 would be everything."""
    history = [message for each in found for message in each]
    kept = found[max(len(found) - count, 0) :]
    assert last_turns(history, count) == [message for each in kept for message in each]


class Chatty:
    """A store's sessions, made by a runner whose model calls a tool `calls` times in each turn."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store

    def say(self, text: str, calls: int = 1) -> list[Message]:
        start = Agent("A", tools=[ask])
        engine = ScriptedEngine([*[Call("ask", {})] * calls, f"answer to {text}"])
        Runner(start, self.store, engine=engine).run("s", text)
        assert all(faults(request.projection()) == () for request in engine.requests)
        session = self.store.load("s")
        assert session is not None
        return session.history


def ask() -> str:
    """Ask."""
    return "done"


def said(history: list[Message]) -> list[str]:
    return [message.text for message in history if isinstance(message, UserMessage)]


def test_nothing_is_left_out_unless_a_store_is_told_so() -> None:
    chat = Chatty(SessionStore())
    for number in range(50):
        history = chat.say(str(number))
    assert said(history) == [str(number) for number in range(50)]
    assert SessionStore().max_turns is None


@pytest.mark.parametrize("max_turns", [0, 1, 3])
def test_a_store_keeps_so_many_turns_and_the_turn_under_way_sees_them(max_turns: int) -> None:
    store = SessionStore(max_turns=max_turns)
    for number in range(5):
        before = store.load("s")
        history = Chatty(store).say(str(number), calls=number)
        kept = [str(each) for each in range(5) if number - max_turns < each <= number]
        assert said(history) == kept
        assert len(said(before.history if before else [])) == min(number, max_turns)
        assert faults({"model": "m", "messages": project(history, has_tools=False, model="m")}) == () or not history


def test_a_failed_turn_moves_no_window() -> None:
    """CF-10: the message of the failed turn is gone, the older turn is still there."""
    store = SessionStore(max_turns=1)
    Chatty(store).say("one")
    before = store.load("s")
    runner = Runner(Agent("A", tools=[ask]), store, engine=ScriptedEngine([Call("ask", {}), ConnectionError("400")]))
    with pytest.raises(ConnectionError):
        runner.run("s", "two")
    assert store.load("s") == before


@pytest.mark.parametrize("max_turns", [-1, 1.5, "40", True])
def test_a_window_is_a_whole_number(max_turns: Any) -> None:
    with pytest.raises(DefinitionError, match=f"max_turns is {max_turns!r}"):
        SessionStore(max_turns=max_turns)


# --- one turn at a time


async def take(store: SessionStore, session: str, label: str, log: list[str], seconds: float = 0.01) -> None:
    async with store.turn(session):
        log.append(f"{label} in")
        await asyncio.sleep(seconds)
        log.append(f"{label} out")


def test_turns_of_one_session_queue_in_order_of_arrival() -> None:
    """B143, CF-11."""
    store, log = SessionStore(), list[str]()

    async def main() -> None:
        await asyncio.gather(*(take(store, "s", label, log) for label in "abc"))

    asyncio.run(main())
    assert log == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_turns_of_different_sessions_overlap() -> None:
    store, log = SessionStore(), list[str]()

    async def main() -> None:
        await asyncio.gather(take(store, "s", "a", log), take(store, "t", "b", log))

    asyncio.run(main())
    assert log[:2] == ["a in", "b in"]


def test_turns_queue_across_event_loops() -> None:
    """B143: an asyncio.Lock belongs to one loop."""
    store, log = SessionStore(), list[str]()
    threads = [threading.Thread(target=lambda n=n: asyncio.run(take(store, "s", str(n), log))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 16
    assert all(log[index].split()[0] == log[index + 1].split()[0] for index in range(0, 16, 2))


def test_a_turn_that_stops_waiting_lets_the_next_one_in() -> None:
    store, log = SessionStore(), list[str]()

    async def main() -> None:
        tasks = [asyncio.create_task(take(store, "s", label, log)) for label in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert log == ["a in", "a out", "c in", "c out"]


def test_a_turn_cancelled_when_its_time_had_come_passes_it_on() -> None:
    store, log = SessionStore(), list[str]()

    async def main() -> None:
        first = asyncio.create_task(take(store, "s", "a", log))
        second = asyncio.create_task(take(store, "s", "b", log))
        third = asyncio.create_task(take(store, "s", "c", log))
        await first  # which lets the second in, as soon as the loop comes round to it
        second.cancel()
        await asyncio.gather(second, third, return_exceptions=True)

    asyncio.run(main())
    assert log == ["a in", "a out", "c in", "c out"]


def test_a_turn_that_waits_in_a_closed_loop_is_passed_over() -> None:
    store, log = SessionStore(), list[str]()

    abandoned = asyncio.new_event_loop()
    waiting = abandoned.create_task(take(store, "s", "never", log))
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]

    async def main() -> None:
        first = asyncio.create_task(take(store, "s", "a", log))
        await asyncio.sleep(0)
        await asyncio.to_thread(abandoned.run_until_complete, asyncio.sleep(0))
        abandoned.close()
        await asyncio.gather(first, take(store, "s", "b", log))

    asyncio.run(main())
    assert log == ["a in", "a out", "b in", "b out"]


def test_a_failed_turn_lets_the_next_one_in() -> None:
    store, log = SessionStore(), list[str]()

    async def main() -> None:
        with pytest.raises(RuntimeError):
            async with store.turn("s"):
                raise RuntimeError
        await take(store, "s", "b", log)

    asyncio.run(main())
    assert log == ["b in", "b out"]


def test_a_turn_inside_a_turn_of_the_same_session_is_an_error() -> None:
    """It would wait for itself for ever."""
    store = SessionStore()

    async def main() -> None:
        async with store.turn("s"), store.turn("t"):
            with pytest.raises(SessionError, match="inside a turn of the same session"):
                async with store.turn("s"):
                    raise AssertionError

    asyncio.run(main())


def test_a_task_started_in_a_turn_may_take_one_later() -> None:
    store, log = SessionStore(), list[str]()

    async def main() -> None:
        waits, release = asyncio.Event(), asyncio.Event()

        async def later() -> None:
            await release.wait()
            await take(store, "s", "later", log)

        async def first() -> asyncio.Task[None]:
            async with store.turn("s"):
                await waits.wait()
                return asyncio.create_task(later())

        starting = asyncio.create_task(first())
        await asyncio.sleep(0)
        other = asyncio.create_task(take(store, "s", "other", log))
        await asyncio.sleep(0)
        waits.set()
        started = await starting
        release.set()
        await asyncio.gather(started, other)

    asyncio.run(main())
    assert log == ["other in", "other out", "later in", "later out"]


def test_finished_turns_leave_nothing_behind() -> None:
    store = SessionStore()

    async def main() -> None:
        await asyncio.gather(*(take(store, str(number % 3), "x", [], 0) for number in range(9)))

    asyncio.run(main())
    assert store._turns._queues == {}
