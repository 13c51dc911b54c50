"""A report as one self-contained page: numbers that need no script, every trial as data; nothing from outside acts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from jinja2.environment import TemplateStream
from markupsafe import Markup

from chatflow_eval.comparison import CHANGES, Change, Comparison, ScenarioChange
from chatflow_eval.errors import ReportError
from chatflow_eval.gate import Decision
from chatflow_eval.metrics import DEFINITIONS, Numbers, Rate, ScenarioNumbers
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import PAGE, SUMMARY, TRIALS, OutcomeKey, Report
from chatflow_eval.writers import links, panels, payload, words
from chatflow_eval.writers.templates import environment, hash_source, source

STYLES, SCRIPTS = ("report.css", "panels.css"), ("vendor/dagre.min.js", "graph.js")
PARTS = tuple(f"report/{part}.js" for part in ("elements", "data", "fragments", "filters", "list", "trial", "page"))
"""Of the script that shows the trials, in the order of their use."""

MAX_SCENARIOS, MAX_CHANGES, MAX_BROKEN, MAX_NOTED = 300, 50, 6, 5
"""Rows of the tables whose length the suite decides; the list of trials has the rest."""
MAX_PLACES = 6
"""Places of a route that the summary of what broke shows, the first that is wrong the last of them."""


def render(report: Report, decision: Decision | None = None, *, comparison: Comparison | None = None) -> str:
    """The page as one text."""
    return "".join(_stream(report, decision, comparison))


def write(
    report: Report, folder: Path, decision: Decision | None = None, *, comparison: Comparison | None = None
) -> Path:
    """The page as `report.html` in the folder; raises `ReportError`."""
    return save(report, folder / PAGE, decision, comparison=comparison)


def save(report: Report, page: Path, decision: Decision | None = None, *, comparison: Comparison | None = None) -> Path:
    """The page as a file; raises `ReportError`. A page that was there stays whole until the new one is."""
    beside = page.with_name(f"{page.name}.new")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(_stream(report, decision, comparison))
        return beside.replace(page)
    except OSError as error:
        raise ReportError(f"{page}: cannot be written: {error.strerror}") from error


def _stream(report: Report, decision: Decision | None, comparison: Comparison | None) -> TemplateStream:
    metrics, seen = report.metrics, _Seen()
    blocks = tuple(payload.blocks(report, seen.add))
    comparison = comparison or (decision.comparison if decision else None)
    styles = tuple(Markup(source(name)) for name in STYLES)
    scripts = (*(Markup(source(name)) for name in SCRIPTS), Markup(_trials_script()))
    scenarios = _scenarios(metrics.scenarios)
    broken = seen.broken
    shown = panels.of(report)
    page = (
        environment()
        .get_template("report.html.j2")
        .stream(
            report=report,
            metrics=metrics,
            total=metrics.total,
            decision=decision,
            words=words,
            links=links,
            symbols=words.SYMBOLS,
            definitions=DEFINITIONS,
            styles=styles,
            scripts=scripts,
            policy=_policy(styles, scripts),
            verdict=_verdict(report, decision),
            headline=_headline(report, decision),
            meta=_meta(report),
            ends=_ends(metrics.total),
            expected_failures=metrics.total.trials["failed"] + metrics.total.trials["errored"] - len(report.unexpected),
            notes=tuple(_notes(report, seen)),
            heroes=_heroes(metrics.total),
            numbers=tuple(_numbers(metrics.total)),
            broken=broken[:MAX_BROKEN],
            broken_left_out=max(len(broken) - MAX_BROKEN, 0),
            changes=None if comparison is None else _changes(comparison),
            comparison=comparison,
            classes=_classes(report),
            yardsticks=[words.YARDSTICKS[row.name] for row in metrics.baselines],
            graph=shown.graph,
            heat=shown.heat,
            incidents=shown.incidents,
            coverage=shown.coverage,
            agents=shown.agents,
            flaky=[row for row in scenarios if row.flaky][:MAX_SCENARIOS],
            failing=[row for row in scenarios[:MAX_SCENARIOS] if _bad(row)],
            faultless=[row for row in scenarios[:MAX_SCENARIOS] if not _bad(row)],
            trials_of=_trials,
            one_file=_one_file(metrics.scenarios),
            scenarios_left_out=max(len(scenarios) - MAX_SCENARIOS, 0),
            blocks=blocks,
            trials_file=TRIALS,
            summary_file=SUMMARY,
        )
    )
    page.enable_buffering(64)
    return page


def _trials_script() -> str:
    """The parts as one script, whose names nobody else sees."""
    return "\n".join(('"use strict";', "{", *map(source, PARTS), "}"))


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Nothing is loaded, and nothing runs but our own styles and scripts, known by their hashes."""
    looks, runs = (" ".join(map(hash_source, texts)) for texts in (styles, scripts))
    return f"default-src 'none'; style-src {looks}; script-src {runs}; base-uri 'none'; form-action 'none'"


# The top of the page.


