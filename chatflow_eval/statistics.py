"""Intervals for rates over correlated trials, and the pass^k and pass@k estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, fsum, sqrt

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
