"""A report as a summary for terminals and pipes: the verdict, what failed, the numbers, and where to read more."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TextIO, get_args

from chatflow_eval.checks import Verdict
from chatflow_eval.comparison import CHANGES, Comparison
from chatflow_eval.gate import Decision
from chatflow_eval.history import PastRun
from chatflow_eval.incidents import KINDS, IncidentKind
from chatflow_eval.metrics import Numbers, Rate
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import PAGE, Report
from chatflow_eval.scenario import REFERENCE, Framework
from chatflow_eval.trial import DECLARED
from chatflow_eval.writers import links, words
from chatflow_eval.writers.screen import GLUE, Screen, columns

SHOWN_SCENARIOS, SHOWN_IN_FULL, SHOWN_REASONS, SHOWN_EDITS = 6, 2, 3, 3
SHOWN_INCIDENTS, SHOWN_MODELS, SHOWN_CHANGES, SHOWN_REGRESSED = 3, 6, 10, 3

MAX_WHY = 2_000
"""Characters of an error that are looked at."""

PLAIN = Screen()

ALL_PASS = "all pass"
"""What the gate wants of the scenarios where it has no rules."""


def show(report: Report, stream: TextIO, decision: Decision | None = None, notes: Sequence[str] = ()) -> None:
    """Write the summary to a stream, laid out for what that is."""
    screen = Screen.of(stream)
    screen.write(render(report, decision, screen=screen, notes=notes).splitlines(), stream)


def show_gate(decision: Decision, stream: TextIO) -> None:
    """Write the gate's rules, each with the number it looked at, to a stream."""
    screen = Screen.of(stream)
    screen.write(list(_gate(decision, screen)), stream)


def show_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Write what changed between two runs to a stream."""
    screen = Screen.of(stream)
    screen.write(list(_comparison(comparison, screen)), stream)


def show_history(runs: Sequence[PastRun], stream: TextIO) -> None:
    """Write a table of runs, the oldest first, to a stream."""
    screen = Screen.of(stream)
    screen.write(list(_history(runs, screen)), stream)


def render(
    report: Report, decision: Decision | None = None, *, screen: Screen = PLAIN, notes: Sequence[str] = ()
) -> str:
    """The summary as text, about thirty lines; `notes` are said before where the report is."""
    found = _Unexpected.of(report)
    sections = [
        _head(report, decision, screen),
        _failures(report, found, screen),
        _recordings("Stale recordings", found.stale, "--only-stale", screen),
        _recordings("Not recorded", found.missing, "--missing", screen),
        _changes(decision, screen),
        _incidents(report, screen),
        _numbers(report.metrics.total, screen),
        _beside_baselines(report, screen),
        _models(report, screen),
        _rules(decision, screen),
        _notes(report, found, notes, screen),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _head(report: Report, decision: Decision | None, screen: Screen) -> Iterator[str]:
    total = report.metrics.total
    verdict = words.headline(report)
    passed = not report.unexpected and total.ran > 0
    if decision is not None:
        passed = decision.passed
        verdict = f"Gate {'open' if passed else 'closed'}: {verdict[0].lower()}{verdict[1:]}"
    first, *more = screen.lines(verdict, indent=2)
    yield f"{screen.sign(_status(passed))} {screen.paint(first.lstrip(), 'heading')}"
    yield from more
    trials, scenarios = words.counted(sum(total.trials.values()), "trial"), words.counted(total.scenarios, "scenario")
    counts = {status: count for status, count in total.trials.items() if count or status == "passed"}
    for line in screen.lines(f"{trials} of {scenarios}: {_ends(counts)}", indent=2):
        yield line.replace(_ends(counts), _ends(counts, screen))
    expected = total.trials["failed"] + total.trials["errored"] - len(report.unexpected)
    if expected:
        yield from screen.lines(f"{words.counted(expected, 'trial')} failed as expected (xfail)", indent=2)
    if report.run.partial:
        note = "Partial run: it was stopped before every planned trial had finished."
        yield from (screen.paint(line, "errored") for line in screen.lines(note, indent=2))


def _ends(counts: Mapping[Status, int], screen: Screen = PLAIN) -> str:
    return ", ".join(screen.paint(f"{count:,} {status}", status) for status, count in counts.items())


# What is not as expected.


@dataclass(slots=True)
class _Group:
    """The trials of one scenario that are not as expected."""

    place: tuple[str, int, str, str, str, int]
    index: int
    """Of the outcome that stands for the others."""
    trials: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many of each target and model."""


