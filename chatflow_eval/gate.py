"""Thresholds and a baseline against a report: may it pass?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from chatflow_eval.comparison import Comparison, ScenarioChange, compare
from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.fields import suggestion
from chatflow_eval.incidents import KINDS
from chatflow_eval.metrics import Cost, Rate, ScenarioNumbers
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report, RuleResult
from chatflow_eval.trial import model_name

NAMED = 3
"""How many trials or scenarios the reason of a closed rule names."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate made of a report, rule by rule; it opens when every rule passes."""

    rules: tuple[RuleResult, ...]
    comparison: Comparison | None = None
    """With the baseline, where there was one."""

    @property
    def passed(self) -> bool:
        """True when the gate opens."""
        return all(rule.passed for rule in self.rules)

    @classmethod
    def kept(cls, report: Report) -> Decision | None:
        """What was decided of the report last, as its folder keeps it: the rules, without what changed."""
        return None if report.run.gate is None else cls(report.run.gate.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Floors, ceilings and a baseline; without any, every scenario must pass.

    Raises ValueError for a threshold that cannot be meant.
    """

    min_accuracy: float | None = None
    """Routing accuracy; all rates are between 0 and 1."""
    min_agent_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Agent to the routing accuracy of the turns that may end at it."""
    min_tag_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Tag to the routing accuracy of its scenarios."""
    max_loops: int | None = None
    max_limit_hits: int | None = None
    max_incident: Mapping[str, int] = field(default_factory=dict)
    """Kind of incident to how often it may be found."""
    max_errors: int | None = None
    """Trials that errored."""
    max_cost: float | None = None
    """US dollars."""
    max_regression: float | None = None
    """How much routing accuracy may lose against the baseline; with a baseline and no such rule: nothing."""
    significant: bool = False
    """A loss counts only when the exact paired test finds it significant."""
    must_pass: tuple[str, ...] = ()
    """Tags, ids and `file::id`s of scenarios of which every trial must pass."""

    def __post_init__(self) -> None:
        for name, rate in self._rates():
            if not 0 <= rate <= 1:
                raise ValueError(f"{name} is a rate between 0 and 1, not {rate:g}")
        for name, ceiling in self._ceilings():
            if ceiling < 0:
                raise ValueError(f"{name} is 0 or more, not {ceiling:g}")
        for kind in self.max_incident:
            if kind not in KINDS:
                raise ValueError(f"max_incident: no incident is called {kind!r}{suggestion(kind, KINDS)}")

    def _rates(self) -> Iterator[tuple[str, float]]:
        for name in ("min_accuracy", "max_regression"):
            if getattr(self, name) is not None:
                yield name, getattr(self, name)
        for name in ("min_agent_accuracy", "min_tag_accuracy"):
            yield from ((f"{name} of {key}", rate) for key, rate in getattr(self, name).items())

    def _ceilings(self) -> Iterator[tuple[str, float]]:
        for name in ("max_loops", "max_limit_hits", "max_errors", "max_cost"):
            if getattr(self, name) is not None:
                yield name, getattr(self, name)
        yield from ((f"max_incident of {kind}", ceiling) for kind, ceiling in self.max_incident.items())

    def decide(self, report: Report, baseline: Report | None = None) -> Decision:
        """Hold the report against every rule."""
        comparison = None if baseline is None else compare(baseline, report)
        rules = [*self._thresholds(report)]
        if comparison is not None:
            rules += [_vanished(comparison), _lost(comparison, self.max_regression or 0.0, self.significant)]
        elif self.max_regression is not None:
            why = "accuracy lost: there is no baseline to hold the run against"
            rules.append(RuleResult("accuracy lost", f"<= {self.max_regression:g}", "n/a", False, why))
        return Decision(tuple(rules) or (_all_pass(report),), comparison)

    def _thresholds(self, report: Report) -> Iterator[RuleResult]:
        total = report.metrics.total
        if self.min_accuracy is not None:
            yield _floor("routing accuracy", self.min_accuracy, total.accuracy)
        agents = {row.agent: row.accuracy for row in report.metrics.agents}
        for agent, floor in self.min_agent_accuracy.items():
            yield _floor_of("agent", agent, floor, agents)
        tags = {row.name: row.accuracy for row in report.metrics.tags}
        for tag, floor in self.min_tag_accuracy.items():
            yield _floor_of("tag", tag, floor, tags)
        counts: list[tuple[str, int | None, int]] = [
            ("loops", self.max_loops, total.incident("loop").count),
            ("limit hits", self.max_limit_hits, total.incident("limit_hit").count),
            *(
                (f"incidents of kind {kind}", self.max_incident[kind], total.incident(kind).count)
                for kind in KINDS
                if kind in self.max_incident
            ),
            ("errored trials", self.max_errors, total.trials["errored"]),
        ]
        for name, ceiling, count in counts:
            if ceiling is not None:
                yield _ceiling(name, ceiling, count, ran=total.ran)
        if self.max_cost is not None:
            yield _cost(self.max_cost, total.cost)
        for wanted in self.must_pass:
            yield _must_pass(wanted, report.metrics.scenarios)


RULES = tuple(each.name for each in fields(Gate))
"""The names of all rules."""


def rules_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of the table `[tool.chatflow-eval.gate]`, and its `baseline`, by their names in Python.

    Raises:
        ChatflowEvalError: an unknown rule, or a value of the wrong kind.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        kind = {"baseline": str, "significant": bool, "must_pass": list}.get(name)
        if kind is None and name not in RULES:
            known = [*RULES, "baseline"]
            raise ChatflowEvalError(f"[tool.chatflow-eval.gate]: unknown rule {key!r}{suggestion(name, known)}")
        kind = kind or (dict if name in _KEYED else float if name in _REAL else int)
        values = list(value.values()) if kind is dict and isinstance(value, dict) else [value]
        numeric = (int if name == "max_incident" else float) if kind is dict else kind
        if (kind is dict and not isinstance(value, dict)) or not all(_is(each, numeric) for each in values):
            expected = f"a table of {_SPELLED[numeric]}" if kind is dict else _SPELLED[kind]
            raise ChatflowEvalError(f"[tool.chatflow-eval.gate]: {key} is {expected}, not {value!r}")
        found[name] = tuple(map(str, value)) if kind is list else value
    return found


_KEYED = ("min_agent_accuracy", "min_tag_accuracy", "max_incident")
_REAL = ("min_accuracy", "max_cost", "max_regression")
_SPELLED: dict[type, str] = {
    str: "a path", bool: "true or false", list: "a list of texts", int: "a whole number", float: "a number"
}  # fmt: skip


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, (int, float) if kind is float else kind)


def _floor(name: str, floor: float, rate: Rate, hint: str = "") -> RuleResult:
    threshold = f">= {floor:g}"
    if rate.value is None:
        return RuleResult(name, threshold, "n/a", False, f"{name}: nothing judged, so it cannot be {threshold}{hint}")
    actual = f"{rate.value:.4g} ({rate.numerator:.0f}/{rate.denominator})"
    passed = rate.value >= floor
    return RuleResult(name, threshold, actual, passed, f"{name}: {actual} is {'' if passed else 'not '}{threshold}")


_EMPTY = Rate(0, 0, None, None, None, "")


def _floor_of(what: str, name: str, floor: float, rates: Mapping[str, Rate]) -> RuleResult:
    hint = "" if name in rates else suggestion(name, list(rates))
    return _floor(f"routing accuracy of {what} {name}", floor, rates.get(name, _EMPTY), hint)


def _ceiling(name: str, ceiling: int, count: int, *, ran: int) -> RuleResult:
    threshold = f"<= {ceiling}"
    if not ran:
        return RuleResult(name, threshold, "n/a", False, f"{name}: nothing judged, so it cannot be {threshold}")
    passed = count <= ceiling
    return RuleResult(name, threshold, str(count), passed, f"{name}: {count} is {'' if passed else 'not '}{threshold}")


def _cost(ceiling: float, cost: Cost) -> RuleResult:
    """What is unknown may be anything, so that a cost that is not wholly known cannot be below a ceiling."""
    name, threshold = "cost", f"<= {ceiling:g} USD"
    if cost.value is None:
        return RuleResult(name, threshold, "n/a", False, f"{name}: unknown, so it cannot be {threshold}")
    actual = f"{'at least ' if cost.unknown else ''}{cost.value:.4g} USD"
    passed = cost.value <= ceiling and not cost.unknown
    why = f"{name}: {actual} is {'' if passed else 'not '}{threshold}"
    if cost.unknown and cost.value <= ceiling:
        why = f"{name}: {actual}, as that of {cost.unknown} model calls is unknown, so it cannot be {threshold}"
    return RuleResult(name, threshold, actual, passed, why)


def _must_pass(wanted: str, scenarios: Sequence[ScenarioNumbers]) -> RuleResult:
    name, threshold = f"must pass: {wanted}", "every trial passes"
    rows = [row for row in scenarios if wanted in (row.scenario, f"{row.file}::{row.scenario}", *row.tags)]
    if not rows:
        known = list(dict.fromkeys(name for row in scenarios for name in (row.scenario, *row.tags)))
        why = f"{name}: nothing ran by this id or tag{suggestion(wanted, known)}"
        return RuleResult(name, threshold, "n/a", False, why)
    bad = [row for row in rows if not row.trials["passed"] or sum(row.trials.values()) > row.trials["passed"]]
    actual = f"{len(rows) - len(bad)} of {len(rows)} scenarios"
    ended = [f"{row.scenario} ({row.model}: {_ends(row)})" for row in bad]
    return RuleResult(name, threshold, actual, not bad, f"{name}: {actual}{_but(ended)}")


def _ends(row: ScenarioNumbers) -> str:
    return ", ".join(f"{count} {status}" for status, count in row.trials.items() if count and status != "passed")


def _vanished(comparison: Comparison) -> RuleResult:
    name, threshold = "vanished scenarios", "none"
    gone = comparison.of("gone")
    if not gone:
        return RuleResult(name, threshold, "0", True, f"{name}: none")
    told = [f"{row.scenario} ({row.why})" for row in gone]
    return RuleResult(name, threshold, str(len(gone)), False, f"{name}: {len(gone)}{_but(told, ':')}")


def _lost(comparison: Comparison, most: float, significant: bool) -> RuleResult:
    """The loss of routing accuracy over the scenarios of both runs; without routing checks, of trials that pass."""
    routed = comparison.accuracy.value is not None
    difference = comparison.accuracy if routed else comparison.passing
    name = "accuracy lost" if routed else "passing trials lost"
    threshold = f"<= {most:g}{' or not significant' if significant else ''}"
    if difference.value is None or difference.p is None:
        return RuleResult(name, threshold, "n/a", False, f"{name}: no scenario has results in both runs")
    lost = max(0.0, -difference.value)
    actual = f"{lost:.4g} ({_share(difference.base)} to {_share(difference.run)}, p = {difference.p:.2g})"
    passed = lost <= most or (significant and difference.conclusion != "regressed")
    why = f"{name}: {actual} is {'' if passed else 'not '}{threshold}"
    if passed and lost > most and difference.more_repeats is not None:
        why += f"; inconclusive: about {difference.more_repeats} more repeats would settle it"
    worse = [_named(row) for row in comparison.of("regressed")]
    return RuleResult(name, threshold, actual, passed, f"{why}{_but(worse, '; regressed:')}")


def _share(of: tuple[float, int]) -> str:
    return f"{of[0]:.0f}/{of[1]}"


def _named(row: ScenarioChange) -> str:
    return f"{row.scenario} ({row.base.passed}/{row.base.tried} to {row.run.passed}/{row.run.tried})"


def _but(names: Sequence[str], word: str = "; not") -> str:
    """The first few names after a word."""
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{word} {', '.join(names[:NAMED])}{more}"


def _all_pass(report: Report) -> RuleResult:
    """Every trial passed, was skipped, or failed as its author expects; and some trial ran."""
    name, threshold, ran = "scenarios", "all pass", report.metrics.total.ran
    if not ran:
        return RuleResult(name, threshold, "n/a", False, f"{name}: nothing judged, so they cannot {threshold}")
    bad = len(report.unexpected)
    actual = f"{ran - bad} of {ran} trials as expected"
    if not bad:
        return RuleResult(name, threshold, actual, True, f"{name}: {actual}")
    named = [_name(report.outcomes[index]) for index in report.unexpected[:NAMED]]
    more = f" and {bad - NAMED} more" if bad > NAMED else ""
    return RuleResult(name, threshold, actual, False, f"{name}: {actual}; not {', '.join(named)}{more}")


def _name(outcome: Outcome) -> str:
    model = model_name(outcome.target, outcome.model)
    return f"{outcome.scenario} ({model}, repeat {outcome.repeat}: {outcome.status})"
