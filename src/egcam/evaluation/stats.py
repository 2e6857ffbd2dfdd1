"""The statistics of a table of scores, for tables, figures and reports alike: means, intervals, ranks, verdicts.

Intervals of means are percentile bootstraps over images. All columns of scores are resampled with the same draws, as a
product of matrices: a study has a few hundred columns. Differences and verdicts: `egcam.evaluation.signs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import isfinite, nan, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from egcam.errors import MethodError, near_misses
from egcam.evaluation.comparable import Chosen, Values
from egcam.evaluation.numbers import figure
from egcam.evaluation.signs import LEVEL, SURE, heads, holm, medians, paired_difference, sign_p
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    from egcam.evaluation.table import Table

RESAMPLES, SEED = 2000, 0

# Counts held at once; 2,000 draws of 10,000 images would be 160 MB.
_MOST, _BLOCK = 4_000_000, 200_000
_FEW = 6  # images, below which the interval of a mean is too narrow


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

    Means of few draws lie closer together than Student's intervals are wide: percentiles further out make up for it
    (`beyond`). A column's missing values are left out before drawing; fewer than two values give NaN.

    Args:
        values: (N, K) a column for each method and metric, a row for each image.
        level: how often the interval shall hold the mean.
        resamples: how many draws.
        seed: of the draws.

    Example:
        >>> low, high = intervals(np.array([[0.0], [1.0], [2.0]]))
        >>> low.tolist(), high.tolist()
        ([0.0], [2.0])
    """
    return intervals_of([values], level, resamples, seed)[0]


def intervals_of(
    several: Sequence[Values], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> list[tuple[Values, Values]]:
    """The same of several such arrays. Columns with as many values share their draws, which take most of the time."""
    found = [(np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)) for values in several]
    of_count: dict[int, list[tuple[int, Chosen, list[int]]]] = {}
    for place, values in enumerate(several):
        for pattern, columns in _patterns(values):
            of_count.setdefault(int(pattern.sum()), []).append((place, pattern, columns))
    for count in sorted(of_count):
        if count < 2:
            continue
        some = [several[place][pattern][:, columns] for place, pattern, columns in of_count[count]]
        drawn = zip(
            *([counts @ rows / count for rows in some] for counts in draws(count, resamples, seed)), strict=True
        )
        for (place, _, columns), parts in zip(of_count[count], drawn, strict=True):
            outside = beyond(count, level)
            ends = np.quantile(np.concatenate(parts), [outside, 1 - outside], axis=0)
            found[place][0][columns], found[place][1][columns] = ends
    return found


