"""The heat map: which agent was expected at each decision, and which one came."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chatflow_eval.metrics import DEFINITIONS, ConfusionCell
from chatflow_eval.tally import ENDS, Coverage, DecisionEnd
from chatflow_eval.writers import links
from chatflow_eval.writers.panels import names

MAX_CELLS = 40
"""Rows and columns of the heat map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """How often one agent was expected and another came."""

    count: int
    shade: str
    """`r1` to `r5` for what is right, `w1` to `w5` for what is wrong: the more of its row, the higher; empty for 0."""
    title: str
    link: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """What came where one agent was expected."""

    name: str
    special: bool
    """No agent's name."""
    cells: tuple[HeatCell, ...]
    total: int
    right: int
    recall: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatColumn:
    """One agent that came, or how the turn went on without one."""

    name: str
    special: bool
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """The confusion matrix; no rows where nothing was decided."""

    columns: tuple[HeatColumn, ...] = ()
    rows: tuple[HeatRow, ...] = ()
    total: int = 0
    right: int = 0
    recall: str = ""
    notes: tuple[str, ...] = ()
    definition: str = DEFINITIONS["confusion"]


_STAY, _OTHERS = "(stay)", "(others)"


def heat_of(cells: Sequence[ConfusionCell], coverage: Sequence[Coverage]) -> Heat:
    """The matrix with its agents swarm by swarm, so that what is right stands on the diagonal."""
    if not cells:
        return Heat()
    counts: Counter[tuple[str | None, tuple[DecisionEnd, str | None]]] = Counter()
    for cell in cells:
        counts[cell.expected, (cell.end, cell.actual)] += cell.count
    order = {agent: place for place, agent in enumerate(_agents_in_order(coverage, cells))}
    expected, came = Counter[str | None](), Counter[tuple[DecisionEnd, str | None]]()
    for (row, column), count in counts.items():
        expected[row] += count
        came[column] += count
    for name in expected:
        if name in order:
            came[("agent", name)] += 0
    rows = sorted(_busiest(expected), key=lambda name: (name is None, order.get(name or "", len(order)), name or ""))
    columns = sorted(
        _busiest(came), key=lambda end: (ENDS.index(end[0]), order.get(end[1] or "", len(order)), end[1] or "")
    )
    more_rows, more_columns = len(expected) - len(rows), len(came) - len(columns)
    right = _right(counts, expected)
    total = sum(expected.values())
    shown = [_heat_row(name, columns, counts, expected[name], right[name], bool(more_columns)) for name in rows]
    if more_rows:
        shown.append(_other_rows(set(expected).difference(rows), columns, counts, right, bool(more_columns)))
    heads = [
        HeatColumn(
            name=f"({end})" if name is None else names.shorten(name), special=name is None, total=came[end, name]
        )
        for end, name in columns
    ]
    if more_columns:
        rest = sum(count for column, count in came.items() if column not in columns)
        heads.append(HeatColumn(name=_OTHERS, special=True, total=rest))
    notes = [
        f"The {len(some)} busiest of {len(some) + more:,} {what} are shown one by one; the others are summed."
        for some, more, what in ((rows, more_rows, "rows"), (columns, more_columns, "columns"))
        if more
    ]
    return Heat(
        columns=tuple(heads),
        rows=tuple(shown),
        total=total,
        right=sum(right.values()),
        recall=names.share(sum(right.values()), total),
        notes=tuple(notes),
    )


_Counts: TypeAlias = Mapping[tuple[str | None, tuple[DecisionEnd, str | None]], int]


def _agents_in_order(coverage: Iterable[Coverage], cells: Iterable[ConfusionCell]) -> dict[str, None]:
    named = {agent: None for one in coverage for agent in one.agents}
    return named | dict.fromkeys(sorted({cell.actual for cell in cells if cell.actual is not None}.difference(named)))


_Key: TypeAlias = Any


def _busiest(counts: Counter[_Key]) -> list[_Key]:
    if len(counts) <= MAX_CELLS:
        return list(counts)
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))[: MAX_CELLS - 1]]


def _right(counts: _Counts, expected: Iterable[str | None]) -> dict[str | None, int]:
    """How often the row's own column came."""
    return {name: counts.get((name, ("stayed", None) if name is None else ("agent", name)), 0) for name in expected}


def _heat_row(
    name: str | None,
    columns: Sequence[tuple[DecisionEnd, str | None]],
    counts: _Counts,
    total: int,
    right: int,
    more: bool,
) -> HeatRow:
    said = _STAY if name is None else name
    cells = [_heat_cell(said, column, counts.get((name, column), 0), total) for column in columns]
    if more:
        rest = total - sum(cell.count for cell in cells)
        cells.append(HeatCell(count=rest, shade=_shade("w", rest, total), title="", link=None))
    return HeatRow(
        name=names.shorten(said),
        special=name is None,
        cells=tuple(cells),
        total=total,
        right=right,
        recall=names.share(right, total),
    )


def _heat_cell(expected: str, column: tuple[DecisionEnd, str | None], count: int, total: int) -> HeatCell:
    if not count:
        return HeatCell(count=0, shade="", title="", link=None)
    end, name = column
    came = f"({end})" if name is None else name
    right = (expected, end) == (_STAY, "stayed") or (end == "agent" and expected == came)
    verdict = "right" if right else "wrong"
    return HeatCell(
        count=count,
        shade=_shade("r" if right else "w", count, total),
        title=f"{names.shorten(expected)} expected, {names.shorten(came)} came: {count:,}, {verdict}",
        link=links.to_trials(cell=(expected, came)) if names.may_link(expected, came) else None,
    )


def _other_rows(
    rows: Iterable[str | None],
    columns: Sequence[tuple[DecisionEnd, str | None]],
    counts: _Counts,
    right: Mapping[str | None, int],
    more: bool,
) -> HeatRow:
    rows = set(rows)
    sums: Counter[tuple[DecisionEnd, str | None]] = Counter()
    for (name, column), count in counts.items():
        if name in rows:
            sums[column] += count
    total = sum(sums.values())
    shown = [sums[column] for column in columns]
    if more:
        shown.append(total - sum(shown))
    return HeatRow(
        name=_OTHERS,
        special=True,
        cells=tuple(HeatCell(count=count, shade="", title="", link=None) for count in shown),
        total=total,
        right=sum(right[name] for name in rows),
        recall=names.share(sum(right[name] for name in rows), total),
    )


def _shade(kind: str, count: int, total: int) -> str:
    return f"{kind}{math.ceil(5 * count / total)}" if count else ""
