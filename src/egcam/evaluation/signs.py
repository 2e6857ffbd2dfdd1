"""What paired differences show: medians, by the signs of the differences.

An image says which of two methods is better; how much better is left out. Where the median difference is 0, as many
images as a coin has heads, or fewer, are on either side, whatever the differences are like: the test of that is exact.
A test of the mean is not. It needs differences as far above their mean as below it, or so many images that this no
longer counts, and a dozen images do not tell. `benchmarks/verdict_error.py` measures both.

Scores that are often the same for two methods, such as hit or miss, have the median difference 0 and still differ.
There the shares of images are compared on which one method is better, and the other; of hits and misses the difference
of these shares is that of the means.
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import numpy as np

from egcam.evaluation.comparable import Chosen, Values

LEVEL = 0.95
SURE = 0.05  # the largest p-value that counts as shown
ROUNDING = 1e-6


def paired_difference(scores: Values, others: Values) -> Values:
    """(N,) scores less others; 0 where they differ by no more than rounding, a millionth of the larger.

    Two methods that are the same by mathematics, such as Grad-CAM and HiResCAM before a linear head, add up the same
    numbers in another order; however sure, a difference of 1e-8 is none.

    Example:
        >>> paired_difference(np.array([0.5, 0.3]), np.array([0.5 + 1e-8, 0.2])).round(3).tolist()
        [0.0, 0.1]
    """
    difference = scores - others
    return np.where(np.abs(difference) <= ROUNDING * np.maximum(np.abs(scores), np.abs(others)), 0.0, difference)


def sign_p(differences: Values, many_ties: Chosen | bool = False) -> Values:
    """(K,) two-sided p-values of (N, K) paired differences: how often fair coins are as one-sided as their signs.

        p = min( 1, 2 P(heads >= max(n+, n-)) ),   n+ and n- of n differences being above and below 0

    n is how many differences there are. One that is 0 then counts for neither side, and p is exact, or too large, for
    every distribution whose median is 0. With `many_ties`, n is n+ + n-, and p is so for every distribution that is as
    often above 0 as below. Missing values are left out; a column without any has NaN.

    Example:
        >>> sign_p(np.array([[1.0, 0.0, 1.0]] * 5 + [[1.0, 0.0, -9.0]])).round(3).tolist()
        [0.031, 1.0, 0.219]
    """
    above, below = (differences > 0).sum(0), (differences < 0).sum(0)
    there = np.isfinite(differences).sum(0)
    counts = np.where(many_ties, above + below, there)
    found = [2 * heads(int(n))[most] for n, most in zip(counts, np.maximum(above, below), strict=True)]
    return np.where(there > 0, np.minimum(1.0, found), np.nan)


@lru_cache(maxsize=64)
def heads(coins: int) -> Values:
    """(coins + 1,) how likely fair coins show at least 0, 1, … and `coins` heads.

    Example:
        >>> heads(3).round(3).tolist()
        [1.0, 0.875, 0.5, 0.125]
    """
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, coins + 1)))])
    exactly = np.exp(logs[-1] - logs - logs[::-1] - coins * log(2))
    return np.asarray(exactly[::-1].cumsum()[::-1])


def medians(differences: Values, level: float = LEVEL) -> tuple[Values, Values, Values]:
    """(K,) the medians of (N, K) differences, and where their intervals begin and end.

        [d_(n + 1 - k), d_(k)] of the sorted differences,   k the least with 2 P(heads >= k) <= 1 - level

    The interval holds the median at least as often as `level` says, whatever the distribution, and leaves out 0 where
    `sign_p` is at most 1 - level. Fewer than six differences have none at 95 %: it is NaN.

    Example:
        >>> [ends.tolist() for ends in medians(np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [60.0]]))]
        [[3.5], [1.0], [60.0]]
    """
    ordered = np.sort(differences, axis=0)
    counts = np.isfinite(differences).sum(0)
    middle, low, high = np.full((3, len(counts)), np.nan)
    for n in np.unique(counts[counts > 0]):
        own = counts == n
        middle[own] = (ordered[(n - 1) // 2, own] + ordered[n // 2, own]) / 2
        rare = np.flatnonzero(2 * heads(int(n)) <= 1 - level)
        if len(rare):
            low[own], high[own] = ordered[n - rare[0], own], ordered[rare[0] - 1, own]
    return middle, low, high


def holm(p_values: Values, weights: Values | None = None) -> Values:
    """The p-values of a family of tests, corrected by Holm (1979); NaN stays and is not counted.

        sorted by p / w:   corrected p_i = min( 1, max over j <= i of (w_j + … + w_m) p_j / w_j )

    The chance of any false "shown" in the family is at most the level, however the tests hang together. Weights, equal
    if not given, say how the level is divided at first.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03, np.nan])).tolist()
        [0.03, 0.06, 0.06, nan]
        >>> holm(np.array([0.02, 0.02, 0.02]), np.array([2.0, 1.0, 1.0])).tolist()
        [0.04, 0.04, 0.04]
    """
    given = np.asarray(p_values, dtype=np.float64)
    weight = np.ones(given.size) if weights is None else np.ravel(weights)
    flat, corrected = given.ravel(), np.full(given.size, np.nan)
    order = np.argsort(flat / weight, kind="stable")[: int(np.isfinite(flat).sum())]
    left = weight[order][::-1].cumsum()[::-1]
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(left * flat[order] / weight[order]))
    return corrected.reshape(given.shape)
