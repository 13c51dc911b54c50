"""The words that every writer uses for the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chatflow_eval import trial
from chatflow_eval.checks import Verdict
from chatflow_eval.comparison import Difference, ScenarioChange, Side
from chatflow_eval.incidents import KINDS, Incident, IncidentKind
from chatflow_eval.metrics import Amount, BaselineNumbers, Cost, Latency, Metrics, Numbers, Rate
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.quantities import counted as counted
from chatflow_eval.report import Report
from chatflow_eval.trace import Failure

SYMBOLS: dict[Status, str] = {"passed": "✓", "failed": "✗", "errored": "!", "skipped": "○"}

KEYWORD_NOTE = "`keyword` is no language model: it matches words, and serves as a baseline."

YARDSTICKS = {"keyword": "keyword", "unmoved": "never hands off again"}
"""What the baselines are called."""

REFUSALS = {
    "already_transferred": "another transfer took effect",
    "self": "it is active already",
    "not_allowed": "not one of its handoffs",
    "unregistered": "no such agent",
    "limit": "limit",
    "invalid_arguments": "invalid arguments",
    "cycle": "it waits for an answer already",
    "callback_failed": "its callback failed",
}
"""Why a handoff was refused, by its code."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters, which could steer a terminal or turn a line around, as escapes."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def one_line(text: str) -> str:
    """The text printable, and in one line."""
    return printable(" ".join(text.split()))


def headline(report: Report) -> str:
    """How many trials are not as expected."""
    ran, bad = report.metrics.total.ran, len(report.unexpected)
    if not ran:
        return "No trial ran"
    if not bad:
        return f"All {counted(ran, 'trial')} as expected" if ran > 1 else "The one trial is as expected"
    return f"{bad:,} of {counted(ran, 'trial')} not as expected"


def number(value: float) -> str:
    """A whole number as it is, another with two digits at most."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}".rstrip("0")


def percent(value: float | None) -> str:
    """A share in percent with one digit; `n/a` for that of an empty set."""
    return "n/a" if value is None else f"{100 * value:.1f} %"


def fraction(rate: Rate) -> str:
    """Numerator and denominator."""
    return f"{number(rate.numerator)}/{rate.denominator:,}"


def interval(rate: Rate) -> str:
    """The 95 % interval in percent; `n/a` for that of an empty set."""
    if rate.low is None or rate.high is None:
        return "n/a"
    return f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %"


def tokens(numbers: Numbers) -> str:
    """Tokens in and out, with how many calls did not report any."""
    if numbers.input_tokens.value is None and numbers.output_tokens.value is None:
        return "tokens unknown"
    return f"{amount(numbers.input_tokens)} tokens in, {amount(numbers.output_tokens)} out"


def amount(total: Amount) -> str:
    """A sum; `unknown` when nothing is known, `at least` when something is not."""
    if total.value is None:
        return "unknown"
    return f"at least {total.value:,}" if total.unknown else f"{total.value:,}"


def cost(total: Cost) -> str:
    """US dollars; `unknown` when nothing is known to have cost anything, `at least` when something is not known."""
    if total.value is None or (total.unknown and not total.value):
        return "cost unknown"
    return f"{'at least ' if total.unknown else ''}{total.value:.4g} USD"


def classes(numbers: Numbers | BaselineNumbers) -> tuple[tuple[str, Rate], ...]:
    """Accuracy by what turns ask for."""
    return (
        ("first to leave the start", numbers.first),
        ("change agent", numbers.switch),
        ("stay", numbers.stay),
        ("either accepted", numbers.either),
    )


def difference(found: Difference) -> str:
    """What became of a share, how likely that is by chance, and what would settle it."""
    if found.value is None or found.p is None:
        return "nothing to compare"
    shares = " to ".join(f"{100 * part / of:.1f} % ({number(part)}/{of:,})" for part, of in (found.base, found.run))
    told = f"{shares}, {100 * found.value:+.1f} points, {found.conclusion} (p = {found.p:.2g})"
    if found.more_repeats is None:
        return told
    return f"{told}; about {counted(found.more_repeats, 'more repeat')} would settle it"


def side(trials: Side) -> str:
    """How many trials passed, and what else became of others."""
    others = [f"{count} {name}" for name, count in (("errored", trials.errored), ("skipped", trials.skipped)) if count]
    return ", ".join([f"{trials.passed}/{trials.tried}", *others] if trials.tried or not others else others)


def certainty(row: ScenarioChange) -> str:
    """How sure a scenario's change is, and what else there is to know of it."""
    parts = ["edited"] if row.edited else []
    if row.change in ("improved", "regressed", "flaky") and row.p_adjusted is not None and row.p != 1.0:
        parts.append(f"p = {row.p_adjusted:.2g}")
        if not row.settled:
            more = "" if row.more_repeats is None else f": {counted(row.more_repeats, 'more repeat')} would settle it"
            parts.append(f"inconclusive{more}")
    return "; ".join([*parts, *([row.why] if row.why else [])])


def latency(times: Latency) -> str:
    """Median and 95th percentile (p95)."""
    if times.median is None or times.p95 is None:
        return "latency unknown"
    return f"{seconds(times.median)} each (p95 {seconds(times.p95)})"


def seconds(value: float) -> str:
    """Seconds with a unit that suits them."""
    if value < 0.001:
        return "less than 1 ms"
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"


def incident_name(kind: IncidentKind) -> str:
    """The kind in words."""
    return kind.replace("_", " ")


def incident_cost(incident: Incident) -> str:
    """Model calls and tokens that it took; empty where it took none."""
    if not incident.model_calls:
        return ""
    spent = "tokens unknown" if incident.tokens is None else counted(incident.tokens, "token")
    return f"{counted(incident.model_calls, 'call')}, {spent}"


def severity(incident: Incident) -> int:
    """The place of its kind, those that fail a scenario first."""
    return KINDS.index(incident.kind)


def trial_name(outcome: Outcome) -> str:
    """Scenario, model and repeat."""
    return one_line(f"{outcome.scenario} [{model_name(outcome.target, outcome.model)}, repeat {outcome.repeat}]")


def model_name(target: str, model: str) -> str:
    """The model, with its target where that is not the reference runtime."""
    return one_line(trial.model_name(target, model))


def order(outcome: Outcome) -> tuple[str, int, str, str, str, int]:
    """Where a trial stands in a report, whenever it finished."""
    return (outcome.file, outcome.line, outcome.scenario, outcome.target, outcome.model, outcome.repeat)


def first_failed(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The first verdict that failed."""
    return next((verdict for verdict in verdicts if verdict.status == "failed"), None)


def uses_keyword(metrics: Metrics) -> bool:
    """True when the built-in baseline gave answers."""
    return "keyword" in metrics.answering or any(row.model == "keyword" for row in metrics.models)


def replayed_note(total: Numbers) -> str:
    """Which tokens and times are recorded ones."""
    which = "all trials" if total.replayed == total.ran else f"{total.replayed} of {counted(total.ran, 'trial')}"
    return f"Answers of {which} were replayed: tokens are recorded values, latencies those of replaying."


def failure(found: Failure, turn: int | None) -> str:
    """What stopped an errored trial, and where."""
    code = f", HTTP {found.status_code}" if found.status_code is not None else ""
    place = f" in turn {turn}" if turn else ""
    return one_line(f"{found.exception} ({found.kind}{code}){place}: {found.message}")
