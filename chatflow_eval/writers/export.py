"""A report as tables of trials, turns and hops in files: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal, TextIO, TypeAlias, get_args

from chatflow_eval.errors import ChatflowEvalError, ReportError
from chatflow_eval.report import Report
from chatflow_eval.tables import COLUMNS, KEY, TABLES, Row

Format: TypeAlias = Literal["csv", "parquet", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)

CHUNK = 5_000
"""Rows that are held at once."""


def write(report: Report, folder: Path, form: Format) -> tuple[Path, ...]:
    """`trials`, `turns` and `hops` in the folder, read and written row by row, so that they need not fit into memory.

    Raises:
        ReportError: a file cannot be written; one that was there stays whole.
        ChatflowEvalError: Parquet needs pyarrow, and it is not installed.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in TABLES.items():
            path = folder / f"{name}.{form}"
            beside = path.with_name(f"{path.name}.new")
            try:
                _WRITERS[form](beside, name, rows(report.outcomes))
            except BaseException:
                with suppress(OSError):
                    beside.unlink()
                raise
            written.append(beside.replace(path))
    except OSError as error:
        raise ReportError(f"{folder}: cannot be written: {error.strerror}") from error
    return tuple(written)


def columns(table: str) -> tuple[str, ...]:
    """The names of a table's columns, in order."""
    return (*KEY, *COLUMNS[table])


def _csv(path: Path, table: str, rows: Iterable[Row]) -> None:
    """As RFC 4180 has it; true and false in lower case, as in JSON."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns(table))
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: str(value).lower() if isinstance(value, bool) else value for key, value in row.items()}
            )


def _jsonl(path: Path, table: str, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            _line(file, row)


def _line(file: TextIO, row: Row) -> None:
    json.dump(row, file, ensure_ascii=False)
    file.write("\n")


def _parquet(path: Path, table: str, rows: Iterable[Row]) -> None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ChatflowEvalError("Parquet needs pyarrow: pip install 'chatflow-eval[parquet]'") from None
    types = {"text": arrow.string(), "integer": arrow.int64(), "number": arrow.float64(), "boolean": arrow.bool_()}
    kinds = {**dict.fromkeys(KEY, "text"), "repeat": "integer", **COLUMNS[table]}
    schema = arrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        for chunk in _chunks(rows):
            writer.write_table(arrow.Table.from_pylist(chunk, schema=schema))


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    while chunk := list(islice(left, CHUNK)):
        yield chunk


_WRITERS = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
