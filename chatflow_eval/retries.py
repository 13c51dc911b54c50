"""How often, and how long, a model is asked for one answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

FIRST_PAUSE = 0.5
"""Seconds before the first retry; each pause is twice the one before."""

LONGEST_PAUSE = 30.0
"""Seconds that are waited at most, whatever the server asks for."""

_BROKEN = frozenset(
    {
        "APIConnectionError",
        "ClientConnectionError",
        "ConnectError",
        "ReadError",
        "RemoteProtocolError",
        "WriteError",
    }
)
"""What clients call a connection that broke, beside Python's own ConnectionError."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What one answer may take."""

    retries: int = 2
    """Further calls after one that failed for a reason that may pass; 0: one HTTP call, whatever comes of it."""
    timeout: float = 600.0
    """Seconds for one call."""


async def persist(
    call: Callable[[], Awaitable[_T]],
    limits: CallLimits,
    *,
    tell: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> _T:
    """The call's result, asked for again after 408, 429, 5xx, a broken connection or a timeout; tells of each retry.

    Raises:
        Exception: the last failure when the retries are used up, any other failure at once.
    """
    for attempt in range(limits.retries + 1):
        try:
            async with asyncio.timeout(limits.timeout):
                return await call()
        except Exception as error:
            if attempt == limits.retries or not may_pass(error):
                raise
            pause = pause_after(error, attempt)
            tell(f"attempt {attempt + 1} of {limits.retries + 1}: {_name(error)}; asked again after {pause:.1f} s")
        await sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def may_pass(error: Exception) -> bool:
    """Whether asking again may help."""
    status = status_of(error)
    if status is not None:
        return status_may_pass(status)
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return any(kind.__name__ in _BROKEN for kind in type(error).__mro__)


def status_may_pass(status: int) -> bool:
    """Whether asking again may help after an answer of this HTTP status."""
    return status in (408, 429) or 500 <= status <= 599


def pause_after(error: Exception, attempt: int) -> float:
    """Seconds to wait after this attempt, which counts from 0: what the server asks for, else ever longer."""
    asked = _retry_after(error)
    if asked is not None:
        return min(asked, LONGEST_PAUSE)
    return min(FIRST_PAUSE * (1 << attempt) * random.uniform(0.75, 1.25), LONGEST_PAUSE)


def status_of(error: Exception) -> int | None:
    """The HTTP status that an exception of any client stands for."""
    for status in (getattr(error, "status_code", None), getattr(error, "status", None)):
        if isinstance(status, int):
            return status
    return None


def _retry_after(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    value = headers.get("retry-after") if isinstance(headers, Mapping) else None
    if not isinstance(value, str):
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _name(error: Exception) -> str:
    status = status_of(error)
    return f"{type(error).__name__}{f' {status}' if status else ''}"