@dataclass(slots=True)
class _Unexpected:
    """All that is not as expected, in groups; holds no trace, so that a large run's fit into memory."""

    groups: dict[tuple[str, str], _Group] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    stale: dict[str, list[Outcome]] = field(default_factory=dict)
    """By the edit that made the recordings stale."""
    missing: dict[str, list[Outcome]] = field(default_factory=dict)
    first: Outcome | None = None
    """In order of file and line."""

    @classmethod
    def of(cls, report: Report) -> _Unexpected:
        found = cls()
        for index in report.unexpected:
            found._add(report.outcomes[index], index)
        return found

    def _add(self, outcome: Outcome, index: int) -> None:
        light = replace(outcome, trace=None, verdicts=(), incidents=(), demands=())
        place = words.order(outcome)
        if self.first is None or place < words.order(self.first):
            self.first = light
        failure = outcome.failure
        if failure is not None and failure.edit is not None:
            self.stale.setdefault(failure.edit, []).append(light)
        elif failure is not None and failure.exception == "CassetteMissing":
            self.missing.setdefault("", []).append(light)
        else:
            group = self.groups.setdefault((outcome.file, outcome.scenario), _Group(place, index))
            if place < group.place:
                group.place, group.index = place, index
            group.trials[outcome.target, outcome.model] += 1
            self.reasons[_reason(outcome)] += 1


def _reason(outcome: Outcome) -> str:
    """What many trials may share."""
    if outcome.failure is not None:
        return outcome.failure.exception
    verdict = words.first_failed(outcome.verdicts)
    parting = None if verdict is None else next((place for place in verdict.alignment if not place.ok), None)
    if parting is not None:
        return f"{parting.expected or 'nobody'} expected and {parting.actual or 'nobody'} came"
    return outcome.status if verdict is None else verdict.check


def _failures(report: Report, found: _Unexpected, screen: Screen) -> Iterator[str]:
    """The first scenarios that are not as expected, in order of file and line, and what the others share."""
    if not found.groups:
        return
    groups = sorted(found.groups.values(), key=lambda group: group.place)
    tried = Counter[tuple[str, str, str, str]]()
    for row in report.metrics.scenarios:
        tried[row.file, row.scenario, row.target, row.model] = sum(row.trials.values())
    yield screen.paint("Not as expected", "heading") + f"  {words.counted(len(groups), 'scenario')}, {_trials(groups)}"
    for group in groups[:SHOWN_SCENARIOS]:
        outcome = report.outcomes[group.index]
        yield from _failure(outcome, group, tried, screen, in_full=len(groups) <= SHOWN_IN_FULL)
    if len(groups) > SHOWN_SCENARIOS:
        left = groups[SHOWN_SCENARIOS:]
        more = f"… and {words.counted(len(left), 'more scenario')}, {_trials(left)}: see the report"
        yield from screen.lines(more, indent=2)
        common = (f"{reason} ({count:,})" for reason, count in found.reasons.most_common(SHOWN_REASONS))
        yield from screen.lines(f"of all, most often: {', '.join(common)}", indent=2, hanging=2)


def _trials(groups: Iterable[_Group]) -> str:
    return words.counted(sum(group.trials.total() for group in groups), "trial")


