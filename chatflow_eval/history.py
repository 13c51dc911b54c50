"""Run folders over time: accuracy and incidents of one run after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AllowInfNan, TypeAdapter, ValidationError

from chatflow_eval.errors import ReportError
from chatflow_eval.report import SCHEMA, SUMMARY

PastRate: TypeAlias = Mapping[str, int | Annotated[float, AllowInfNan(False)] | None]
"""Numerator, denominator, value, low, high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastModel:
    """What one run's `report.json` says of one model."""

    target: str
    model: str
    accuracy: PastRate | None
    incidents: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """What one run folder's `report.json` says."""

    folder: Path
    started: str
    """ISO 8601 in UTC."""
    finished: str | None
    """`None` while the run goes on, and after it was killed."""
    command: tuple[str, ...]
    planned: int | None
    """How many trials it was to hold, as far as known."""
    gate: bool | None = None
    """Whether it opened, the last time; `None` where nothing was decided."""
    partial: bool
    models: tuple[str, ...]
    trials: Mapping[str, int]
    """Status to how many trials ended so; none while the run goes on."""
    accuracy: PastRate | None
    """`None` while the run goes on."""
    pass_rate: PastRate | None
    incidents: Mapping[str, int]
    """Kind to how often it was found, where it was."""
    cost: float | None
    """US dollars, as far as known."""
    of_models: tuple[PastModel, ...]


def past_runs(folders: Sequence[Path]) -> tuple[PastRun, ...]:
    """The runs in folders, or in the folders right below them, the oldest first.

    Raises:
        ReportError: a `report.json` that cannot be read.
    """
    found = {path.resolve(): read(path) for folder in folders for path in _summaries(folder)}
    return tuple(sorted(found.values(), key=lambda run: (run.started, str(run.folder))))


def _summaries(folder: Path) -> Iterator[Path]:
    if (folder / SUMMARY).is_file():
        yield folder / SUMMARY
    elif folder.is_dir():
        yield from sorted(folder.glob(f"*/{SUMMARY}"))


def read(path: Path) -> PastRun:
    """What a `report.json` says; raises `ReportError` where it cannot be read."""
    try:
        summary = json.loads(path.read_bytes())
        if summary["schema"] != SCHEMA:
            raise ReportError(f"{path}: written in schema {summary['schema']}, this chatflow-eval reads {SCHEMA}")
        metrics = summary.get("metrics")
        total = metrics["total"] if metrics else {}
        found = PastRun(
            folder=path.parent,
            started=summary["started"],
            finished=summary["finished"],
            command=tuple(summary["command"]),
            planned=summary.get("planned"),
            gate=(summary.get("gate") or {}).get("passed"),
            partial=summary["partial"] or summary["finished"] is None,
            models=tuple(row["model"] for row in metrics["models"]) if metrics else (),
            trials=total.get("trials", {}),
            accuracy=_rate(total.get("accuracy")),
            pass_rate=_rate(total.get("pass_rate")),
            incidents=_incidents(total),
            cost=total.get("cost", {}).get("value"),
            of_models=tuple(_model(row) for row in metrics["models"]) if metrics else (),
        )
        return _adapter().validate_python(asdict(found))
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}: not a report: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ReportError(f"{path}: not a report: {place}: {first['msg']}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReportError(f"{path}: not a report: {error!r}") from error


def _model(row: Mapping[str, Any]) -> PastModel:
    numbers = row["numbers"]
    return PastModel(
        target=row["target"],
        model=row["model"],
        accuracy=_rate(numbers["accuracy"]),
        incidents=_incidents(numbers),
    )


def _incidents(numbers: Mapping[str, Any]) -> dict[str, int]:
    return {each["kind"]: each["count"] for each in numbers.get("incidents", ()) if each["count"]}


def _rate(rate: Mapping[str, Any] | None) -> PastRate | None:
    return None if rate is None else {key: rate[key] for key in ("numerator", "denominator", "value", "low", "high")}


@cache
def _adapter() -> TypeAdapter[PastRun]:
    return TypeAdapter(PastRun)