def beyond(images: int, level: float = LEVEL) -> float:
    """The share of the draws beyond each end of an interval, so that it is as wide as Student's (Hesterberg, 2015).

        share = Phi( -sqrt( n / (n - 1) ) t ),   t the (1 + level) / 2 quantile of Student's distribution, n - 1 degrees

    t is taken from the first terms of its series in 1 / (n - 1) (Fisher and Cornish, 1960).

    Example:
        >>> [round(beyond(images), 4) for images in (10, 50, 100_000)]
        [0.0086, 0.0212, 0.025]
    """
    normal, of = NormalDist(), images - 1
    z = normal.inv_cdf((1 + level) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return normal.cdf(-sqrt(images / of) * (z + first / of + second / of**2 + third / of**3))


def skewness(values: Values) -> Values:
    """(K,) the skewness of the (N, K) columns over their finite values; 0 where all are the same, NaN without any.

        mean( (x - mean)^3 ) / mean( (x - mean)^2 )^1.5

    Example:
        >>> skewness(np.array([[0.0, 1.0], [0.0, 1.0], [3.0, 1.0]])).round(3).tolist()
        [0.707, 0.0]
    """
    apart = values - means(values)
    square, cube = means(apart**2), means(apart**3)
    return np.where(square > 0, cube / np.where(square > 0, square, 1.0) ** 1.5, 0.0 * square)


def is_rough(values: Values) -> bool:
    """Whether the intervals of the means of (N, K) columns, those of a metric, are too narrow.

    They are with fewer than six images; and where scores are skewed: n <= 25 g^2 (Cochran, 1977), g being the mean
    skewness of the columns, since that of a column alone is uncertain.

    Example:
        >>> even, skewed = np.arange(10.0)[:, None], 2.0 ** np.arange(10)[:, None]
        >>> is_rough(even), is_rough(even[:5]), is_rough(skewed)
        (False, True, True)
    """
    scored = values[:, np.isfinite(values).any(0)]
    if not scored.size:
        return False
    count = int(np.isfinite(scored).sum(0).min())
    return count < _FEW or count <= 25 * float(skewness(scored).mean()) ** 2


def _patterns(values: Values) -> list[tuple[Chosen, list[int]]]:
    """Which rows are finite, (N,), each way once, and the columns where they are these."""
    finite = np.isfinite(values)
    found: dict[bytes, list[int]] = {}
    for column in range(values.shape[1]):
        found.setdefault(np.packbits(finite[:, column]).tobytes(), []).append(column)
    return [(finite[:, columns[0]], columns) for columns in found.values()]


def draws(images: int, resamples: int = RESAMPLES, seed: int = SEED) -> Iterator[Values]:
    """How often each image is drawn: (some, N) counts, in all as many rows as there are resamples."""
    source = np.random.default_rng(seed)
    for done in range(0, resamples, step := max(1, _MOST // images)):
        some = min(step, resamples - done)
        counts = np.empty((some, images))
        # A few rows at a time: what is counted stays in the cache, and there is no second array of this size.
        for start in range(0, some, rows := max(1, _BLOCK // images)):
            block = counts[start : start + rows]
            picked = source.integers(0, images, block.shape)
            picked += images * np.arange(len(block))[:, None]
            block[:] = np.bincount(picked.ravel(), minlength=block.size).reshape(block.shape)
        yield counts


def agreement_of_metrics(means: Values, higher_is_better: Sequence[bool]) -> Values:
    """(K, K) how far metrics put methods in the same order: Spearman's correlation over methods, each metric's best up.

    Methods without a mean by one of the two are left out; NaN with fewer than three, or where a metric ties them all.

    Args:
        means: (M, K) a row for each method, a column for each metric.
        higher_is_better: of each metric.

    Example:
        >>> means = np.array([[0.9, 0.1], [0.5, 0.3], [0.2, 0.2]])
        >>> agreement_of_metrics(means, [True, False]).round(2).tolist()
        [[1.0, 0.5], [0.5, 1.0]]
    """
    upwards = means * np.where(higher_is_better, 1.0, -1.0)
    count = means.shape[1]
    found = np.full((count, count), nan)
    for one, other in combinations_with_replacement(range(count), 2):
        both = upwards[np.isfinite(upwards[:, [one, other]]).all(1)][:, [one, other]]
        if len(both) > 2 and (both.min(0) < both.max(0)).all():
            first, second = averaged_ranks(both).T
            found[one, other] = found[other, one] = np.corrcoef(first, second)[0, 1]
    return found


def averaged_ranks(values: Values) -> Values:
    """(M, N) the ranks of the values of each column, 1 for the lowest; equal values share the mean of theirs.

    Example:
        >>> averaged_ranks(np.array([[0.2], [0.1], [0.2]])).T.tolist()
        [[2.5, 1.0, 2.5]]
    """
    smaller = (values[None] < values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return np.asarray(smaller + (equal + 1) / 2)


def reliability(scores: Values) -> float:
    """How far the means of the methods would be the same on as many other images; 1 is perfectly, 0 by chance.

        1 - (M - 3) / (M - 1) q,   q = residual variance / variance between the M methods, by analysis of variance

    The share of the variance of the means that is no noise, and so their expected correlation with the means on other
    images. 1 - q would be Cronbach's alpha, the mean over all ways to halve the images; it is too low, since q is too
    large by (M - 1) / (M - 3) on average. Images without a score of all methods are left out. At least -1; NaN with
    fewer than four images or five methods; a metric that gives all methods the same has 0.

    Args:
        scores: (N, M) a column for each method, a row for each image.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=(40, 5))
        >>> reliability(noise + 9 * np.arange(5)) > 0.99, abs(reliability(noise)) < 0.9
        (True, True)
    """
    shared = scores[np.isfinite(scores).all(1)]
    images, methods = shared.shape
    if images < 4 or methods < 5:
        return nan
    by_method = shared.mean(0) - shared.mean()
    rest = shared - shared.mean(1, keepdims=True) - by_method
    between, within = images * (by_method**2).sum(), (rest**2).sum() / (images - 1)
    # Rounding leaves something of a variance that is 0.
    if between <= 1e-24 * (shared**2).sum():
        return 0.0
    return float(max(-1.0, 1 - (methods - 3) / (methods - 1) * within / between))


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
class Mean:
    """The mean of a method by a metric, with its interval (NaN if there is none)."""

    metric: str
    method: str
    mean: float
    low: float = nan
    high: float = nan


@dataclass(frozen=True)
class Line(Mean):
    """One method by one metric, and how it compares with the baseline.

    The mean is over the images that all compared methods have a score for; over its own where it is not compared.

    Attributes:
        images: how many the mean is over.
        missing: for how many the method has no score.
        compared: whether it is compared with the others: not if it lacks more than half of the images.
        difference: the median of the paired differences, method less baseline, over the images that count for both; of
            a metric with many ties, the share of images on which the method scores higher, less that on which it
            scores lower.
        difference_low: where its 95 % interval begins.
        difference_high: where it ends.
        pairs: how many images the difference is over.
        rank: 1 is best; means that are printed alike share it; NaN for a method that is not compared.
        verdict: how the method stands to the baseline: ahead or behind only where `p` is at most 0.05 and both are
            compared.
        p: of the difference, by the signs of the images' differences (`egcam.evaluation.signs.sign_p`) and corrected
            for the number of comparisons by Holm over all methods and metrics of the table. Those of a primary metric
            start with one half of the 5 %, all others with the other half.
        rough: whether the interval of the mean is too narrow (`is_rough`).
    """

    images: int = 0
    missing: int = 0
    compared: bool = False
    difference: float = nan
    difference_low: float = nan
    difference_high: float = nan
    pairs: int = 0
    rank: float = nan
    verdict: Verdict = "no score"
    p: float = nan
    rough: bool = False


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


@dataclass(frozen=True)
class Summary:
    """All lines of a table against one baseline."""

    lines: tuple[Line, ...]

    def line(self, metric: str, method: str) -> Line:
        """One of them."""
        return next(one for one in self.lines if one.metric == metric and one.method == method)

    def of(self, metric: str) -> list[Line]:
        """The lines of a metric, one for each method, in their order."""
        return [one for one in self.lines if one.metric == metric]


def summarised(
    table: Table,
    baseline: str,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    primary: str | None = None,
    tested: bool = True,
) -> Summary:
    """A line for each metric and method of a table; how it is computed says `egcam.evaluation.table.Table.summary`."""
    keys = [(metric, method) for metric in table.metrics for method in table.methods]
    found = [table.comparable(metric) for metric in table.metrics]
    place_of_baseline = table.methods.index(baseline)
    scores = np.concatenate([one.values for one in found], 1)
    apart_by = np.concatenate([paired_difference(one.values, one.values[:, [place_of_baseline]]) for one in found], 1)
    many_ties = np.array([metric_called(metric).many_ties for metric, _ in keys])
    average, signs = means(scores), np.where(many_ties, np.sign(apart_by), nan)
    (low, high), shares = intervals_of([scores, signs], level, resamples, seed)
    difference, difference_low, difference_high = (
        np.where(many_ties, one, other)
        for one, other in zip((means(signs), *shares), medians(apart_by, level), strict=True)
    )
    held, pairs = np.isfinite(scores).sum(0), np.isfinite(apart_by).sum(0)
    placed = [rank for metric in table.metrics for rank in ranks_of(table, metric)]
    compared = np.concatenate([one.compared for one in found])
    with_baseline = np.repeat([one.compared[place_of_baseline] for one in found], len(table.methods))
    rough = np.repeat([is_rough(one.values[:, one.compared]) for one in found], len(table.methods))
    counts = compared & with_baseline & np.array([method != baseline for _, method in keys])
    p_values = np.full(len(keys), nan)
    if tested:
        plain = sign_p(np.where(counts, apart_by, nan), many_ties)
        p_values = holm(plain, _weights(counts, np.array([metric == primary for metric, _ in keys])))
    lines = []
    for place, (metric, method) in enumerate(keys):
        apart = float(difference[place])
        both, p = bool(compared[place] and with_baseline[place]), float(p_values[place])
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
                apart,
                float(difference_low[place]),
                float(difference_high[place]),
                int(pairs[place]),
                placed[place],
                "baseline" if method == baseline else verdict(metric, apart, int(pairs[place]), p, both),
                p,
                bool(rough[place]),
            )
        )
    return Summary(tuple(lines))


def _weights(counts: Chosen, primary: Chosen) -> Values:
    """(K,) how the 5 % are divided: among all comparisons alike, or one half among those by the primary metric."""
    families = [one & counts for one in (primary, ~primary)]
    weights = np.ones(len(counts))
    if all(one.any() for one in families):
        for one in families:
            weights[one] = 1 / one.sum()
    return weights


def is_compared(table: Table, metric: str, method: str) -> bool:
    """Whether a method of a table has the scores to be compared by a metric."""
    return bool(table.comparable(metric).compared[table.methods.index(method)])


def ranks_of(table: Table, metric: str) -> list[float]:
    """The ranks of a table's methods by a metric; NaN for those that are not compared."""
    return ranks(table.means(metric), table.comparable(metric).compared, metric_called(metric).higher_is_better)


def verdict(metric: str, difference: float, pairs: int, p: float, compared: bool = True) -> Verdict:
    """What a paired difference and its p-value allow to say; nothing if one of the two methods is not compared.

    Fewer than six images cannot show a difference, however they fall out.

    Example:
        >>> verdict("insertion", 0.2, 20, 0.01), verdict("deletion", 0.2, 20, 0.01), verdict("deletion", 0.2, 20, 0.3)
        ('ahead', 'behind', 'no difference shown')
        >>> verdict("insertion", 0.2, 5, 0.0625)
        'too few images'
    """
    if not isfinite(difference):
        return "no score"
    if not compared:
        return "not compared"
    if 2 * heads(pairs)[pairs] > SURE:
        return "too few images"
    if not p <= SURE:
        return "no difference shown"
    return "ahead" if (difference > 0) == metric_called(metric).higher_is_better else "behind"
