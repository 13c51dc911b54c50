"""100,000 scripted trials: how much stays in memory, and whether the time grows with the trials and no faster."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import Laps, Options, Row, main, work
from benchmarks.workloads import finish, write_scenarios

SCENARIOS, REPEATS, FULL = 1_000, (1, 10), (10, 100)


def measure(options: Options) -> list[Row]:
    repeats = FULL if options.full else REPEATS
    with tempfile.TemporaryDirectory() as folder:
        file = write_scenarios(Path(folder, "suite.scenario.yaml"), SCENARIOS)
        few, many = (
            [
                work(__file__, file, Path(folder, f"{each}-{run}"), each)
                for run in options.times(1 if options.full else 3)
            ]
            for each in repeats
        )
    trials = SCENARIOS * repeats[1]
    ran = [sample.told["run"] for sample in many]
    return [
        Row(
            what=f"{trials:,} scripted trials ({SCENARIOS:,} scenarios, {repeats[1]} repeats), run, written, and "
            "their page, resident at most",
            unit="MB",
            values=tuple(sample.peak_mb for sample in many),
            budget=400.0,
            note="" if options.full else "`--full` runs 100,000",
            beside=(
                Row(
                    what=f"{trials // 10:,} trials",
                    unit="MB",
                    values=tuple(sample.peak_mb for sample in few),
                ),
            ),
        ),
        Row(
            what=f"{trials:,} trials take so many times as long as {trials // 10:,}",
            unit="times",
            values=tuple(sample / other.told["run"] for sample, other in zip(ran, few, strict=True)),
            budget=11.0,
            beside=(Row(what=f"{trials:,} trials", unit="s CPU", values=tuple(ran)),),
        ),
    ]


def _work(file: str, out: str, repeats: str) -> None:
    laps = Laps()
    for part in finish(Path(file), Path(out), repeats=int(repeats)):
        laps.lap(part)

    from chatflow_eval.report import Report
    from chatflow_eval.writers import html

    html.write(Report.read(Path(out)), Path(out), None)
    laps.lap("page")
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
