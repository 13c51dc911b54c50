"""A report as one self-contained page: no network, no script needed, everything from outside escaped."""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.environment import TemplateStream
from markupsafe import Markup

from chatflow_eval.checks import Verdict
from chatflow_eval.errors import ReportError
from chatflow_eval.gate import Decision
from chatflow_eval.incidents import FAILING, Incident
from chatflow_eval.metrics import DEFINITIONS, ConfusionCell, Numbers, Rate, ScenarioNumbers
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import PAGE, SUMMARY, TRIALS, Report
from chatflow_eval.route import Aligned
from chatflow_eval.tally import ENDS, ROUTING_CHECKS, DecisionEnd
from chatflow_eval.trace import Failure, ModelStep, Step, TurnTrace
from chatflow_eval.writers import words

MAX_TEXT = 2_000
"""Characters of one text that are shown."""
MAX_STEPS = 200
"""Steps of one turn that are shown."""
MAX_TRIALS, MAX_SCENARIOS, MAX_INCIDENTS = 10_000, 2_000, 500

REFUSALS = {
    "already_transferred": "another transfer took effect",
    "self": "it is active already",
    "not_allowed": "not one of its handoffs",
    "unregistered": "no such agent",
    "limit": "limit",
    "invalid_arguments": "invalid arguments",
}


def render(report: Report, decision: Decision | None = None) -> str:
    """The page as one text."""
    return "".join(_stream(report, decision))


def write(report: Report, folder: Path, decision: Decision | None = None) -> Path:
    """The page as `report.html` in the folder, written piece by piece, so that a large one is never held in memory.

    Raises `ReportError`; a page that was there stays whole until the new one is.
    """
    page, beside = folder / PAGE, folder / f"{PAGE}.new"
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(_stream(report, decision))
        return beside.replace(page)
    except OSError as error:
        raise ReportError(f"{page}: cannot be written: {error.strerror}") from error


def _stream(report: Report, decision: Decision | None) -> TemplateStream:
    metrics, style, script = report.metrics, _source("report.css"), _source("report.js")
    order = _order(report)
    numbers = {outcome: number for number, outcome in enumerate(order, 1)}
    verdict: Status = "failed" if report.unexpected or not metrics.total.ran else "passed"
    scenarios = _scenarios(metrics.scenarios)
    found = sum(kind.count for kind in metrics.total.incidents)
    page = (
        _environment()
        .get_template("report.html.j2")
        .stream(
            report=report,
            metrics=metrics,
            decision=decision,
            words=words,
            symbols=words.SYMBOLS,
            definitions=DEFINITIONS,
            refusals=REFUSALS,
            failing=FAILING,
            cut=_cut,
            data=_data,
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            verdict=verdict,
            headline=_headline(report),
            meta=_meta(report),
            ends=_ends(metrics.total),
            notes=tuple(_notes(report)),
            heroes=_heroes(metrics.total),
            numbers=tuple(_numbers(metrics.total)),
            confusion=_confusion(metrics.confusion),
            incidents=_incidents(report, numbers),
            incident_counts=_incident_counts(metrics.total),
            incidents_left_out=max(found - MAX_INCIDENTS, 0),
            scenarios=scenarios[:MAX_SCENARIOS],
            one_file=_one_file(metrics.scenarios),
            scenarios_left_out=max(len(scenarios) - MAX_SCENARIOS, 0),
            trials=(_trial(report.outcomes[index], number) for number, index in enumerate(order[:MAX_TRIALS], 1)),
            trials_left_out=max(len(order) - MAX_TRIALS, 0),
            trials_file=TRIALS,
            summary_file=SUMMARY,
        )
    )
    page.enable_buffering(256)
    return page


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("chatflow_eval"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: Any) -> Any:
    return words.printable(value) if type(value) is str else value


def _source(name: str) -> str:
    """A file of ours that the page holds as it is."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and nothing runs but our own style and script, known by their hashes."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _cut(text: str) -> str:
    """The text, or its beginning and how long it is."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… [cut: {MAX_TEXT:,} of {len(text):,} characters; the rest is in {TRIALS}]"


