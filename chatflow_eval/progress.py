"""How far a run that goes on has come, read from the lines of its trials as they are finished."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock

from pydantic import TypeAdapter, ValidationError

from chatflow_eval.incidents import IncidentKind
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import TRIALS, OutcomeKey
from chatflow_eval.tally import judged_turns

LAST, BAD = 10, 50
"""Trials that are told of: the last ones, and those that are not as expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One trial that has finished, in few words."""

    key: OutcomeKey
    status: Status
    ok: bool
    """Passed, skipped, or failed as its author expects."""
    why: str
    seconds: float
    incidents: tuple[IncidentKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands."""

    bytes: int = 0
    """How much of the file was read; more whenever there is more to tell."""
    trials: int = 0
    """How many have finished, the baselines' included."""
    statuses: Mapping[Status, int] = field(default_factory=dict)
    """Without those of the baselines, which are in no number."""
    right: int = 0
    """Turns whose route was accepted."""
    judged: int = 0
    """Turns that were judged for routing."""
    incidents: Mapping[IncidentKind, int] = field(default_factory=dict)
    last: tuple[Finished, ...] = ()
    """The newest first, at most `LAST`."""
    unexpected: int = 0
    bad: tuple[Finished, ...] = ()
    """Those not as expected, the newest first, at most `BAD`."""
    problem: str = ""
    """A line that is no outcome; nothing after it is read."""


@dataclass(slots=True)
class Progress:
    """Follows the trials of a run folder: each `read` goes on where the last one got to, by whole lines only."""

    folder: Path
    _end: int = 0
    _lines: int = 0
    _statuses: Counter[Status] = field(default_factory=Counter)
    _incidents: Counter[IncidentKind] = field(default_factory=Counter)
    _right: int = 0
    _judged: int = 0
    _last: deque[Finished] = field(default_factory=lambda: deque(maxlen=LAST))
    _bad: deque[Finished] = field(default_factory=lambda: deque(maxlen=BAD))
    _unexpected: int = 0
    _problem: str = ""
    _lock: Lock = field(default_factory=Lock)

    def read(self) -> Standing:
        """How the run stands now."""
        with self._lock:
            problem = self._problem or self._go_on()
            return Standing(
                bytes=self._end,
                trials=self._lines,
                statuses=dict(self._statuses),
                right=self._right,
                judged=self._judged,
                incidents=dict(self._incidents.most_common()),
                last=tuple(reversed(self._last)),
                unexpected=self._unexpected,
                bad=tuple(reversed(self._bad)),
                problem=problem,
            )

    def _go_on(self) -> str:
        """Read the lines that are new; what was wrong, else nothing."""
        path = self.folder / TRIALS
        try:
            with path.open("rb") as file:
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._add(_adapter().validate_json(line))
                    self._end += len(line)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{path}: cannot be read: {error.strerror}"
        except ValidationError:
            self._problem = f"{path}:{self._lines + 1}: not an outcome"
        return self._problem

    def _add(self, outcome: Outcome) -> None:
        self._lines += 1
        found = Finished(
            key=outcome.key,
            status=outcome.status,
            ok=outcome.ok,
            why=outcome.why,
            seconds=outcome.seconds,
            incidents=tuple(dict.fromkeys(incident.kind for incident in outcome.incidents)),
        )
        self._last.append(found)
        if outcome.baseline:
            return
        self._statuses[outcome.status] += 1
        self._incidents.update(incident.kind for incident in outcome.incidents)
        turns = [turn for turn in judged_turns(outcome) if turn.judged]
        self._judged += len(turns)
        self._right += sum(turn.right for turn in turns)
        if not found.ok:
            self._unexpected += 1
            self._bad.append(found)


@cache
def _adapter() -> TypeAdapter[Outcome]:
    return TypeAdapter(Outcome)
