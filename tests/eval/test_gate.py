"""What may pass: floors, ceilings, and every scenario where no rule is given."""

from __future__ import annotations

from typing import Any

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.demand import Demand
from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.gate import Decision, Gate, rules_of
from chatflow_eval.incidents import Incident, IncidentKind
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import Report, keep_ruling
from chatflow_eval.trace import ModelStep, Topology, Trace, TurnTrace


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


# Agents, tags, kinds, cost, must-pass.


def routed(
    scenario: str, *, right: bool, end: str = "B", tags: tuple[str, ...] = (), tokens: int | None = None
) -> Outcome:
    judged = Verdict(check="route", turn=1, status="passed" if right else "failed", expected=f"A -> {end}")
    step = ModelStep(agent="A", model="gpt-4.1-mini", input_tokens=tokens, output_tokens=tokens)
    turn = TurnTrace(user="hi", start_agent="A", end_agent=end, steps=(step,))
    return Outcome(
        file="a.scenario.yaml",
        line=1,
        scenario=scenario,
        tags=tags,
        status="passed" if right else "failed",
        users=("hi",),
        trace=Trace(topology=Topology(start="A", agents=("A", end)), turns=(turn,)),
        verdicts=(judged,),
        demands=(Demand(turn=1, asks="first", ends=(end,)),),
    )


SUITE = (
    routed("one", right=True, tags=("smoke",)),
    routed("two", right=True, tags=("smoke", "slow")),
    routed("three", right=False, end="C", tags=("slow",)),
)


def test_each_agent_and_each_tag_may_have_a_floor_of_its_own() -> None:
    """A good average hides one bad agent (agentrial passed a 10 % agent at 90 %)."""
    decision = decided(*SUITE, min_agent_accuracy={"B": 1.0, "C": 0.5}, min_tag_accuracy={"smoke": 1.0, "slow": 0.6})
    assert [(rule.name, rule.passed, rule.actual) for rule in decision.rules] == [
        ("routing accuracy of agent B", True, "1 (2/2)"),
        ("routing accuracy of agent C", False, "0 (0/1)"),
        ("routing accuracy of tag smoke", True, "1 (2/2)"),
        ("routing accuracy of tag slow", False, "0.5 (1/2)"),
    ]


def test_an_agent_or_a_tag_that_nothing_was_judged_for_closes_its_rule() -> None:
    decision = decided(*SUITE, min_agent_accuracy={"D": 0.0}, min_tag_accuracy={"smok": 0.0})
    assert [rule.actual for rule in decision.rules] == ["n/a", "n/a"]
    assert told(decision)[1].endswith("; did you mean `smoke`?")


def test_every_kind_of_incident_may_have_a_ceiling() -> None:
    outcomes = (outcome(kinds=("bounce", "bounce", "stuck")),)
    assert told(decided(*outcomes, max_incident={"bounce": 2, "stuck": 0})) == [
        "incidents of kind stuck: 1 is not <= 0",
        "incidents of kind bounce: 2 is <= 2",
    ]
    with pytest.raises(ValueError, match="did you mean `bounce`"):
        Gate(max_incident={"bounces": 1})


def test_a_cost_that_is_not_wholly_known_is_never_low_enough() -> None:
    """B119: unknown is not 0."""
    known, unknown = routed("a", right=True, tokens=1_000), routed("b", right=True)
    assert decided(known, max_cost=0.002).passed
    assert not decided(known, max_cost=0.001).passed
    assert told(decided(known, unknown, max_cost=1)) == [
        "cost: at least 0.002 USD, as that of 1 model calls is unknown, so it cannot be <= 1 USD"
    ]
    assert decided(unknown, max_cost=1).rules[0].actual == "n/a"


@pytest.mark.parametrize(
    ("wanted", "passed"),
    [("smoke", True), ("slow", False), ("one", True), ("a.scenario.yaml::three", False), ("nothing", False)],
)
def test_scenarios_that_must_pass_are_named_by_tag_or_id(wanted: str, passed: bool) -> None:
    (rule,) = decided(*SUITE, must_pass=(wanted,)).rules
    assert rule.passed == passed


