"""A report as Markdown for a pull request, and as annotations on its files; nothing from outside is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from chatflow_eval.comparison import Comparison, ScenarioChange
from chatflow_eval.gate import Decision
from chatflow_eval.metrics import Numbers, Rate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.writers import words

SHOWN = 10
"""Trials and scenarios of a kind that are shown one by one; GitHub shows ten annotations of a step, too."""


def render(report: Report, decision: Decision | None = None) -> str:
    """The summary: the gate's rules, what changed, what failed, the numbers."""
    sections = [
        _head(report, decision),
        _gate(decision),
        _changes(None if decision is None else decision.comparison),
        _unexpected(report),
        _numbers(report.metrics.total),
        _incidents(report.metrics.total),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def annotate(report: Report, prefix: str = "") -> Iterator[str]:
    """GitHub's workflow commands, one for each scenario that is not as expected, at its line of its file.

    `prefix`: the project's folder in the repository.
    """
    told: set[tuple[str, str]] = set()
    for index in report.unexpected:
        outcome = report.outcomes[index]
        if (outcome.file, outcome.scenario) in told:
            continue
        told.add((outcome.file, outcome.scenario))
        if len(told) > SHOWN:
            left = len({(report.outcomes[i].file, report.outcomes[i].scenario) for i in report.unexpected}) - SHOWN
            yield f"::warning title=chatflow-eval::{words.counted(left, 'more scenario')} not as expected"
            return
        file = str(PurePosixPath(prefix, outcome.file))
        place = f"file={_property(file)},line={max(outcome.line, 1)},title={_property(words.trial_name(outcome))}"
        yield f"::error {place}::{_data(f'{outcome.status}: {outcome.why}')}"


def _data(text: str) -> str:
    return words.printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(words.one_line(text)).replace(":", "%3A").replace(",", "%2C")


def _head(report: Report, decision: Decision | None) -> Iterator[str]:
    opened = decision.passed if decision is not None else not report.unexpected and report.metrics.total.ran > 0
    yield f"## {'✅' if opened else '❌'} Routing: {_ended(report.metrics.total)}"
    if report.run.partial:
        yield ""
        yield "**Partial run**: it ended before every planned trial had finished."


def _ended(total: Numbers) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in total.trials.items() if count)
    return f"{words.counted(sum(total.trials.values()), 'trial')}, {counts or 'nothing ran'}"


def _gate(decision: Decision | None) -> Iterator[str]:
    if decision is None:
        return
    yield f"### Gate {'open' if decision.passed else 'closed'}"
    yield ""
    yield from _table(
        ("", "rule", "wanted", "found"),
        (
            ("✅" if rule.passed else "❌", code(rule.name), code(rule.threshold), code(rule.actual))
            for rule in decision.rules
        ),
    )
    closed = [rule.why for rule in decision.rules if not rule.passed]
    if closed:
        yield ""
        yield from (f"- {code(why)}" for why in closed)


def _changes(comparison: Comparison | None) -> Iterator[str]:
    if comparison is None:
        return
    yield "### Against the baseline"
    yield ""
    yield ", ".join(f"{count} {change}" for change, count in comparison.counts.items() if count) or "nothing to compare"
    yield ""
    yield f"- routing accuracy: {words.difference(comparison.accuracy)}"
    yield f"- trials that pass: {words.difference(comparison.passing)}"
    rows = comparison.of("regressed", "gone", "improved", "flaky", "inconclusive", "new")
    if rows:
        yield ""
        yield from _table(("scenario", "change", "baseline", "now", ""), (_changed(row) for row in rows[:SHOWN]))
    if len(rows) > SHOWN:
        yield ""
        yield f"… and {len(rows) - SHOWN} more."


def _changed(row: ScenarioChange) -> tuple[str, ...]:
    return (code(row.scenario), row.change, words.side(row.base), words.side(row.run), code(words.certainty(row)))


def _unexpected(report: Report) -> Iterator[str]:
    if not report.unexpected:
        return
    yield "### Not as expected"
    yield ""
    shown = (report.outcomes[index] for index in report.unexpected[:SHOWN])
    yield from _table(("", "trial", "expected", "actual", "why"), (_trial(outcome) for outcome in shown))
    if len(report.unexpected) > SHOWN:
        yield ""
        yield f"… and {len(report.unexpected) - SHOWN} more."


def _trial(outcome: Outcome) -> tuple[str, ...]:
    verdict = words.first_failed(outcome.verdicts)
    expected, actual = ("", "") if verdict is None or not verdict.alignment else (verdict.expected, verdict.actual)
    place = f"{words.trial_name(outcome)} {outcome.file}:{outcome.line}"
    return (words.SYMBOLS[outcome.status], code(place), code(expected), code(actual), code(outcome.why))


def _numbers(total: Numbers) -> Iterator[str]:
    yield "### Numbers"
    yield ""
    rows: list[tuple[str, Rate]] = [("routing accuracy", total.accuracy)]
    rows += [(name, rate) for name, rate in words.classes(total) if rate.denominator]
    rows += [("scenario pass rate", total.pass_rate), ("errored trials", total.errored)]
    yield from _table(
        ("number", "value", "of", "95 % interval"),
        ((name, words.percent(rate.value), words.fraction(rate), words.interval(rate)) for name, rate in rows),
    )
    yield ""
    yield f"{words.counted(total.model_calls, 'model call')}, {words.tokens(total)}, {words.cost(total.cost)}."


def _incidents(total: Numbers) -> Iterator[str]:
    found = [kind for kind in total.incidents if kind.count]
    if found:
        yield "### Incidents"
        yield ""
        yield from _table(
            ("kind", "found", "in trials"),
            ((words.incident_name(kind.kind), str(kind.count), words.fraction(kind.trials)) for kind in found),
        )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    columns = list(head)
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


LONGEST = 300


def code(text: str) -> str:
    """Text from outside as a code span, in which nothing is markup, no link, no mention; fit for a table's cell."""
    line = words.one_line(text)
    if not line:
        return ""
    line = line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", r"\|")
