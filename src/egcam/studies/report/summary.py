"""Means, intervals, paired differences and ranks: the lines of `Table.summary`, with a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal

import numpy as np

from egcam.errors import MethodError, near_misses
from egcam.metrics.registry import metric as metric_called
from egcam.metrics.tables import Table, paired_difference, significant
from egcam.studies.report.intervals import Array, intervals, means

Verdict = Literal["ahead", "behind", "no difference shown", "no score", "too few images", "baseline"]


@dataclass(frozen=True)
class Line:
    """One method by one metric.

    Attributes:
        metric: the metric.
        method: the method.
        mean: over the images that have a score.
        low: where the mean's 95 % interval begins.
        high: where it ends.
        images: how many have a score.
        missing: how many have none.
        difference: mean of method less baseline, over the images where both have a score.
        difference_low: where its 95 % interval begins.
        difference_high: where it ends.
        rank: 1 is best; equal means share it.
        verdict: how the method stands to the baseline: ahead or behind only where the interval leaves out 0.
    """

    metric: str
    method: str
    mean: float
    low: float
    high: float
    images: int
    missing: int
    difference: float
    difference_low: float
    difference_high: float
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
    scores = np.stack([table.values(method, metric) for metric, method in keys], 1)
    against = np.stack([table.values(baseline, metric) for metric, _ in keys], 1)
    average, (low, high) = means(scores), intervals(scores)
    apart_by = paired_difference(scores, against)
    difference, (difference_low, difference_high) = means(apart_by), intervals(apart_by)
    held = np.isfinite(scores).sum(0)
    ranks = _ranks(table, average)
    lines = []
    for place, (metric, method) in enumerate(keys):
        apart = (float(difference[place]), float(difference_low[place]), float(difference_high[place]))
        lines.append(
            Line(
                metric,
                method,
                float(average[place]),
                float(low[place]),
                float(high[place]),
                int(held[place]),
                len(scores) - int(held[place]),
                *apart,
                ranks[place],
                "baseline" if method == baseline else verdict(metric, *apart),
            )
        )
    return Summary(baseline, tuple(lines))


def verdict(metric: str, difference: float, low: float, high: float) -> Verdict:
    """What a paired difference and its interval allow to say.

    Example:
        >>> verdict("insertion", 0.2, 0.1, 0.3), verdict("deletion", 0.2, 0.1, 0.3)
        ('ahead', 'behind')
        >>> verdict("insertion", 0.1, -0.1, 0.3)
        'no difference shown'
    """
    if not isfinite(difference):
        return "no score"
    if not isfinite(low):
        return "too few images"
    if low <= 0 <= high:
        return "no difference shown"
    return "ahead" if (low > 0) == metric_called(metric).higher_is_better else "behind"


def _ranks(table: Table, average: Array) -> list[float]:
    found: list[float] = []
    count = len(table.methods)
    for place, metric in enumerate(table.metrics):
        sign = -1.0 if metric_called(metric).higher_is_better else 1.0
        signed = sign * significant(average[place * count : (place + 1) * count])
        found += [1.0 + float((signed < own).sum()) if isfinite(own) else nan for own in signed]
    return found
