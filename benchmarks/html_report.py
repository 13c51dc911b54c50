"""The HTML page of 1,000 and of 10,000 trials of two turns: how long it takes to write, its size, when it is usable."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks import browser
from benchmarks.measure import ChildFailed, Laps, Options, Row, child, main, work
from benchmarks.workloads import finish, write_scenarios

BUDGETS = ((1_000, 1.0, 1.0), (10_000, 8.0, None))
"""Trials, MB of the page, CPU seconds to write it."""
WRONG = 20
"""One trial in so many takes a wrong route, so that the page has something to explain."""


def measure(options: Options) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for trials, megabytes, seconds in BUDGETS:
            file = write_scenarios(Path(folder, f"{trials}.scenario.yaml"), trials, turns=2, wrong=WRONG)
            run = Path(folder, f"run-{trials}")
            work(__file__, "run", file, run)
            samples = [work(__file__, "write", run) for _ in options.times(3)]
            page = run / "report.html"
            rows += [
                Row(
                    what=f"writing the HTML page of {trials:,} trials of 2 turns, imports aside",
                    unit="s CPU",
                    values=tuple(sample.told["write"] for sample in samples),
                    budget=seconds,
                    note=f"{max(sample.peak_mb for sample in samples):,.0f} MB resident",
                ),
                Row(what="its size", unit="MB", values=(page.stat().st_size / 1e6,), budget=megabytes),
            ]
        rows.append(_usable(page, options))
    return rows


def _usable(page: Path, options: Options) -> Row:
    what = "it is open in a headless browser and a first filter applied, the browser's own start aside"
    name = browser.found()
    if name is None:
        return Row(what=what, unit="s wall", budget=2.0, note=f"not measured: no {browser.NAMES[0]} here")
    try:
        samples = [child(sys.executable, "-P", browser.__file__, page, name) for _ in options.times(3)]
    except ChildFailed as error:
        return Row(what=what, unit="s wall", budget=2.0, note=f"not measured: {str(error).splitlines()[-1][:120]}")
    return Row(what=what, unit="s wall", values=tuple(sample.told["usable"] for sample in samples), budget=2.0)


def _work(how: str, *arguments: str) -> None:
    laps = Laps()
    if how == "run":
        file, out = arguments
        for part in finish(Path(file), Path(out)):
            laps.lap(part)
    else:
        from chatflow_eval.report import Report
        from chatflow_eval.writers import html

        laps.lap("imports")
        report = Report.read(Path(arguments[0]))
        laps.lap("read")
        html.write(report, Path(arguments[0]), None)
        laps.lap("write")
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
