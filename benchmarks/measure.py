"""What every benchmark is made of: children whose CPU seconds are counted, and the rows that they fill."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

HERE = Path(__file__).parent
ROOT = HERE.parent

Unit: TypeAlias = Literal["s CPU", "s wall", "ms CPU", "us CPU", "MB", "times"]

# No benchmark tells anybody anything, and litellm's import fetches nothing.
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DEEPEVAL_TELEMETRY_OPT_OUT": "YES",
    "DEEPEVAL_DISABLE_DOTENV": "1",
    "OTEL_SDK_DISABLED": "true",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured."""

    runs: int | None = None
    """How often; `None` leaves it to each benchmark."""
    peers: bool = True
    """Other projects, which are installed first, too."""

    def times(self, usual: int) -> range:
        """The runs to make, where `usual` are enough."""
        return range(self.runs or usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of ours or of a peer's, measured a few times."""

    what: str
    unit: Unit
    values: tuple[float, ...] = ()
    """None where it could not be measured; the note says why."""
    budget: float | None = None
    note: str = ""
    beside: tuple[Row, ...] = ()
    """What others, or plainer ways, cost in the same run."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """By the median; `noisy` where the best of the runs is within the budget and the median is not."""
        if self.budget is None or not self.values:
            return ""
        if self.median <= self.budget:
            return "met"
        return "noisy" if min(self.values) <= self.budget else "**missed**"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a child cost from its start to its end, and what it told of its parts."""

    cpu: float
    wall: float
    peak_mb: float
    told: Mapping[str, Any]


class ChildFailed(Exception):
    """A child ended with an error; its last words."""


def child(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Sample:
    """Runs a command to its end; raises `ChildFailed`.

    User and system time are the child's and its own children's, interpreter and imports included. A line of JSON at
    the end of its output is what it tells.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **QUIET, **(env or {})},
            stdout=out,
            stderr=errors,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for stream in (out, errors):
            stream.seek(0)
        said, complained = out.read().decode(errors="replace"), errors.read().decode(errors="replace")
    if process.returncode:
        raise ChildFailed(f"{' '.join(map(str, command))}: exit {process.returncode}\n{complained or said}")
    last = said.rstrip().rpartition("\n")[2]
    return Sample(
        cpu=used.ru_utime + used.ru_stime,
        wall=wall,
        peak_mb=used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
        told=json.loads(last) if last.startswith("{") else {},
    )


def work(script: str, *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Sample:
    """Runs the `work` of one of these scripts in a child; -P, so that no script here stands in for a library."""
    return child(sys.executable, "-P", script, "--work", *map(str, arguments), cwd=cwd, env=env)


@dataclass(slots=True)
class Laps:
    """CPU and wall seconds of the parts of a child's work; the first part has the interpreter's start in it."""

    parts: dict[str, float] = field(default_factory=dict)
    _cpu: float = 0.0
    _wall: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """What was done since the last lap is called `name`."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.parts[name], self.parts[f"{name} wall"] = cpu - self._cpu, wall - self._wall
        self._cpu, self._wall = cpu, wall

    def tell(self, **facts: object) -> None:
        """The laps and some facts, as the last line of the output."""
        print(json.dumps({**self.parts, **facts}), flush=True)


Measure: TypeAlias = Callable[[Options], Sequence[Row]]


def main(measure: Measure, work: Callable[..., None] | None = None) -> None:
    """The command line of one benchmark: measures and prints, or, as a child, does the work."""
    if work is not None and sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
        return
    print(table(measure(options())))


def options() -> Options:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--runs", type=int, help="how often each number is measured")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave other projects out")
    return Options(**vars(parser.parse_args()))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | budget | median (best) | | beside it, in the same run |", "|---|---|---|---|---|"]
    for row in rows:
        budget = "" if row.budget is None else f"{row.budget:g} {row.unit}"
        beside = "<br>".join(f"{other.what}: {_shown(other)}" for other in row.beside)
        lines.append(f"| {row.what} | {budget} | {_shown(row)} | {row.verdict} | {beside} |")
    return "\n".join(lines)


def _shown(row: Row) -> str:
    if not row.values:
        return row.note or "not measured"
    best = "" if len(row.values) == 1 else f" ({_number(min(row.values))})"
    return f"{_number(row.median)}{best} {row.unit}{f'; {row.note}' if row.note else ''}"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"
