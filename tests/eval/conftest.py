"""Run folders to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.incidents import Incident
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import SUMMARY, RunFolder

RunOf: TypeAlias = Callable[..., Path]


def trial(scenario: str, status: Status, *, model: str = "m", why: str = "") -> Outcome:
    """A trial of one turn; a failed one went round in circles."""
    right = status == "passed"
    judged = Verdict(check="route", turn=1, status="passed" if right else "failed", expected="A", why=why)
    loop = Incident(kind="loop", turn=1, agents=("A", "B"), message="round")
    return Outcome(
        file="a.scenario.yaml",
        line=1,
        scenario=scenario,
        model=model,
        status=status,
        why=why,
        users=("hi",),
        verdicts=(judged,) if status in ("passed", "failed") else (),
        incidents=(loop,) if status == "failed" else (),
    )


@pytest.fixture(scope="session")
def a_trial() -> Callable[..., Outcome]:
    return trial


@pytest.fixture(scope="session")
def a_run() -> RunOf:
    """Makes a finished run: one scenario for each status, started on a day of December 2026."""

    def make(
        folder: Path, statuses: Sequence[Status] = ("passed", "failed"), *, day: int = 1, partial: bool = False
    ) -> Path:
        run = RunFolder.create(folder, command=["run", "scenarios/"], planned=len(statuses))
        for number, status in enumerate(statuses, 1):
            run.append(trial(f"s{number}", status))
        run.close(partial=partial)
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        summary["started"] = f"2026-12-{day:02}T10:00:00.000+00:00"
        (folder / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
        return folder

    return make
