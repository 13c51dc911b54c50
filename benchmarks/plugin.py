"""What the pytest plugin adds to a run of one test that has nothing to do with it, and whether it leaves a file."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Options, Row, child, main

# Other plugins cost ten times as much, and their noise would drown what is measured.
_ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_unrelated.py")
        test.write_text("def test_unrelated():\n    assert 1 + 1 == 2\n", encoding="utf-8")

        def run(*plugin: str) -> float:
            pytest = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(test))
            return child(*pytest, cwd=Path(folder), env=_ALONE).cpu

        def files() -> set[Path]:
            return set(Path(folder).rglob("*"))

        run()
        before = files()
        run("-p", "chatflow_eval.pytest_plugin")
        # In turns, so that whatever else the machine does falls on both.
        pairs = [(run(), run("-p", "chatflow_eval.pytest_plugin")) for _ in options.times(15)]
        left = sorted(path.name for path in files() - before)
    return [
        Row(
            what="the pytest plugin, added to an unrelated run of one test (pair by pair, the median)",
            unit="s CPU",
            values=(statistics.median(both - without for without, both in pairs),),
            budget=0.03,
            note=f"files left behind: {', '.join(left) or 'none'}",
            beside=(Row(what="the same run without it", unit="s CPU", values=tuple(pair[0] for pair in pairs)),),
        )
    ]


if __name__ == "__main__":
    main(measure)
