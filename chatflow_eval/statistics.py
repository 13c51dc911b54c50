"""Intervals for rates over correlated trials, pass^k and pass@k, and exact tests of two runs paired by scenario."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb, fsum, sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a rate lies, with 95 % confidence; both ends between 0 and 1."""

    low: float
    high: float


def interval(clusters: Sequence[tuple[float, float]], level: float = LEVEL) -> Interval | None:
    """Wilson's interval for a rate whose members come in clusters of (right, all); `None` for an empty set.

    Members of a cluster (turns and repeats of one scenario) resemble one another, so that n of them tell less than n
    separate ones: n is divided by the design effect (Kish 1965) that the clusters themselves show, and Student's t with
    one degree of freedom less than there are clusters takes the place of the normal quantile.
    """
    counted = [(right, size) for right, size in clusters if size > 0]
    if not counted:
        return None
    total = fsum(size for _, size in counted)
    rate = fsum(right for right, _ in counted) / total
    effective = _effective_size(counted, rate, total)
    tail = (1 + level) / 2
    quantile = float(stdtrit(len(counted) - 1, tail)) if len(counted) > 1 else float(ndtri(tail))
    return _wilson(rate, effective, quantile)


def _effective_size(clusters: Sequence[tuple[float, float]], rate: float, total: float) -> float:
    """How many separate members the clusters are worth: between the number of clusters and the number of members.

    One cluster, or a rate of 0 or 1, shows nothing of how alike its members are: then each cluster counts once.
    """
    count = len(clusters)
    if count == 1 or rate in (0.0, 1.0):
        return float(count)
    spread = fsum((right - rate * size) ** 2 for right, size in clusters)
    variance = count / (count - 1) * spread / total**2
    return min(max(rate * (1 - rate) / variance, count), total) if variance else float(total)


def _wilson(rate: float, size: float, quantile: float) -> Interval:
    """Wilson 1927, for a size that need not be whole."""
    square = quantile * quantile
    middle = (rate + square / (2 * size)) / (1 + square / size)
    half = quantile / (1 + square / size) * sqrt(rate * (1 - rate) / size + square / (4 * size * size))
    return Interval(0.0 if rate == 0 else max(middle - half, 0.0), 1.0 if rate == 1 else min(middle + half, 1.0))


def pass_hat_k(passed: int, tried: int, k: int) -> float | None:
    """The chance that k trials all pass, estimated without bias (tau-bench, 2024); `None` when k > tried."""
    return comb(passed, k) / comb(tried, k) if 0 < k <= tried else None


def pass_at_k(passed: int, tried: int, k: int) -> float | None:
    """The chance that one of k trials or more passes, without bias (Chen et al. 2021); `None` when k > tried."""
    return 1 - comb(tried - passed, k) / comb(tried, k) if 0 < k <= tried else None


@dataclass(frozen=True, slots=True)
class Paired:
    """What an exact paired test says of the difference between two runs."""

    difference: float
    """Second run less first, summed over strata, less what chance alone would give it."""
    variance: float
    """Of that sum, when the runs are alike."""
    p: float
    """The chance of a difference as large or larger, in either direction, when the runs are alike."""


