"""Report: outcomes and their numbers; the run folder on disk, written as trials finish and read back."""

from __future__ import annotations

import json
import math
import os
import re
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from chatflow_eval import __version__
from chatflow_eval.errors import ReportError
from chatflow_eval.metrics import DEFINITIONS, Metrics, summarise
from chatflow_eval.outcome import Outcome
from chatflow_eval.scrub import may_hold_secret, scrub_json, scrub_text
from chatflow_eval.tables import COLUMNS, KEY, TABLES
from chatflow_eval.tally import Tally
from chatflow_runtime.types import Json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
TRIALS, SUMMARY, PAGE = "trials.jsonl", "report.json", "report.html"
SYNC_SECONDS = 3.0
DEEPEST, LONGEST = 100, 10_000
"""How deep the values of an outcome may lie, and the bits of a number in them, so that any reader of JSON takes it."""
ADDED = ("planned", "gate")
"""Fields of a run that an older `report.json` of the same schema does not have."""

OutcomeKey: TypeAlias = tuple[str, str, str, str, int]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule of a gate, the number it looked at, and what it made of it."""

    name: str
    threshold: str
    actual: str
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a gate decided of a run, as its folder keeps it."""

    passed: bool
    """The gate opened."""
    rules: tuple[RuleResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """When and how a report came to be; times are ISO 8601 in UTC."""

    schema: int = SCHEMA
    version: str = __version__
    started: str = ""
    finished: str | None = None
    """`None` while the run goes on, and after it was killed."""
    partial: bool = False
    """The run ended before every planned trial had finished."""
    command: tuple[str, ...] = ()
    trials: int = 0
    """How many outcomes the run holds; counted when it finishes."""
    planned: int | None = None
    """How many it was to hold, where that was known when it started."""
    gate: Ruling | None = None
    """What was decided of it last; `None` where nothing was, and while the run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All outcomes of a run and their numbers."""

    outcomes: Sequence[Outcome]
    metrics: Metrics
    run: Run
    unexpected: Sequence[int] = ()
    """Which outcomes are not as expected (neither passed, skipped, nor failed as their author expects)."""
    with_incidents: Sequence[int] = ()
    """Which outcomes have incidents."""
    folder: Path | None = None
    """Where it is on disk, when it is."""

    @staticmethod
    def of(outcomes: Iterable[Outcome], *, run: Run | None = None) -> Report:
        """The report of outcomes in memory, with every secret taken out of them."""
        tally, clean = Tally(), []
        for outcome in outcomes:
            clean.append(scrub_outcome(outcome))
            tally.add(clean[-1])
        run = run or Run(started=_now(), finished=_now(), trials=len(clean))
        return _report(tuple(clean), tally, run)

    @staticmethod
    def read(folder: Path) -> Report:
        """The report in a run folder; raises `ReportError` naming file and line where the folder is damaged.

        The cut last line of a run that was killed is left out, and the report is marked partial.
        """
        run, tally, outcomes = _read_run(folder / SUMMARY), Tally(), StoredOutcomes(folder / TRIALS)
        cut = outcomes.scan(tally, set())
        if run.finished and run.trials != len(outcomes):
            raise ReportError(f"{outcomes.path}: {len(outcomes)} trials, where {SUMMARY} counts {run.trials}")
        run = replace(run, partial=run.partial or cut or run.finished is None, trials=len(outcomes))
        return _report(outcomes, tally, run, folder)

    def frames(self) -> ReportFrames:
        """The report's trials, turns and hops as pandas frames; all of them are held in memory."""
        import pandas as pd

        dtypes = {"text": "str", "integer": "Int64", "number": "float64", "boolean": "boolean"}
        made = []
        for name, rows in TABLES.items():
            kinds = {**dict.fromkeys(KEY, "text"), "repeat": "integer", **COLUMNS[name]}
            frame = pd.DataFrame(list(rows(self.outcomes)), columns=list(kinds))
            made.append(frame.astype({column: dtypes[kind] for column, kind in kinds.items()}))
        return ReportFrames(*made)


class ReportFrames(NamedTuple):
    """A report as pandas frames, with the columns of `tables.COLUMNS`."""

    trials: pd.DataFrame
    turns: pd.DataFrame
    hops: pd.DataFrame


@dataclass(slots=True)
class StoredOutcomes(Sequence[Outcome]):
    """The outcomes of a run folder, read from its file when asked for, so that they need not fit into memory."""

    path: Path
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    """Where each outcome's line starts, in bytes."""
    end: int = 0
    """Where the last whole line ends, in bytes."""

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Outcome: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Outcome, ...]: ...

    def __getitem__(self, index: int | slice) -> Outcome | tuple[Outcome, ...]:
        wanted = self.offsets[index]
        if isinstance(wanted, int):
            return next(self._at([wanted]))
        return tuple(self._at(wanted))

    def __iter__(self) -> Iterator[Outcome]:
        return self._at(self.offsets)

    def _at(self, offsets: Iterable[int]) -> Iterator[Outcome]:
        """The outcomes that start there; raises `ReportError` where the file was removed or cut since it was read."""
        try:
            with self.path.open("rb") as file:
                for offset in offsets:
                    file.seek(offset)
                    yield _adapter().validate_json(file.readline())
        except OSError as error:
            raise ReportError(f"{self.path}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise ReportError(f"{self.path}: changed while it was read: {_first(error)}") from error

    def add(self, length: int) -> None:
        """One more line of so many bytes stands at the end of the file."""
        self.offsets.append(self.end)
        self.end += length

    def scan(self, tally: Tally, keys: set[OutcomeKey]) -> bool:
        """Find the lines of the file, count their outcomes and collect their keys; true when the last line is cut."""
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    try:
                        outcome = _adapter().validate_json(line)
                    except ValidationError as error:
                        if not line.endswith(b"\n"):
                            return True
                        raise ReportError(f"{self.path}:{number}: not an outcome: {_first(error)}") from error
                    if outcome.key in keys:
                        raise ReportError(f"{self.path}:{number}: {_spell(outcome)} stands here a second time")
                    keys.add(outcome.key)
                    tally.add(outcome)
                    self.add(len(line))
        except OSError as error:
            raise ReportError(f"{self.path}: no run to read here: {error.strerror}") from error
        return False


@dataclass(slots=True)
class RunFolder:
    """A run folder that is being written: one outcome a line, each flushed when it is appended."""

    path: Path
    run: Run
    _file: FileIO
    _outcomes: StoredOutcomes
    _tally: Tally = field(default_factory=Tally)
    _keys: set[OutcomeKey] = field(default_factory=set)
    _synced: float = 0.0

    @classmethod
    def create(cls, path: Path, *, command: Sequence[str] = (), planned: int | None = None) -> Self:
        """A new run in the folder; raises `ReportError` when it holds one already, or cannot be written."""
        run = Run(started=_now(), command=tuple(map(_clean, command)), planned=planned)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if (path / SUMMARY).exists():
                raise FileExistsError
            file = _locked(path / TRIALS, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise ReportError(f"{path} already holds a run; two runs never mix: choose another folder") from None
        except OSError as error:
            raise ReportError(f"{path}: cannot be written: {error.strerror}") from error
        folder = cls(path, run, file, StoredOutcomes(path / TRIALS))
        folder._write_summary(run)
        return folder

    @classmethod
    def resume(cls, path: Path) -> Self:
        """The unfinished run in the folder, to go on with; `finished` says what it has already."""
        run, tally, outcomes, keys = (
            _read_run(path / SUMMARY),
            Tally(),
            StoredOutcomes(path / TRIALS),
            set[OutcomeKey](),
        )
        try:
            file = _locked(path / TRIALS, 0)
        except OSError as error:
            raise ReportError(f"{path / TRIALS}: cannot be resumed: {error.strerror}") from error
        folder = cls(path, replace(run, finished=None, partial=False, gate=None), file, outcomes, tally, keys)
        try:
            folder._repair(outcomes.scan(tally, keys))
            folder._write_summary(folder.run)
        except ReportError:
            file.close()
            raise
        except OSError as error:
            file.close()
            raise ReportError(f"{path / TRIALS}: cannot be resumed: {error.strerror}") from error
        return folder

    @property
    def finished(self) -> frozenset[OutcomeKey]:
        """The keys of the outcomes that are on disk."""
        return frozenset(self._keys)

    def append(self, outcome: Outcome) -> None:
        """Write one outcome without its secrets; on disk, short of a power cut, when this returns."""
        line, scrubbed = _line(outcome)
        self._write(line)
        self._outcomes.add(len(line))
        self._keys.add(outcome.key)
        self._tally.add(scrubbed)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def close(self, *, partial: bool = False) -> Report:
        """Finish the run and give its report."""
        try:
            self._sync()
            run = replace(self.run, finished=_now(), partial=partial, trials=len(self._outcomes))
            report = _report(self._outcomes, self._tally, run, self.path)
            self._write_summary(run, report.metrics)
        finally:
            self._file.close()  # last, since whoever looks on takes an unlocked unfinished run for one that was killed
        return report

    def _write(self, line: bytes) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._outcomes.end)
            raise ReportError(f"{self._outcomes.path}: cannot be written: {error.strerror}") from error

    def _repair(self, cut: bool) -> None:
        """Take away what a killed run left behind the last whole line."""
        self._file.truncate(self._outcomes.end)
        if not cut and self._outcomes.end and os.pread(self._file.fileno(), 1, self._outcomes.end - 1) != b"\n":
            self._write(b"\n")
            self._outcomes.end += 1

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ReportError(f"{self._outcomes.path}: cannot be written: {error.strerror}") from error
        self._synced = time.monotonic()

    def _write_summary(self, run: Run, metrics: Metrics | None = None) -> None:
        summary = _run_adapter().dump_python(run, mode="json")
        if metrics is not None:
            summary["metrics"] = _metrics_adapter().dump_python(metrics, mode="json", exclude=_SAID_ONCE)
            summary["definitions"] = DEFINITIONS
        try:
            _replace_summary(self.path, summary)
        except OSError as error:
            raise ReportError(f"{self.path / SUMMARY}: cannot be written: {error.strerror}") from error


def keep_ruling(report: Report, rules: Iterable[RuleResult]) -> Report:
    """The report with what a gate's rules made of it, kept in its folder if it has one and has finished.

    Raises:
        ReportError: `report.json` cannot be written.
    """
    kept = tuple(
        RuleResult(_clean(rule.name), _clean(rule.threshold), _clean(rule.actual), rule.passed, _clean(rule.why))
        for rule in rules
    )
    run = replace(report.run, gate=Ruling(all(rule.passed for rule in kept), kept))
    if report.folder is not None and run.finished is not None:
        path = report.folder / SUMMARY
        try:
            summary = json.loads(path.read_bytes())
            summary["gate"] = _run_adapter().dump_python(run, mode="json")["gate"]
            _replace_summary(report.folder, summary)
        except (OSError, ValueError) as error:
            raise ReportError(f"{path}: cannot be written: {getattr(error, 'strerror', error)}") from error
    return replace(report, run=run)


def _clean(text: str) -> str:
    return _spelled(scrub_text(text))


def _indented(summary: dict[str, Any]) -> bytes:
    try:
        return to_json(summary, indent=1)
    except PydanticSerializationError:
        # JSON spells a lone surrogate as a backslash would.
        return json.dumps(summary, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")


def _replace_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Replace `report.json` as a whole, so that it is never half written."""
    beside = folder / f"{SUMMARY}.new"
    try:
        with beside.open("wb") as file:
            file.write(_indented(summary))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / SUMMARY)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def _report(outcomes: Sequence[Outcome], tally: Tally, run: Run, folder: Path | None = None) -> Report:
    return Report(
        outcomes=outcomes,
        metrics=summarise(tally.frames()),
        run=run,
        unexpected=tuple(tally.unexpected),
        with_incidents=tuple(tally.with_incidents),
        folder=folder,
    )


def scrub_outcome(outcome: Outcome) -> Outcome:
    """The outcome with every secret replaced by `[redacted]`; itself when it holds none."""
    return _line(outcome)[1]


def _line(outcome: Outcome) -> tuple[bytes, Outcome]:
    """The outcome without its secrets, as its line in `trials.jsonl` and as itself."""
    try:
        line = _adapter().dump_json(outcome, fallback=str)
        if line.count(b"[") + line.count(b"{") > DEEPEST or _MANY_DIGITS.search(line):
            _adapter().validate_json(line)  # what is too deep or too long can be written and not be read
    except Exception:  # whatever models say and tools return: half a character, bytes, a circle, a `str` that raises
        line = _utf8(_plain(outcome))
        outcome = _adapter().validate_json(line)
    if may_hold_secret(line.decode()):
        line = _utf8(scrub_json(json.loads(line)))
        outcome = _adapter().validate_json(line)
    return line + b"\n", outcome


def _plain(value: object, depth: int = 0) -> Json:
    """The value as JSON that can be written and read; as its text where it is none, or lies too deep."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() < LONGEST:
        return int(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if depth < DEEPEST:
        if is_dataclass(value) and not isinstance(value, type):
            return {each.name: _plain(getattr(value, each.name), depth + 1) for each in fields(value)}
        if isinstance(value, Mapping):
            return {_spelled(_text(key)): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, depth + 1) for item in value]
    return _spelled(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


_MANY_DIGITS = re.compile(rb"\d{4000}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _spelled(text: str) -> str:
    """The text with lone surrogates as escapes, as no UTF-8 file can hold them."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _utf8(value: Json) -> bytes:
    """The value as JSON, with lone surrogates spelled out, as no UTF-8 file can hold them."""
    text = json.dumps(value, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found.group()):04x}", text).encode()


_RATES = ("pass_rate", "accuracy", "precision", "recall")
_OF_EDGES = ("precision", "recall", "f1", "input_tokens", "output_tokens", "cost", "latency")
_SAID_ONCE: Any = {
    rows: {"__all__": {name: {"definition"} for name in (_OF_EDGES if rows == "edges" else _RATES)}}
    for rows in ("scenarios", "agents", "edges")
}
"""Rows of which there can be thousands leave the meaning of their numbers to `definitions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary(Run):
    """What `report.json` holds."""

    metrics: Metrics | None = None
    """`None` while the run goes on, and after it was killed."""
    definitions: dict[str, str] = field(default_factory=dict)
    """What each number means."""


def json_schema(file: Literal["report", "trials"]) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of `report.json`, or of one line of `trials.jsonl`."""
    adapter: TypeAdapter[Any] = TypeAdapter(_Summary if file == "report" else Outcome)
    schema = adapter.json_schema(mode="serialization")
    name = SUMMARY if file == "report" else f"one line of {TRIALS}"
    if file == "report":
        # Where there are many rows, a number leaves its meaning to `definitions`.
        for number in ("Rate", "Amount", "Cost", "Latency"):
            schema["$defs"][number]["required"].remove("definition")
        schema["required"] = ["schema", "version", "started", "finished", "partial", "command", "trials"]
    title = f"chatflow-eval: {name}, schema {SCHEMA}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


@cache
def _run_adapter() -> TypeAdapter[Run]:
    return TypeAdapter(Run)


@cache
def _metrics_adapter() -> TypeAdapter[Metrics]:
    return TypeAdapter(Metrics)


@cache
def _adapter() -> TypeAdapter[Outcome]:
    return TypeAdapter(Outcome)


def _read_run(path: Path) -> Run:
    """The head of `report.json`; a run that was killed before it wrote one counts as unfinished."""
    try:
        summary = json.loads(path.read_bytes())
        schema = summary["schema"]
        if schema != SCHEMA:
            raise ReportError(f"{path}: written in schema {schema}, this chatflow-eval ({__version__}) reads {SCHEMA}")
        told = {each.name: summary[each.name] for each in fields(Run) if each.name in summary or each.name not in ADDED}
        run = _run_adapter().validate_python(told)
        for time in (run.started, run.finished):
            if time and datetime.fromisoformat(time).tzinfo is None:
                raise ValueError(f"{time} is in no time zone")
        return replace(run, command=tuple(map(_spelled, run.command)))
    except FileNotFoundError:
        return Run()
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{path}: not a report: {error}") from error


def _locked(path: Path, flags: int) -> FileIO:
    """The file, open for adding to its end by this process alone, until it is closed or the process ends."""
    file = FileIO(os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o666), "r+")
    try:
        import fcntl
    except ImportError:  # Windows; creating the file is exclusive there as well
        return file
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise OSError(error.errno, "another run is writing to it") from error
    return file


def is_being_written(folder: Path) -> bool | None:
    """Whether a process holds the lock of a run folder; `None` where the system (not Linux) does not tell.

    The lock itself is left alone: a look that took it, however briefly, could keep a run from starting.
    """
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    try:
        inode = (folder / TRIALS).stat().st_ino
    except OSError:
        return False
    # By inode alone: on overlay and btrfs the device that stands here is not the one of `stat`.
    return re.search(rf": FLOCK +\w+ +WRITE +\d+ \w+:\w+:{inode} ", locks) is not None


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in detail["loc"])
    return f"{place}: {detail['msg']}" if place else detail["msg"]


def _spell(outcome: Outcome) -> str:
    return f"{outcome.file}::{outcome.scenario} ({outcome.model}, repeat {outcome.repeat})"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
