"""The run folders of one folder, and in which state each is; links are not followed, and a damaged one is told of."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from chatflow_eval import history
from chatflow_eval.errors import ReportError
from chatflow_eval.history import PastRun
from chatflow_eval.report import SUMMARY, TRIALS, is_being_written

State: TypeAlias = Literal["finished", "partial", "going on", "broken off", "unfinished", "damaged"]
"""`broken off`: it did not finish, and nobody writes to it any more; `unfinished`: one of the two, and nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run folder."""

    name: str
    """Of the folder; where that is no UTF-8, with signs in its place that are."""
    folder: Path
    state: State
    started: str
    """ISO 8601 in UTC; when the folder changed last where nothing else is known."""
    run: PastRun | None
    """What its `report.json` says; `None` where there is none, or a damaged one."""
    problem: str = ""
    """Why it cannot be read."""

    @property
    def goes_on(self) -> bool:
        """Whether more trials may come."""
        return self.state in ("going on", "unfinished")


_Stamp: TypeAlias = tuple[int, int]
"""When a file was written, in nanoseconds, and its bytes."""


@dataclass(slots=True)
class Listing:
    """Looks for run folders right below a folder, or takes the folder for the only one when it is one itself.

    What a `report.json` says is read once, and again when the file has changed.
    """

    folder: Path
    _read: dict[Path, tuple[_Stamp, PastRun | ReportError]] = field(default_factory=dict)

    def entries(self) -> dict[str, Entry]:
        """The run folders by their names, the newest first; raises `ReportError` when the folder cannot be read."""
        found = [self._entry(path) for path in self._folders() if _is_run(path)]
        kept = {entry.folder for entry in found}
        # Of a copy, since others may look at the same time.
        self._read = {path: read for path, read in self._read.copy().items() if path in kept}
        found.sort(key=lambda entry: (entry.started, entry.name), reverse=True)
        return {entry.name: entry for entry in found}

    def one(self, name: str) -> Entry | None:
        """The run folder of the name, which is only ever looked up; `None` where there is none."""
        return next((self._entry(path) for path in self._folders() if _name(path) == name and _is_run(path)), None)

    def _folders(self) -> list[Path]:
        """Run folders, and others among them."""
        folder = self.folder.resolve()
        return [folder] if _is_run(folder) else _below(folder)

    def _entry(self, folder: Path) -> Entry:
        run, problem = None, next(filter(None, (_trouble(folder / file) for file in (SUMMARY, TRIALS))), "")
        if not problem and (stamp := stamp_of(folder / SUMMARY)) is not None:
            told = self._summary(folder, stamp)
            run, problem = (None, str(told)) if isinstance(told, ReportError) else (told, "")
        state: State = "damaged" if problem else _state(folder, run)
        started = run.started if run is not None and _is_time(run.started) else _changed(folder)
        return Entry(name=_name(folder), folder=folder, state=state, started=started, run=run, problem=problem)

    def _summary(self, folder: Path, stamp: _Stamp) -> PastRun | ReportError:
        kept = self._read.get(folder)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        told: PastRun | ReportError
        try:
            told = history.read(folder / SUMMARY)
        except ReportError as error:
            if isinstance(error.__cause__, OSError):
                return error  # which may pass by itself
            told = error
        self._read[folder] = (stamp, told)
        return told


def search(entries: Iterable[Entry], query: str) -> tuple[Entry, ...]:
    """Those that have every word of the query in their name, command, models, state or time."""
    wanted = query.casefold().split()
    return tuple(entry for entry in entries if not wanted or all(word in _words(entry) for word in wanted))


def _words(entry: Entry) -> str:
    run = entry.run
    told = [entry.name, entry.state, entry.started.replace("T", " "), entry.problem]
    if run is not None:
        told += [*run.command, *(f"{each.target} {each.model}" for each in run.of_models)]
    if run is not None and run.gate is not None:
        told.append(f"gate {'open' if run.gate else 'closed'}")
    return " ".join(told).casefold()


def stamp_of(path: Path) -> _Stamp | None:
    """When a plain file was written and how long it is; `None` for anything else, a link to one included."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _state(folder: Path, run: PastRun | None) -> State:
    if run is not None and run.finished is not None:
        return "partial" if run.partial else "finished"
    written = is_being_written(folder)
    if written is None:
        return "unfinished"
    return "going on" if written else "broken off"


def _below(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [Path(each.path) for each in found if each.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise ReportError(f"{folder}: cannot be read: {error.strerror}") from error


def _changed(folder: Path) -> str:
    """When the folder changed last; long ago where it has just been removed."""
    try:
        seconds = folder.stat().st_mtime
    except OSError:
        seconds = 0.0
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _name(folder: Path) -> str:
    return folder.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_run(folder: Path) -> bool:
    return any(stamp_of(folder / file) or _trouble(folder / file) for file in (SUMMARY, TRIALS))


def _trouble(path: Path) -> str:
    """Why a file that is there is not read; nothing where it is a plain one."""
    try:
        plain = stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    return "" if plain else f"{path}: no plain file, and links are not followed"


def _is_time(text: object) -> bool:
    try:
        return isinstance(text, str) and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
