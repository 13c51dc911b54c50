"""Trials, turns and hops as tables: the same rows in every format, and as data frames."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.report import Report
from chatflow_eval.tables import COLUMNS, KEY, TABLES, Cell
from chatflow_eval.writers import export


def rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    frame = pd.read_parquet(path).astype(object)
    records = frame.where(frame.notna(), None).to_dict("records")
    return [{str(key): cell for key, cell in row.items()} for row in records]


def spelled(cell: Cell) -> str:
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


@pytest.mark.parametrize("form", export.FORMATS)
def test_every_format_has_the_same_tables(sample: Report, tmp_path: Path, form: export.Format) -> None:
    written = export.write(sample, tmp_path / "out", form)
    assert [path.name for path in written] == [f"{name}.{form}" for name in TABLES]
    for path in written:
        found = rows(path)
        expected = list(TABLES[path.stem](sample.outcomes))
        assert [list(row) for row in found] == [[*KEY, *COLUMNS[path.stem]]] * len(expected)
        if form == "csv":
            expected = [{key: spelled(cell) for key, cell in row.items()} for row in expected]
        assert found == expected


def test_rows_say_what_happened_and_leave_empty_what_did_not(sample: Report) -> None:
    trials = {(row["scenario"], row["model"], row["repeat"]): row for row in TABLES["trials"](sample.outcomes)}
    loop = trials["plan-ping-pong", "gpt-4o-mini", 1]
    assert (loop["status"], loop["handoffs"], loop["incidents"]) == ("failed", 6, "loop;limit_hit")
    assert trials["not-yet", "gpt-4o-mini", 1]["input_tokens"] is None
    turns = [row for row in TABLES["turns"](sample.outcomes) if row["scenario"] == "rate-limited"]
    assert [(row["turn"], row["errored"], row["route"]) for row in turns] == [
        (1, True, "TriageAgent"),
        (2, False, None),
    ]
    refused = [row for row in TABLES["hops"](sample.outcomes) if not row["accepted"]]
    assert {row["refused_because"] for row in refused} == {"limit", "already_transferred"}


def test_a_report_gives_data_frames(sample: Report) -> None:
    report = Report.of(outcome for outcome in sample.outcomes if outcome.scenario != "known-gap")
    frames = report.frames()
    assert frames.trials["status"].value_counts().to_dict() == {"failed": 4, "passed": 3, "errored": 1, "skipped": 1}
    judged = frames.turns[frames.turns["judged"]]
    assert int(judged["right"].sum()) == report.metrics.total.accuracy.numerator
    assert len(judged) == report.metrics.total.accuracy.denominator
    assert frames.hops.dtypes["number"] == pd.Int64Dtype()


def test_an_empty_report_has_empty_tables_with_heads(tmp_path: Path) -> None:
    frames = Report.of([]).frames()
    assert [list(frame) for frame in frames] == [list(export.columns(name)) for name in TABLES]
    assert all(rows(path) == [] for path in export.write(Report.of([]), tmp_path, "csv"))


def test_parquet_says_what_it_needs(sample: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ChatflowEvalError, match=r"chatflow-eval\[parquet\]"):
        export.write(sample, tmp_path, "parquet")
    assert list(tmp_path.iterdir()) == []
