"""Loops, limit hits, refused, dangling and unannounced handoffs found in a trace, asked for or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

IncidentKind: TypeAlias = Literal[
    "loop",
    "limit_hit",
    "not_allowed",
    "unregistered_target",
    "self_handoff",
    "multiple_transfers",
    "unknown_tool",
]

FAILING: frozenset[IncidentKind] = frozenset({"loop", "limit_hit", "not_allowed", "unregistered_target"})
"""The kinds that fail a scenario unless it requires or allows them, or the suite moves them; the others only warn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something wrong in a trace that no scenario need have asked about, with its evidence."""

    kind: IncidentKind
    turn: int
    """Counts from 1."""
    agents: tuple[str, ...]
    """Who took part: a loop's cycle once around (`A`, `B`), a refused hop's source and target, a limit's agent."""
    message: str
    """One sentence for a person."""
    route: tuple[str, ...] = ()
    """The turn's route up to where it was found."""
    limit: str | None = None
    value: int | None = None
    tool: str | None = None
    model_calls: int = 0
    """Model calls the incident cost."""
    tokens: int | None = None
    """Tokens the incident cost; `None` is unknown."""
