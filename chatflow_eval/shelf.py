"""A project's cassettes: what is there, is it whole, does it still match, is it used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatflow_eval import loader
from chatflow_eval.cassette import SUFFIXES, Cassette, path_for, read, shown
from chatflow_eval.errors import CassetteError, ScenarioError
from chatflow_eval.outcome import Outcome, key_of, run
from chatflow_eval.scenario import Scenario
from chatflow_eval.scrub import surviving_secret
from chatflow_eval.trial import Trial


@dataclass(frozen=True, slots=True)
class Held:
    """One file, read or not."""

    path: Path
    cassette: Cassette | None
    problem: str | None
    """What is wrong with it: damage, or a secret in it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Trials whose recordings do not serve, with their outcomes when they were replayed."""

    stale: tuple[tuple[Trial, Outcome], ...]
    """They ask what was not recorded."""
    missing: tuple[tuple[Trial, Outcome], ...]
    """They ask something, and nothing was recorded."""
    damaged: tuple[tuple[Trial, Outcome], ...]


def files(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Every cassette that is named or lies below a folder, in order of its path.

    Raises:
        CassetteError: there is no such file or folder.
    """
    found: list[Path] = []
    for folder in folders:
        if folder.is_dir():
            found += sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.name[0] != ".")
        elif folder.is_file():
            found.append(folder)
        else:
            raise CassetteError(f"{shown(folder)}: there is no such file or folder")
    return tuple(found)


def held(path: Path) -> Held:
    """The file at this path, read and looked through for secrets."""
    try:
        cassette = read(path)
    except CassetteError as error:
        return Held(path, None, str(error))
    secret = surviving_secret(path.read_text(encoding="utf-8"))
    if secret is not None:
        return Held(path, cassette, f"{shown(path)}: holds {secret}; record it again, and change the key")
    if path.suffix != SUFFIXES[0] and path.with_suffix(SUFFIXES[0]).exists():
        return Held(path, cassette, f"{shown(path)}: never used, as there is one in JSON beside it")
    return Held(path, cassette, None)


async def check(trials: Sequence[Trial], *, concurrency: int = 8) -> Checked:
    """Replays the trials, which asks no model, to find those whose recordings do not serve."""
    planned = {key_of(trial): trial for trial in trials}
    found: dict[str, list[tuple[Trial, Outcome]]] = {}
    async for outcome in run(trials, concurrency=concurrency):
        if outcome.failure is not None and outcome.failure.kind == "cassette":
            found.setdefault(outcome.failure.exception, []).append((planned[outcome.key], outcome))
    return Checked(
        stale=_in_order(found.get("CassetteMismatch", []), trials),
        missing=_in_order(found.get("CassetteMissing", []), trials),
        damaged=_in_order(found.get("CassetteDamaged", []), trials),
    )


def unused(root: Path, paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The cassettes that no scenario and no test looks for any more, and why; those of unknown origin are let be.

    Raises:
        ScenarioError: a scenario file cannot be read, and nobody knows what it uses.
    """
    used = {path_for(root, each.file, each.id, "any", 1).parent for each in _scenarios(root)}
    known = {folder.parent for folder in used}
    for path in paths:
        folder = path.resolve().parent
        if folder in used:
            continue
        origin = _origin(path)
        if folder.parent in known:
            yield path, "no scenario has this id"
        elif origin is not None and not (root / origin[0]).is_file():
            yield path, f"there is no {origin[0]}"
        elif origin is not None and origin[0].endswith(".py") and not _has_test(root / origin[0], origin[1]):
            yield path, f"{origin[0]} has no {origin[1]}"


def _scenarios(root: Path) -> Sequence[Scenario]:
    try:
        return loader.load([root])
    except ScenarioError as error:
        if error.line is None and "no scenario file" in error.problem:
            return ()
        raise


def _origin(path: Path) -> tuple[str, str] | None:
    try:
        origin = read(path).origin
    except CassetteError:
        return None
    return None if origin is None or origin.file.startswith("<") else (origin.file, origin.scenario)


def _has_test(file: Path, name: str) -> bool:
    # A test's second conversation is called after the test, with a number.
    names = "|".join(re.escape(each) for each in {name, re.sub(r"-\d+$", "", name)})
    return re.search(rf"\bdef ({names})\b", file.read_text(encoding="utf-8")) is not None


def _in_order(found: Sequence[tuple[Trial, Outcome]], trials: Sequence[Trial]) -> tuple[tuple[Trial, Outcome], ...]:
    order = {id(trial): number for number, trial in enumerate(trials)}
    return tuple(sorted(found, key=lambda pair: order[id(pair[0])]))
