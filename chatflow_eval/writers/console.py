"""A report as a summary for terminals and pipes: what failed, the numbers, and where to read more."""

from __future__ import annotations

import heapq
import os
import shlex
import textwrap
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TextIO

from tabulate import tabulate

from chatflow_eval.comparison import CHANGES, Comparison
from chatflow_eval.gate import Decision
from chatflow_eval.history import PastRun
from chatflow_eval.metrics import Numbers, Rate
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import PAGE, Report
from chatflow_eval.writers import words

WIDTH = 80
SHOWN_TRIALS, SHOWN_INCIDENTS, SHOWN_MODELS, SHOWN_CHANGES = 3, 2, 6, 10

_ASCII = str.maketrans({"✓": "+", "✗": "x", "○": "o", "…": "...", "→": "->"})
_COLOURS = {"passed": "32", "failed": "31", "errored": "35", "skipped": "2", "heading": "1"}


def show(report: Report, stream: TextIO, decision: Decision | None = None, notes: Sequence[str] = ()) -> None:
    """Write the summary to a stream: in colour on a terminal that wants it, in ASCII where its encoding has no more."""
    _write(render(report, decision, colour=_in_colour(stream), notes=notes), stream)


def show_gate(decision: Decision, stream: TextIO) -> None:
    """Write the gate's rules, each with the number it looked at, to a stream."""
    _write("\n".join(_gate(decision, _Paint(_in_colour(stream)))) + "\n", stream)


