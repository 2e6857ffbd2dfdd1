"""The statistics of a table of scores, for tables, figures and reports alike: means, intervals, differences, verdicts.

Intervals are percentile bootstraps over images. All columns of scores are resampled with the same draws, as a product
of matrices: a study has a few hundred columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
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
_MOST, _BLOCK = 4_000_000, 200_000
_FEW = 12  # differences, whose 4,096 signs can all be gone through
SURE = 0.05  # the largest p-value that counts as shown


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
            ends = np.quantile(np.concatenate(parts), [(1 - level) / 2, (1 + level) / 2], axis=0)
            found[place][0][columns], found[place][1][columns] = ends
    return found


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


def sign_flip_p(differences: Values, resamples: int = RESAMPLES, seed: int = SEED) -> Values:
    """(K,) two-sided p-values of the means of (N, K) paired differences: signs are as likely turned as not.

        p = (1 + number of draws with |mean of s d| >= |mean of d|) / (1 + draws),   s = 1 or -1 for each image

    Of up to twelve differences all signs are gone through, and p is exact. Missing values are left out; a column
    without any has NaN. All columns are turned by the same signs.

    Example:
        >>> sign_flip_p(np.array([[1.0, 0.0]] * 12)).round(2).tolist()
        [0.0, 1.0]
    """
    finite = np.isfinite(differences)
    known = np.where(finite, differences, 0.0)
    observed = np.abs(known.sum(0))
    p_values = np.full(known.shape[1], np.nan)
    few = (known != 0).sum(0) <= _FEW
    for column in np.flatnonzero(few & finite.any(0)):
        p_values[column] = _exact_p(known[:, column][known[:, column] != 0])
    many = np.flatnonzero(~few)
    if not len(many):
        return p_values
    known, observed = known[:, many], observed[many]
    source = np.random.default_rng(seed)
    reached = np.zeros(len(many))
    at_once = max(1, _MOST // max(1, len(known)))
    for start in range(0, resamples, at_once):
        signs = source.choice([-1.0, 1.0], (min(at_once, resamples - start), len(known)))
        # Sums of the same numbers in another order differ in their last digits.
        reached += (np.abs(signs @ known) >= observed * (1 - ROUNDING)).sum(0)
    p_values[many] = (1 + reached) / (1 + resamples)
    return p_values


def _exact_p(differences: Values) -> float:
    """The share of all signs that reach the sum of the differences."""
    sums = np.zeros(1)
    for one in differences:
        sums = np.concatenate([sums + one, sums - one])
    return float((np.abs(sums) >= abs(differences.sum()) * (1 - ROUNDING)).mean())


def holm(p_values: Values) -> Values:
    """The p-values of a family of tests, corrected by Holm (1979); NaN stays and is not counted.

        sorted: p_1 <= … <= p_m,   corrected p_i = min( 1, max over j <= i of (m - j + 1) p_j )

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03, np.nan])).tolist()
        [0.03, 0.06, 0.06, nan]
    """
    given = np.asarray(p_values, dtype=np.float64)
    flat, found = given.ravel(), np.full(given.size, np.nan)
    order = np.argsort(flat)[: int(np.isfinite(flat).sum())]
    steps = (len(order) - np.arange(len(order))) * flat[order]
    found[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return found.reshape(given.shape)


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


def split_half_reliability(scores: Values, splits: int = 200, seed: int = SEED) -> float:
    """How far two halves of the images agree on the means of the methods, for all images; 1 is perfectly.

        r = Pearson over methods of ( mean on one half, mean on the other ),   reliability = mean of 2 r / (1 + r)

    over random splits (Spearman and Brown, 1910, for the double length). Images without a score of all methods are left
    out. NaN with fewer than four images or three methods; a metric that gives all methods the same has 0.

    Args:
        scores: (N, M) a column for each method, a row for each image.
        splits: how many.
        seed: of the splits.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=(40, 5))
        >>> split_half_reliability(noise + 9 * np.arange(5)) > 0.99, abs(split_half_reliability(noise)) < 0.9
        (True, True)
    """
    known = scores[np.isfinite(scores).all(1)]
    if len(known) < 4 or known.shape[1] < 3:
        return nan
    source = np.random.default_rng(seed)
    found = []
    for _ in range(splits):
        order = source.permutation(len(known))
        halves = [known[part].mean(0) for part in np.array_split(order, 2)]
        first, second = (half - half.mean() for half in halves)
        size = float(np.sqrt((first**2).sum() * (second**2).sum()))
        r = float((first * second).sum()) / size if size > 0 else 0.0
        found.append(2 * r / (1 + r) if r > -1 + 1e-9 else -1.0)
    # A negative correlation has no length-corrected meaning beyond its sign.
    return float(np.mean(np.maximum(found, -1.0)))


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
        difference: mean of method less baseline, over the images that count for both.
        difference_low: where its 95 % interval begins.
        difference_high: where it ends.
        pairs: how many images the difference is over.
        rank: 1 is best; means that are printed alike share it; NaN for a method that is not compared.
        verdict: how the method stands to the baseline: ahead or behind only where the interval leaves out 0, `p` is at
            most 0.05 and both are compared.
        p: of the difference, by turning the signs of images (`sign_flip_p`) and corrected for the number of comparisons
            by Holm: over all methods and metrics of the table, a primary metric by itself.
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
    average, difference = means(scores), means(apart_by)
    (low, high), (difference_low, difference_high) = intervals_of([scores, apart_by], level, resamples, seed)
    held, pairs = np.isfinite(scores).sum(0), np.isfinite(apart_by).sum(0)
    placed = [rank for metric in table.metrics for rank in ranks_of(table, metric)]
    compared = np.concatenate([one.compared for one in found])
    with_baseline = np.repeat([one.compared[place_of_baseline] for one in found], len(table.methods))
    counts = compared & with_baseline & np.array([method != baseline for _, method in keys])
    p_values = np.full(len(keys), nan)
    if tested:
        p_values = _corrected(np.where(counts, apart_by, nan), [metric == primary for metric, _ in keys])
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
                "baseline" if method == baseline else verdict(metric, *apart, both, float(p_values[place]) > SURE),
                float(p_values[place]),
            )
        )
    return Summary(tuple(lines))


def _corrected(apart_by: Values, is_primary: Sequence[bool]) -> Values:
    """(K,) the p-values of the differences, corrected: those of the primary metric and all others are two families."""
    plain, primary = sign_flip_p(apart_by), np.array(is_primary)
    # More draws for those that may pass: a p-value can only be as small as the number of draws lets it be.
    close = plain <= 2 * SURE
    draws = int(2 * np.isfinite(plain).sum() / SURE)
    if close.any() and draws > RESAMPLES:
        plain[close] = sign_flip_p(apart_by[:, close], draws)
    found = np.full(len(plain), nan)
    for family in (primary, ~primary):
        found[family] = holm(plain[family])
    return found


def is_compared(table: Table, metric: str, method: str) -> bool:
    """Whether a method of a table has the scores to be compared by a metric."""
    return bool(table.comparable(metric).compared[table.methods.index(method)])


def ranks_of(table: Table, metric: str) -> list[float]:
    """The ranks of a table's methods by a metric; NaN for those that are not compared."""
    return ranks(table.means(metric), table.comparable(metric).compared, metric_called(metric).higher_is_better)


def verdict(
    metric: str, difference: float, low: float, high: float, compared: bool = True, may_be_chance: bool = False
) -> Verdict:
    """What a paired difference and its interval allow to say; nothing if one of the two is not compared.

    `may_be_chance` is what the p-value says, corrected for the number of comparisons.

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
    if low <= 0 <= high or may_be_chance:
        return "no difference shown"
    return "ahead" if (low > 0) == metric_called(metric).higher_is_better else "behind"