def _failure(
    outcome: Outcome,
    group: _Group,
    tried: Mapping[tuple[str, str, str, str], int],
    screen: Screen,
    *,
    in_full: bool,
) -> Iterator[str]:
    verdict = words.first_failed(outcome.verdicts)
    ran = (
        f"{words.model_name(*who)}{_of(count, tried[(outcome.file, outcome.scenario, *who)])}"
        for who, count in group.trials.items()
    )
    turn = outcome.failed_turn if outcome.status == "errored" else verdict.turn if verdict is not None else None
    places = [] if outcome.file.startswith("<") else [f"{outcome.file}:{outcome.line}"]
    if turn:
        places.append(f"turn{GLUE}{turn}")
    name = f"{outcome.scenario} [{', '.join(ran)}] {', '.join(places)}"
    named = screen.lines(name, indent=4, hanging=2, at_most=3)
    yield f"  {screen.sign(outcome.status)} {next(named).lstrip()}"
    yield from named
    if in_full and turn and len(outcome.users) >= turn:
        yield screen.fit(f"      user      {screen.plain(outcome.users[turn - 1][: screen.width * 8])}", screen.width)
    if outcome.status == "errored" or verdict is None:
        yield from _errored(outcome, screen)
        return
    if in_full or not verdict.alignment:
        yield from screen.lines(f"{verdict.check}: {verdict.why}", indent=6)
    if verdict.alignment:
        yield from _lanes(verdict, screen)


def _of(count: int, tried: int) -> str:
    return "" if tried == 1 else f" {count:,}/{tried:,}"


def _errored(outcome: Outcome, screen: Screen) -> Iterator[str]:
    """Why it could not be judged; the command that records it anew is there to be copied, whatever its length."""
    *told, last = outcome.why[:MAX_WHY].split("; ")
    command = "chatflow-eval record" in last
    yield from screen.lines("; ".join(told if command else [*told, last]), indent=6, at_most=4)
    if command:
        yield f"      {screen.plain(last)}"


_ARROW = re.compile(" (->|=>) ")
_NOBODY = "nobody"


def _lanes(verdict: Verdict, screen: Screen) -> Iterator[str]:
    """The expected route and the actual one below it, both with the place where they part in brackets."""
    places = verdict.alignment
    parting = next((index for index, place in enumerate(places) if not place.ok), len(places))
    sides: tuple[tuple[str, str, Iterable[str | None], Status], ...] = (
        ("expected", verdict.expected, (place.expected for place in places), "passed"),
        ("actual", verdict.actual, (place.actual for place in places), "failed"),
    )
    for name, route, stops, status in sides:
        plain = [None if stop is None else screen.plain(stop) for stop in stops]
        yield f"      {name:<10}{_shown(_lane(screen.plain(route), plain, parting), screen, status)}"


def _lane(route: str, stops: Sequence[str | None], parting: int) -> tuple[str, str, str]:
    """A route, parted before and behind the stop at `parting`.

    A pattern that is not written stop by stop stays as it is written, and is not parted where it names the stop twice.
    """
    named = [stop for stop in stops if stop is not None]
    names, arrows = _ARROW.split(route)[::2], _ARROW.split(route)[1::2]
    if names != named:
        stop = stops[parting] if parting < len(stops) else None
        once = stop if stop is not None and route.count(stop) == 1 else None
        before, mark, after = route.partition(once) if once else (route, "", "")
        return before, f"[{mark}]" if mark else "", after
    before, mark, after = "", "", ""
    signs = iter(["", *(f" {arrow} " for arrow in arrows)])
    for index, stop in enumerate(stops):
        if index == parting:
            before += next(signs) if stop is not None else " -> " if before else ""
            mark = f"[{_NOBODY if stop is None else stop}]"
        elif stop is not None:
            sign = next(signs) or (" -> " if mark else "")
            before, after = (before, f"{after}{sign}{stop}") if mark else (f"{before}{sign}{stop}", after)
    return before, mark, after


