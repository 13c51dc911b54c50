"""Run folders over time: accuracy and incidents of one run after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatflow_eval.errors import ReportError
from chatflow_eval.report import SCHEMA, SUMMARY


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """What one run folder's `report.json` says."""

    folder: Path
    started: str
    """ISO 8601 in UTC."""
    partial: bool
    models: tuple[str, ...]
    trials: Mapping[str, int]
    """Status to how many trials ended so; none while the run goes on."""
    accuracy: Mapping[str, Any] | None
    """Numerator, denominator, value, low, high; `None` while the run goes on."""
    pass_rate: Mapping[str, Any] | None
    incidents: Mapping[str, int]
    """Kind to how often it was found, where it was."""
    cost: float | None
    """US dollars, as far as known."""


def past_runs(folders: Sequence[Path]) -> tuple[PastRun, ...]:
    """The runs in folders, or in the folders right below them, the oldest first.

    Raises:
        ReportError: a `report.json` that cannot be read.
    """
    found = {path.resolve(): _read(path) for folder in folders for path in _summaries(folder)}
    return tuple(sorted(found.values(), key=lambda run: (run.started, str(run.folder))))


def _summaries(folder: Path) -> Iterator[Path]:
    if (folder / SUMMARY).is_file():
        yield folder / SUMMARY
    elif folder.is_dir():
        yield from sorted(folder.glob(f"*/{SUMMARY}"))


def _read(path: Path) -> PastRun:
    try:
        summary = json.loads(path.read_bytes())
        if summary["schema"] != SCHEMA:
            raise ReportError(f"{path}: written in schema {summary['schema']}, this chatflow-eval reads {SCHEMA}")
        metrics = summary.get("metrics")
        total = metrics["total"] if metrics else {}
        return PastRun(
            folder=path.parent,
            started=summary["started"],
            partial=summary["partial"] or summary["finished"] is None,
            models=tuple(row["model"] for row in metrics["models"]) if metrics else (),
            trials=total.get("trials", {}),
            accuracy=_rate(total.get("accuracy")),
            pass_rate=_rate(total.get("pass_rate")),
            incidents={each["kind"]: each["count"] for each in total.get("incidents", ()) if each["count"]},
            cost=total.get("cost", {}).get("value"),
        )
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path}: not a report: {error!r}") from error


def _rate(rate: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if rate is None else {key: value for key, value in rate.items() if key != "definition"}
