"""Any text in any field of an outcome: the run folder holds it, and every writer shows it.

Models and tools say what they like (B099, B061): half a surrogate pair, which JSON can spell and UTF-8 cannot hold,
characters that steer terminals or end a line, markup.
"""

from __future__ import annotations

import csv
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval.checks import Verdict
from chatflow_eval.comparison import compare
from chatflow_eval.demand import Demand
from chatflow_eval.gate import Decision, Gate
from chatflow_eval.history import past_runs
from chatflow_eval.incidents import Incident
from chatflow_eval.listing import Listing
from chatflow_eval.outcome import Outcome, Parted
from chatflow_eval.progress import Progress
from chatflow_eval.report import SUMMARY, TRIALS, Report, RunFolder, keep_ruling
from chatflow_eval.route import Aligned
from chatflow_eval.trace import (
    Edge,
    Failure,
    HistoryFault,
    Hop,
    LimitStep,
    ModelStep,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)
from chatflow_eval.transcript import transcript_of_trace
from chatflow_eval.writers import console, export, html, junit, markdown, pages
from chatflow_eval.writers.screen import Screen

STEPS = (
    ModelStep(agent="A", model="m", text="One moment", calls=("to_b",), input_tokens=5, seconds=0.5),
    Hop(source="A", target="B", tool="to_b", reason="refund", withheld=("refund",), error="none"),
    Hop(source="B", target="B", kind="call", accepted=False, why="self", message="already active", depth=1),
    ToolStep(agent="B", tool="refund", arguments={"amount": 20.5, "tags": ["a", None]}, result=[{"x": "y"}]),
    LimitStep(agent="B", limit="max_tool_iterations", value=10),
    WarningStep(agent="B", message="repaired"),
    HistoryFault(agent="B", code="orphan", message="no call"),
)
FAILURE = Failure(kind="model", exception="RateLimitError", message="slow down", status_code=429, edit="the prompt")
FULL = Outcome(
    file="scenarios/a.scenario.yaml",
    line=3,
    scenario="refund",
    tags=("smoke", "money"),
    model="gpt-4o-mini",
    status="failed",
    why="turn 1: no",
    xfail="known",
    users=("Refund, please.", "And again?"),
    trace=Trace(
        topology=Topology(
            start="A",
            agents=("A", "B"),
            tools={"B": ("refund",)},
            edges=(Edge(source="A", target="B", tool="to_b"),),
        ),
        turns=(
            TurnTrace(
                user="Refund, please.",
                start_agent="A",
                end_agent="B",
                reply="Done.",
                steps=STEPS,
                failure=FAILURE,
                context={"tier": "gold", "list": [{"deep": "x"}]},
            ),
        ),
    ),
    verdicts=(
        Verdict(
            check="route",
            turn=1,
            status="failed",
            expected="A -> C",
            actual="A -> B",
            why="C was expected",
            alignment=(Aligned(expected="A", actual="A", ok=True), Aligned(expected="C", actual="B", ok=False)),
        ),
    ),
    incidents=(
        Incident(
            kind="loop",
            turn=1,
            agents=("A", "B"),
            message="round and round",
            route=("A", "B", "A"),
            limit="max_handoffs",
            tool="to_b",
            reasons=("r",),
            quotes=("q",),
        ),
    ),
    demands=(
        Demand(turn=1, asks="first", ends=("C",), agents=("A", "C"), hops=(("A", "C"),)),
        Demand(turn=None),
    ),
    parted=Parted(turn=1, agent="A", hop=1, route=("A",), why="body.messages[0]"),
    ignored=("body.user",),
)
BROKEN = replace(FULL, scenario="broken", status="errored", failure=FAILURE, failed_turn=1, xfail=None, parted=None)
"""Together they have something in every field."""

NASTY = ("\ud83d", "\udcff\udc80", "\ud83d\ude00", "</script>", "a\r\nb", "\x00\x1b[31m", "\u202e|`*_[x](y)", "]]>", "")
hostile_texts = st.lists(
    st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=()), max_size=6), min_size=1, max_size=4
)
"""Texts with surrogates too, which hypothesis leaves out unless it is told."""


def put(value: Any, texts: Iterator[str], hint: Any = str) -> Any:
    """The value with the next of the texts in the place of each text that may be anything, and before each key."""
    if isinstance(value, str):
        return value if Literal in _origins(hint) else next(texts)
    if is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        return replace(value, **{f.name: put(getattr(value, f.name), texts, hints[f.name]) for f in fields(value)})
    if isinstance(value, tuple | list):
        return type(value)(put(each, texts) for each in value)
    if isinstance(value, Mapping):
        return {f"{next(texts)}{key}": put(each, texts) for key, each in value.items()}
    return value


