"""The words that every writer uses for the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chatflow_eval.checks import Verdict
from chatflow_eval.incidents import KINDS, Incident, IncidentKind
from chatflow_eval.metrics import Amount, Latency, Metrics, Numbers, Rate
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.trace import Failure

SYMBOLS: dict[Status, str] = {"passed": "✓", "failed": "✗", "errored": "!", "skipped": "○"}

KEYWORD_NOTE = "Model `keyword` is no language model: it matches words, and serves as a baseline."

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters, which could steer a terminal or turn a line around, as escapes."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def one_line(text: str) -> str:
    """The text printable, and in one line."""
    return printable(" ".join(text.split()))


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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


def latency(times: Latency) -> str:
    """Median and 95th percentile."""
    if times.median is None or times.p95 is None:
        return "latency unknown"
    return f"{seconds(times.median)} each (95th percentile {seconds(times.p95)})"


def seconds(value: float) -> str:
    """Seconds with a unit that suits them."""
    if value < 0.001:
        return "less than 1 ms"
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"


def incident_name(kind: IncidentKind) -> str:
    """The kind in words."""
    return kind.replace("_", " ")


def severity(incident: Incident) -> int:
    """The place of its kind, those that fail a scenario first."""
    return KINDS.index(incident.kind)


def trial_name(outcome: Outcome) -> str:
    """Scenario, model and repeat."""
    return one_line(f"{outcome.scenario} [{model_name(outcome.target, outcome.model)}, repeat {outcome.repeat}]")


def model_name(target: str, model: str) -> str:
    """The model, with its target where that is not the reference runtime."""
    return one_line(model if target == "chatflow" else f"{target}: {model}")


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
    return f"Answers of {which} were replayed: their tokens and latencies are recorded values."


def failure(found: Failure, turn: int | None) -> str:
    """What stopped an errored trial, and where."""
    code = f", HTTP {found.status_code}" if found.status_code is not None else ""
    place = f" in turn {turn}" if turn else ""
    return one_line(f"{found.exception} ({found.kind}{code}){place}: {found.message}")
