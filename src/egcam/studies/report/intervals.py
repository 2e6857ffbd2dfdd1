"""Bootstrap over images, for many columns of scores at once.

The draws are those of `egcam.evaluation.table.Table.summary`, so the intervals are, too; here a study's few hundred
columns share them, as a product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

LEVEL = 0.95
RESAMPLES = 2000
SEED = 0

# Counts held at once; 2,000 draws of 10,000 images would be 160 MB.
_MOST = 4_000_000


def means(values: Array) -> Array:
    """(K,) the means of the (N, K) columns over their finite values; NaN for a column without any.

    Example:
        >>> means(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
        [2.0, nan]
    """
    finite = np.isfinite(values)
    count = finite.sum(0)
    total = np.where(finite, values, 0.0).sum(0)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def intervals(values: Array) -> tuple[Array, Array]:
    """(K,) lower and (K,) upper ends of the 95 % percentile bootstrap of each column's mean.

    A column's missing values are left out before drawing; fewer than two values give NaN.

    Args:
        values: (N, K) a column for each method and metric, a row for each image.

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
        drawn = np.concatenate([counts @ rows / len(rows) for counts in draws(len(rows))])
        low[columns], high[columns] = ends(drawn)
    return low, high


def ends(drawn: Array) -> Array:
    """(2, K) the percentiles that hold the middle 95 % of each column; NaN where a column has NaN."""
    return np.asarray(np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0))


def draws(images: int) -> Iterator[Array]:
    """How often each image is drawn: (some, N) counts, in all as many rows as there are resamples."""
    source = np.random.default_rng(SEED)
    done = 0
    while done < RESAMPLES:
        some = min(RESAMPLES - done, max(1, _MOST // images))
        picked = source.integers(0, images, (some, images)) + images * np.arange(some)[:, None]
        yield np.bincount(picked.ravel(), minlength=some * images).reshape(some, images).astype(np.float64)
        done += some
