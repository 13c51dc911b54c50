"""1,000 live calls through litellm, 16 at once, to a loopback server that takes 200 ms to answer."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.loopback import ENVIRONMENT, head, serving
from benchmarks.measure import Laps, Options, Row, main, work
from benchmarks.workloads import finish, write_scenarios

CALLS, CONCURRENCY, LATENCY = 1_000, 16, 0.2


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, serving(LATENCY) as url:
        first = write_scenarios(Path(folder, "first.scenario.yaml"), CONCURRENCY, scripted=False, head=head(url))
        file = write_scenarios(Path(folder, "suite.scenario.yaml"), CALLS // 2, scripted=False, head=head(url))
        samples = [work(__file__, first, file, Path(folder, f"run-{run}"), env=ENVIRONMENT) for run in options.times(3)]
    ideal = CALLS * LATENCY / CONCURRENCY
    return [
        Row(
            what=f"{CALLS:,} live calls ({CALLS // 2} trials of 2) at {LATENCY:g} s, {CONCURRENCY} at once; "
            f"no faster than {ideal:g} s; litellm's import aside",
            unit="s wall",
            values=tuple(sample.told["run wall"] for sample in samples),
            budget=1.15 * ideal,
            beside=(
                Row(
                    what="CPU of it, ours and litellm's",
                    unit="s CPU",
                    values=tuple(sample.told["run"] for sample in samples),
                ),
            ),
        )
    ]


def _work(first: str, file: str, out: str) -> None:
    laps = Laps()
    for path, folder in ((first, f"{out}-first"), (file, out)):  # the first trials pay for importing litellm
        for part in finish(Path(path), Path(folder), mode="live", concurrency=CONCURRENCY):
            laps.lap(part)
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