def _shown(lane: tuple[str, str, str], screen: Screen, status: Status) -> str:
    """The lane in its colours, cut on both sides of the brackets where it is long."""
    before, mark, after = lane
    room = screen.width - 16
    if not mark:
        return screen.fit(before, room)
    end = len(screen.encodable("…")) if after else 0
    mark = screen.fit(mark, room - end)
    before = screen.fit_end(before, room - end - columns(mark))
    return f"{before}{screen.paint(mark, status)}{screen.fit(after, room - columns(before + mark))}"


def _recordings(heading: str, causes: Mapping[str, list[Outcome]], which: str, screen: Screen) -> Iterator[str]:
    """Recordings that do not serve, grouped by what made them so, and the command that makes them anew."""
    if not causes:
        return
    yield screen.paint(heading, "heading")
    for cause, outcomes in list(causes.items())[:SHOWN_EDITS]:
        yield from screen.lines(cause, indent=2, at_most=3)
        names = ", ".join(dict.fromkeys(outcome.scenario for outcome in outcomes))
        yield from screen.lines(f"{words.counted(len(outcomes), 'trial')}: {names}", indent=4 if cause else 2)
    if len(causes) > SHOWN_EDITS:
        yield screen.encodable(f"  … and {words.counted(len(causes) - SHOWN_EDITS, 'more edit')}")
    # Commands are there to be copied, whatever their length.
    for command in _commands(chain.from_iterable(causes.values()), which):
        yield f"  record{' again' if which == '--only-stale' else ''} with: {screen.plain(command)}"


def _commands(outcomes: Iterable[Outcome], which: str) -> Iterator[str]:
    """What records these trials: a command for all files whose trials ran on the same models and frameworks."""
    models: dict[str, dict[str, None]] = {}
    targets: dict[str, dict[str, None]] = {}
    repeats: Counter[str] = Counter()
    for outcome in outcomes:
        models.setdefault(outcome.file, {})[outcome.model] = None
        targets.setdefault(outcome.file, {})[outcome.target] = None
        repeats[outcome.file] = max(repeats[outcome.file], outcome.repeat)
    files: dict[tuple[str, ...], list[str]] = {}
    for file in sorted(models):
        options = (
            *_chosen("--model", models[file], DECLARED),
            *_chosen("--framework", targets[file], REFERENCE),
            *(("--repeats", str(repeats[file])) if repeats[file] > 1 else ()),
        )
        files.setdefault(options, []).append(file)
    for options, named in files.items():
        yield shlex.join(["chatflow-eval", "record", *named, which, *options])


def _chosen(option: str, choices: Iterable[str], default: str) -> Iterator[str]:
    """The option once for each choice; not at all where a file alone can choose: a model for each agent, a service."""
    named = list(choices)
    if named != [default] and not any("=" in name for name in named):
        for name in named:
            if option == "--model" or name in get_args(Framework):
                yield from (option, name)


# Against the baseline, incidents, numbers.


def _changes(decision: Decision | None, screen: Screen) -> Iterator[str]:
    """What became of the suite since the baseline, where there is one."""
    comparison = None if decision is None else decision.comparison
    if comparison is None:
        return
    counts = ", ".join(f"{count:,} {change}" for change, count in comparison.counts.items() if count)
    yield screen.paint("Against the baseline", "heading") + f"  {counts or 'nothing to compare'}"
    yield from screen.lines(f"routing accuracy: {words.difference(comparison.accuracy)}", indent=2, hanging=2)
    worse = comparison.of("regressed", "gone")
    if worse:
        more = f" and {len(worse) - SHOWN_REGRESSED:,} more" if len(worse) > SHOWN_REGRESSED else ""
        names = (f"{row.scenario} {row.change}" for row in worse[:SHOWN_REGRESSED])
        yield from screen.lines(f"worse: {', '.join(names)}{more}", indent=2, hanging=2)


@dataclass(slots=True)
class _Kind:
    """All incidents of one kind."""

    example: str
    """What the first one says."""
    count: int = 0
    model_calls: int = 0
    tokens: int | None = 0


