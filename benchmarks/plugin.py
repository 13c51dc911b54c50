"""What the pytest plugin adds to a run of one test that has nothing to do with it, and whether it leaves a file."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Options, Row, child, main


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_unrelated.py")
        test.write_text("def test_unrelated():\n    assert 1 + 1 == 2\n", encoding="utf-8")
        pytest = [sys.executable, "-P", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        added, without = [], []
        for _ in options.times(15):  # in turns, so that whatever else the machine does falls on both
            without.append(child(*pytest, "-p", "no:chatflow_eval", cwd=Path(folder)).cpu)
            added.append(child(*pytest, cwd=Path(folder)).cpu - without[-1])
        left = sorted(path.name for path in Path(folder).iterdir() if path != test)
    return [
        Row(
            what="the pytest plugin, added to an unrelated run of one test",
            unit="s CPU",
            values=tuple(added),
            budget=0.03,
            note=f"files left behind: {', '.join(left) or 'none'}",
            beside=(Row(what="the same run without it", unit="s CPU", values=tuple(without)),),
        )
    ]


if __name__ == "__main__":
    main(measure)
