"""Sessions are kept whole, apart from one another, and one turn at a time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from chatflow_runtime.agent import Agent
from chatflow_runtime.exceptions import SessionError
from chatflow_runtime.memory import SessionContext, SessionStore
from chatflow_runtime.types import UserMessage


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
