"""Intervals that hold for correlated trials, and estimators of what k trials would do."""

from __future__ import annotations

from itertools import combinations
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.statistics import (
    MOST_REPEATS,
    Stratum,
    _effective_size,
    _wilson,
    holm,
    interval,
    more_repeats,
    more_repeats_of_one,
    paired,
    pass_at_k,
    pass_hat_k,
)

clusters = st.lists(st.integers(0, 6).flatmap(lambda size: st.tuples(st.integers(0, size), st.just(size))), max_size=12)


@pytest.mark.parametrize("nothing", [[], [(0, 0)], [(0, 0), (0, 0)]])
def test_an_empty_set_has_no_interval(nothing: list[tuple[int, int]]) -> None:
    """Never 100 %, never NaN (B139)."""
    assert interval(nothing) is None


@given(clusters)
def test_an_interval_lies_between_0_and_1_around_its_rate(counts: list[tuple[int, int]]) -> None:
    found = interval(counts)
    size = sum(size for _, size in counts)
    assert (found is None) == (size == 0)
    if found is not None:
        rate = sum(right for right, _ in counts) / size
        assert not isnan(found.low)
        assert 0 <= found.low <= rate <= found.high <= 1


def test_many_scenarios_of_one_turn_each_give_wilson_s_interval() -> None:
    """Wilson 1927 for 80 of 100 and z = 1.96 is 0.711 to 0.867; t with 99 degrees of freedom is a little wider."""
    found = interval([(1, 1)] * 80 + [(0, 1)] * 20)
    assert found is not None
    assert found.low == pytest.approx(0.710, abs=0.002)
    assert found.high == pytest.approx(0.868, abs=0.002)


def test_members_that_resemble_one_another_tell_less_than_as_many_separate_ones() -> None:
    alike = interval([(10, 10)] * 8 + [(0, 10)] * 2)
    separate = interval([(1, 1)] * 80 + [(0, 1)] * 20)
    as_few = interval([(1, 1)] * 8 + [(0, 1)] * 2)
    assert alike is not None
    assert separate is not None
    assert as_few is not None
    assert alike.high - alike.low > 2 * (separate.high - separate.low)
    assert alike.low == pytest.approx(as_few.low)


def test_a_perfect_score_counts_each_scenario_once() -> None:
    """It shows nothing of how alike the turns of a scenario are; nine of nine never means 100 % for certain."""
    assert interval([(5, 5)] * 9) == interval([(1, 1)] * 9)
    found = interval([(1, 1)] * 9)
    assert found is not None
    assert found.high == 1
    assert found.low < 0.7


def test_one_cluster_counts_as_one() -> None:
    assert interval([(3, 3)]) == interval([(1, 1)])
    assert interval([(1, 2)]) == interval([(10, 20)])


