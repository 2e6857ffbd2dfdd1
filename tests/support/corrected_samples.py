"""The correction of `egcam.attribution.adding_up`, written out for one image."""

from __future__ import annotations

import numpy as np


def corrected(maps: np.ndarray, totals: np.ndarray, expected: float) -> np.ndarray:
    """The formula for one image, samples (n, cells): each cell's regression on the total, drawn towards its size."""
    mean, centred = maps.mean(0), totals - totals.mean()
    variance = (centred**2).mean()
    lacking = expected - totals.mean()
    sizes = np.abs(np.append(mean, totals.mean() - mean.sum()))
    belief = 8 * (1 + lacking**2 / variance)
    shares = (centred @ maps + belief * variance * sizes[:-1] / sizes.sum()) / ((len(maps) + belief) * variance)
    return mean + shares * lacking
