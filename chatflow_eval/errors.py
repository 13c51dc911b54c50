"""What the harness raises; a failed expectation is data, never one of these.

ChatflowEvalError            printed without a traceback; exit code 2
├── ScenarioError            a scenario file, at file:line:column
├── TargetError              the agents could not be found, imported or built
├── CassetteError            a recording; its trial is errored, the others go on
│   ├── CassetteMissing      nothing recorded
│   ├── CassetteMismatch     asked something that was not recorded
│   ├── CassetteDamaged      a file that is not whole
│   └── NetworkRefused       something connected while replaying
└── ReportError              a run folder that cannot be read
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class ChatflowEvalError(Exception):
    """The harness could not do its work; the message is for a person."""


class ScenarioError(ChatflowEvalError):
    """A scenario that cannot be read: where, what, and what was expected."""

    def __init__(
        self, problem: str, *, path: Path | str | None = None, line: int | None = None, column: int | None = None
    ) -> None:
        self.problem, self.path, self.line, self.column = problem, path, line, column
        place = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{place}: {problem}" if place else problem)


class ScenarioErrors(ScenarioError):
    """Several scenario errors at once, one per line of the message."""

    def __init__(self, errors: Sequence[ScenarioError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in errors))


class TargetError(ChatflowEvalError):
    """The agents under test could not be found, imported or built."""


class CassetteError(ChatflowEvalError):
    """A recording that cannot be used; ends one trial, not the run."""


class CassetteMissing(CassetteError):
    """Nothing was recorded for this trial."""


class CassetteMismatch(CassetteError):
    """Something was asked that was not recorded."""

    def __init__(self, message: str, *, edit: str | None = None) -> None:
        self.edit = edit
        """What was edited since the recording: agent, field, both values; alike for all trials that it made stale."""
        super().__init__(message)


class CassetteDamaged(CassetteError):
    """A cassette that is not whole; it is left as it is."""


class NetworkRefused(CassetteError):
    """Something connected while replaying: what is not recorded stays where it is."""


class ReportError(ChatflowEvalError):
    """A run folder that cannot be read or written."""