def show_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Write what changed between two runs to a stream."""
    _write("\n".join(_comparison(comparison, _Paint(_in_colour(stream)))) + "\n", stream)


def show_history(runs: Sequence[PastRun], stream: TextIO) -> None:
    """Write a table of runs, the oldest first, to a stream."""
    _write("\n".join(_history(runs)) + "\n", stream)


def render(report: Report, decision: Decision | None = None, *, colour: bool = False, notes: Sequence[str] = ()) -> str:
    """The summary as text, about thirty lines of at most 80 columns; `notes` are said before where the report is."""
    paint = _Paint(colour)
    sections = [
        _head(report, paint),
        _unexpected(report, paint),
        _incidents(report, paint),
        _numbers(report.metrics.total, paint),
        _beside_baselines(report, paint),
        _models(report, paint),
        _gate(decision, paint),
        _notes(report, notes),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


@dataclass(frozen=True, slots=True)
class _Paint:
    """Adds colour where it is wanted."""

    colour: bool

    def __call__(self, text: str, kind: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self.colour else text


def _head(report: Report, paint: _Paint) -> Iterator[str]:
    total = report.metrics.total
    counts = ", ".join(
        paint(f"{count} {status}", status) for status, count in total.trials.items() if count or status == "passed"
    )
    trials, scenarios = words.counted(sum(total.trials.values()), "trial"), words.counted(total.scenarios, "scenario")
    expected = total.trials["failed"] + total.trials["errored"] - len(report.unexpected)
    yield f"{trials} of {scenarios}: {counts}"
    if expected:
        yield f"Failed as expected (xfail): {words.counted(expected, 'trial')}"
    if report.run.partial:
        yield paint("Partial run: it was stopped before every planned trial had finished.", "errored")


def _unexpected(report: Report, paint: _Paint) -> Iterator[str]:
    """The first trials that are not as expected, in order of file and line, and what made recordings stale."""
    stale: dict[str, list[Outcome]] = {}
    others = 0

    def picked() -> Iterator[Outcome]:
        nonlocal others
        for index in report.unexpected:
            outcome = report.outcomes[index]
            if outcome.failure is not None and outcome.failure.edit is not None:
                stale.setdefault(outcome.failure.edit, []).append(replace(outcome, trace=None))
            else:
                others += 1
                yield outcome

    first = heapq.nsmallest(SHOWN_TRIALS, picked(), key=words.order)
    if first:
        yield paint("Not as expected", "heading")
        for outcome in first:
            yield from _trial(outcome, paint)
        if others > len(first):
            yield f"  … and {others - len(first)} more"
    yield from _stale(stale, paint)


def _stale(stale: dict[str, list[Outcome]], paint: _Paint) -> Iterator[str]:
    """Recordings that no longer fit, grouped by the edit that made them so."""
    if not stale:
        return
    yield paint("Stale recordings", "heading")
    for edit, outcomes in stale.items():
        yield from _lines(edit, indent=2, at_most=3)
        names = ", ".join(dict.fromkeys(words.one_line(outcome.scenario) for outcome in outcomes))
        yield from _lines(f"{words.counted(len(outcomes), 'trial')}: {names}", indent=4)
    files = sorted({outcome.file for outcomes in stale.values() for outcome in outcomes})
    yield f"  record again with: {words.one_line(shlex.join(['chatflow-eval', 'record', *files]))}"


def _trial(outcome: Outcome, paint: _Paint) -> Iterator[str]:
    yield f"  {paint(words.SYMBOLS[outcome.status], outcome.status)} {_fit(words.trial_name(outcome), WIDTH - 4)}"
    verdict = words.first_failed(outcome.verdicts)
    if outcome.status == "errored" or verdict is None:
        for part in outcome.why.split("; "):
            # A command is there to be copied, whatever its length.
            is_command = "chatflow-eval record" in part
            yield from [f"      {words.one_line(part)}"] if is_command else _lines(part, indent=6, at_most=3)
        return
    place = f"turn {verdict.turn}, " if verdict.turn else ""
    yield from _lines(f"{place}{verdict.check}: {verdict.why}", indent=6)
    if verdict.alignment:
        yield f"      expected  {_fit(words.one_line(verdict.expected), WIDTH - 16)}"
        yield f"      actual    {_fit(words.one_line(verdict.actual), WIDTH - 16)}"


def _incidents(report: Report, paint: _Paint) -> Iterator[str]:
    found = [numbers for numbers in report.metrics.total.incidents if numbers.count]
    if not found:
        return
    counts = ", ".join(f"{words.incident_name(numbers.kind)} {numbers.count}" for numbers in found)
    yield paint("Incidents", "heading") + f"  {_fit(counts, WIDTH - 11)}"
    placed = (
        (words.severity(incident), index, incident)
        for index in report.with_incidents
        for incident in report.outcomes[index].incidents
    )
    for _, _, incident in heapq.nsmallest(SHOWN_INCIDENTS, placed, key=lambda place: place[:2]):
        yield from _lines(f"{words.incident_name(incident.kind)}: {incident.message}", indent=2)


def _numbers(numbers: Numbers, paint: _Paint) -> Iterator[str]:
    yield paint("Numbers", "heading") + "  (with 95 % intervals)"
    rates = [("routing accuracy", numbers.accuracy, "turns")]
    if numbers.turns_errored or numbers.turns_unreached:
        rates.append(("  errors counted as wrong", numbers.accuracy_with_errors, "turns"))
    if numbers.accuracy_right_start.denominator < numbers.accuracy.denominator:
        rates.append(("  given a right start", numbers.accuracy_right_start, "turns"))
    rates.append(("scenario pass rate", numbers.pass_rate, "scenarios"))
    rates += [(f"  pass^{k}", rate, "scenarios") for k, rate in list(numbers.pass_hat_k.items())[-1:]]
    rows = [(name, words.percent(rate.value), _fraction(rate, unit), _interval(rate)) for name, rate, unit in rates]
    yield from _table(rows, ("left", "right", "left", "left"))
    spent = [words.counted(numbers.model_calls, "model call"), words.tokens(numbers), words.latency(numbers.latency)]
    if numbers.cost.value:
        spent.append(words.cost(numbers.cost))
    yield from _lines(", ".join(spent), indent=2)


def _beside_baselines(report: Report, paint: _Paint) -> Iterator[str]:
    """By what turns ask for, beside both yardsticks, where they were asked for."""
    yardsticks = report.metrics.baselines
    if not any(row.name == "keyword" for row in yardsticks):
        return
    yield paint("Routing accuracy beside the baselines", "heading")
    total = report.metrics.total
    columns = [("", total.accuracy, words.classes(total))]
    columns += [(words.YARDSTICKS[row.name], row.accuracy, words.classes(row)) for row in yardsticks]
    rows = [("every turn", *(words.percent(accuracy.value) for _, accuracy, _ in columns), total.accuracy.denominator)]
    for place, (name, rate) in enumerate(words.classes(total)):
        shares = (words.percent(classes[place][1].value) for *_, classes in columns)
        rows.append((f"  {name}", *shares, rate.denominator))
    head = ("", "here", *(name for name, *_ in columns[1:]), "turns")
    yield from _table(rows, ("left", *("right",) * (len(head) - 1)), head)


def _comparison(comparison: Comparison, paint: _Paint) -> Iterator[str]:
    counts = [f"{count} {change}" for change, count in comparison.counts.items() if count]
    yield f"{words.counted(len(comparison.scenarios), 'scenario')}: {', '.join(counts) or 'none'}"
    yield ""
    for name, difference in (("routing accuracy", comparison.accuracy), ("trials that pass", comparison.passing)):
        yield from _lines(f"{name}: {words.difference(difference)}", indent=2, at_most=3)
    for change in CHANGES[:-1]:
        rows = comparison.of(change)
        if rows:
            yield ""
            yield paint(change.capitalize(), "heading")
            for row in rows[:SHOWN_CHANGES]:
                sides = f"{words.side(row.base)} to {words.side(row.run)}"
                told = f"{row.scenario} [{words.model_name(row.target, row.model)}]: {sides}; {words.certainty(row)}"
                yield from _lines(told.rstrip("; "), indent=2, at_most=3)
            if len(rows) > SHOWN_CHANGES:
                yield f"  … and {len(rows) - SHOWN_CHANGES} more"
    if comparison.incidents:
        yield ""
        yield paint("Incidents", "heading")
        for kind, (before, now) in comparison.incidents.items():
            yield f"  {kind.replace('_', ' ')}: {before} to {now}"


def _history(runs: Sequence[PastRun]) -> Iterator[str]:
    rows = [
        (
            _fit(words.one_line(run.folder.name), 24),
            run.started[:16].replace("T", " "),
            sum(run.trials.values()) if run.trials else "",
            _share(run.accuracy),
            _share(run.pass_rate),
            run.trials.get("errored", 0) or "",
            ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in run.incidents.items())
            + (" (partial)" if run.partial else ""),
        )
        for run in runs
    ]
    head = ("run", "started (UTC)", "trials", "accuracy", "pass rate", "errors", "incidents")
    yield from _table(rows, ("left", "left", "right", "right", "right", "right", "left"), head)


def _share(rate: Mapping[str, Any] | None) -> str:
    return words.percent(rate["value"] if rate else None)


def _fraction(rate: Rate, unit: str) -> str:
    return f"{words.fraction(rate)} {unit}"


def _interval(rate: Rate) -> str:
    return "" if rate.low is None else words.interval(rate)


def _models(report: Report, paint: _Paint) -> Iterator[str]:
    models = report.metrics.models
    if len(models) < 2:
        return
    yield paint("By model", "heading")
    rows = [
        (
            _fit(words.model_name(row.target, row.model), 30),
            words.percent(row.numbers.accuracy.value),
            _fraction(row.numbers.accuracy, "turns"),
            words.percent(row.numbers.pass_rate.value),
            row.numbers.incident("loop").count,
            row.numbers.trials["errored"],
        )
        for row in models[:SHOWN_MODELS]
    ]
    header = ("model", "accuracy", "", "pass rate", "loops", "errors")
    yield from _table(rows, ("left", "right", "left", "right", "right", "right"), header)
    if len(models) > SHOWN_MODELS:
        yield f"  … and {len(models) - SHOWN_MODELS} more"


def _gate(decision: Decision | None, paint: _Paint) -> Iterator[str]:
    if decision is None:
        return
    state = "open" if decision.passed else "closed"
    yield paint("Gate", "heading") + "  " + paint(state, _status(decision.passed))
    for rule in decision.rules:
        status = _status(rule.passed)
        first, *more = _lines(rule.why, indent=4)
        yield f"  {paint(words.SYMBOLS[status], status)} {first.strip()}"
        yield from more


def _status(passed: bool) -> Status:
    return "passed" if passed else "failed"


def _notes(report: Report, notes: Sequence[str]) -> Iterator[str]:
    if words.uses_keyword(report.metrics):
        yield from _lines(words.KEYWORD_NOTE)
    if report.metrics.total.replayed:
        yield from _lines(words.replayed_note(report.metrics.total))
    for note in notes:
        yield from _lines(note, at_most=4)
    if report.folder is not None:
        yield f"Report: {words.one_line(str(report.folder / PAGE))}"


def _table(rows: Sequence[Sequence[object]], align: Sequence[str], header: Sequence[str] = ()) -> Iterator[str]:
    text = tabulate(rows, headers=header, tablefmt="plain", colalign=align, disable_numparse=True)
    for line in text.splitlines():
        yield f"  {line.rstrip()}"


def _lines(text: str, *, indent: int = 0, at_most: int = 2) -> Iterator[str]:
    """The text in so many lines at most."""
    for line in textwrap.wrap(words.one_line(text), WIDTH - indent, max_lines=at_most, placeholder=" …"):
        yield " " * indent + _fit(line, WIDTH - indent)


def _fit(text: str, width: int) -> str:
    """The text, cut to so many columns of a terminal."""
    ends = list(accumulate(map(_columns, text)))
    if not ends or ends[-1] <= width:
        return text
    return text[: bisect_right(ends, width - 1)] + "…"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _in_colour(stream: TextIO) -> bool:
    """True for a terminal whose user has not asked for no colour (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def _write(text: str, stream: TextIO) -> None:
    stream.write(_encodable(text, stream.encoding or "utf-8"))
    stream.flush()


def _encodable(text: str, encoding: str) -> str:
    """The text, or what is left of it in a stream's encoding: signs of ours in ASCII, other characters as escapes."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text
