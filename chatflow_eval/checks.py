"""Check, Verdict, judge; the built-in checks and their names in YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

VerdictStatus: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """One place of the cheapest alignment between a route pattern and an actual route."""

    expected: str | None
    """What the pattern wants here, in its own words (`B`, `B | C`, `~A`); `None`: nothing was expected."""
    actual: str | None
    """The agent that came; `None`: nobody did."""
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one check said of one turn, or of the whole conversation, and why."""

    check: str
    """The check's name in YAML: route, stay, starts_at, ends_at, handoffs, visits, avoids, calls, reply, incidents."""
    turn: int | None
    """Counts from 1; `None` for the whole conversation."""
    status: VerdictStatus
    """`skipped` when the turn was not reached or errored."""
    expected: str
    actual: str = ""
    why: str = ""
    """The reason in words, always there when not passed."""
    alignment: tuple[Aligned, ...] = ()
    """Of `route` and `stay` checks."""
    after_failure: bool = False
    """An earlier turn of this trial had failed."""
