"""Public dialogues through the whole product on the keyword router, beside figures that were measured without it.

    python benchmarks/routing/run.py [--only DATASET]

Writes RESULTS.md beside it; with --only, prints that data set's part. The data are read from ../shared/data/routing
and are no part of this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measure import child  # noqa: E402
from chatflow_eval.outcome import Outcome  # noqa: E402
from chatflow_eval.report import Report  # noqa: E402
from chatflow_eval.tally import judged_turns  # noqa: E402

DATA = ROOT.parent / "shared" / "data" / "routing"
AGENTS = DATA / "agents.json"
RESULTS = HERE / "RESULTS.md"

CLASSES = ("every turn", "first", "switch", "stay", "either", "whole path")

Shares: TypeAlias = dict[str, tuple[int, int]]
"""Of each class: how many are right, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A file of dialogues, what was measured on it independently, and why our stateless policy differs."""

    file: str
    single: bool = False
    """Every dialogue has one turn: there is no state, and nobody to come back from."""
    independent: Mapping[str, float] = field(default_factory=dict)
    """Percent right of nearest description by BM25, from ../shared/data/README.md."""
    guess: str = ""
    """The agent that turns with no word in common with any description are given to, to compare."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run of the product, and what it took from reading rows to the written report."""

    report: Report
    shares: Shares
    guessed: Shares
    """Had every turn that stays with the start gone to the data set's guess."""
    wall: float
    peak_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One turn: what was asked of it, and whether it was right."""

    dialogue: str
    asks: str
    right: bool
    guessed: bool = False
    """Whether it is right where a turn that stays with the start goes to the data set's guess instead."""


