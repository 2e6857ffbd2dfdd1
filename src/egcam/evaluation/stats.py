"""The statistics of a table of scores, for tables, figures and reports alike: means, intervals, differences, verdicts.

Intervals are percentile bootstraps over images. All columns of scores are resampled with the same draws, as a product
of matrices: a study has a few hundred columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Literal

import numpy as np

from egcam.errors import MethodError, near_misses
from egcam.evaluation.comparable import Chosen, Values
from egcam.evaluation.numbers import figure
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    from egcam.evaluation.table import Table

LEVEL, RESAMPLES, SEED = 0.95, 2000, 0
ROUNDING = 1e-6

# Counts held at once; 2,000 draws of 10,000 images would be 160 MB.
_MOST = 4_000_000


def means(values: Values) -> Values:
    """(K,) the means of the (N, K) columns over their finite values; NaN for a column without any.

    Example:
        >>> means(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
        [2.0, nan]
    """
    finite = np.isfinite(values)
    count = finite.sum(0)
    total = np.where(finite, values, 0.0).sum(0)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def intervals(
    values: Values, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[Values, Values]:
    """(K,) lower and (K,) upper ends of the percentile bootstrap of each column's mean.

    A column's missing values are left out before drawing; fewer than two values give NaN.

    Args:
        values: (N, K) a column for each method and metric, a row for each image.
        level: the share of the draws that the interval holds.
        resamples: how many draws.
        seed: of the draws.

    Example:
        >>> low, high = intervals(np.array([[0.0], [1.0], [2.0]]))
        >>> low.tolist(), high.tolist()
        ([0.0], [2.0])
    """
    low, high = np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    finite = np.isfinite(values)
    for pattern in np.unique(finite, axis=1).T:
        columns = (finite == pattern[:, None]).all(0).nonzero()[0]
        rows = values[pattern][:, columns]
        if len(rows) < 2:
            continue
        drawn = np.concatenate([counts @ rows / len(rows) for counts in draws(len(rows), resamples, seed)])
        low[columns], high[columns] = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def draws(images: int, resamples: int = RESAMPLES, seed: int = SEED) -> Iterator[Values]:
    """How often each image is drawn: (some, N) counts, in all as many rows as there are resamples."""
    source = np.random.default_rng(seed)
    for done in range(0, resamples, step := max(1, _MOST // images)):
        some = min(step, resamples - done)
        picked = source.integers(0, images, (some, images)) + images * np.arange(some)[:, None]
        yield np.bincount(picked.ravel(), minlength=some * images).reshape(some, images).astype(np.float64)


def paired_difference(scores: Values, others: Values) -> Values:
    """(N,) scores less others; 0 where they differ by no more than rounding, a millionth of the larger.

    Two methods that are the same by mathematics, such as Grad-CAM and HiRes-CAM before a linear head, add up the same
    numbers in another order; however sure, a difference of 1e-8 is none.

    Example:
        >>> paired_difference(np.array([0.5, 0.3]), np.array([0.5 + 1e-8, 0.2])).round(3).tolist()
        [0.0, 0.1]
    """
    difference = scores - others
    return np.where(np.abs(difference) <= ROUNDING * np.maximum(np.abs(scores), np.abs(others)), 0.0, difference)


def significant(values: Values) -> Values:
    """Values to six significant digits: what is equal then shares a rank.

    Example:
        >>> significant(np.array([0.12345678, np.nan, 0.0, 12345678.0])).tolist()
        [0.123457, nan, 0.0, 12345700.0]
    """
    return np.array([float(f"{value:.6g}") for value in np.ravel(values)]).reshape(np.shape(values))


def ranks(means: Sequence[float], compared: Sequence[bool] | Chosen, higher_is_better: bool) -> list[float]:
    """1 for the best of the compared methods; means that are printed alike share a rank; NaN for all others.

    Example:
        >>> ranks([0.50001, 0.1, 0.50002, 0.9], [True, True, True, False], higher_is_better=True)
        [1.0, 3.0, 1.0, nan]
    """
    printed = [
        float(figure(mean)) if isfinite(mean) and counts else nan for mean, counts in zip(means, compared, strict=True)
    ]
    signed = [-mean if higher_is_better else mean for mean in printed]
    return [1.0 + sum(other < own for other in signed) if isfinite(own) else nan for own in signed]


Verdict = Literal["ahead", "behind", "no difference shown", "no score", "too few images", "not compared", "baseline"]


@dataclass(frozen=True)
class Line:
    """One method by one metric.

    Attributes:
        metric: the metric.
        method: the method.
        mean: over the images that all compared methods have a score for; over its own where it is not compared.
        low: where the mean's 95 % interval begins.
        high: where it ends.
        images: how many the mean is over.
        missing: for how many the method has no score.
        compared: whether it is compared with the others: not if it lacks more than half of the images.
        difference: mean of method less baseline, over the images that count for both.
        difference_low: where its 95 % interval begins.
        difference_high: where it ends.
        pairs: how many images the difference is over.
        rank: 1 is best; means that are printed alike share it; NaN for a method that is not compared.
        verdict: how the method stands to the baseline: ahead or behind only where the interval leaves out 0 and both
            are compared.
    """

    metric: str
    method: str
    mean: float
    low: float
    high: float
    images: int
    missing: int
    compared: bool
    difference: float
    difference_low: float
    difference_high: float
    pairs: int
    rank: float
    verdict: Verdict


def baseline_of(methods: Iterable[str], wanted: str | None = None) -> str:
    """The method others are compared with: the wanted one, else Grad-CAM, else the first.

    Example:
        >>> baseline_of(["layer-cam", "grad-cam"])
        'grad-cam'
    """
    known = list(methods)
    if wanted is None:
        return "grad-cam" if "grad-cam" in known else known[0]
    if wanted not in known:
        raise MethodError(f"no method here is called {wanted!r}; {near_misses(wanted, known)}")
    return wanted


def summary_lines(
    table: Table, baseline: str, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> list[Line]:
    """A line for each metric and method of a table; how it is computed says `egcam.evaluation.table.Table.summary`."""
    keys = [(metric, method) for metric in table.metrics for method in table.methods]
    found = [table.comparable(metric) for metric in table.metrics]
    place_of_baseline = table.methods.index(baseline)
    scores = np.concatenate([one.values for one in found], 1)
    against = np.repeat(np.stack([one.values[:, place_of_baseline] for one in found], 1), len(table.methods), axis=1)
    average, (low, high) = means(scores), intervals(scores, level, resamples, seed)
    apart_by = paired_difference(scores, against)
    difference, (difference_low, difference_high) = means(apart_by), intervals(apart_by, level, resamples, seed)
    held, pairs = np.isfinite(scores).sum(0), np.isfinite(apart_by).sum(0)
    placed = [rank for metric in table.metrics for rank in ranks_of(table, metric)]
    compared = np.concatenate([one.compared for one in found])
    with_baseline = np.repeat([one.compared[place_of_baseline] for one in found], len(table.methods))
    lines = []
    for place, (metric, method) in enumerate(keys):
        apart = (float(difference[place]), float(difference_low[place]), float(difference_high[place]))
        both = bool(compared[place] and with_baseline[place])
        lines.append(
            Line(
                metric,
                method,
                float(average[place]),
                float(low[place]),
                float(high[place]),
                int(held[place]),
                int((~np.isfinite(table.values(method, metric))).sum()),
                bool(compared[place]),
                *apart,
                int(pairs[place]),
                placed[place],
                "baseline" if method == baseline else verdict(metric, *apart, compared=both),
            )
        )
    return lines


def ranks_of(table: Table, metric: str) -> list[float]:
    """The ranks of a table's methods by a metric; NaN for those that are not compared."""
    return ranks(table.means(metric), table.comparable(metric).compared, metric_called(metric).higher_is_better)


def verdict(metric: str, difference: float, low: float, high: float, *, compared: bool = True) -> Verdict:
    """What a paired difference and its interval allow to say; nothing where one of the two is not compared.

    Example:
        >>> verdict("insertion", 0.2, 0.1, 0.3), verdict("deletion", 0.2, 0.1, 0.3)
        ('ahead', 'behind')
        >>> verdict("insertion", 0.1, -0.1, 0.3)
        'no difference shown'
    """
    if not isfinite(difference):
        return "no score"
    if not compared:
        return "not compared"
    if not isfinite(low):
        return "too few images"
    if low <= 0 <= high:
        return "no difference shown"
    return "ahead" if (low > 0) == metric_called(metric).higher_is_better else "behind"
