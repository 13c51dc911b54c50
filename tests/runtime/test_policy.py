"""What a call lets its target have, setting by setting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.filters import ChatMessage
from chatflow_runtime.policy import (
    ContextPolicy,
    HandoffConfig,
    HandoffToolPolicy,
    Lane,
    Permission,
    call_back,
    parameter_count,
)

SYSTEM: ChatMessage = {"role": "system", "content": "s"}
USER: ChatMessage = {"role": "user", "content": "u"}
TEXTS: list[ChatMessage] = [{"role": "assistant", "content": str(number)} for number in range(4)]
CALL: ChatMessage = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
RESULT: ChatMessage = {"role": "tool", "tool_call_id": "c1", "content": "r"}


@pytest.mark.parametrize(
    ("policy", "size", "kept"),
    [
        ("full", 10, [SYSTEM, *TEXTS, USER]),
        ("summary", 10, [SYSTEM, *TEXTS[2:], USER]),
        ("last_n", 2, [SYSTEM, *TEXTS[3:], USER]),
        ("last_n", 0, [SYSTEM, USER]),
        ("none", 10, [SYSTEM, USER]),
    ],
)
def test_a_context_policy_selects(policy: str, size: int, kept: list[ChatMessage]) -> None:
    """PR-15: the last 0 messages are none of them."""
    assert ContextPolicy(policy).select([SYSTEM, *TEXTS, USER], size) == kept


def test_the_users_question_goes_along_with_each_policy_unless_there_is_another() -> None:
    messages = [USER, *TEXTS]
    assert ContextPolicy.SUMMARY.select(messages, 10) == [USER, *TEXTS[1:]]
    assert ContextPolicy.SUMMARY.select(messages, 10, with_question=False) == TEXTS[1:]
    assert ContextPolicy.NONE.select([*TEXTS], 10) == []


def test_a_policy_never_cuts_a_tool_exchange() -> None:
    messages = [CALL, RESULT, *TEXTS[:2]]
    assert ContextPolicy.SUMMARY.select(messages, 10) == TEXTS[:2]
    assert ContextPolicy.LAST_N.select(messages, 4) == messages


def test_a_permission_narrows_to_what_is_shared() -> None:
    """B101."""
    everything = Permission()
    assert everything.allows("refund")
    shared = everything.narrowed(HandoffToolPolicy(blocked_tools=["danger"]), ["refund", "danger"])
    assert [shared.allows(name) for name in ("refund", "danger", "other")] == [True, False, False]
    inner = shared.narrowed(HandoffToolPolicy("passthrough"), ["refund"])
    assert [inner.allows(name) for name in ("refund", "danger", "other")] == [True, False, True]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"context_policy": "weird"}, "one of 'full', 'summary', 'none', 'last_n'"),
        ({"tool_policy": "intersect"}, "expected a HandoffToolPolicy"),
        ({"max_context_messages": -1}, "max_context_messages is -1"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"timeout_seconds": -1.0}, "expected more than 0, or None"),
        ({"max_concurrent": 0}, "max_concurrent is 0, expected a whole number of 1 or more"),
        ({"max_depth": 1.5}, "max_depth is 1.5"),
        ({"max_depth": None}, "max_depth is None"),
        ({"allowed_agents": "Billing"}, "allowed_agents is 'Billing', expected a list of names"),
        ({"on_handoff": "log"}, "on_handoff is 'log', expected a function"),
        ({"on_handoff": lambda a, b, c, d: None}, "on_handoff requires 4 parameters, expected at most 3"),
        ({"on_complete": lambda a, b, c: None}, "on_complete requires 3 parameters, expected at most 2"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], text: str) -> None:
    """B033."""
    with pytest.raises(DefinitionError, match=text):
        HandoffConfig(**settings)


def test_a_setting_that_there_is_none_of_is_refused() -> None:
    """B033: nothing is accepted and ignored."""
    with pytest.raises(TypeError, match="max_context_tokens"):
        HandoffConfig(max_context_tokens=4000)  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", ["union", "", None])
def test_a_tool_policy_that_there_is_none_of_is_refused(mode: Any) -> None:
    with pytest.raises(DefinitionError, match="expected 'intersect' or 'passthrough'"):
        HandoffToolPolicy(mode)


def test_a_config_is_a_value() -> None:
    names = ["Billing"]
    config = HandoffConfig(context_policy="none", allowed_agents=names)
    names.append("Admin")
    assert config.context_policy is ContextPolicy.NONE
    assert config.allowed_agents == ("Billing",)
    assert config == HandoffConfig(context_policy=ContextPolicy.NONE, allowed_agents=("Billing",))
    assert hash(config) == hash(HandoffConfig(context_policy=ContextPolicy.NONE, allowed_agents=("Billing",)))


def none() -> None: ...
def one(a: object) -> None: ...
def one_of_two(a: object, b: object = None) -> None: ...
def three(a: object, b: object, c: object) -> None: ...
def many(*values: object) -> None: ...
def two_and_many(a: object, b: object, *values: object) -> None: ...
def named(a: object, *, b: object = None, **more: object) -> None: ...


@pytest.mark.parametrize(
    ("callback", "count"),
    [(none, 0), (one, 1), (one_of_two, 1), (three, 3), (many, 3), (two_and_many, 2), (named, 1)],
)
def test_a_callback_is_given_as_much_as_it_requires(callback: Any, count: int) -> None:
    """PR-3: one that takes any number is given everything."""
    assert parameter_count(callback, "on_handoff", 3) == count


def test_a_callback_that_wants_names_is_refused() -> None:
    def wants(*, source: object) -> None: ...

    with pytest.raises(DefinitionError, match="given by position"):
        parameter_count(wants, "on_handoff", 3)


async def test_async_callbacks_are_awaited() -> None:
    """PR-3."""
    seen: list[object] = []

    async def late(value: object) -> None:
        await asyncio.sleep(0)
        seen.append(value)

    await call_back(late, "on_handoff", {1: ("x",), 2: ("x", "y")})
    assert seen == ["x"]


async def most_at_once(lane: Lane, tasks: int) -> int:
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        async with lane.place():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(tasks)))
    return most


@pytest.mark.parametrize(("size", "most"), [(1, 1), (3, 3), (None, 8)])
async def test_a_lane_holds_so_many(size: int | None, most: int) -> None:
    assert await most_at_once(Lane(size), 8) == most


def test_a_lane_serves_one_event_loop_after_the_other() -> None:
    """The second document's `RuntimeError: bound to a different event loop`."""
    lane = Lane(1)
    assert [asyncio.run(most_at_once(lane, 4)) for _ in range(3)] == [1, 1, 1]
