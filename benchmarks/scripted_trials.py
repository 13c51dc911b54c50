"""1,000 scripted trials with one handoff (2 model calls), traced, judged, and written to the run folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import peers
from benchmarks.measure import Laps, Options, Row, child, main, work
from benchmarks.workloads import finish, write_factory, write_scenarios

COUNT = 1_000


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        declared = write_scenarios(Path(folder, "declared.scenario.yaml"), COUNT)
        target = write_factory(Path(folder, "agents.py"))
        built = write_scenarios(Path(folder, "built.scenario.yaml"), COUNT, agents=target)
        samples, from_factory = (
            [work(__file__, file, Path(folder, f"{file.stem}-{run}")) for run in options.times(5)]
            for file in (declared, built)
        )
        command = (peers.ours("chatflow-eval"), "run", declared, "--out")
        whole = [child(*command, Path(folder, f"cli-{run}")) for run in options.times(3)]
    return [
        Row(
            what=f"{COUNT:,} scripted trials with one handoff (2 model calls), written to the run folder; loading and "
            "imports aside",
            unit="s CPU",
            values=tuple(sample.told["run"] for sample in samples),
            budget=1.0,
            beside=(
                peers.row("pydantic-evals", "no-op task, no handoff, nothing stored", options, count=COUNT),
                peers.row("deepeval", "no-op metric, no handoff, its cache off", options, count=COUNT),
                peers.row("google-adk", "one handoff (2 model calls), scored in memory", options, count=COUNT, of=200),
                peers.row("inspect-ai", "a handoff and back (3 model calls), logged", options, count=COUNT, of=200),
            ),
        ),
        Row(
            what="the same with agents from a Python factory, which is called for every trial",
            unit="s CPU",
            values=tuple(sample.told["run"] for sample in from_factory),
            budget=1.0,
        ),
        Row(
            what="the first as `chatflow-eval run`: start, imports, loading, running, the HTML page, the summary",
            unit="s CPU",
            values=tuple(sample.cpu for sample in whole),
        ),
    ]


def _work(file: str, out: str) -> None:
    laps = Laps()
    for part in finish(Path(file), Path(out)):
        laps.lap(part)
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
