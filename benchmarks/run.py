"""Runs every benchmark and writes RESULTS.md beside this file."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import (
    html_report,
    imports,
    live_calls,
    loading,
    many_trials,
    peers,
    plugin,
    replay,
    routes,
    scripted_trials,
    start_up,
)
from benchmarks.measure import HERE, ROOT, ChildFailed, Options, Row, options, table

RESULTS = HERE / "RESULTS.md"
SCRIPTS = (
    start_up,
    imports,
    plugin,
    scripted_trials,
    replay,
    live_calls,
    many_trials,
    loading,
    routes,
    html_report,
)
_HEAD = """\
# Benchmarks

Written by `make bench` (`benchmarks/run.py`): one script per row, each of which runs alone too. Every number is taken
in a process of its own. CPU seconds are user and system time: the median of a few runs, and the best of them. Met or
missed goes by the median; `noisy` says that the best met it. What others cost is measured in the same run, each in a
virtual environment of its own, and is never quite the same work: read the words.
"""
_LIBRARIES = ("litellm", "vcrpy", "pydantic", "pandas", "pytest", "PyYAML", "Jinja2")


def main() -> None:
    wanted = options()
    busy = os.getloadavg()[0]
    rows: list[Row] = []
    failed: list[str] = []
    for script in SCRIPTS:
        name = script.__name__.rpartition(".")[2]
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            rows += script.measure(wanted)
        except ChildFailed as error:
            print(error, file=sys.stderr)
            failed.append(f"{name}: {str(error).strip().splitlines()[-1]}")
    RESULTS.write_text("\n".join(_page(rows, failed, wanted, busy)) + "\n", encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))
    if failed:
        sys.exit(1)


def _page(rows: list[Row], failed: list[str], wanted: Options, busy: float) -> Iterator[str]:
    budgeted = [row for row in rows if row.verdict]
    yield _HEAD
    yield f"* {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {_machine()}"
    yield f"* {os.cpu_count()} cores, load {busy:.1f} when it began and {os.getloadavg()[0]:.1f} when it ended"
    yield f"* Python {platform.python_version()}, chatflow-eval {version('chatflow-eval')} at {_commit()}"
    yield f"* {', '.join(f'{name} {version(name)}' for name in _LIBRARIES)}"
    if wanted.peers:
        yield f"* {', '.join(peers.VERSIONS.values())}"
    met = sum(row.verdict == "met" for row in budgeted)
    yield f"* **{met} of {len(budgeted)} budgets met**"
    yield from (f"* failed: {each}" for each in failed)
    yield ""
    yield table(rows)


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{platform.system()} {platform.release()}, {os.cpu_count()} x {model}, {memory:.0f} GiB"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "no commit") + (
        " with changes" if git("status", "--porcelain") else ""
    )


if __name__ == "__main__":
    main()
