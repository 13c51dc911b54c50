"""Run folders one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.errors import ReportError
from chatflow_eval.history import past_runs
from chatflow_eval.incidents import Incident
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import SUMMARY, Report, RuleResult, RunFolder, keep_ruling


def finished(folder: Path, *passed: bool, started: str) -> None:
    run = RunFolder.create(folder)
    for number, each in enumerate(passed, 1):
        status: str = "passed" if each else "failed"
        judged = Verdict(check="route", turn=1, status="passed" if each else "failed", expected="A")
        loop = Incident(kind="loop", turn=1, agents=("A", "B"), message="round")
        run.append(
            Outcome(
                file="a.yaml",
                line=1,
                scenario="s",
                repeat=number,
                status="passed" if status == "passed" else "failed",
                users=("hi",),
                verdicts=(judged,),
                incidents=() if each else (loop,),
            )
        )
    run.close()
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    (folder / SUMMARY).write_text(json.dumps({**summary, "started": started}), encoding="utf-8")


def test_runs_come_oldest_first_with_accuracy_and_incidents(tmp_path: Path) -> None:
    finished(tmp_path / "b", True, True, started="2026-12-01T10:00:00+00:00")
    finished(tmp_path / "a", True, False, started="2026-12-02T10:00:00+00:00")
    runs = past_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["b", "a"]
    assert [run.accuracy and run.accuracy["value"] for run in runs] == [1.0, 0.5]
    assert [dict(run.incidents) for run in runs] == [{}, {"loop": 1}]
    assert runs[0].models == ("declared",)
    assert past_runs([tmp_path / "a", tmp_path]) == runs


def test_a_run_that_goes_on_has_no_numbers_yet(tmp_path: Path) -> None:
    going_on = RunFolder.create(tmp_path / "r")
    (run,) = past_runs([tmp_path])
    going_on.close()
    assert (run.partial, run.accuracy, dict(run.trials)) == (True, None, {})


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text("{", encoding="utf-8")
    with pytest.raises(ReportError, match=SUMMARY):
        past_runs([tmp_path])


def test_nothing_is_no_run(tmp_path: Path) -> None:
    assert past_runs([tmp_path, tmp_path / "nowhere"]) == ()


@pytest.mark.parametrize(("passed", "seen"), [((), None), ((True, True), True), ((True, False), False)])
def test_a_run_says_whether_its_gate_opened(tmp_path: Path, passed: tuple[bool, ...], seen: bool | None) -> None:
    finished(tmp_path, True, started="2026-12-01T10:00:00+00:00")
    if passed:
        keep_ruling(Report.read(tmp_path), [RuleResult("loops", "<= 0", "0", each, "") for each in passed])
    (run,) = past_runs([tmp_path])
    assert run.gate is seen