def _incidents(report: Report, screen: Screen) -> Iterator[str]:
    """A line for each of the worst kinds: how often, what they cost together, and one of them."""
    kinds: dict[IncidentKind, _Kind] = {}
    for index in report.with_incidents:
        for incident in report.outcomes[index].incidents:
            kind = kinds.setdefault(incident.kind, _Kind(incident.message))
            kind.count += 1
            kind.model_calls += incident.model_calls
            kind.tokens = None if kind.tokens is None or incident.tokens is None else kind.tokens + incident.tokens
    if not kinds:
        return
    yield screen.paint("Incidents", "heading")
    worst = sorted(kinds, key=KINDS.index)
    for name in worst[:SHOWN_INCIDENTS]:
        kind = kinds[name]
        cost = ""
        if kind.model_calls:
            tokens = f", {words.counted(kind.tokens, 'token')}" if kind.tokens else ""
            cost = f" ({words.counted(kind.model_calls, 'call')}{tokens})"
        told = screen.plain(f"{words.incident_name(name)} {kind.count:,}{cost}: {kind.example}")
        yield screen.fit(f"  {told}", screen.width)
    if others := worst[SHOWN_INCIDENTS:]:
        listed = ", ".join(f"{words.incident_name(name)} {kinds[name].count:,}" for name in others)
        yield from screen.lines(f"also {listed}", indent=2)


def _numbers(numbers: Numbers, screen: Screen) -> Iterator[str]:
    yield screen.paint("Numbers", "heading") + "  (with 95 % intervals)"
    rates = [("routing accuracy", numbers.accuracy, "turns")]
    if numbers.turns_errored or numbers.turns_unreached:
        rates.append(("  errors counted as wrong", numbers.accuracy_with_errors, "turns"))
    if numbers.accuracy_right_start.denominator < numbers.accuracy.denominator:
        rates.append(("  given a right start", numbers.accuracy_right_start, "turns"))
    rates.append(("scenario pass rate", numbers.pass_rate, "scenarios"))
    rates += [(f"  pass^{k}", rate, "scenarios") for k, rate in list(numbers.pass_hat_k.items())[-1:]]
    rows = [(name, words.percent(rate.value), _fraction(rate, unit), _interval(rate)) for name, rate, unit in rates]
    yield from screen.table(rows, "<><<")
    spent = [words.counted(numbers.model_calls, "model call"), words.tokens(numbers), words.latency(numbers.latency)]
    if numbers.cost.value:
        spent.append(words.cost(numbers.cost))
    yield from screen.lines(", ".join(spent), indent=2, at_most=4)


def _beside_baselines(report: Report, screen: Screen) -> Iterator[str]:
    """By what turns ask for, beside both yardsticks, where they were asked for."""
    yardsticks = report.metrics.baselines
    if not any(row.name == "keyword" for row in yardsticks):
        return
    yield screen.paint("Routing accuracy beside the baselines", "heading")
    total = report.metrics.total
    sides = [("", total.accuracy, words.classes(total))]
    sides += [(words.YARDSTICKS[row.name], row.accuracy, words.classes(row)) for row in yardsticks]
    rows = [("every turn", *(words.percent(accuracy.value) for _, accuracy, _ in sides), total.accuracy.denominator)]
    for place, (name, rate) in enumerate(words.classes(total)):
        shares = (words.percent(classes[place][1].value) for *_, classes in sides)
        rows.append((f"  {name}", *shares, rate.denominator))
    head = ("", "here", *(name for name, *_ in sides[1:]), "turns")
    yield from screen.table(rows, f"<{'>' * (len(head) - 1)}", head)