@pytest.mark.parametrize(
    ("scenarios", "repeats", "rate", "alike"), [(30, 5, 0.7, 0.5), (10, 5, 0.9, 0.3), (9, 1, 0.8, 0.01)]
)
def test_it_covers_the_truth_about_as_often_as_it_says(scenarios: int, repeats: int, rate: float, alike: float) -> None:
    """Scenarios of beta-distributed difficulty; plain Wilson covers 76 % of the first of these."""
    random = np.random.default_rng(20261130)
    difficulty = random.beta(rate * (1 / alike - 1), (1 - rate) * (1 / alike - 1), size=(600, scenarios))
    right = random.binomial(repeats, difficulty)
    found = [interval([(int(count), repeats) for count in run]) for run in right]
    covered = sum(each is not None and each.low <= rate <= each.high for each in found) / len(found)
    assert 0.91 <= covered <= 0.995


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))))
def test_pass_hat_k_and_pass_at_k_are_the_shares_of_all_ways_to_draw_k_trials(drawn: tuple[int, int, int]) -> None:
    passed, tried, k = drawn
    draws = list(combinations([True] * passed + [False] * (tried - passed), k))
    assert pass_hat_k(passed, tried, k) == pytest.approx(sum(all(draw) for draw in draws) / len(draws))
    assert pass_at_k(passed, tried, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


@pytest.mark.parametrize("k", [0, 4])
def test_more_trials_than_there_were_cannot_be_estimated(k: int) -> None:
    assert pass_hat_k(3, 3, k) is None
    assert pass_at_k(3, 3, k) is None


# Against published worked examples.


@pytest.mark.parametrize(
    ("right", "size", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_newcombes_method_3(right: int, size: int, low: float, high: float) -> None:
    """Newcombe 1998, Statistics in Medicine 17:857, table I."""
    found = _wilson(right / size, size, 1.959964)
    assert found.low == pytest.approx(low, abs=5e-5)
    assert found.high == pytest.approx(high, abs=5e-5)


LITTERS = {
    "control": "13/13 12/12 9/9 9/9 8/8 8/8 12/13 11/12 9/10 9/10 8/9 11/13 4/5 5/7 7/10 7/10",
    "treated": "12/12 11/11 10/10 9/9 10/11 9/10 9/10 8/9 8/9 4/5 7/9 4/7 5/10 3/6 3/10 0/7",
}
"""Weil 1970: rat pups that survived, of those alive at 4 days, litter by litter."""


@pytest.mark.parametrize(("group", "effect"), [("control", 1.232495), ("treated", 3.952861)])
def test_the_design_effect_is_rao_and_scotts(group: str, effect: float) -> None:
    """Rao and Scott 1992, Biometrics 48:577, on Weil's litters."""
    litters = [(int(right), int(size)) for right, size in (each.split("/") for each in LITTERS[group].split())]
    size = sum(each for _, each in litters)
    rate = sum(right for right, _ in litters) / size
    assert size / _effective_size(litters, rate, size) == pytest.approx(effect, abs=5e-7)


def passes(passed: int, failed: int) -> list[int]:
    return [1] * passed + [0] * failed


def test_one_scenario_is_fishers_exact_test() -> None:
    """Fisher 1935, the lady tasting tea: 3 of 4 cups, two-sided 0.486; and his twins of convicts, 0.0005367 (in R)."""
    assert paired([(passes(3, 1), passes(1, 3))]).p == pytest.approx(0.4857, abs=5e-5)
    assert paired([(passes(10, 3), passes(2, 15))]).p == pytest.approx(0.0005367, abs=5e-8)


def test_one_repeat_is_mcnemars_exact_test() -> None:
    """12 changed one way, 2 the other: the binomial test of 2 in 14."""
    changed = [([1], [0])] * 12 + [([0], [1])] * 2
    assert paired([*changed, *[([1], [1])] * 50]).p == pytest.approx(0.0129395, abs=5e-8)


def test_several_scenarios_are_the_exact_conditional_test_of_two_by_two_tables() -> None:
    """Agresti 1990, p. 234: penicillin and rabbits; R's `mantelhaen.test(Rabbits, exact = TRUE)` has 0.03994."""
    tables = [((0, 6), (0, 5)), ((3, 3), (0, 6)), ((6, 0), (2, 4)), ((5, 1), (6, 0)), ((2, 0), (5, 0))]
    assert paired([(passes(*one), passes(*other)) for one, other in tables]).p == pytest.approx(0.03994, abs=5e-6)


def test_p_values_of_several_tests_are_adjusted_by_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == [0.03, 0.06, 0.06, 0.02]
    assert holm([]) == []
    assert holm([0.7, 0.9]) == [1.0, 1.0]


# Paired tests.

scores = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@given(st.lists(st.tuples(scores, scores), max_size=3))
def test_the_paired_test_counts_every_exchange_of_trials_within_a_scenario(strata: list[Stratum]) -> None:
    """By trying all of them, for scores that are no mere passes: as far from the mean as what happened, or farther."""
    sums = [0]
    for first, second in strata:
        scores = (*first, *second)
        drawn = [sum(scores[i] for i in places) for places in combinations(range(len(scores)), len(second))]
        sums = [total + each for total in sums for each in drawn]
    happened = sum(sum(second) for _, second in strata)
    mean = sum(sums) / len(sums)
    far = sum(abs(total - mean) >= abs(happened - mean) - 1e-9 for total in sums) / len(sums)
    found = paired(strata)
    assert found.difference == pytest.approx(happened - mean)
    assert found.variance == pytest.approx(sum((total - mean) ** 2 for total in sums) / len(sums))
    if any(max((*first, *second)) > 1 for first, second in strata if len({*first, *second}) > 1):
        assert found.p == pytest.approx(far)


def test_a_false_alarm_is_no_likelier_than_the_level() -> None:
    """Two runs of one suite: 40 scenarios of beta-distributed difficulty, 3 repeats each, alike but for chance."""
    random = np.random.default_rng(20261130)
    difficulty = random.beta(1.4, 0.6, size=(400, 40, 1, 1))
    runs = random.random((400, 40, 2, 3)) < difficulty
    alarms = [
        paired([(list(map(int, one)), list(map(int, other))) for one, other in suite]).p <= 0.05 for suite in runs
    ]
    assert 0 < np.mean(alarms) <= 0.06


@pytest.mark.parametrize("level", [0.05, 0.05 / 20])
@pytest.mark.parametrize(
    ("passed", "tried"), [((1, 0), (1, 1)), ((3, 0), (3, 3)), ((10, 6), (10, 10)), ((5, 3), (5, 5)), ((0, 1), (2, 2))]
)
def test_so_many_more_repeats_settle_it_and_no_fewer(
    passed: tuple[int, int], tried: tuple[int, int], level: float
) -> None:
    more = more_repeats_of_one(passed, tried, level)
    assert more is not None

    def p(number: int) -> float:
        counts = [round(each / of * number) for each, of in zip(passed, tried, strict=True)]
        return paired([(passes(counts[0], number - counts[0]), passes(counts[1], number - counts[1]))]).p

    assert p(tried[0] + more) <= level
    assert more == 1 or p(tried[0] + more - 1) > level


def test_nothing_settles_what_does_not_differ() -> None:
    assert more_repeats_of_one((1, 1), (2, 2)) is None
    assert more_repeats(paired([([1], [1])]), 1) is None
    assert more_repeats(paired([([1, 0] * 20, [1, 0] * 19 + [1, 1])]), 40, 1e-9) in (None, *range(1, MOST_REPEATS))


@pytest.mark.parametrize("scenarios", [20, 50, 100])
@pytest.mark.parametrize("rate", [0.5, 0.8, 0.9])
def test_it_covers_suites_of_four_turns_that_resemble_one_another(scenarios: int, rate: float) -> None:
    """Correlation 1/3, 2,000 suites: between 92 and 98 %."""
    random = np.random.default_rng(20261201)
    right = random.binomial(4, random.beta(2 * rate, 2 * (1 - rate), size=(2_000, scenarios)))
    found = (interval([(count, 4) for count in suite]) for suite in right.tolist())
    covered = sum(each is not None and each.low <= rate <= each.high for each in found) / len(right)
    assert 0.92 <= covered <= 0.98
