"""Asking again: after what, how often, and how long is waited."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from chatflow_eval.retries import LONGEST_PAUSE, CallLimits, may_pass, pause_after, persist


class Refused(Exception):
    """As clients raise it: with a status, and the response where there is one."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})


class APIConnectionError(Exception):
    """By its name, as clients share no class for it."""


class Calls:
    """Fails in order with what it is given, and then succeeds; never waits, and knows what it was to wait."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.made = 0
        self.told: list[str] = []
        self.pauses: list[float] = []

    async def call(self) -> str:
        self.made += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def persist(self, **limits: Any) -> str:
        return await persist(self.call, CallLimits(**limits), tell=self.told.append, sleep=self.sleep)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_asked_again(status: int) -> None:
    calls = Calls(Refused(status), Refused(status))
    assert await calls.persist() == "answer"
    assert calls.made == 3
    assert calls.told == [
        f"attempt {n} of 3: Refused {status}; asked again after {pause:.1f} s"
        for n, pause in enumerate(calls.pauses, 1)
    ]


@pytest.mark.parametrize("error", [Refused(400), Refused(401), Refused(404), ValueError("no"), Refused(200)])
async def test_what_will_not_pass_is_raised_at_once(error: Exception) -> None:
    calls = Calls(error)
    with pytest.raises(type(error)):
        await calls.persist()
    assert (calls.made, calls.pauses) == (1, [])


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), APIConnectionError("gone")])
async def test_a_broken_connection_may_pass(error: Exception) -> None:
    calls = Calls(error)
    assert await calls.persist() == "answer"
    assert calls.made == 2


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_the_budget_is_kept_and_the_last_failure_is_raised(retries: int) -> None:
    """B138: no retries, one call, however long the server would have one wait."""
    calls = Calls(*(Refused(429, retry_after="86400") for _ in range(9)))
    with pytest.raises(Refused):
        await calls.persist(retries=retries)
    assert calls.made == retries + 1
    assert calls.pauses == [LONGEST_PAUSE] * retries


async def test_a_call_that_takes_too_long_is_given_up_and_made_again() -> None:
    """B146."""
    made = []

    async def hang() -> str:
        made.append(1)
        await asyncio.sleep(60)
        return "late"

    told: list[str] = []
    with pytest.raises(TimeoutError):
        await persist(hang, CallLimits(retries=1, timeout=0.01), tell=told.append, sleep=Calls().sleep)
    assert len(made) == 2
    assert told[0].startswith("attempt 1 of 2: TimeoutError; ")


def test_pauses_double_with_jitter_and_have_an_end() -> None:
    for attempt, pause in enumerate((0.5, 1.0, 2.0, 4.0)):
        assert 0.75 * pause <= pause_after(Refused(500), attempt) <= 1.25 * pause
    assert pause_after(Refused(500), 50) == LONGEST_PAUSE
    assert len({pause_after(Refused(500), 0) for _ in range(5)}) > 1


def test_the_server_is_waited_for_as_long_as_it_says_in_seconds_or_as_a_date() -> None:
    assert pause_after(Refused(429, retry_after="7.5"), 0) == 7.5
    assert pause_after(Refused(429, retry_after="0"), 0) == 0
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert 15 < pause_after(Refused(429, retry_after=soon), 0) <= 20
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=20), usegmt=True)
    assert pause_after(Refused(429, retry_after=past), 0) == 0


@pytest.mark.parametrize("said", ["soon", "", "nan"])
def test_what_cannot_be_read_is_not_waited_for(said: str) -> None:
    assert 0 <= pause_after(Refused(429, retry_after=said), 0) < 1


def test_a_status_outranks_the_kind_of_the_exception() -> None:
    class Both(ConnectionError):
        status_code = 400

    assert not may_pass(Both())