def _comparison(comparison: Comparison, screen: Screen) -> Iterator[str]:
    counts = [f"{count} {change}" for change, count in comparison.counts.items() if count]
    yield f"{words.counted(len(comparison.scenarios), 'scenario')}: {', '.join(counts) or 'none'}"
    yield ""
    for name, difference in (("routing accuracy", comparison.accuracy), ("trials that pass", comparison.passing)):
        yield from screen.lines(f"{name}: {words.difference(difference)}", indent=2, at_most=3)
    for change in CHANGES[:-1]:
        rows = comparison.of(change)
        if rows:
            yield ""
            yield screen.paint(change.capitalize(), "heading")
            for row in rows[:SHOWN_CHANGES]:
                sides = f"{words.side(row.base)} to {words.side(row.run)}"
                told = f"{row.scenario} [{words.model_name(row.target, row.model)}]: {sides}; {words.certainty(row)}"
                yield from screen.lines(told.rstrip("; "), indent=2, at_most=3)
            if len(rows) > SHOWN_CHANGES:
                yield screen.encodable(f"  … and {len(rows) - SHOWN_CHANGES} more")
    if comparison.incidents:
        yield ""
        yield screen.paint("Incidents", "heading")
        for kind, (before, now) in comparison.incidents.items():
            yield f"  {kind.replace('_', ' ')}: {before} to {now}"


def _history(runs: Sequence[PastRun], screen: Screen) -> Iterator[str]:
    rows = [
        (
            screen.fit(screen.plain(run.folder.name), 24),
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
    yield from screen.table(rows, "<<>>>><", head)


def _share(rate: Mapping[str, Any] | None) -> str:
    return words.percent(rate["value"] if rate else None)


def _fraction(rate: Rate, unit: str) -> str:
    return f"{words.fraction(rate)} {unit}"


def _interval(rate: Rate) -> str:
    return "" if rate.low is None else words.interval(rate)


def _models(report: Report, screen: Screen) -> Iterator[str]:
    models = report.metrics.models
    if len(models) < 2:
        return
    yield screen.paint("By model", "heading")
    rows = [
        (
            screen.fit(screen.plain(words.model_name(row.target, row.model)), 30),
            words.percent(row.numbers.accuracy.value),
            _fraction(row.numbers.accuracy, "turns"),
            words.percent(row.numbers.pass_rate.value),
            row.numbers.incident("loop").count,
            row.numbers.trials["errored"],
        )
        for row in models[:SHOWN_MODELS]
    ]
    header = ("model", "accuracy", "", "pass rate", "loops", "errors")
    yield from screen.table(rows, "<><>>>", header)
    if len(models) > SHOWN_MODELS:
        yield screen.encodable(f"  … and {len(models) - SHOWN_MODELS} more")


def _rules(decision: Decision | None, screen: Screen) -> Iterator[str]:
    """The gate's rules, where there are any: without, it asks for what the verdict has said."""
    if decision is not None and [rule.threshold for rule in decision.rules] != [ALL_PASS]:
        yield from _gate(decision, screen)


def _gate(decision: Decision, screen: Screen) -> Iterator[str]:
    state = "open" if decision.passed else "closed"
    yield screen.paint("Gate", "heading") + "  " + screen.paint(state, _status(decision.passed))
    for rule in decision.rules:
        first, *more = screen.lines(rule.why, indent=4)
        yield f"  {screen.sign(_status(rule.passed))} {first.strip()}"
        yield from more


def _status(passed: bool) -> Status:
    return "passed" if passed else "failed"


def _notes(report: Report, found: _Unexpected, notes: Sequence[str], screen: Screen) -> Iterator[str]:
    """What is to be known of the run, and where there is more of it; links and commands whole, to be copied."""
    if words.uses_keyword(report.metrics):
        yield from screen.lines(words.KEYWORD_NOTE)
    if report.metrics.total.replayed:
        yield from screen.lines(words.replayed_note(report.metrics.total), at_most=4)
    for note in notes:
        yield from screen.lines(note, indent=len(note) - len(note.lstrip()), at_most=4)
    if report.folder is None:
        return
    page = report.folder / PAGE
    if found.first is not None:
        yield f"First failed: {screen.plain(page.resolve().as_uri() + links.to_trial(found.first))}"
    yield f"All runs: {screen.plain(shlex.join(['chatflow-eval', 'view', str(report.folder.parent)]))}"
    yield f"Report: {screen.plain(str(page))}"