def _verdict(report: Report, decision: Decision | None) -> Status:
    if decision is not None:
        return "passed" if decision.passed else "failed"
    return "failed" if report.unexpected or not report.metrics.total.ran else "passed"


def _headline(report: Report, decision: Decision | None) -> str:
    """How the trials ended; where the gate sees it otherwise, that comes first."""
    told = words.headline(report)
    if decision is None or not report.metrics.total.ran or decision.passed != bool(report.unexpected):
        return told
    return f"Gate {'open' if decision.passed else 'closed'}: {told[0].lower()}{told[1:]}"


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


# What is seen of every trial, once.


@dataclass(slots=True, kw_only=True)
class _Broken:
    """Trials of one scenario that went wrong in the same way."""

    scenario: str
    status: Status
    wrong: payload.Wrong
    user: str
    """What the user said in the turn; empty where no turn is to blame."""
    lane: list[tuple[str | None, str | None, bool]]
    """The turn's route about the first place that is wrong."""
    before: bool
    """The route has more places before these."""
    after: bool
    first: OutcomeKey
    count: int = 0
    models: dict[str, None] = field(default_factory=dict)

    @property
    def link(self) -> str:
        """To the turn in the first of them."""
        return links.to_trial(self.first, self.wrong.turn)

    @property
    def others(self) -> str:
        """To all trials of the scenario that are not as expected."""
        return links.to_trials(scenario=self.first[:2], status="unexpected")


@dataclass(slots=True)
class _Seen:
    """What the top of the page says of single trials, gathered as they pass by."""

    groups: dict[tuple[object, ...], _Broken] = field(default_factory=dict)
    ignored: Counter[tuple[str, ...]] = field(default_factory=Counter)
    parted: list[tuple[str, str]] = field(default_factory=list)
    """Text and link of the first trials that left their recording."""
    parted_count: int = 0

    def add(self, outcome: Outcome) -> None:
        """See one trial."""
        if outcome.ignored:
            self.ignored[outcome.ignored] += 1
        if outcome.parted is not None:
            self.parted_count += 1
            if len(self.parted) < MAX_NOTED:
                told = payload.cut(words.one_line(f"{outcome.scenario}: {outcome.parted}"), payload.MAX_BRIEF)
                self.parted.append((told, links.to_trial(outcome, outcome.parted.turn)))
        wrong = None if outcome.ok else payload.first_wrong(outcome)
        if wrong is None:
            return
        key = (outcome.file, outcome.scenario, wrong.turn, wrong.check, wrong.actual)
        group = self.groups.get(key)
        if group is None:
            lane = _lane(outcome, wrong)
            start, end = _window(lane)
            group = self.groups[key] = _Broken(
                scenario=outcome.scenario,
                status=outcome.status,
                wrong=wrong,
                user=_user(outcome, wrong),
                lane=lane[start:end],
                before=start > 0,
                after=end < len(lane),
                first=outcome.key,
            )
        group.count += 1
        group.first = min(group.first, outcome.key)
        group.models[words.model_name(outcome.target, outcome.model)] = None

    @property
    def broken(self) -> list[_Broken]:
        """What broke most often first; errors, which are no wrong routes, last."""
        return sorted(self.groups.values(), key=lambda group: (group.status == "errored", -group.count, group.first))


def _user(outcome: Outcome, wrong: payload.Wrong) -> str:
    said = outcome.users or tuple(turn.user for turn in (outcome.trace.turns if outcome.trace else ()))
    return words.one_line(said[wrong.turn - 1][: payload.MAX_TEXT]) if wrong.turn and wrong.turn <= len(said) else ""


def _lane(outcome: Outcome, wrong: payload.Wrong) -> list[tuple[str | None, str | None, bool]]:
    """The turn's route, where it is the route that went wrong."""
    turns = outcome.trace.turns if outcome.trace else ()
    if wrong.turn is None or wrong.turn > len(turns) or outcome.status == "errored":
        return []
    return payload.lane(turns[wrong.turn - 1], [each for each in outcome.verdicts if each.turn == wrong.turn])


def _window(lane: Sequence[tuple[str | None, str | None, bool]]) -> tuple[int, int]:
    """The places to show, as far as the first that is wrong."""
    wrong = next((place for place, (_, _, ok) in enumerate(lane) if not ok), None)
    end = min(MAX_PLACES, len(lane)) if wrong is None else wrong + 1
    return max(0, end - MAX_PLACES), end


@dataclass(frozen=True, slots=True)
class _Note:
    text: str
    links: tuple[tuple[str, str], ...] = ()
    """Texts, and where they lead."""


def _notes(report: Report, seen: _Seen) -> Iterator[_Note]:
    if report.run.partial:
        yield _Note("Partial run: it ended before every planned trial had finished.")
    if words.uses_keyword(report.metrics):
        yield _Note(words.KEYWORD_NOTE)
    if report.metrics.total.replayed:
        yield _Note(words.replayed_note(report.metrics.total))
    if seen.parted:
        more = f" (the first {MAX_NOTED})" if seen.parted_count > MAX_NOTED else ""
        count = words.counted(seen.parted_count, "trial")
        yield _Note(f"Live from where the recording did not match: {count}{more}.", tuple(seen.parted))
    for rules, trials in seen.ignored.most_common(MAX_NOTED):
        told = payload.cut(", ".join(rules), payload.MAX_BRIEF)
        yield _Note(f"Ignored where requests differ from recordings ({words.counted(trials, 'trial')}): {told}")


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
    return (
        _of_rate("Routing accuracy", total.accuracy, "turns"),
        _of_rate("Scenario pass rate", total.pass_rate, "scenarios"),
    )