def _data(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# The top of the page.


def _order(report: Report) -> list[int]:
    """The places of the outcomes: those not as expected first, then by file and line, whenever they finished."""
    unexpected = set(report.unexpected)
    keys = [(index not in unexpected, words.order(outcome), index) for index, outcome in enumerate(report.outcomes)]
    return [index for _, _, index in sorted(keys)]


def _headline(report: Report) -> str:
    ran, bad = report.metrics.total.ran, len(report.unexpected)
    if not ran:
        return "No trial ran"
    if not bad:
        return f"All {words.counted(ran, 'trial')} as expected" if ran > 1 else "The one trial is as expected"
    return f"{bad:,} of {words.counted(ran, 'trial')} not as expected"


def _meta(report: Report) -> str:
    run, total = report.run, report.metrics.total
    parts = [words.counted(total.scenarios, "scenario"), words.counted(len(report.metrics.models), "model")]
    if run.started:
        started = datetime.fromisoformat(run.started)
        parts.append(f"{started:%Y-%m-%d %H:%M} UTC")
        if run.finished:
            parts.append(words.seconds((datetime.fromisoformat(run.finished) - started).total_seconds()))
    return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class _End:
    """One part of the bar of how the trials ended, in percent of its length."""

    status: Status
    count: int
    start: float
    width: float


def _ends(total: Numbers) -> tuple[_End, ...]:
    all_trials, start, ends = sum(total.trials.values()), 0.0, []
    for status, count in total.trials.items():
        if count:
            width = 100 * count / all_trials
            ends.append(_End(status, count, start, width))
            start += width
    return tuple(ends)


def _notes(report: Report) -> Iterator[str]:
    if report.run.partial:
        yield "Partial run: it ended before every planned trial had finished."
    if words.uses_keyword(report.metrics):
        yield words.KEYWORD_NOTE
    if report.metrics.total.replayed:
        yield words.replayed_note(report.metrics.total)


# Numbers.


@dataclass(frozen=True, slots=True)
class _Number:
    """One number as it is shown, with its meaning."""

    name: str
    value: str
    beside: str
    definition: str
    rate: Rate | None = None


def _of_rate(name: str, rate: Rate, unit: str) -> _Number:
    return _Number(name, words.percent(rate.value), f"{words.fraction(rate)} {unit}", rate.definition, rate)


def _heroes(total: Numbers) -> tuple[_Number, ...]:
    loops, limits = total.incident("loop"), total.incident("limit_hit")
    return (
        _of_rate("Routing accuracy", total.accuracy, "turns"),
        _of_rate("Scenario pass rate", total.pass_rate, "scenarios"),
        _Number(
            "Loops and limit hits",
            f"{loops.count} + {limits.count}",
            f"in {words.counted(total.ran, 'trial')}",
            "A loop is a cycle of agents that stands twice in a row within one turn; a limit hit is a handoff or a "
            "tool call that a limit refused.",
        ),
        _of_rate("Errored trials", total.errored, "trials"),
    )


def _numbers(total: Numbers) -> Iterator[_Number]:
    yield _of_rate("accuracy, errors counted as wrong", total.accuracy_with_errors, "turns")
    yield _of_rate("accuracy, given a right start", total.accuracy_right_start, "turns")
    for k, rate in list(total.pass_hat_k.items())[-1:]:
        yield _of_rate(f"pass^{k}", rate, "scenarios")
        yield _of_rate(f"pass@{k}", total.pass_at_k[k], "scenarios")
    yield _of_rate("flaky scenarios", total.flaky, "scenarios")
    yield _of_rate("hop precision", total.hop_precision, "handoffs")
    yield _of_rate("hop recall", total.hop_recall, "handoffs")
    yield _of_rate("hop F1", total.hop_f1, "handoffs, made and expected")
    for kind in total.incidents:
        if kind.count:
            yield _of_rate(f"trials with {words.incident_name(kind.kind)}", kind.trials, "trials")
    yield _Number("model calls", f"{total.model_calls:,}", "", DEFINITIONS["model_calls"])
    for name, tokens in (("tokens in", total.input_tokens), ("tokens out", total.output_tokens)):
        unknown = f", unknown for {tokens.unknown:,}" if tokens.unknown else ""
        yield _Number(name, words.amount(tokens), f"{words.counted(tokens.known, 'call')}{unknown}", tokens.definition)
    times = total.latency
    if times.median is not None and times.p95 is not None and times.longest is not None:
        beside = f"95th percentile {words.seconds(times.p95)}, longest {words.seconds(times.longest)}"
        yield _Number("latency, median", words.seconds(times.median), beside, times.definition)


# Confusion.


@dataclass(frozen=True, slots=True)
class _Cell:
    count: int
    shade: str


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    cells: tuple[_Cell, ...]


@dataclass(frozen=True, slots=True)
class _Matrix:
    columns: tuple[str, ...]
    rows: tuple[_Row, ...]


def _confusion(cells: Sequence[ConfusionCell]) -> _Matrix | None:
    """Agents in the order of their names, so that what is right stands on the diagonal; nothing for no decision."""
    if not cells:
        return None
    rows = sorted({cell.expected for cell in cells}, key=lambda name: (name is None, name))
    names = sorted({cell.actual for cell in cells if cell.actual is not None})
    ends = [end for end in ENDS[1:] if any(cell.end == end for cell in cells)]
    counts = {(cell.expected, cell.end, cell.actual): cell for cell in cells}
    columns: list[tuple[DecisionEnd, str | None]] = [
        *(("agent", name) for name in names),
        *((end, None) for end in ends),
    ]
    return _Matrix(
        tuple(name if name is not None else f"({end})" for end, name in columns),
        tuple(
            _Row(
                "(stay)" if row is None else row,
                tuple(
                    _shaded(counts.get((row, end, name)), sum(cell.count for cell in cells if cell.expected == row))
                    for end, name in columns
                ),
            )
            for row in rows
        ),
    )


def _shaded(cell: ConfusionCell | None, of: int) -> _Cell:
    if cell is None:
        return _Cell(0, "")
    depth = 1 + (3 * cell.count > of) + (3 * cell.count > 2 * of)
    return _Cell(cell.count, f"{'r' if cell.right else 'w'}{depth}")


# Incidents and scenarios.


@dataclass(frozen=True, slots=True)
class _Found:
    """An incident, and the trial it was found in."""

    incident: Incident
    number: int
    where: str
    route: str
    reasons: str
    cost: str


def _incidents(report: Report, numbers: dict[int, int]) -> list[_Found]:
    """The first incidents, those that fail a scenario by default before the others."""
    placed = (
        (words.severity(incident), numbers[index], place, incident, outcome)
        for index in report.with_incidents
        for outcome in (report.outcomes[index],)
        for place, incident in enumerate(outcome.incidents)
    )
    first = heapq.nsmallest(MAX_INCIDENTS, placed, key=lambda found: found[:3])
    return [
        _Found(
            incident,
            number,
            f"{words.trial_name(outcome)}, turn {incident.turn}",
            " → ".join(incident.route),
            ", ".join(dict.fromkeys(reason for reason in incident.reasons if reason)),
            _cost(incident),
        )
        for _, number, _, incident, outcome in first
    ]


def _cost(incident: Incident) -> str:
    if not incident.model_calls:
        return ""
    spent = "tokens unknown" if incident.tokens is None else words.counted(incident.tokens, "token")
    return f"{words.counted(incident.model_calls, 'call')}, {spent}"


def _incident_counts(total: Numbers) -> str:
    return ", ".join(
        f"{words.incident_name(kind.kind)} {kind.count} in {words.counted(int(kind.trials.numerator), 'trial')}"
        for kind in total.incidents
        if kind.count
    )


def _scenarios(scenarios: Sequence[ScenarioNumbers]) -> list[ScenarioNumbers]:
    """The worst first."""

    def goodness(row: ScenarioNumbers) -> tuple[float, int]:
        bad = row.trials["failed"] + row.trials["errored"]
        return (row.trials["passed"] / (row.trials["passed"] + bad) if bad else 1.0, -row.incidents)

    return sorted(scenarios, key=goodness)


def _one_file(scenarios: Sequence[ScenarioNumbers]) -> str:
    """The scenario file, when there is one only."""
    files = {row.file for row in scenarios}
    return files.pop() if len(files) == 1 else ""


# Trials.


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn of a trial: what was expected beside what happened."""

    number: int
    user: str
    _: KW_ONLY
    reached: bool = False
    after_failure: bool
    verdicts: tuple[Verdict, ...]
    places: tuple[Aligned, ...]
    expected: str
    agents: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    left_out: int = 0
    reply_step: ModelStep | None = None
    """The step whose text is the reply, where one is."""
    reply: str = ""
    """The reply, where no step shows it."""
    end_agent: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Trial:
    outcome: Outcome
    number: int
    turns: tuple[_Turn, ...]
    overall: tuple[Verdict, ...]


def _trial(outcome: Outcome, number: int) -> _Trial:
    traces = outcome.trace.turns if outcome.trace else ()
    users = outcome.users or tuple(turn.user for turn in traces)
    turns = tuple(
        _turn(place, user, traces[place - 1] if place <= len(traces) else None, outcome.verdicts)
        for place, user in enumerate(users, 1)
    )
    overall = tuple(verdict for verdict in outcome.verdicts if verdict.turn is None)
    if all(verdict.check == "incidents" and verdict.status == "passed" for verdict in overall):
        overall = ()  # nobody asked for anything, and nothing was found
    return _Trial(outcome, number, turns, overall)


def _turn(number: int, user: str, trace: TurnTrace | None, verdicts: Iterable[Verdict]) -> _Turn:
    own = tuple(verdict for verdict in verdicts if verdict.turn == number)
    aligned = next((verdict.alignment for verdict in own if verdict.alignment), ())
    expected = next((verdict.expected for verdict in own if verdict.check in ROUTING_CHECKS), "")
    after = any(verdict.after_failure for verdict in own)
    if trace is None:
        return _Turn(
            number=number,
            user=user,
            reached=False,
            after_failure=after,
            verdicts=own,
            places=aligned,
            expected=expected,
        )
    shown = [step for step in trace.steps if not _told_by_others(step)]
    last = next((step for step in reversed(shown) if isinstance(step, ModelStep)), None)
    said = last if last is not None and trace.reply and last.text == trace.reply and len(shown) <= MAX_STEPS else None
    return _Turn(
        number,
        user,
        reached=True,
        after_failure=after,
        verdicts=own,
        places=aligned,
        expected=expected,
        agents=trace.agents,
        steps=tuple(shown[:MAX_STEPS]),
        left_out=max(len(shown) - MAX_STEPS, 0),
        reply_step=said,
        reply="" if said is not None else trace.reply,
        end_agent=trace.end_agent,
        failure=trace.failure,
    )


def _told_by_others(step: Step) -> bool:
    """A model's answer without text shows in the calls and handoffs that follow it."""
    return isinstance(step, ModelStep) and not step.text and bool(step.calls)
