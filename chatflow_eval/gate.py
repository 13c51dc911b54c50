"""Thresholds against a report: may it pass?"""

from __future__ import annotations

from dataclasses import dataclass

from chatflow_eval.metrics import Rate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report

NAMED = 3
"""How many failing trials the reason of a closed gate names."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule of a gate, the number it looked at, and what it made of it."""

    name: str
    threshold: str
    actual: str
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate made of a report, rule by rule; it opens when every rule passes."""

    rules: tuple[RuleResult, ...]

    @property
    def passed(self) -> bool:
        """True when the gate opens."""
        return all(rule.passed for rule in self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Floors and ceilings; without any, every scenario must pass."""

    min_accuracy: float | None = None
    """Routing accuracy, between 0 and 1."""
    max_loops: int | None = None
    max_limit_hits: int | None = None
    max_errors: int | None = None
    """Trials that errored."""

    def __post_init__(self) -> None:
        if self.min_accuracy is not None and not 0 <= self.min_accuracy <= 1:
            raise ValueError(f"min_accuracy is a rate between 0 and 1, not {self.min_accuracy:g}")
        for name in ("max_loops", "max_limit_hits", "max_errors"):
            ceiling = getattr(self, name)
            if ceiling is not None and ceiling < 0:
                raise ValueError(f"{name} is a count of 0 or more, not {ceiling}")

    def decide(self, report: Report) -> Decision:
        """Hold the report against every rule."""
        total = report.metrics.total
        rules = []
        if self.min_accuracy is not None:
            rules.append(_floor("routing accuracy", self.min_accuracy, total.accuracy))
        for name, ceiling, count in (
            ("loops", self.max_loops, total.incident("loop").count),
            ("limit hits", self.max_limit_hits, total.incident("limit_hit").count),
            ("errored trials", self.max_errors, total.trials["errored"]),
        ):
            if ceiling is not None:
                rules.append(_ceiling(name, ceiling, count, ran=total.ran))
        return Decision(tuple(rules) or (_all_pass(report),))


def _floor(name: str, floor: float, rate: Rate) -> RuleResult:
    threshold = f">= {floor:g}"
    if rate.value is None:
        return RuleResult(name, threshold, "n/a", False, f"{name}: nothing judged, so it cannot be {threshold}")
    actual = f"{rate.value:.4g} ({rate.numerator:.0f}/{rate.denominator})"
    passed = rate.value >= floor
    return RuleResult(name, threshold, actual, passed, f"{name}: {actual} is {'' if passed else 'not '}{threshold}")


def _ceiling(name: str, ceiling: int, count: int, *, ran: int) -> RuleResult:
    threshold = f"<= {ceiling}"
    if not ran:
        return RuleResult(name, threshold, "n/a", False, f"{name}: nothing judged, so it cannot be {threshold}")
    passed = count <= ceiling
    return RuleResult(name, threshold, str(count), passed, f"{name}: {count} is {'' if passed else 'not '}{threshold}")


def _all_pass(report: Report) -> RuleResult:
    """Every trial passed, was skipped, or failed as its author expects; and some trial ran."""
    name, threshold, ran = "scenarios", "all pass", report.metrics.total.ran
    if not ran:
        return RuleResult(name, threshold, "n/a", False, f"{name}: nothing judged, so they cannot {threshold}")
    bad = len(report.unexpected)
    actual = f"{ran - bad} of {ran} trials as expected"
    if not bad:
        return RuleResult(name, threshold, actual, True, f"{name}: {actual}")
    named = ", ".join(_name(report.outcomes[index]) for index in report.unexpected[:NAMED])
    more = f" and {bad - NAMED} more" if bad > NAMED else ""
    return RuleResult(name, threshold, actual, False, f"{name}: {actual}; not {named}{more}")


def _name(outcome: Outcome) -> str:
    return f"{outcome.scenario} ({outcome.model}, repeat {outcome.repeat}: {outcome.status})"
