"""Loading 10,000 YAML scenarios, with positions for errors."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import peers
from benchmarks.measure import Laps, Options, Row, main, work
from benchmarks.workloads import write_scenarios

COUNT, FILES = 10_000, 20


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        each = COUNT // FILES
        for number in range(FILES):
            write_scenarios(Path(folder, f"{number}.scenario.yaml"), each, turns=2, first=number * each)
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        samples = [work(__file__, "load", folder) for _ in options.times(3)]
        plain = [work(__file__, "plain", folder) for _ in options.times(3)]
    return [
        Row(
            what=f"loading {COUNT:,} YAML scenarios of 2 turns with scripts ({FILES} files, {size:.1f} MB)",
            unit="s CPU",
            values=tuple(sample.told["load"] for sample in samples),
            budget=5.0,
            note=f"{max(sample.peak_mb for sample in samples):,.0f} MB resident",
            beside=(
                Row(
                    what="the same files through `yaml.CSafeLoader`, no positions, nothing checked",
                    unit="s CPU",
                    values=tuple(sample.told["load"] for sample in plain),
                ),
                peers.row(
                    "pydantic-evals", f"`Dataset.from_file` of {COUNT:,} cases", options, task="loading", count=COUNT
                ),
            ),
        )
    ]


def _work(how: str, folder: str) -> None:
    laps = Laps()
    if how == "load":
        from chatflow_eval import loader

        laps.lap("imports")
        found = len(loader.load([Path(folder)]))
    else:
        import yaml

        laps.lap("imports")
        files = sorted(Path(folder).glob("*.scenario.yaml"))
        found = sum(len(yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)["scenarios"]) for file in files)
    laps.lap("load")
    if found != COUNT:
        raise SystemExit(f"expected {COUNT} scenarios, found {found}")
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
