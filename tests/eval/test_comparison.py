"""A run against its baseline: what changed, scenario by scenario, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.comparison import Comparison, ScenarioChange, compare
from chatflow_eval.demand import Demand
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import Report


def trials(
    scenario: str,
    ended: str,
    *,
    model: str = "m",
    users: tuple[str, ...] = (),
    ends: tuple[str, ...] = ("B",),
    baseline: bool = False,
) -> list[Outcome]:
    """One trial a letter: passed, failed, errored, skipped; each with one turn judged for routing."""
    statuses: dict[str, Status] = {"p": "passed", "f": "failed", "e": "errored", "s": "skipped"}
    return [
        Outcome(
            file="a.scenario.yaml",
            line=7,
            scenario=scenario,
            model=model,
            repeat=number,
            status=statuses[letter],
            users=users or (scenario,),
            verdicts=(
                Verdict(check="route", turn=1, status="passed" if letter == "p" else "failed", expected="A -> B"),
            )
            if letter in "pf"
            else (),
            demands=(Demand(turn=1, asks="first", ends=ends),),
            baseline=baseline,
        )
        for number, letter in enumerate(ended, 1)
    ]


def compared(base: Sequence[list[Outcome]], run: Sequence[list[Outcome]]) -> Comparison:
    reports = (Report.of([outcome for group in side for outcome in group]) for side in (base, run))
    return compare(*reports)


def one(before: str, now: str) -> ScenarioChange:
    (row,) = compared([trials("s", before)], [trials("s", now)]).scenarios
    return row


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ("p", "p", "unchanged"),
        ("fff", "f", "unchanged"),
        ("p", "f", "regressed"),
        ("fff", "ppp", "improved"),
        ("ppp", "ppf", "flaky"),
        ("pf", "pf", "flaky"),
        ("pppppppp", "fffffffp", "regressed"),
        ("p", "e", "inconclusive"),
        ("p", "s", "gone"),
        ("e", "p", "new"),
        ("s", "s", "unchanged"),
        ("pe", "p", "unchanged"),
    ],
)
def test_a_scenario_changed_in_one_way(before: str, now: str, change: str) -> None:
    assert one(before, now).change == change


def test_a_change_is_settled_or_says_what_would_settle_it() -> None:
    """3/3 to 0/3 is a regression, and no proof yet; one more repeat of both would be."""
    row = one("ppp", "fff")
    assert (row.change, row.settled, row.more_repeats) == ("regressed", False, 1)
    assert row.p == pytest.approx(0.1)
    assert one("pppp", "ffff").settled
    assert one("p" * 10, "p" * 6 + "f" * 4).more_repeats == 2
    assert one("p", "p").more_repeats is None


def test_several_scenarios_are_adjusted_for_one_another() -> None:
    """Of ten scenarios one changes by chance sooner or later."""
    base = [trials("s", "pppp"), *(trials(f"t{number}", "pppp") for number in range(9))]
    run = [trials("s", "ffff"), *base[1:]]
    row = next(row for row in compared(base, run).scenarios if row.scenario == "s")
    assert row.p == pytest.approx(2 / 70)
    assert row.p_adjusted == pytest.approx(20 / 70)
    assert (row.settled, row.more_repeats) == (False, 2)


def test_a_scenario_that_is_missing_is_gone_and_a_renamed_one_is_pointed_out() -> None:
    comparison = compared(
        [trials("old", "p", users=("I want a refund",)), trials("removed", "p")],
        [trials("renamed", "p", users=("I want a refund",)), trials("added", "p")],
    )
    rows = {row.scenario: row for row in comparison.scenarios}
    assert {name: row.change for name, row in rows.items()} == {
        "old": "gone",
        "removed": "gone",
        "renamed": "new",
        "added": "new",
    }
    assert "'renamed', which is new, says the same" in rows["old"].why
    assert "renamed" not in rows["removed"].why


def test_other_words_or_other_expectations_are_an_edit() -> None:
    (words,) = compared([trials("s", "p")], [trials("s", "p", users=("other",))]).scenarios
    (expected,) = compared([trials("s", "p")], [trials("s", "f", ends=("C",))]).scenarios
    assert (words.edited, expected.edited, one("p", "p").edited) == (True, True, False)


def test_models_are_kept_apart_unless_each_run_has_one() -> None:
    (row,) = compared([trials("s", "p", model="old")], [trials("s", "f", model="new")]).scenarios
    assert (row.change, row.model) == ("regressed", "new")
    both = [trials("s", "p", model="m"), trials("s", "p", model="n")]
    assert [(row.model, row.change) for row in compared(both, both[:1]).scenarios] == [
        ("n", "gone"),
        ("m", "unchanged"),
    ]


def test_yardsticks_are_not_compared() -> None:
    comparison = compared([trials("s", "p")], [trials("s", "p"), trials("s", "f", model="keyword", baseline=True)])
    assert comparison.counts["unchanged"] == len(comparison.scenarios) == 1


def test_the_suite_is_compared_over_the_scenarios_of_both_runs() -> None:
    base = [trials(f"s{number}", "p") for number in range(8)] + [trials("gone", "f")]
    run = [trials(f"s{number}", "f" if number < 6 else "p") for number in range(8)] + [trials("new", "p")]
    accuracy = compared(base, run).accuracy
    assert (accuracy.base, accuracy.run, accuracy.value) == ((8, 8), (2, 8), -0.75)
    assert accuracy.p == pytest.approx(2 / 2**6)
    assert accuracy.conclusion == "regressed"


def test_a_difference_that_chance_may_have_made_is_inconclusive() -> None:
    base = [trials(f"s{number}", "p") for number in range(8)]
    run = [trials(f"s{number}", "f" if number < 3 else "p") for number in range(8)]
    accuracy = compared(base, run).accuracy
    assert accuracy.conclusion == "inconclusive"
    assert accuracy.p == pytest.approx(0.25)
    assert accuracy.more_repeats == 1
    assert compared(base, base).accuracy.conclusion == "unchanged"
    assert compared(base, [trials("other", "p")]).accuracy.value is None
