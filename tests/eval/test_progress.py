"""How far a run has come: by whole lines, each read once, and the baselines in no number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chatflow_eval.outcome import Outcome
from chatflow_eval.progress import BAD, LAST, Progress, Standing
from chatflow_eval.report import TRIALS, Report, RunFolder

TrialOf = Callable[..., Outcome]


def test_a_run_without_a_trial_stands_at_nothing(tmp_path: Path) -> None:
    assert Progress(tmp_path).read() == Standing()
    RunFolder.create(tmp_path).close()
    assert Progress(tmp_path).read() == Standing()


def test_it_grows_with_the_run_to_what_the_report_says(tmp_path: Path, a_trial: TrialOf) -> None:
    run, progress = RunFolder.create(tmp_path), Progress(tmp_path)
    for number, status in enumerate(("passed", "failed", "errored", "passed", "skipped"), 1):
        run.append(a_trial(f"s{number}", status))
        assert progress.read().trials == number
    run.close()
    now, total = progress.read(), Report.read(tmp_path).metrics.total
    assert dict(now.statuses) == {status: count for status, count in total.trials.items() if count}
    assert (now.right, now.judged) == (total.accuracy.numerator, total.accuracy.denominator)
    assert now.incidents == {"loop": 1}
    assert [found.key[1] for found in now.last] == ["s5", "s4", "s3", "s2", "s1"]
    assert [found.key[1] for found in now.bad] == ["s3", "s2"]
    assert now.bytes == (tmp_path / TRIALS).stat().st_size


def test_a_line_counts_once_it_is_whole(tmp_path: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(tmp_path / "whole")
    run.append(a_trial("s1", "passed"))
    run.close()
    line, progress = (tmp_path / "whole" / TRIALS).read_bytes(), Progress(tmp_path)
    for end in range(0, len(line), 50):
        (tmp_path / TRIALS).write_bytes(line[:end])
        assert progress.read() == Standing()
    (tmp_path / TRIALS).write_bytes(line)
    assert progress.read().trials == 1
    assert progress.read().trials == 1


def test_only_the_last_ones_are_told_of_and_all_are_counted(tmp_path: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(tmp_path)
    for number in range(BAD + 5):
        run.append(a_trial(f"s{number}", "failed"))
    run.close()
    now = Progress(tmp_path).read()
    assert (len(now.last), len(now.bad), now.unexpected) == (LAST, BAD, BAD + 5)


def test_baselines_are_in_no_number(tmp_path: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(tmp_path)
    run.append(replace(a_trial("s1", "failed"), baseline=True))
    run.close()
    now = Progress(tmp_path).read()
    assert (now.trials, dict(now.statuses), now.judged, now.bad) == (1, {}, 0, ())


@pytest.mark.parametrize("line", [b"{}\n", b"no json\n", b"\xff\n", b"\n"])
def test_a_line_that_is_no_outcome_is_named(tmp_path: Path, a_trial: TrialOf, line: bytes) -> None:
    run = RunFolder.create(tmp_path)
    run.append(a_trial("s1", "passed"))
    run.close()
    with (tmp_path / TRIALS).open("ab") as file:
        file.write(line)
    now = Progress(tmp_path).read()
    assert now.trials == 1
    assert now.problem == f"{tmp_path / TRIALS}:2: not an outcome"


def test_a_file_that_cannot_be_read_now_may_be_read_later(tmp_path: Path, a_trial: TrialOf) -> None:
    progress = Progress(tmp_path)
    (tmp_path / TRIALS).mkdir()
    assert progress.read().problem == f"{tmp_path / TRIALS}: cannot be read: Is a directory"
    (tmp_path / TRIALS).rmdir()
    run = RunFolder.create(tmp_path)
    run.append(a_trial("s1", "passed"))
    run.close()
    assert (progress.read().problem, progress.read().trials) == ("", 1)
