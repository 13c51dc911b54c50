"""Intervals that hold for correlated trials, and estimators of what k trials would do."""

from __future__ import annotations

from itertools import combinations
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.statistics import interval, pass_at_k, pass_hat_k

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
