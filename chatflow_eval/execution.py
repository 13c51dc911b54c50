"""From scenario files to a run folder: what is loaded, chosen, run and kept, with what a person sees meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chatflow_eval.conclusion import PASSED
from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.quantities import counted

if TYPE_CHECKING:
    from chatflow_eval.outcome import Outcome
    from chatflow_eval.report import RunFolder
    from chatflow_eval.scenario import Framework, Scenario
    from chatflow_eval.trial import Trial


def load(paths: Sequence[Path], *, offline: bool = False, frameworks: Sequence[Framework] = ()) -> tuple[Scenario, ...]:
    """The scenarios, with the names that they use checked against the agents that they test."""
    from chatflow_eval import guard, loader
    from chatflow_eval.targets.names import check_names

    scenarios = loader.load(paths)
    hosts = {host for scenario in scenarios for host in scenario.allow_hosts}
    with guard.offline(sorted(hosts)) if offline else contextlib.nullcontext():
        check_names(scenarios, frameworks)
    return scenarios


def select(scenarios: Sequence[Scenario], tags: Sequence[str], ids: Sequence[str]) -> tuple[Scenario, ...]:
    """The scenarios with one of the tags and one of the ids, where any are given.

    Raises:
        ChatflowEvalError: no scenario has such a tag or id, or none has both.
    """
    from chatflow_eval.fields import suggestion

    known = dict.fromkeys(
        [*(scenario.id for scenario in scenarios), *(f"{each.file}::{each.id}" for each in scenarios)]
    )
    for wanted in ids:
        if wanted not in known:
            raise ChatflowEvalError(f"--only {wanted}: no scenario has this id{suggestion(wanted, known)}")
    tagged = dict.fromkeys(tag for scenario in scenarios for tag in scenario.tags)
    for wanted in tags:
        if wanted not in tagged:
            raise ChatflowEvalError(f"--tag {wanted}: no scenario has this tag{suggestion(wanted, tagged)}")
    selected = tuple(
        scenario
        for scenario in scenarios
        if (not ids or scenario.id in ids or f"{scenario.file}::{scenario.id}" in ids)
        and (not tags or set(tags) & set(scenario.tags))
    )
    if not selected:
        raise ChatflowEvalError("nothing to run: no scenario has both one of the ids and one of the tags")
    return selected


def new_folder(root: Path) -> Path:
    """Where a run goes that was told no place: `reports/<time>` below the root."""
    name = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder, number = root / "reports" / name, 2
    while folder.exists():
        folder, number = root / "reports" / f"{name}-{number}", number + 1
    return folder


def unfinished(trials: Sequence[Trial], folder: RunFolder) -> tuple[Trial, ...]:
    """The trials that a run that was broken off has not finished."""
    from chatflow_eval.outcome import key_of

    planned = {key_of(trial): trial for trial in trials}
    strange = folder.finished - planned.keys()
    if strange:
        folder.close(partial=True)
        file, scenario, *_ = min(strange)
        started = f"; it was started with: chatflow-eval {shlex.join(folder.run.command)}" if folder.run.command else ""
        raise ChatflowEvalError(f"{folder.path} holds {file}::{scenario}, which is not among these trials{started}")
    return tuple(trial for key, trial in planned.items() if key not in folder.finished)


def unserved(trials: Sequence[Trial], *, stale: bool, missing: bool) -> tuple[Trial, ...]:
    """The trials whose recordings are stale or missing; says so and ends where there are none."""
    from chatflow_eval import shelf
    from chatflow_eval.outcome import key_of

    found = asyncio.run(shelf.check([replace(trial, mode="none") for trial in trials]))
    chosen = [*(found.stale if stale else ()), *(found.missing if missing else ())]
    keys = {outcome.key for _, outcome in chosen}
    if not keys:
        words = " or ".join(word for word, asked in (("stale", stale), ("missing", missing)) if asked)
        click.echo(f"{counted(len(trials), 'trial')}: none is {words}")
        sys.exit(PASSED)
    return tuple(trial for trial in trials if key_of(trial) in keys)


async def finish(
    trials: Sequence[Trial], keep: Callable[[Outcome], None], *, concurrency: int, fail_fast: bool
) -> bool:
    """Runs the trials and keeps every outcome as it comes; true when some trials were not waited for."""
    from chatflow_eval import outcome

    with progress(len(trials)) as advance:
        async with contextlib.aclosing(outcome.run(trials, concurrency=concurrency)) as outcomes:
            finished = 0
            async for found in outcomes:
                keep(found)
                advance(found)
                finished += 1
                if fail_fast and not found.ok:
                    break
    return finished < len(trials)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """A progress bar on terminals; nothing in a pipe or in CI."""
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    from collections import Counter

    from tqdm import tqdm

    statuses: Counter[str] = Counter()
    with tqdm(total=total, unit="trial", file=sys.stderr, leave=False, dynamic_ncols=True) as bar:

        def advance(found: Outcome) -> None:
            statuses[found.status] += 1
            bar.set_postfix(statuses, refresh=False)
            bar.update()

        yield advance


def keeping(folder: RunFolder, recordings: Recordings) -> Callable[[Outcome], None]:
    """What keeps an outcome: in the run folder, and for what is to be said of recordings."""

    def keep(outcome: Outcome) -> None:
        folder.append(outcome)
        recordings.add(outcome)

    return keep


class Recordings:
    """What is to be said of recordings when a run is over."""

    def __init__(self) -> None:
        self._parted: list[str] = []
        self._ignored: dict[tuple[str, ...], int] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome.parted is not None:
            self._parted.append(f"{outcome.scenario}: {outcome.parted}")
        if outcome.ignored:
            self._ignored[outcome.ignored] = self._ignored.get(outcome.ignored, 0) + 1

    def notes(self) -> list[str]:
        notes = []
        if self._parted:
            notes.append(f"Live from where the recording did not match ({counted(len(self._parted), 'trial')}):")
            notes += [f"  {where}" for where in self._parted[:_SHOWN]]
            if len(self._parted) > _SHOWN:
                notes.append(f"  ... and {len(self._parted) - _SHOWN} more")
        for rules, count in self._ignored.items():
            trials = counted(count, "trial")
            notes.append(f"Ignored where requests differ from recordings ({trials}): {', '.join(rules)}")
        return notes


_SHOWN = 5
"""Trials of which it is told where they left their recordings."""
