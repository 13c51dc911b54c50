"""Outcome; run: trials to outcomes; the only step that talks to the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from chatflow_eval.checks import Verdict
from chatflow_eval.incidents import Incident
from chatflow_eval.trace import Failure, Trace

Status: TypeAlias = Literal["passed", "failed", "errored", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A trial with its trace and verdicts, or the error that stopped it; self-contained, as `trials.jsonl` holds it."""

    file: str
    """The scenario file from the project's root, with `/`; `<python>` for scenarios built in code."""
    line: int
    scenario: str
    """The scenario's id, unique in its file."""
    tags: tuple[str, ...] = ()
    target: str = "chatflow"
    model: str = "declared"
    """Label of the model choice: `declared`, a model's name, or a mapping spelled out."""
    repeat: int = 1
    """Counts from 1."""
    status: Status
    why: str = ""
    """Why it is not passed, in words."""
    replayed: bool = False
    """Model answers came from a recording: tokens and latency are recorded values."""
    users: tuple[str, ...] = ()
    """What the user says, every turn, also those that were not reached."""
    trace: Trace | None = None
    verdicts: tuple[Verdict, ...] = ()
    incidents: tuple[Incident, ...] = ()
    failure: Failure | None = None
    """Of an errored trial."""
    failed_turn: int | None = None
    """The turn in which an errored trial stopped; counts from 1."""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What makes a trial itself: file, scenario, target, model, repeat."""
        return (self.file, self.scenario, self.target, self.model, self.repeat)
