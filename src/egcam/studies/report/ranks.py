"""The mean rank of each method over the metrics, with an interval over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from egcam.metrics.registry import metric as metric_called
from egcam.metrics.tables import Table, significant
from egcam.studies.report.intervals import Array, ends, means, resampled_means


@dataclass(frozen=True)
class Ranking:
    """Mean ranks, best first.

    Attributes:
        methods: those that could be ranked: compared by some metric.
        mean: (M,) the mean rank of each over the metrics; 1 would be first on all.
        low: (M,) where its 95 % interval begins, NaN for a single image.
        high: (M,) where it ends.
        metrics: over which metrics: those by which every ranked method is compared, running time aside.
    """

    methods: tuple[str, ...]
    mean: Array
    low: Array
    high: Array
    metrics: tuple[str, ...]


def ranking(tables: Sequence[Table]) -> Ranking | None:
    """The mean ranks over the metrics of one table, or over those of several models; None where nothing can be ranked.

    Ties share the mean of their places. Images are drawn anew 2,000 times, for all metrics (and for all models with
    as many images) alike, and ranked again each time.
    """
    if not tables:
        return None
    methods = tuple(
        method
        for method in tables[0].methods
        if any(_compared(table, metric, method) for table in tables for metric in table.metrics)
    )
    shared = [_shared_metrics(table, methods) for table in tables]
    if len(methods) < 2 or not any(shared):
        return None
    found, drawn = [], []
    for table, metrics in zip(tables, shared, strict=True):
        for metric in metrics:
            columns = [table.methods.index(method) for method in methods]
            scores = table.comparable(metric).values[:, columns]
            sign = -1.0 if metric_called(metric).higher_is_better else 1.0
            found.append(places(sign * significant(means(scores))[None])[0])
            drawn.append(places(sign * _rounded(resampled_means(scores))))
    mean = np.mean(found, axis=0)
    low, high = ends(np.mean(drawn, axis=0))
    if min(table.comparable(metric).images for table, some in zip(tables, shared, strict=True) for metric in some) < 2:
        low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    order = np.argsort(mean, kind="stable")
    counted = tuple(dict.fromkeys(metric for some in shared for metric in some))
    return Ranking(tuple(methods[place] for place in order), mean[order], low[order], high[order], counted)


def _rounded(drawn: Array) -> Array:
    """Means of thousands of draws to about six digits of their column's size, so that ties stay ties."""
    size = np.nanmax(np.abs(drawn)) if np.isfinite(drawn).any() else 0.0
    digits = 6 - int(np.floor(np.log10(size))) if size > 0 else 6
    return np.asarray(np.round(drawn, digits))


def _shared_metrics(table: Table, methods: Sequence[str]) -> list[str]:
    """Running time is a cost, not a quality; a metric that does not compare some method would favour that method."""
    return [
        metric
        for metric in table.metrics
        if metric_called(metric).group != "efficiency" and all(_compared(table, metric, method) for method in methods)
    ]


def _compared(table: Table, metric: str, method: str) -> bool:
    return bool(table.comparable(metric).compared[table.methods.index(method)])


def places(scores: Array) -> Array:
    """(R, M) ranks within each row, the smallest first; ties share the mean of their places.

    Example:
        >>> places(np.array([[0.3, 0.1, 0.3]])).tolist()
        [[2.5, 1.0, 2.5]]
    """
    below = (scores[:, :, None] > scores[:, None, :]).sum(2)
    equal = (scores[:, :, None] == scores[:, None, :]).sum(2)
    return np.where(np.isnan(scores), np.nan, below + (equal + 1) / 2)
