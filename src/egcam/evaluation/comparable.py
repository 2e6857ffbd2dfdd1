"""Which images the means of a metric are over.

A method that fails where images are hard would look better than one that does not, if each had its mean over the
images it has a score for. So all methods are compared on the same images.
"""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple

import numpy as np

Values = np.ndarray[Any, np.dtype[np.float64]]
Chosen = np.ndarray[Any, np.dtype[np.bool_]]
Whole = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]


class Comparable(NamedTuple):
    """The scores of M methods on N images by one metric, as far as they can be compared."""

    values: Values  # (N, M) scores, NaN if an image does not count in a method's mean
    compared: Chosen  # (M,) whether the method is compared with the others
    images: int  # how many images the means of the compared methods are over; 0 where no method is compared


def comparable(scores: Values) -> Comparable:
    """Keep the images that all compared methods have a score for.

    A method that lacks more than half of the images that any method has a score for is not compared, since it would
    take these images away from all the others: it keeps all its own scores. Where no image is common to the other
    methods, none is compared.

    Args:
        scores: (N, M) a column for each method, a row for each image; NaN is a missing score.

    Example:
        >>> found = comparable(np.array([[0.1, 0.3, nan], [0.2, nan, nan], [0.6, 0.9, 0.7]]))
        >>> found.values.tolist()
        [[0.1, 0.3, nan], [nan, nan, nan], [0.6, 0.9, 0.7]]
        >>> found.compared.tolist(), found.images
        ([True, True, False], 2)
    """
    held = np.isfinite(scores)
    scored = int(held.any(axis=1).sum())
    compared: Chosen = np.asarray(held.any(axis=0) & (2 * held.sum(axis=0) >= scored))
    common: Chosen = np.asarray(held[:, compared].all(axis=1) & held.any(axis=1))
    if not common.any():
        compared = np.zeros_like(compared)
    kept = np.where(compared, common[:, None], held)
    return Comparable(np.where(kept, scores, nan), compared, int(common.sum()))
