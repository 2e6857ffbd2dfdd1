"""Means, intervals, paired differences and ranks: the lines of `Table.summary`, with a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np

from egcam.errors import MethodError, near_misses
from egcam.evaluation.comparable import ranks
from egcam.evaluation.table import Table, paired_difference
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.intervals import intervals, means

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


@dataclass(frozen=True)
class Summary:
    """All lines of a table against one baseline."""

    baseline: str
    lines: tuple[Line, ...]

    def line(self, metric: str, method: str) -> Line:
        """One of them."""
        return next(one for one in self.lines if one.metric == metric and one.method == method)

    def of(self, metric: str) -> list[Line]:
        """The lines of a metric, one for each method, in their order."""
        return [one for one in self.lines if one.metric == metric]


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
        raise MethodError(f"no method of this study is called {wanted!r}; {near_misses(wanted, known)}")
    return wanted


def summarised(table: Table, baseline: str) -> Summary:
    """A line for each metric and method of a table; the numbers are those of `table.summary(baseline)`."""
    keys = [(metric, method) for metric in table.metrics for method in table.methods]
    found = [table.comparable(metric) for metric in table.metrics]
    place_of_baseline = table.methods.index(baseline)
    scores = np.concatenate([one.values for one in found], 1)
    against = np.repeat(np.stack([one.values[:, place_of_baseline] for one in found], 1), len(table.methods), axis=1)
    average, (low, high) = means(scores), intervals(scores)
    apart_by = paired_difference(scores, against)
    difference, (difference_low, difference_high) = means(apart_by), intervals(apart_by)
    held, pairs = np.isfinite(scores).sum(0), np.isfinite(apart_by).sum(0)
    placed = [rank for metric in table.metrics for rank in _ranks(table, metric)]
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
    return Summary(baseline, tuple(lines))


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


def _ranks(table: Table, metric: str) -> list[float]:
    return ranks(table.means(metric), table.comparable(metric).compared, metric_called(metric).higher_is_better)