def test_what_must_pass_may_neither_be_skipped_nor_expected_to_fail() -> None:
    assert not decided(outcome("skipped"), outcome(repeat=2), must_pass=("refund",)).passed
    assert not decided(outcome("failed", xfail="known"), must_pass=("refund",)).passed


# A baseline.


def against(base: tuple[Outcome, ...], run: tuple[Outcome, ...], **rules: Any) -> Decision:
    return Gate(**rules).decide(Report.of(run), Report.of(base))


def test_a_scenario_that_vanished_closes_the_gate() -> None:
    decision = against(SUITE, SUITE[:2], max_regression=1.0)
    vanished, lost = decision.rules
    assert (vanished.passed, lost.passed) == (False, True)
    assert vanished.why == "vanished scenarios: 1: three (it is not in this run)"


def test_a_baseline_without_a_threshold_lets_nothing_be_lost() -> None:
    worse = (SUITE[0], routed("two", right=False), SUITE[2])
    (_, lost) = against(SUITE, worse).rules
    assert not lost.passed
    assert lost.why.startswith("accuracy lost: 0.3333 (2/3 to 1/3, p = 1) is not <= 0; regressed: two (1/1 to 0/1)")
    assert against(SUITE, worse, max_regression=0.34).passed
    assert against(SUITE, SUITE).passed


def test_a_loss_that_is_not_significant_may_be_let_through_and_is_called_inconclusive() -> None:
    worse = (SUITE[0], routed("two", right=False), SUITE[2])
    decision = against(SUITE, worse, significant=True)
    assert decision.passed
    assert "inconclusive: about 3 more repeats would settle it" in told(decision)[1]
    base = tuple(routed(f"s{number}", right=True) for number in range(6))
    assert not against(base, tuple(routed(f"s{number}", right=False) for number in range(6)), significant=True).passed


def test_a_regression_without_a_baseline_cannot_be_judged() -> None:
    (rule,) = decided(*SUITE, max_regression=0.1).rules
    assert (rule.passed, rule.actual) == (False, "n/a")


def test_the_baseline_and_the_thresholds_both_count() -> None:
    """agentcheck skips its threshold when it compares."""
    decision = against(SUITE, SUITE, min_accuracy=0.9)
    assert [rule.passed for rule in decision.rules] == [False, True, True]


# From pyproject.toml.


def test_rules_may_stand_in_a_table() -> None:
    table = {
        "min-accuracy": 0.9,
        "min_agent_accuracy": {"B": 1},
        "max-incident": {"bounce": 2},
        "must-pass": ["smoke"],
        "baseline": "reports/main",
        "significant": True,
    }
    rules = rules_of(table)
    assert rules.pop("baseline") == "reports/main"
    assert Gate(**rules) == Gate(
        min_accuracy=0.9,
        min_agent_accuracy={"B": 1},
        max_incident={"bounce": 2},
        must_pass=("smoke",),
        significant=True,
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"min-acuracy": 1}, "did you mean `min_accuracy`"),
        ({"min-accuracy": "90 %"}, "a number"),
        ({"max-loops": 1.5}, "a whole number"),
        ({"max-loops": True}, "a whole number"),
        ({"must-pass": "smoke"}, "a list of texts"),
        ({"max-incident": 3}, "a table of a whole number"),
        ({"significant": 1}, "true or false"),
    ],
)
def test_a_table_is_read_strictly(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ChatflowEvalError, match=message):
        rules_of(table)


def test_a_decision_can_be_kept_with_its_report() -> None:
    report = Report.of([outcome("failed")])
    assert Decision.kept(report) is None
    decision = Gate(max_errors=0).decide(report)
    assert Decision.kept(keep_ruling(report, decision.rules)) == decision
