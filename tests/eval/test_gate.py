"""What may pass: floors, ceilings, and every scenario where no rule is given."""

from __future__ import annotations

from typing import Any

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.gate import Decision, Gate
from chatflow_eval.incidents import Incident, IncidentKind
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import Report


def outcome(
    status: Status = "passed", *, repeat: int = 1, xfail: str | None = None, kinds: tuple[IncidentKind, ...] = ()
) -> Outcome:
    """A trial with one turn that is judged for routing, unless it errored or was skipped."""
    judged = Verdict(check="route", turn=1, status="passed" if status == "passed" else "failed", expected="A -> B")
    return Outcome(
        file="a.scenario.yaml",
        line=1,
        scenario="refund",
        repeat=repeat,
        status=status,
        xfail=xfail,
        users=("hi",),
        verdicts=(judged,) if status in ("passed", "failed") else (),
        incidents=tuple(Incident(kind=kind, turn=1, agents=("A", "B"), message="found") for kind in kinds),
    )


def decided(*outcomes: Outcome, **rules: Any) -> Decision:
    return Gate(**rules).decide(Report.of(outcomes))


def told(decision: Decision) -> list[str]:
    return [rule.why for rule in decision.rules]


def test_without_a_rule_every_scenario_must_pass() -> None:
    assert told(decided(outcome(), outcome(repeat=2))) == ["scenarios: 2 of 2 trials as expected"]
    decision = decided(outcome(), outcome("failed", repeat=2), outcome("errored", repeat=3))
    assert not decision.passed
    (why,) = told(decision)
    assert why == (
        "scenarios: 1 of 3 trials as expected; not refund (declared, repeat 2: failed), "
        "refund (declared, repeat 3: errored)"
    )


def test_trials_that_fail_as_their_author_expects_and_skipped_ones_pass() -> None:
    assert decided(outcome(), outcome("failed", repeat=2, xfail="known"), outcome("skipped", repeat=3)).passed
    assert not decided(outcome("errored", xfail="an error is no expected failure")).passed


def test_only_the_first_are_named() -> None:
    decision = decided(*(outcome("failed", repeat=number) for number in range(1, 6)))
    assert told(decision)[0].endswith("repeat 3: failed) and 2 more")


@pytest.mark.parametrize("outcomes", [[], [outcome("skipped")]])
@pytest.mark.parametrize(
    "rules", [{}, {"min_accuracy": 0.0}, {"max_loops": 9}, {"max_limit_hits": 9}, {"max_errors": 9}]
)
def test_nothing_judged_closes_every_rule(outcomes: list[Outcome], rules: dict[str, float]) -> None:
    """B139: 0 of 0 is no pass."""
    (rule,) = decided(*outcomes, **rules).rules
    assert (rule.passed, rule.actual) == (False, "n/a")
    assert "nothing judged" in rule.why


def test_accuracy_is_n_a_where_every_trial_errored() -> None:
    """B109: errors are no accuracy, neither good nor bad."""
    (rule,) = decided(outcome("errored"), min_accuracy=0.5).rules
    assert rule.why == "routing accuracy: nothing judged, so it cannot be >= 0.5"


@pytest.mark.parametrize(("floor", "passed"), [(0.0, True), (0.79, True), (0.8, True), (0.81, False), (1.0, False)])
def test_a_floor_holds_when_the_number_is_as_high(floor: float, passed: bool) -> None:
    outcomes = [outcome("passed" if number else "failed", repeat=number + 1) for number in range(5)]
    (rule,) = decided(*outcomes, min_accuracy=floor).rules
    assert (rule.passed, rule.actual, rule.threshold) == (passed, "0.8 (4/5)", f">= {floor:g}")


@pytest.mark.parametrize(("rule", "kind"), [("max_loops", "loop"), ("max_limit_hits", "limit_hit")])
@pytest.mark.parametrize(("ceiling", "passed"), [(1, False), (2, True), (3, True)])
def test_a_ceiling_holds_when_the_count_is_as_low(rule: str, kind: IncidentKind, ceiling: int, passed: bool) -> None:
    """B063: even though the trial passed."""
    (result,) = decided(outcome(kinds=(kind, kind)), **{rule: ceiling}).rules
    assert (result.passed, result.actual, result.threshold) == (passed, "2", f"<= {ceiling}")


def test_errored_trials_have_a_ceiling_of_their_own() -> None:
    """B109."""
    outcomes = [outcome(), outcome("errored", repeat=2)]
    assert told(decided(*outcomes, max_errors=1)) == ["errored trials: 1 is <= 1"]
    assert told(decided(*outcomes, max_errors=0)) == ["errored trials: 1 is not <= 0"]


def test_a_gate_opens_when_every_rule_passes_and_shows_them_all() -> None:
    decision = decided(outcome(kinds=("loop",)), min_accuracy=0.9, max_loops=0, max_limit_hits=0, max_errors=0)
    assert [(rule.name, rule.passed) for rule in decision.rules] == [
        ("routing accuracy", True),
        ("loops", False),
        ("limit hits", True),
        ("errored trials", True),
    ]
    assert not decision.passed


def test_a_rule_replaces_the_demand_that_all_pass() -> None:
    assert decided(outcome(), outcome("failed", repeat=2), min_accuracy=0.5).passed


@pytest.mark.parametrize("rules", [{"min_accuracy": 80}, {"min_accuracy": -0.1}, {"max_loops": -1}])
def test_a_threshold_that_cannot_be_meant_is_refused(rules: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(rules))):
        Gate(**rules)  # type: ignore[arg-type]