def _origins(hint: Any) -> set[object]:
    """Of a type, and of those that it is a union of."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return {get_origin(part) for part in parts}


def full_of(texts: list[str]) -> list[Outcome]:
    """Two outcomes with the texts all over, whose ids are not the same."""
    turns = (texts[number % len(texts)] for number in count())
    made = [put(each, turns) for each in (FULL, BROKEN)]
    return [replace(each, scenario=f"{each.scenario}{number}") for number, each in enumerate(made)]


def everything_of(report: Report, folder: Path, text: str) -> str:
    """All that the writers make of a report, as one text."""
    rules: dict[str, Any] = {"must_pass": (text,), "min_agent_accuracy": {text: 0.5}, "min_tag_accuracy": {text: 0.5}}
    decision = Gate(**rules).decide(report, report)
    junit.write(report, folder / "junit.xml")
    ElementTree.parse(folder / "junit.xml")
    written = [folder / "junit.xml", html.write(report, folder, decision)]
    for form in ("csv", "jsonl"):
        written += export.write(report, folder / form, form)
    for table in (folder / "csv").iterdir():
        with table.open(encoding="utf-8", newline="") as file:
            assert len({len(row) for row in csv.reader(file)}) == 1
    for table in (folder / "jsonl").iterdir():
        assert [json.loads(line) for line in table.read_text(encoding="utf-8").split("\n")[:-1]]
    kept = Decision.kept(keep_ruling(report, decision.rules))
    made = [
        html.render(report, kept),
        html.render(report, comparison=compare(report, report)),
        console.render(report, decision),
        console.render(report, kept, screen=Screen(width=60, encoding="ascii")),
        markdown.render(report, decision),
        *markdown.annotate(report, ""),
        *(transcript_of_trace(each.trace) for each in report.outcomes if each.trace),
        *(path.read_text(encoding="utf-8") for path in written),
    ]
    return "".join(made)


@settings(max_examples=12, deadline=None)
@given(hostile_texts)
def test_any_text_in_any_field_is_kept_and_shown_by_every_writer(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    outcomes = full_of(texts)
    in_memory = Report.of(outcomes)
    run = RunFolder.create(folder / "run", command=["run", *texts], planned=2)
    for outcome in outcomes:
        run.append(outcome)
    assert list(run.close().outcomes) == list(in_memory.outcomes)
    everything_of(in_memory, folder, texts[0]).encode()
    everything_of(Report.read(folder / "run"), folder / "run", texts[0]).encode()
    again = Report.read(folder / "run")
    assert again.outcomes[:] == in_memory.outcomes
    assert again.metrics == in_memory.metrics
    assert again.run.gate is not None
    for name in (SUMMARY, TRIALS):
        (folder / "run" / name).read_text(encoding="utf-8")
    (entry,) = Listing(folder / "run").entries().values()
    standing = Progress(folder / "run").read()
    assert (entry.state, standing.problem, standing.trials) == ("finished", "", 2)
    parts = pages.parts([entry], {entry.name: standing}, folder=folder, of=1, query=texts[0])
    pages.index(parts, of=1, query=texts[0]).text.encode()
    pages.live(entry, standing).text.encode()
    (past,) = past_runs([folder / "run"])
    assert past.gate is False


def test_tables_for_programs_hold_any_text(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    report = Report.of(full_of(list(NASTY)))
    for path in export.write(report, tmp_path, "parquet"):
        assert len(pandas.read_parquet(path))
    assert len(report.frames().turns) == 4


def test_the_template_leaves_no_field_out() -> None:
    """Else a field that is added later would be filled by nobody."""
    filled = dict[type, set[str]]()

    def walk(value: Any) -> None:
        if is_dataclass(value) and not isinstance(value, type):
            for each in fields(value):
                inner = getattr(value, each.name)
                if inner not in (None, (), {}, ""):
                    filled.setdefault(type(value), set()).add(each.name)
                walk(inner)
        elif isinstance(value, Mapping):
            walk(tuple(value.values()))
        elif isinstance(value, tuple | list):
            for each in value:
                walk(each)

    walk((FULL, BROKEN))
    empty = {
        (kind.__name__, each.name)
        for kind, names in filled.items()
        for each in fields(kind)
        if each.name not in names and "str" in str(each.type)
    }
    assert empty == set()
