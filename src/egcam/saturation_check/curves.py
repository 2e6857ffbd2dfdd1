"""Reading a curve from black to the image: where it gets near its end, and how much of it lies there.

A curve y over a is measured from its value at black: t(a) = (y(a) - y(0)) / (y(1) - y(0)) is 0 at black and 1 at the
image, whatever the sign of either. Logits have no natural zero, so a share of y(1) itself would mean nothing.
Between measured points curves are straight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egcam.errors import InputError


def progress_along(values: Tensor) -> Tensor:
    """(N, S) t for curves whose first column is black and whose last is the image; NaN if the two ends are equal.

    Example:
        >>> progress_along(torch.tensor([[-2.0, 0.0, 2.0]]))
        tensor([[0.0000, 0.5000, 1.0000]])
    """
    start, end = values[:, :1], values[:, -1:]
    change = end - start
    # What rounding alone can make is no change: dividing by it would give a curve of noise.
    rounding = 8 * torch.finfo(values.dtype).eps * torch.maximum(start.abs(), end.abs())
    change = torch.where(change.abs() > rounding, change, torch.full_like(change, float("nan")))
    return (values - start) / change


def reach(alphas: Tensor, values: Tensor, share: float = 0.9) -> Tensor:
    """(N,) the smallest a from which on the curve stays at or above `share` of its way from black to the image.

        reach = min { a : t(b) >= share for every b >= a }

    A curve that gets there, falls back and gets there again counts from the last time. NaN where y(0) = y(1).

    Args:
        alphas: (S,) rising from 0 to 1.
        values: (N, S) the curves.
        share: above 0, at most 1.

    Example:
        >>> reach(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.5, 1.0]]), share=0.5)
        tensor([0.2500, 0.5000])
    """
    if not 0 < share <= 1:
        raise InputError(f"share must lie above 0 and be at most 1, not {share}")
    t = progress_along(values)
    alphas = alphas.to(t)
    below = t < share
    # The last point below; there is always one, for t is 0 at black, and always one above after it, for t ends at 1.
    places = torch.arange(t.shape[1], device=t.device)
    last = torch.where(below, places, places.new_zeros(())).amax(1).clamp(max=t.shape[1] - 2)
    before, after = t.gather(1, last[:, None])[:, 0], t.gather(1, last[:, None] + 1)[:, 0]
    part = (share - before) / (after - before)
    return alphas[last] + part * (alphas[last + 1] - alphas[last])


def share_within(alphas: Tensor, values: Tensor, tolerance: float = 0.1) -> Tensor:
    """(N,) the share of the path on which the curve is within `tolerance` of its end: |t(a) - 1| <= tolerance.

    A straight curve has a share of `tolerance`; one that is flat from a = 0.2 on has at least 0.8. Stretches above the
    end by more than the tolerance do not count: there the output still moves. NaN where y(0) = y(1).

    Args:
        alphas: (S,) rising from 0 to 1.
        values: (N, S) the curves.
        tolerance: as a share of the whole rise.

    Example:
        >>> share_within(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.5, 1.0]]), 0.25)
        tensor([0.6250, 0.2500])
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, not {tolerance}")
    distance = progress_along(values) - 1
    lengths = alphas.to(distance).diff()
    low, high = torch.minimum(distance[:, :-1], distance[:, 1:]), torch.maximum(distance[:, :-1], distance[:, 1:])
    inside = (high.clamp(max=tolerance) - low.clamp(min=-tolerance)).clamp(min=0)
    flat = (high == low).to(distance) * (high.abs() <= tolerance)
    parts = torch.where(high > low, inside / torch.where(high > low, high - low, torch.ones_like(low)), flat)
    shares = (parts * lengths).sum(1) / lengths.sum()
    return torch.where(distance.isnan().any(1), torch.full_like(shares, float("nan")), shares)