def _numbers(total: Numbers) -> Iterator[_Number]:
    yield _of_rate("accuracy, errors counted as wrong", total.accuracy_with_errors, "turns")
    yield _of_rate("accuracy, given a right start", total.accuracy_right_start, "turns")
    for k, rate in list(total.pass_hat_k.items())[-1:]:
        yield _of_rate(f"pass^{k}", rate, "scenarios")
        yield _of_rate(f"pass@{k}", total.pass_at_k[k], "scenarios")
    yield _of_rate("flaky scenarios", total.flaky, "scenarios")
    yield _of_rate("errored trials", total.errored, "trials")
    yield _of_rate("hop precision", total.hop_precision, "handoffs")
    yield _of_rate("hop recall", total.hop_recall, "handoffs")
    yield _of_rate("hop F1", total.hop_f1, "handoffs, made and expected")
    yield _of_rate("changes of agent between turns", total.switching, "boundaries")
    yield _of_rate("changes of agent expected", total.switching_expected, "boundaries")
    yield _of_rate("bounces", total.bounce, "three turns in a row")
    yield _of_rate("bounces expected", total.bounce_expected, "three turns in a row")
    yield _of_rate("model calls off the route", total.wrong_route_calls, "calls")
    yield _Number("model calls", f"{total.model_calls:,}", "", DEFINITIONS["model_calls"])
    for name, tokens in (("tokens in", total.input_tokens), ("tokens out", total.output_tokens)):
        unknown = f", unknown for {tokens.unknown:,}" if tokens.unknown else ""
        yield _Number(name, words.amount(tokens), f"{words.counted(tokens.known, 'call')}{unknown}", tokens.definition)
    cost = total.cost
    if cost.value is not None:
        unknown = f", unknown for {cost.unknown:,}" if cost.unknown else ""
        yield _Number(
            "cost",
            words.cost(cost).removeprefix("cost "),
            f"{words.counted(cost.known, 'call')}{unknown}",
            cost.definition,
        )
    times = total.latency
    if times.median is not None and times.p95 is not None and times.longest is not None:
        beside = f"95th percentile {words.seconds(times.p95)}, longest {words.seconds(times.longest)}"
        yield _Number("latency, median", words.seconds(times.median), beside, times.definition)


@dataclass(frozen=True, slots=True)
class _Class:
    """Accuracy of the turns of which the same is asked, here and of the baselines."""

    name: str
    rate: Rate
    baselines: tuple[Rate, ...]


def _classes(report: Report) -> list[_Class]:
    total, baselines = report.metrics.total, report.metrics.baselines
    rows = [_Class("every turn", total.accuracy, tuple(row.accuracy for row in baselines))]
    beside = [words.classes(row) for row in baselines]
    for place, (name, rate) in enumerate(words.classes(total)):
        rows.append(_Class(name, rate, tuple(classes[place][1] for classes in beside)))
    return rows


# Changes and scenarios.


@dataclass(frozen=True, slots=True)
class _Change:
    """Scenarios that changed in the same way."""

    name: Change
    count: int
    rows: tuple[tuple[ScenarioChange, str], ...]
    """Scenarios, and the links to their trials; none where there are none in this run."""


def _changes(comparison: Comparison) -> list[_Change]:
    found = []
    for change in CHANGES:
        rows = comparison.of(change)
        shown = () if change == "unchanged" else rows[:MAX_CHANGES]
        found.append(
            _Change(change, len(rows), tuple((row, "" if change == "gone" else _trials(row)) for row in shown))
        )
    return [change for change in found if change.count]


def _trials(row: ScenarioChange | ScenarioNumbers) -> str:
    """The link to the trials of a scenario on a model."""
    target = None if row.target == "chatflow" else row.target
    return links.to_trials(scenario=(row.file, row.scenario), model=row.model, target=target)


def _scenarios(scenarios: Sequence[ScenarioNumbers]) -> list[ScenarioNumbers]:
    """The worst first."""

    def goodness(row: ScenarioNumbers) -> tuple[float, int]:
        bad = _bad(row)
        return (row.trials["passed"] / (row.trials["passed"] + bad) if bad else 1.0, -row.incidents)

    return sorted(scenarios, key=goodness)


def _bad(row: ScenarioNumbers) -> int:
    """How many of its trials failed or errored."""
    return row.trials["failed"] + row.trials["errored"]


def _one_file(scenarios: Sequence[ScenarioNumbers]) -> str:
    """The scenario file, when there is one only."""
    files = {row.file for row in scenarios}
    return files.pop() if len(files) == 1 else ""
