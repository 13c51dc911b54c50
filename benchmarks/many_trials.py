"""100,000 scripted trials: how much stays in memory, and whether the time grows with the trials and no faster."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import Laps, Options, Row, main, work
from benchmarks.workloads import finish, write_scenarios

SCENARIOS, REPEATS = 1_000, 100
TRIALS = SCENARIOS * REPEATS


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = write_scenarios(Path(folder, "suite.scenario.yaml"), SCENARIOS)
        few, many = (
            [work(__file__, file, Path(folder, f"{repeats}-{run}"), repeats) for run in options.times(1)]
            for repeats in (REPEATS // 10, REPEATS)
        )
    return [
        Row(
            what=f"{TRIALS:,} scripted trials ({SCENARIOS:,} scenarios, {REPEATS} repeats), run, written, read again, "
            "and their page: resident at most",
            unit="MB",
            values=tuple(sample.peak_mb for sample in many),
            budget=400.0,
            beside=(Row(what=f"{TRIALS // 10:,} trials", unit="MB", values=tuple(sample.peak_mb for sample in few)),),
        ),
        Row(
            what=f"running {TRIALS:,} takes so many times as long as {TRIALS // 10:,}",
            unit="times",
            values=tuple(more.told["run"] / less.told["run"] for less, more in zip(few, many, strict=True)),
            budget=11.0,
            beside=(
                Row(what=f"running {TRIALS:,}", unit="s CPU", values=tuple(sample.told["run"] for sample in many)),
                Row(what=f"reading {TRIALS:,} again", unit="s CPU", values=tuple(each.told["read"] for each in many)),
            ),
        ),
    ]


def _work(file: str, out: str, repeats: str) -> None:
    laps = Laps()
    for part in finish(Path(file), Path(out), repeats=int(repeats)):
        laps.lap(part)

    from chatflow_eval.report import Report
    from chatflow_eval.writers import html

    report = Report.read(Path(out))
    laps.lap("read")
    html.write(report, Path(out), None)
    laps.lap("page")
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