Stratum: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""One scenario: what each trial of the first run scored, and each of the second."""


def paired(strata: Iterable[Stratum]) -> Paired:
    """The exact permutation test of two runs, paired by scenario.

    When the runs are alike, any trial of a scenario might as well have stood in the other run; the sum of the second
    run's scores is held against all such exchanges. For trials that pass or fail it is the exact conditional test of
    2 x 2 x k tables (Agresti 1990, 7.4); with one scenario Fisher's exact test, with one repeat McNemar's. Two-sided as
    Fisher's is (no likelier than what happened) for 0 and 1, else by the distance from the expected sum.
    """
    chances, observed, lowest, binary = np.ones(1), 0, 0, True
    for first, second in strata:
        scores = (*first, *second)
        if not first or not second or min(scores) == max(scores):
            continue
        binary &= min(scores) >= 0 and max(scores) <= 1
        low, of_one = _sums(tuple(sorted(scores)), len(second))
        chances = np.convolve(chances, of_one)
        observed, lowest = observed + sum(second), lowest + low
    sums = lowest + np.arange(len(chances))
    mean = float(chances @ sums)
    distance = np.abs(sums - mean)
    place = observed - lowest
    as_far = chances <= chances[place] * (1 + _TIE) if binary else distance >= distance[place] - _TIE
    return Paired(observed - mean, float(chances @ distance**2), min(float(chances[as_far].sum()), 1.0))


_TIE = 1e-7
"""Chances and distances that differ by no more, relatively, are equal: as R's and scipy's exact tests have it."""


@lru_cache(maxsize=4096)
def _sums(scores: tuple[int, ...], drawn: int) -> tuple[int, npt.NDArray[np.float64]]:
    """The lowest sum of so many scores drawn at random, and the chance of that sum and of each one above it."""
    low, high, least, draws = sum(scores[:drawn]), sum(scores[-drawn:]), scores[0], comb(len(scores), drawn)
    if scores[-1] - least == 1:  # two kinds of trials: the hypergeometric distribution, whatever their number
        better = sum(scores) - least * len(scores)
        counts = range(low - drawn * least, high - drawn * least + 1)
        worse = len(scores) - better
        return low, np.array([comb(better, count) * comb(worse, drawn - count) / draws for count in counts])
    ways = [[1] + [0] * (high - drawn * least), *([0] * (high - drawn * least + 1) for _ in range(drawn))]
    for index, score in enumerate(scores, 1):
        step = score - least
        for taken in range(min(index, drawn), 0, -1):
            before, now = ways[taken - 1], ways[taken]
            for place in range(len(now) - 1, step - 1, -1):
                now[place] += before[place - step]
    return low, np.array([count / draws for count in ways[drawn][low - drawn * least :]])


def holm(chances: Sequence[float]) -> list[float]:
    """The p values adjusted for being several (Holm 1979), so that each can be held against the level as it is."""
    adjusted, highest = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        highest = max(highest, min((len(chances) - rank) * chances[place], 1.0))
        adjusted[place] = highest
    return adjusted


MOST_REPEATS = 1_000
"""Repeats of one scenario beyond which nobody is told how many more it takes."""


def more_repeats(found: Paired, repeats: int, level: float = 1 - LEVEL) -> int | None:
    """About how many further repeats of every scenario would settle the difference, were it to stay as it is.

    A difference grows with the number of trials, and its standard deviation with the square root of that. `None`: no
    number would, or it is beyond `MOST_REPEATS`.
    """
    if found.difference == 0 or found.variance == 0:
        return None
    needed = float(ndtri(1 - level / 2)) ** 2 * found.variance / found.difference**2
    more = max(ceil(repeats * (needed - 1)), 1)
    return more if repeats + more <= MOST_REPEATS else None


@lru_cache(maxsize=4096)
def more_repeats_of_one(passed: tuple[int, int], tried: tuple[int, int], level: float = 1 - LEVEL) -> int | None:
    """The fewest further repeats with which one scenario's two shares of passed trials would differ by the test."""
    shares = [each / of for each, of in zip(passed, tried, strict=True)]
    about = more_repeats(paired([_trials(shares, max(tried))]), max(tried), level)
    if about is None:
        return None
    for more in range(max(about // 2, 1), MOST_REPEATS - max(tried) + 1):  # the normal curve is only near the truth
        if paired([_trials(shares, max(tried) + more)]).p <= level:
            return more
    return None


def _trials(shares: Sequence[float], tried: int) -> Stratum:
    first, second = ([1] * round(share * tried) + [0] * (tried - round(share * tried)) for share in shares)
    return first, second