def run(file: Path, style: str, folder: Path, agents: Path) -> tuple[Report, float, float]:
    """Import and run a file of rows with the commands a person would use: the report, seconds, and megabytes."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    program = (sys.executable, "-P", "-m", "chatflow_eval")
    wanted = ("--agents", agents, "--style", style, "--out", "s.scenario.yaml")
    made = child(*program, "import-dialogues", file, *wanted, cwd=folder)
    # A gate that any accuracy opens: only errors can fail it.
    asked = ("--model", "keyword", "--min-accuracy", "0", "--out", "out")
    done = child(*program, "run", "s.scenario.yaml", *asked, cwd=folder)
    return Report.read(folder / "out"), made.wall + done.wall, max(made.peak_mb, done.peak_mb)


def of_dialogues(file: Path, style: str, folder: Path) -> Run:
    """The dialogues as they are; what the report says of first, switch and stay is counted again here."""
    report, wall, peak = run(file, style, folder, AGENTS)
    turns = [judged for outcome in report.outcomes for judged in judge(outcome, "")]
    shares = count(turns)
    numbers = report.metrics.total
    said = (numbers.accuracy, numbers.first, numbers.switch, numbers.stay, numbers.either, numbers.pass_rate)
    for name, rate in zip(CLASSES, said, strict=True):
        assert shares.get(name, (0, 0)) == (rate.numerator, rate.denominator), f"{file}: {name}: the report says {rate}"
    return Run(report=report, shares=shares, guessed={}, wall=wall, peak_mb=peak)


def of_turns(file: Path, whole: Run, folder: Path, agents: Path, guess: str) -> Run:
    """Every turn as a dialogue of its own, from the start: a policy without state, classed as in its dialogue."""
    alone = folder.with_name(f"{file.stem}_{folder.name}.jsonl")
    alone.write_text("".join(f"{json.dumps(row)}\n" for row in split(file)), encoding="utf-8")
    report, wall, peak = run(alone, "swarm", folder, agents)
    came = {outcome.scenario: next(judge(outcome, guess)) for outcome in report.outcomes}
    turns = [
        replace(came[f"{judged.dialogue} {number}"], dialogue=judged.dialogue, asks=judged.asks)
        for outcome in whole.report.outcomes
        for number, judged in enumerate(judge(outcome, guess), 1)
    ]
    return Run(report=report, shares=count(turns), guessed=count(guessing(turns)), wall=wall, peak_mb=peak)


def split(file: Path) -> Iterator[dict[str, object]]:
    """A row for each turn of the rows."""
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for number, turn in enumerate(row["turns"], 1):
            yield {**row, "id": f"{row['id']} {number}", "turns": [turn]}


def without_names(file: Path, folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """The rows and descriptions with names that say nothing, and which is whose."""
    sections = json.loads(AGENTS.read_text(encoding="utf-8"))
    described = sections[max((name for name in sections if file.stem.startswith(name)), key=len)]
    names = {name: f"x{number}x" for number, name in enumerate(described)}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for each in rows:
        for turn in each["turns"]:
            turn["accept"] = [names.get(name, name) for name in turn["accept"]]
    renamed, agents = folder / "nameless.jsonl", folder / "nameless.json"
    renamed.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    agents.write_text(json.dumps({names[name]: text for name, text in described.items()}), encoding="utf-8")
    return renamed, agents, names


def judge(outcome: Outcome, guess: str) -> Iterator[Judged]:
    """The turns of a dialogue, which all expect somebody at their end."""
    assert outcome.trace is not None, outcome.why
    demands = {demand.turn: demand for demand in outcome.demands}
    start = outcome.trace.topology.start
    for turn, trace in zip(judged_turns(outcome), outcome.trace.turns, strict=True):
        demand = demands[turn.number]
        guessed = guess in demand.ends if trace.end_agent == start else turn.right
        yield Judged(dialogue=outcome.scenario, asks=demand.asks or "", right=turn.right, guessed=guessed)


def guessing(turns: Iterable[Judged]) -> Iterator[Judged]:
    """The turns as they are judged where nobody stays with the start."""
    return (replace(turn, right=turn.guessed) for turn in turns)


def unmoved(whole: Run) -> Shares:
    """What 'right first agent, then never hand off' scores; whole paths are not in the report."""
    return count(
        Judged(dialogue=outcome.scenario, asks=demand.asks or "", right=demand.unmoved)
        for outcome in whole.report.outcomes
        for demand in outcome.demands
        if demand.turn is not None
    )


def count(turns: Iterable[Judged]) -> Shares:
    shares: Shares = {}
    paths: dict[str, bool] = {}
    for turn in turns:
        for name in ("every turn", turn.asks):
            right, of = shares.get(name, (0, 0))
            shares[name] = right + turn.right, of + 1
        paths[turn.dialogue] = paths.get(turn.dialogue, True) and turn.right
    return shares | {"whole path": (sum(paths.values()), len(paths))}


def measure(data: DataSet, folder: Path) -> Iterator[str]:
    """One data set's part of the results."""
    file = DATA / f"{data.file}.jsonl"
    whole = of_dialogues(file, "swarm", folder / "swarm")
    alone = whole if data.single else of_turns(file, whole, folder / "alone", AGENTS, data.guess)
    rows = {"stateless": alone.shares}
    if data.guess:
        rows[f"stateless, no word in common: to {data.guess}"] = alone.guessed
        renamed, agents, names = without_names(file, folder)
        nameless = of_turns(renamed, whole, folder / "nameless", agents, names[data.guess])
        rows[f"stateless, no word in common: to {data.guess}, and names not counted"] = nameless.guessed
    total = whole.report.metrics.total
    yield f"## {data.file}"
    yield ""
    yield f"{total.scenarios:,} dialogues, {total.turns_judged:,} turns. Percent right."
    yield ""
    yield f"| | {' | '.join(CLASSES)} | wall s | peak MB |"
    yield f"|---|{'---|' * (len(CLASSES) + 2)}"
    yield row("of how many", {name: f"{of:,}" for name, (_, of) in whole.shares.items()})
    if not data.single:
        yield measured("`keyword`, swarm", whole)
        yield measured("`keyword`, hub", of_dialogues(file, "hub", folder / "hub"))
    yield measured("`keyword`, stateless: every turn from the start alone", alone)
    for name, shares in list(rows.items())[1:]:
        yield row(name, percents(shares))
    yield row("baseline `unmoved`", percents(unmoved(whole)))
    if data.independent:
        yield row("measured independently (BM25)", {name: f"{value:.1f}" for name, value in data.independent.items()})
        for name, shares in rows.items():
            yield row(f"difference: {name}", differences(shares, data.independent))
    yield ""
    if data.why:
        yield from (data.why, "")


