"""Numbers from outcomes: what is counted, what is not, and what an empty set comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval import incidents
from chatflow_eval.checks import Verdict, VerdictStatus
from chatflow_eval.demand import Asks, Demand
from chatflow_eval.incidents import Incident
from chatflow_eval.metrics import DEFINITIONS, AgentNumbers, Amount, HopNumbers, Metrics, Rate, measure
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.route import Route, visits_of_turn
from chatflow_eval.tally import Tally
from chatflow_eval.trace import Edge, Failure, Hop, HopKind, ModelStep, Topology, Trace, TurnTrace

TOPOLOGY = Topology(start="A", agents=("A", "B", "C"))
RATE_LIMIT = Failure(kind="model", exception="RateLimitError", message="429", status_code=429)


def walked(*agents: str) -> TurnTrace:
    hops = tuple(Hop(source=a, target=b) for a, b in pairwise(agents))
    return TurnTrace(user="hi", start_agent=agents[0], end_agent=agents[-1], steps=hops)


def judged(number: int, expected: str, turn: TurnTrace, check: str = "route") -> Verdict:
    """What a route check says of a turn."""
    alignment = Route(expected).align(visits_of_turn(turn))
    ok = all(place.ok for place in alignment)
    return Verdict(
        check=check,
        turn=number,
        status="passed" if ok else "failed",
        expected=expected,
        alignment=alignment,
        why="" if ok else "no",
    )


def lost(number: int, expected: str = "A -> B", check: str = "route") -> Verdict:
    return Verdict(check=check, turn=number, status="skipped", expected=expected, why="the turn errored")


def said(check: str, number: int, status: VerdictStatus, expected: str = "B", actual: str = "B") -> Verdict:
    return Verdict(check=check, turn=number, status=status, expected=expected, actual=actual)


def outcome(
    scenario: str = "s",
    status: Status | None = None,
    verdicts: Sequence[Verdict] = (),
    turns: Sequence[TurnTrace] = (),
    *,
    model: str = "m",
    repeat: int = 1,
    failed_turn: int | None = None,
    found: Sequence[Incident] = (),
    users: int = 0,
) -> Outcome:
    failing = any(verdict.status == "failed" for verdict in verdicts)
    return Outcome(
        file="a.scenario.yaml",
        line=1,
        scenario=scenario,
        model=model,
        repeat=repeat,
        status=status or ("failed" if failing else "passed"),
        users=("hi",) * (users or len(turns)),
        trace=Trace(topology=TOPOLOGY, turns=tuple(turns)) if turns else None,
        verdicts=tuple(verdicts),
        incidents=tuple(found),
        failure=RATE_LIMIT if status == "errored" else None,
        failed_turn=failed_turn,
    )


def one(expected: str, *agents: str, scenario: str = "s", repeat: int = 1) -> Outcome:
    """A trial of one turn that is to take the expected route and takes another."""
    turn = walked(*agents)
    return outcome(scenario, None, [judged(1, expected, turn)], [turn], repeat=repeat)


def errored(
    scenario: str = "s", *, turn: int | None = 1, turns: int = 1, expected: str = "A -> B", check: str = "route"
) -> Outcome:
    """A trial that stops with an error in a turn; `None`: before its first."""
    verdicts = [lost(number, expected, check) for number in range(turn or 1, turns + 1)]
    reached = [walked("A")] * (turn or 0)
    return outcome(scenario, "errored", verdicts, reached, failed_turn=turn, users=turns)


def shown(rate: Rate) -> tuple[object, ...]:
    return (rate.numerator, rate.denominator, rate.value)


# Accuracy.


def test_errors_are_in_neither_count_and_both_readings_are_there() -> None:
    """B109: ten scenarios, 8 right, 1 wrong, 1 HTTP 429: 8/9, and 8/10 beside it."""
    right = [one("A -> B", "A", "B", scenario=f"right-{number}") for number in range(8)]
    total = measure([*right, one("A -> B", "A", "C", scenario="wrong"), errored("limited")]).total
    assert shown(total.accuracy) == (8, 9, pytest.approx(8 / 9))
    assert shown(total.accuracy_with_errors) == (8, 10, pytest.approx(0.8))
    assert (total.turns_judged, total.turns_errored, total.turns_unreached) == (9, 1, 0)
    assert total.trials == {"passed": 8, "failed": 1, "errored": 1, "skipped": 0}
    assert shown(total.errored) == (1, 10, pytest.approx(0.1))


def test_turns_that_an_error_kept_from_being_reached_are_counted_beside_it() -> None:
    total = measure([errored(turn=2, turns=4)]).total
    assert (total.turns_errored, total.turns_unreached) == (1, 2)
    assert shown(total.accuracy_with_errors) == (0, 3, 0.0)


def test_a_trial_that_errored_before_anything_was_judged_loses_all_its_turns() -> None:
    """A missing recording, say: nothing says what its turns were to be judged for."""
    total = measure([outcome(status="errored", users=3)]).total
    assert (total.turns_errored, total.turns_unreached) == (1, 2)


def test_a_turn_judged_before_the_error_still_counts() -> None:
    turn = walked("A", "B")
    total = measure(
        [outcome("s", "errored", [judged(1, "A -> B", turn), lost(2)], [turn, walked("B")], failed_turn=2)]
    ).total
    assert shown(total.accuracy) == (1, 1, 1.0)


def test_a_turn_not_reached_after_a_failure_or_ended_as_expected_is_no_error() -> None:
    """`on_failure: stop`; and a turn whose exception was expected has no route to judge."""
    turn = walked("A", "C")
    total = measure([outcome("s", None, [judged(1, "A -> B", turn), lost(2)], [turn])]).total
    assert shown(total.accuracy) == (0, 1, 0.0)
    assert (total.turns_errored, total.turns_unreached) == (0, 0)


@pytest.mark.parametrize("check", ["route", "stay", "starts_at", "ends_at"])
def test_routing_is_judged_by_four_checks(check: str) -> None:
    turn = walked("A", "B")
    assert measure([outcome("s", None, [said(check, 1, "passed")], [turn])]).total.turns_judged == 1


@pytest.mark.parametrize("check", ["handoffs", "calls", "reply", "incidents", "helpers:polite"])
def test_other_checks_are_no_routing(check: str) -> None:
    failing = outcome("s", None, [said(check, 1, "failed")], [walked("A", "B")])
    assert measure([failing]).total.accuracy.denominator == 0


def test_a_turn_is_right_when_all_its_routing_checks_passed() -> None:
    checks = [said("starts_at", 1, "passed"), said("ends_at", 1, "failed"), said("reply", 1, "failed")]
    assert shown(measure([outcome("s", None, checks, [walked("A")])]).total.accuracy) == (0, 1, 0.0)


def test_a_check_of_the_whole_conversation_is_no_turn() -> None:
    overall = Verdict(check="ends_at", turn=None, status="failed", expected="B")
    assert measure([outcome("s", "failed", [overall], [walked("A")])]).total.turns_judged == 0


def test_given_a_right_start_counts_no_turn_for_an_earlier_mistake() -> None:
    """Wrong, then wrong because of it, then right again, then judged afresh."""
    statuses: list[VerdictStatus] = ["failed", "failed", "passed", "failed"]
    checks = [said("ends_at", number, status) for number, status in enumerate(statuses, 1)]
    total = measure([outcome("s", None, checks, [walked("A")] * 4)]).total
    assert shown(total.accuracy) == (1, 4, 0.25)
    assert shown(total.accuracy_right_start) == (0, 2, 0.0)


def test_a_turn_that_is_not_judged_does_not_make_a_start_right() -> None:
    checks = [said("ends_at", 1, "failed"), said("reply", 2, "passed"), said("ends_at", 3, "failed")]
    assert measure([outcome("s", None, checks, [walked("A")] * 3)]).total.accuracy_right_start.denominator == 1


# Pass rates.


def repeats(scenario: str, *, passed: int, failed: int, errored: int = 0, skipped: int = 0) -> list[Outcome]:
    counts: dict[Status, int] = {"passed": passed, "failed": failed, "errored": errored, "skipped": skipped}
    statuses = [status for status, count in counts.items() for _ in range(count)]
    return [outcome(scenario, status, repeat=number) for number, status in enumerate(statuses, 1)]


def test_a_scenario_s_pass_rate_is_not_hidden_by_the_others() -> None:
    """B114: 10/10 and 6/10."""
    metrics = measure([*repeats("steady", passed=10, failed=0), *repeats("shaky", passed=6, failed=4)])
    assert shown(metrics.total.pass_rate) == (pytest.approx(1.6), 2, pytest.approx(0.8))
    assert [(row.scenario, row.pass_rate.value, row.flaky) for row in metrics.scenarios] == [
        ("steady", 1.0, False),
        ("shaky", 0.6, True),
    ]
    assert shown(metrics.total.flaky) == (1, 2, 0.5)


def test_pass_hat_k_is_the_mean_over_scenarios_of_all_k_passing() -> None:
    total = measure([*repeats("steady", passed=4, failed=0), *repeats("shaky", passed=2, failed=2)]).total
    assert list(total.pass_hat_k) == [2, 3, 4]
    assert total.pass_hat_k[2].value == pytest.approx((1 + 1 / 6) / 2)
    assert total.pass_at_k[2].value == pytest.approx((1 + 5 / 6) / 2)
    assert total.pass_hat_k[4].value == 0.5


def test_a_single_repeat_says_nothing_of_pass_hat_k_or_flakiness() -> None:
    total = measure(repeats("s", passed=1, failed=0)).total
    assert total.pass_hat_k == {}
    assert shown(total.flaky) == (0, 0, None)


def test_errored_and_skipped_trials_are_no_failures() -> None:
    total = measure(repeats("s", passed=1, failed=1, errored=3, skipped=2)).total
    assert shown(total.pass_rate) == (0.5, 1, 0.5)
    assert total.ran == 5


def test_a_scenario_counts_once_for_each_model() -> None:
    metrics = measure([outcome("s", "passed", model="m"), outcome("s", "failed", model="n")])
    assert shown(metrics.total.pass_rate) == (1, 2, 0.5)
    assert metrics.total.scenarios == 1
    assert [(row.model, row.numbers.pass_rate.value) for row in metrics.models] == [("m", 1.0), ("n", 0.0)]
    assert shown(metrics.total.flaky) == (0, 0, None)


def test_a_scenario_s_numbers_are_its_own_where_yardsticks_ran_between() -> None:
    turn = walked("A", "B")
    right, wrong = (
        outcome(name, None, [judged(1, f"A -> {to}", turn)], [turn]) for name, to in (("r", "B"), ("w", "C"))
    )
    yardstick = replace(right, model="keyword", baseline=True)
    rows = {row.scenario: row for row in measure([yardstick, right, yardstick, yardstick, wrong]).scenarios}
    assert [(rows[name].accuracy.numerator, rows[name].accuracy.denominator) for name in "rw"] == [(1, 1), (0, 1)]


def test_scenarios_of_one_name_in_two_files_are_two() -> None:
    first = outcome("s", "passed")
    second = Outcome(file="b.scenario.yaml", line=1, scenario="s", status="failed")
    assert measure([first, second]).total.scenarios == 2


# Handoffs and confusion.


def cells(metrics: Metrics) -> dict[tuple[str | None, str | None], int]:
    """Expected and actual agent, or how the turn ended in brackets."""
    return {(cell.expected, cell.actual or f"({cell.end})"): cell.count for cell in metrics.confusion}


def test_confusion_shows_which_agents_are_taken_for_each_other() -> None:
    """B115: B expected and C came in 3 of 10."""
    trials = [one("A -> B", "A", "B", repeat=number) for number in range(7)]
    trials += [one("A -> B", "A", "C", repeat=number) for number in range(7, 10)]
    metrics = measure(trials)
    assert cells(metrics) == {("B", "B"): 7, ("B", "C"): 3}
    assert [cell.right for cell in metrics.confusion] == [True, False]


@pytest.mark.parametrize(
    ("expected", "route", "decisions"),
    [
        ("A -> B", "A", {("B", "(stayed)"): 1}),
        ("A", "A", {(None, "(stayed)"): 1}),
        ("A", "AC", {(None, "C"): 1}),
        ("A -> B", "ABC", {("B", "B"): 1, (None, "C"): 1}),
        ("A -> B -> C", "AC", {("B", "(none)"): 1, ("C", "C"): 1}),
        ("A -> B -> C", "AB", {("B", "B"): 1, ("C", "(stayed)"): 1}),
        ("A -> B | C", "AC", {("C", "C"): 1}),
        ("A -> B | C", "AD", {("B | C", "D"): 1}),
        ("A -> B? -> C", "AC", {("C", "C"): 1}),
        ("A -> ~B", "AC", {("C", "C"): 1}),
        ("A -> ...", "ABC", {("B", "B"): 1, ("C", "C"): 1}),
        ("B", "C", {(None, "(stayed)"): 1}),
    ],
)
def test_each_decision_of_a_turn_is_one_cell(
    expected: str, route: str, decisions: dict[tuple[str | None, str | None], int]
) -> None:
    """Who started the turn was decided before it."""
    assert cells(measure([one(expected, *route)])) == decisions


def test_a_wrong_start_makes_the_expected_handoff_one_that_did_not_happen() -> None:
    """`A -> B`, and the turn began at B: the right agent, but no handoff."""
    metrics = measure([one("A -> B", "B")])
    assert cells(metrics) == {("B", "B"): 1}
    assert shown(metrics.total.hop_recall) == (0, 1, 0.0)
    assert shown(metrics.total.hop_precision) == (0, 0, None)


@pytest.mark.parametrize(
    ("check", "expected", "wanted"),
    [
        ("route", "A -> B -> C", ["B", "C"]),
        ("route", "A -> B | C", ["B | C"]),
        ("route", "A", [None]),
        ("stay", "stays", [None]),
        ("ends_at", "B | C", ["B | C"]),
    ],
)
def test_a_turn_that_errored_stands_in_the_error_column(check: str, expected: str, wanted: list[str | None]) -> None:
    """B115: rows for the agents that were to come; turns never reached have none."""
    metrics = measure([errored(turns=3, expected=expected, check=check)])
    assert cells(metrics) == {(agent, "(error)"): 1 for agent in wanted}
    assert metrics.total.hop_recall.denominator == 0


def test_an_error_before_the_first_turn_leaves_the_expected_route_as_the_row() -> None:
    assert cells(measure([errored(turn=None)])) == {("A -> B", "(error)"): 1}


def test_where_only_the_end_is_expected_the_end_is_the_decision() -> None:
    right = outcome("right", None, [said("ends_at", 1, "passed", "B | C")], [walked("A", "B")])
    wrong = outcome("wrong", None, [said("ends_at", 1, "failed", "B | C")], [walked("A", "D")])
    stayed = outcome("stayed", None, [said("ends_at", 1, "failed", "B | C")], [walked("A")])
    metrics = measure([right, wrong, stayed])
    assert cells(metrics) == {("B", "B"): 1, ("B | C", "D"): 1, ("B | C", "(stayed)"): 1}
    assert metrics.total.hop_precision.denominator == 0


def test_a_route_of_the_whole_conversation_counts_where_no_turn_has_one() -> None:
    turn = walked("A", "B")
    whole = judged(1, "A -> B", turn)
    overall = Verdict(check="route", turn=None, status="passed", expected="A -> B", alignment=whole.alignment)
    assert shown(measure([outcome("s", None, [overall], [turn])]).total.hop_recall) == (1, 1, 1.0)
    assert shown(measure([outcome("s", None, [whole, overall], [turn])]).total.hop_recall) == (1, 1, 1.0)


def test_hop_precision_and_recall_compare_what_happened_with_what_was_expected() -> None:
    """Two of three handoffs were expected, two of two expected ones happened."""
    total = measure([one("A -> B -> A", *"ABCA")]).total
    assert shown(total.hop_precision) == (2, 3, pytest.approx(2 / 3))
    assert shown(total.hop_recall) == (2, 2, 1.0)
    assert shown(total.hop_f1) == (4, 5, pytest.approx(0.8))


def test_a_perfect_stay_has_no_hops_and_no_precision() -> None:
    total = measure([one("A", "A")]).total
    assert (total.hop_precision.value, total.hop_recall.value, total.hop_f1.value) == (None, None, None)


def by_agent(rows: Sequence[AgentNumbers]) -> dict[str, tuple[float | None, float | None]]:
    return {row.agent: (row.precision.value, row.recall.value) for row in rows}


def by_edge(rows: Sequence[HopNumbers]) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    return {(row.source, row.target): (row.precision.value, row.recall.value) for row in rows}


def test_precision_and_recall_are_there_for_each_agent_and_each_edge() -> None:
    metrics = measure([one("A -> B", "A", "B", scenario="right"), one("A -> B", "A", "C", scenario="wrong")])
    assert by_agent(metrics.agents) == {"B": (1.0, 0.5), "C": (0.0, None)}
    assert by_edge(metrics.edges) == {("A", "B"): (1.0, 0.5), ("A", "C"): (0.0, None)}
    assert [shown(row.f1) for row in metrics.edges] == [(2, 3, pytest.approx(2 / 3)), (0, 1, 0.0)]


def test_the_right_agent_from_the_wrong_one_is_a_right_agent_and_a_wrong_edge() -> None:
    metrics = measure([one("A -> B -> C", "A", "D", "C")])
    assert by_agent(metrics.agents)["C"] == (1.0, 1.0)
    assert by_edge(metrics.edges)[("D", "C")] == (0.0, None)
    assert by_edge(metrics.edges)[("B", "C")] == (None, 0.0)


def handed(*hops: tuple[str, str, HopKind]) -> TurnTrace:
    """A turn of A in which these handoffs happen, the calls one deep."""
    steps = tuple(Hop(source=a, target=b, kind=kind, depth=int(kind == "call")) for a, b, kind in hops)
    return TurnTrace(user="hi", start_agent="A", end_agent="A", steps=steps)


def test_a_call_comes_back_so_the_next_handoff_is_its_callers() -> None:
    turn = handed(("A", "B", "call"), ("A", "C", "call"))
    metrics = measure([outcome("s", None, [judged(1, "A => B => C", turn)], [turn])])
    assert by_edge(metrics.edges) == {("A", "B"): (1.0, 1.0), ("A", "C"): (1.0, 1.0)}


def test_a_call_that_was_missed_is_missed_from_whom_it_was_expected() -> None:
    """`A => B => C`, and only B was called: A lacks the call to C, not B."""
    turn = handed(("A", "B", "call"))
    demand = Demand(turn=1, hops=(("A", "B"), ("A", "C")))
    missed = replace(outcome("s", None, [judged(1, "A => B => C", turn)], [turn]), demands=(demand,))
    assert by_edge(measure([missed]).edges) == {("A", "B"): (1.0, 1.0), ("A", "C"): (None, 0.0)}


def test_traffic_is_what_happened_beside_what_was_expected() -> None:
    """Judged turns and others, transfers and calls, refusals; by the edges that are declared, then the others."""
    topology = Topology(
        start="A", agents=("A", "B", "C"), edges=(Edge(source="A", target="B"), Edge(source="B", target="A"))
    )
    refused = Hop(source="A", target="C", accepted=False, why="not_allowed")
    right, unjudged = walked("A", "B"), handed(("A", "B", "transfer"), ("A", "C", "call"))
    trials = [
        outcome("right", None, [judged(1, "A -> B", right)], [right]),
        outcome("missed", None, [judged(1, "A -> B", walked("A"))], [replace(walked("A"), steps=(refused,))]),
        outcome("unjudged", turns=[unjudged]),
    ]
    (covered,) = measure(
        [replace(it, trace=replace(it.trace, topology=topology)) for it in trials if it.trace]
    ).coverage
    rows = [
        (
            edge.source,
            edge.target,
            edge.declared,
            edge.transfers,
            edge.calls,
            edge.refused,
            edge.wanted,
            edge.made,
            edge.right,
        )
        for edge in covered.traffic
    ]
    assert rows == [
        ("A", "B", ("transfer",), 2, 0, 0, 2, 1, 1),
        ("B", "A", ("transfer",), 0, 0, 0, 0, 0, 0),
        ("A", "C", (), 0, 1, 1, 0, 0, 0),
    ]
    assert (covered.target, covered.starts, covered.visits) == ("chatflow", ("A",), {"A": 3, "B": 2, "C": 1})


def test_a_handoff_is_charged_with_all_calls_of_the_visit_it_began() -> None:
    """B asked twice after the first handoff and once after the second; A has nobody who handed off to it."""

    def asking(agent: str, seconds: float | None) -> ModelStep:
        return ModelStep(agent=agent, model="m", input_tokens=1, output_tokens=1, seconds=seconds)

    visits = [(asking("B", 1.0), asking("B", 2.0)), (asking("B", 0.5),), (asking("B", None), asking("B", 9.0))]
    turns = [
        TurnTrace(
            user="hi", start_agent="A", end_agent="B", steps=(asking("A", 7.0), Hop(source="A", target="B"), *visit)
        )
        for visit in visits
    ]
    (edge,) = measure([replace(outcome("s", turns=turns), replayed=True)]).edges
    assert (edge.handoffs, edge.model_calls, edge.replayed, edge.input_tokens.value) == (3, 5, 5, 5)
    assert (edge.latency.median, edge.latency.longest, edge.latency.known) == (1.75, 3.0, 2)
    assert edge.precision.value is None


def test_agents_may_be_called_like_the_columns() -> None:
    metrics = measure([one("A -> stayed", "A", "none", scenario="x"), one("A -> stayed", "A", scenario="y")])
    assert [(cell.expected, cell.end, cell.actual) for cell in metrics.confusion] == [
        ("stayed", "agent", "none"),
        ("stayed", "stayed", None),
    ]


# Incidents, tokens, latency.


def test_incidents_are_counted_and_so_are_the_trials_that_have_them() -> None:
    loop = Incident(kind="loop", turn=1, agents=("A", "B"), message="round")
    numbers = measure([outcome("x", found=[loop, loop]), outcome("y"), outcome("z", "skipped")]).total.incident("loop")
    assert (numbers.count, numbers.per_trial) == (2, 1.0)
    assert shown(numbers.trials) == (1, 2, 0.5)
    assert [kind.kind for kind in measure([]).total.incidents] == list(incidents.KINDS)


def asked(tokens: int | None, seconds: float | None = None, model: str = "m") -> ModelStep:
    return ModelStep(agent="A", model=model, input_tokens=tokens, output_tokens=0, seconds=seconds)


def answered(*steps: ModelStep) -> Outcome:
    return outcome(turns=[TurnTrace(user="hi", start_agent="A", end_agent="A", steps=steps)])


def test_unknown_tokens_are_counted_as_unknown_not_as_nothing() -> None:
    """B119."""
    total = measure([answered(asked(7), asked(None), asked(5))]).total
    assert total.input_tokens == Amount(12, 2, 1, DEFINITIONS["tokens"])
    assert total.output_tokens.value == 0
    assert total.model_calls == 3
    assert measure([answered(asked(None))]).total.input_tokens.value is None


def test_latency_is_that_of_the_calls_that_reported_it() -> None:
    latency = measure([answered(asked(1, 0.2), asked(1, 0.4), asked(1, 9.0), asked(1))]).total.latency
    assert latency.median == pytest.approx(0.4)
    assert (latency.longest, latency.known) == (9.0, 3)
    assert measure([answered(asked(1))]).total.latency.median is None


def test_the_models_that_answered_are_known_by_name() -> None:
    assert measure([answered(asked(1, model="keyword"), asked(1, model="gpt-4o"))]).answering == ("gpt-4o", "keyword")


# Every number.


def rates(metrics: Metrics) -> list[Rate]:
    found = []
    for each in (metrics.total, *(row.numbers for row in metrics.models)):
        found += [getattr(each, name) for name in each.__slots__ if isinstance(getattr(each, name), Rate)]
        found += [*each.pass_hat_k.values(), *each.pass_at_k.values(), *(kind.trials for kind in each.incidents)]
    found += [rate for row in metrics.agents for rate in (row.accuracy, row.precision, row.recall, row.f1)]
    found += [rate for row in metrics.edges for rate in (row.precision, row.recall, row.f1)]
    found += [rate for row in (*metrics.files, *metrics.tags) for rate in (row.accuracy, row.pass_rate, row.errored)]
    return found + [rate for row in metrics.scenarios for rate in (row.pass_rate, row.accuracy)]


@pytest.mark.parametrize("outcomes", [[], [outcome(status="skipped")], [outcome(status="errored", users=1)]])
def test_nothing_judged_is_n_a_everywhere(outcomes: list[Outcome]) -> None:
    """B139: 0 of 0 is no pass."""
    total = measure(outcomes).total
    assert (total.accuracy.value, total.accuracy.low, total.accuracy.high) == (None, None, None)
    assert (total.pass_rate.value, total.hop_f1.value, total.latency.p95) == (None, None, None)


routes = st.text("ABC", min_size=1, max_size=4)
trials = st.lists(
    st.builds(
        lambda expected, route, scenario, repeat: one(" -> ".join(expected), *route, scenario=scenario, repeat=repeat),
        routes,
        routes,
        st.sampled_from("xyz"),
        st.integers(1, 3),
    )
    | st.builds(errored, st.sampled_from("xyz"), turn=st.sampled_from([None, 1, 2]), turns=st.integers(2, 3))
    | st.builds(lambda scenario: outcome(scenario, "skipped"), st.sampled_from("xyz")),
    max_size=8,
)


@settings(max_examples=20, deadline=None)
@given(trials)
def test_every_rate_is_a_share_with_an_interval_and_a_meaning(outcomes: list[Outcome]) -> None:
    """B118."""
    for rate in rates(measure(outcomes)):
        assert rate.definition in DEFINITIONS.values()
        if rate.denominator:
            assert rate.value is not None
            assert rate.low is not None
            assert rate.high is not None
            assert 0 <= rate.low <= rate.value <= rate.high <= 1
            assert rate.value == pytest.approx(rate.numerator / rate.denominator)
        else:
            assert (rate.value, rate.low, rate.high) == (None, None, None)


@settings(max_examples=20, deadline=None)
@given(trials, st.randoms(use_true_random=False))
def test_numbers_do_not_depend_on_the_order_in_which_trials_finish(outcomes: list[Outcome], random: Random) -> None:
    shuffled = list(outcomes)
    random.shuffle(shuffled)
    assert measure(outcomes).total == measure(shuffled).total


@settings(max_examples=20, deadline=None)
@given(trials)
def test_confusion_has_one_decision_or_more_for_each_turn_judged_by_its_route(outcomes: list[Outcome]) -> None:
    metrics = measure(outcomes)
    agents = [cell for cell in metrics.confusion if cell.end != "error"]
    assert sum(cell.count for cell in agents) >= metrics.total.turns_judged
    assert metrics.total.hop_precision.numerator == metrics.total.hop_recall.numerator


def test_the_rows_behind_the_numbers_can_be_had_as_frames() -> None:
    tally = Tally()
    for each in (one("A -> B", "A", "B", scenario="x"), one("A -> B", "A", "C", scenario="y")):
        tally.add(each)
    frames = tally.frames()
    assert frames.trials["scenario"].tolist() == ["x", "y"]
    assert frames.turns[["judged", "right"]].to_numpy().tolist() == [[1, 1], [1, 0]]
    assert frames.hops[["source", "expected", "actual", "ok"]].to_numpy().tolist() == [
        ["A", "B", "B", 1],
        ["A", "B", "C", 0],
    ]
    assert (list(tally.unexpected), list(tally.with_incidents)) == ([1], [])


# By what turns ask, beside the yardsticks.


def asked_of(
    asks: Asks, *, right: bool, turn: int = 1, unmoved: bool = False, ends: tuple[str, ...] = ("B",)
) -> Outcome:
    """A trial of one turn of which so much is asked."""
    verdict = said("route", 1, "passed" if right else "failed")
    demand = Demand(turn=1, asks=asks, unmoved=unmoved, ends=ends, agents=ends, hops=(("A", ends[0]),))
    return replace(
        outcome("s", None, [verdict], [walked("A", ends[0] if right else "C")], repeat=turn), demands=(demand,)
    )


def test_first_switch_stay_and_either_stand_apart() -> None:
    """On real dialogues most of the accuracy is staying."""
    trials = [
        asked_of("first", right=True, turn=1),
        asked_of("stay", right=False, turn=2),
        asked_of("stay", right=True, turn=3),
        asked_of("switch", right=False, turn=4),
    ]
    total = measure(trials).total
    assert [shown(rate) for rate in (total.first, total.switch, total.stay, total.either)] == [
        (1, 1, 1.0),
        (0, 1, 0.0),
        (1, 2, 0.5),
        (0, 0, None),
    ]
    assert total.accuracy.denominator == sum(
        rate.denominator for rate in (total.first, total.switch, total.stay, total.either)
    )


def test_the_yardsticks_stand_beside_and_in_no_total() -> None:
    trials = [asked_of("first", right=False, unmoved=True), asked_of("stay", right=True, turn=2)]
    keyword = replace(asked_of("first", right=True), model="keyword", baseline=True)
    metrics = measure([*trials, keyword])
    assert shown(metrics.total.accuracy) == (1, 2, 0.5)
    assert [row.model for row in metrics.models] == ["m"]
    assert {row.name: (shown(row.accuracy), shown(row.first)) for row in metrics.baselines} == {
        "unmoved": ((1, 2, 0.5), (1, 1, 1.0)),
        "keyword": ((1, 1, 1.0), (1, 1, 1.0)),
    }


def test_each_agent_has_the_accuracy_of_the_turns_that_may_end_at_it() -> None:
    trials = [
        asked_of("first", right=True, turn=1),
        asked_of("first", right=False, turn=2),
        asked_of("first", right=True, turn=3, ends=("B", "D")),
    ]
    rows = {row.agent: shown(row.accuracy) for row in measure(trials).agents}
    assert rows["B"] == (2, 3, pytest.approx(2 / 3))
    assert rows["D"] == (1, 1, 1.0)
    assert "C" not in rows


def test_files_and_tags_have_numbers_of_their_own() -> None:
    trials = [
        replace(one("A -> B", "A", "B", scenario="x"), tags=("smoke", "billing")),
        replace(one("A -> B", "A", "C", scenario="y"), tags=("billing",)),
        replace(errored("z"), file="b.scenario.yaml"),
    ]
    metrics = measure(trials)
    assert [(row.name, shown(row.accuracy)) for row in metrics.tags] == [
        ("billing", (1, 2, 0.5)),
        ("smoke", (1, 1, 1.0)),
    ]
    assert [(row.name, row.trials["errored"], row.scenarios) for row in metrics.files] == [
        ("a.scenario.yaml", 0, 2),
        ("b.scenario.yaml", 1, 1),
    ]


def replied(*agents: str | None, may: Sequence[tuple[str, ...]] = ()) -> Outcome:
    """A trial whose turns were answered by these agents; `None`: by nobody, as it failed."""
    turns = [
        TurnTrace(user="hi", start_agent="A", end_agent=agent or "A", failure=None if agent else RATE_LIMIT)
        for agent in agents
    ]
    demands = tuple(Demand(turn=number, ends=ends) for number, ends in enumerate(may, 1))
    return replace(outcome("s", "passed", (), turns), demands=demands)


def test_switching_and_bouncing_stand_beside_what_is_expected() -> None:
    may = [("A",), ("A", "B"), ("B",), ("C",), ("B",)]
    total = measure([replied("A", "B", "A", "A", "B", may=may)]).total
    assert shown(total.switching) == (3, 4, 0.75)
    assert shown(total.switching_expected) == (2, 4, 0.5)
    assert shown(total.bounce) == (1, 3, pytest.approx(1 / 3))
    assert shown(total.bounce_expected) == (1, 3, pytest.approx(1 / 3))


def test_a_turn_that_nobody_answered_is_at_no_boundary() -> None:
    total = measure([replied("A", None, "A", "B")]).total
    assert shown(total.switching) == (1, 1, 1.0)
    assert shown(total.bounce) == (0, 0, None)
    assert shown(total.switching_expected) == (0, 0, None)


# What a wrong route costs, and what is covered.


def called(agent: str, tokens: int | None = 10) -> ModelStep:
    return ModelStep(agent=agent, model="m", input_tokens=tokens, output_tokens=tokens)


def test_calls_off_the_route_are_a_wrong_route_s_cost_until_it_is_joined_again() -> None:
    steps = (
        called("A"),
        Hop(source="A", target="X"),
        called("X"),
        called("X", None),
        Hop(source="X", target="B"),
        called("B"),
    )
    turn = TurnTrace(user="hi", start_agent="A", end_agent="B", steps=steps)
    total = measure([outcome("s", None, [judged(1, "A -> B", turn)], [turn])]).total
    assert shown(total.wrong_route_calls) == (2, 4, 0.5)
    assert (total.wrong_route_tokens.value, total.wrong_route_tokens.unknown) == (20, 1)


def test_a_turn_that_begins_at_the_wrong_agent_is_off_the_route_from_its_start() -> None:
    turn = TurnTrace(user="hi", start_agent="C", end_agent="C", steps=(called("C"),))
    assert shown(measure([outcome("s", None, [judged(1, "A", turn)], [turn])]).total.wrong_route_calls) == (1, 1, 1.0)


def test_after_a_call_came_back_its_caller_is_on_the_route_again() -> None:
    steps = (called("A"), Hop(source="A", target="X", kind="call", depth=1), called("X"), called("A"))
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", steps=steps)
    assert shown(measure([outcome("s", None, [judged(1, "A", turn)], [turn])]).total.wrong_route_calls)[:2] == (1, 3)


def test_calls_of_turns_without_an_expected_route_are_neither() -> None:
    turn = TurnTrace(user="hi", start_agent="C", end_agent="C", steps=(called("C"),))
    assert measure([outcome("s", "passed", (), [turn])]).total.wrong_route_calls.denominator == 0


def test_coverage_tells_what_the_suite_names_and_what_happened() -> None:
    graph = Topology(
        start="A", agents=("A", "B", "C"), edges=(Edge(source="A", target="B"), Edge(source="A", target="C"))
    )
    trial = asked_of("first", right=False)
    assert trial.trace is not None
    (coverage,) = measure([replace(trial, trace=replace(trial.trace, topology=graph))]).coverage
    assert coverage.agents_expected == ("B",)
    assert coverage.agents_exercised == ("A", "C")
    assert (coverage.edges_expected, coverage.edges_exercised) == ((("A", "B"),), (("A", "C"),))
    assert coverage.edges == (("A", "B"), ("A", "C"))


def test_cost_is_known_where_tokens_and_price_are() -> None:
    """B119: unknown is not 0; the keyword router costs nothing."""
    steps = [
        ModelStep(agent="A", model="openai/gpt-4.1-mini", input_tokens=1_000_000, output_tokens=1_000_000),
        ModelStep(agent="A", model="nobody/knows-this-model", input_tokens=5, output_tokens=5),
        ModelStep(agent="A", model="gpt-4.1-mini"),
        ModelStep(agent="A", model="keyword"),
    ]
    cost = measure([answered(*steps)]).total.cost
    assert cost.value == pytest.approx(2.0)
    assert (cost.known, cost.unknown) == (2, 2)
    assert measure([answered(steps[1])]).total.cost.value is None
