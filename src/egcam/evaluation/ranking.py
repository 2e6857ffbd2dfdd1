"""The mean rank of each method: the one definition, for figures and reports alike.

    rank of a method = mean over images of ( mean over metrics, and models, of its place among the methods )

1 is best. Methods that tie, but for rounding, share the mean of their places. An image counts for a metric only where
every ranked method has a score, so that ranks are paired; a metric counts only where it compares every ranked method
(see `comparable`). Running time is a cost, not a quality, and does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from egcam.evaluation.stats import averaged_ranks, intervals, is_compared, significant
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    from egcam.evaluation.comparable import Values, Whole
    from egcam.evaluation.table import Table


@dataclass(frozen=True)
class MeanRank:
    """A method's rank, 1 being best, averaged over metrics and images, with its interval over images."""

    method: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    """Mean ranks, best first."""

    methods: tuple[str, ...]  # those that some metric compares
    mean: Values  # (M,) the mean rank of each; 1 would be first on every image by every metric
    low: Values  # (M,) where its interval over images begins, NaN for a single image
    high: Values  # (M,) where it ends
    metrics: tuple[str, ...]  # those that count
    images: int  # how many images do

    @property
    def ranks(self) -> list[MeanRank]:
        """The same method by method."""
        numbers = (values.tolist() for values in (self.mean, self.low, self.high))
        return [MeanRank(*one) for one in zip(self.methods, *numbers, strict=True)]


def mean_ranks(tables: Sequence[Table], *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Ranking | None:
    """The mean ranks of the methods of a table, or of the tables of several models; None if nothing can be ranked.

    Args:
        tables: of the same methods; where there are several, their images are matched by name.
        level: of the percentile bootstrap over images.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Example:
        >>> from egcam.evaluation.score import Score
        >>> from egcam.evaluation.table import Table
        >>> rows = [Score(0, name, "deletion", value, 0.0) for name, value in (("a", 0.1), ("b", 0.3), ("c", 0.1))]
        >>> found = mean_ranks([Table.of(rows, ("a", "b", "c"), ("deletion",))])
        >>> found.methods, found.mean.tolist(), found.images
        (('a', 'c', 'b'), [1.5, 1.5, 3.0], 1)
    """
    methods = _ranked_methods(tables)
    if not methods:
        return None
    images = [_images(table) for table in tables]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for own in images for name in own))}
    total, times = np.zeros((len(methods), len(numbers))), np.zeros(len(numbers))
    # The draws of the bootstrap go by the order in which images first have a place.
    appeared: list[Whole] = []
    counted: list[str] = []
    for table, own in zip(tables, images, strict=True):
        columns = np.array([numbers[name] for name in own], np.int64)
        for name in _shared_qualities(table, methods):
            places = _places(table, methods, name)
            complete = np.isfinite(places[0])
            counted += [name] * bool(complete.any())
            chosen = columns[complete]
            appeared.append(chosen[times[chosen] == 0])
            # Places are whole or half: their sums are exact, whatever the order.
            total[:, chosen] += places[:, complete]
            times[chosen] += 1
    if not times.any():
        return None
    seen = np.concatenate(appeared)
    ranks = np.ascontiguousarray(total[:, seen] / times[seen])
    mean = ranks.mean(1)
    low, high = intervals(ranks.T, level, resamples, seed)
    order = np.argsort(mean, kind="stable")
    return Ranking(
        tuple(methods[place] for place in order),
        mean[order],
        low[order],
        high[order],
        tuple(dict.fromkeys(counted)),
        ranks.shape[1],
    )


def _qualities(table: Table) -> list[str]:
    return [name for name in table.metrics if metric_called(name).group != "efficiency"]


def _ranked_methods(tables: Sequence[Table]) -> tuple[str, ...]:
    return tuple(
        method
        for method in (tables[0].methods if tables else ())
        if any(is_compared(table, name, method) for table in tables for name in _qualities(table))
    )


def _shared_qualities(table: Table, methods: Sequence[str]) -> list[str]:
    """A metric that does not compare some method would favour that method."""
    return [name for name in _qualities(table) if all(is_compared(table, name, method) for method in methods)]


def _images(table: Table) -> list[tuple[int | str, int]]:
    """The images in the order of `Table.values`; those of one name are numbered."""
    seen: Counter[int | str] = Counter()
    found = []
    for image in table.names:
        found.append((image, seen[image]))
        seen[image] += 1
    return found


def _places(table: Table, methods: Sequence[str], name: str) -> Values:
    """(M, N) the places of the methods on each image, ties averaged; NaN if a method has no score for the image.

    NaN is never smaller than, or equal to, anything.
    """
    columns = [table.methods.index(method) for method in methods]
    scores = significant(table.comparable(name).values[:, columns].T)
    signed = -scores if metric_called(name).higher_is_better else scores
    complete = np.isfinite(signed).all(axis=0, keepdims=True)
    return np.where(complete, averaged_ranks(signed), np.nan)