def measured(name: str, found: Run) -> str:
    return row(name, percents(found.shares), f"{found.wall:.1f}", f"{found.peak_mb:.0f}")


def percents(shares: Shares) -> dict[str, str]:
    return {name: f"{100 * right / of:.1f}" for name, (right, of) in shares.items() if of}


def differences(shares: Shares, independent: Mapping[str, float]) -> dict[str, str]:
    ours = {name: 100 * shares[name][0] / shares[name][1] for name in independent}
    return {name: f"{ours[name] - value:+.1f}" for name, value in independent.items()}


def row(name: str, cells: Mapping[str, str], wall: str = "", peak: str = "") -> str:
    return f"| {' | '.join((name, *(cells.get(each, '') for each in CLASSES), wall, peak))} |"


DATASETS: Sequence[DataSet] = (
    DataSet(
        file="multiwoz_test",
        independent={"every turn": 47.2, "first": 76.3, "switch": 73.2, "stay": 37.2},
        guess="TrainAgent",
        why="Half of the turns (3,707 of 7,372, and 3,307 of the 5,096 that stay) have no word in common with any "
        "description. The keyword router then stays with whoever has the conversation, which, from the start alone, is "
        "triage, and wrong; a nearest description has to name some agent, and the README does not say which. Given to "
        "TrainAgent (the last in order of names, where scores tie), every class is within 1.5 points of the "
        "independent figures, and first and switch are without it. In the conversation, staying is right for most such "
        "turns: hence the higher figures of the first two rows.",
    ),
    DataSet(file="sgd_dev"),
    DataSet(file="clinc150_single", single=True, independent={"first": 63.2}),
    DataSet(file="clinc150_composed"),
    DataSet(file="hwu64_single", single=True, independent={"every turn": 39.5}),
    DataSet(
        file="bfcl_base",
        independent={"every turn": 88.0, "whole path": 61.5},
        guess="GorillaFileSystem",
        why="25 turns have no word in common with any description; given to GorillaFileSystem (the first described), "
        "3 of the 4 points of every turn and 3.5 of the 6 of whole paths are there. The router also counts the words "
        "of the agents' names (`Message`, `API`); with names that say nothing both figures are within 2 points.",
    ),
)

INTRODUCTION = """# Routing on public dialogues

Written by `python benchmarks/routing/run.py`. Each data set goes through the commands of the product, in processes of
their own: `chatflow-eval import-dialogues`, then `chatflow-eval run --model keyword`. Wall seconds are both commands',
from the rows to the written report and page. Peak MB is the larger of the two processes and an upper bound: Linux
starts a process's count at that of the process that started it, which is this script with the reports it has read.

* A turn is right when one of the agents accepted for it has the conversation at its end (`ends_at`), whichever way it
  came there: that is what the README of the data counts. A whole path is right when all turns of a dialogue are.
* first: to leave the start for the first time; switch: later turns that no agent accepted for the turn before may
  answer; stay: one and the same agent before and now; either: the rest, where several are accepted. They are the
  report's numbers, counted once more by this script, which stops where the two disagree.
* The router is one of the two baselines itself; the other, `unmoved`, goes to the right agent first and never hands
  off again.
* Swarm: everybody can hand off to everybody. Hub: specialists go through triage, whose description to them is the
  names of the others; with few words in it the router seldom leaves a specialist, which helps turns that stay, and
  costs those that switch.
* Stateless: every turn is a dialogue of its own from the start, and classed by its place in its dialogue.
* Independent figures: BM25 over the agents' descriptions, of ../shared/data/README.md, measured without this project.

"""


def main() -> None:
    """Measures, and writes or prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[data.file for data in DATASETS], help="this data set alone, printed")
    only = parser.parse_args().only
    if not DATA.is_dir():
        sys.exit(f"{DATA} is absent: nothing to measure")
    began = os.getloadavg()[0]
    parts = []
    for data in DATASETS:
        if only in (None, data.file):
            with tempfile.TemporaryDirectory() as folder:
                parts += list(measure(data, Path(folder)))
    text = "\n".join(parts)
    if only:
        print(text)
        return
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = f"Measured {now}; {os.cpu_count()} cores shared with other work, load {began:.1f} when it began.\n\n"
    RESULTS.write_text(f"{INTRODUCTION}{load}{text.rstrip()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
