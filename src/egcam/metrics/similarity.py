"""How alike two things are: correlations and structural similarity, row by row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from egcam.errors import check_known
from egcam.imageops import by_row, of_dimension, widest
from egcam.metrics.sorting import ascending


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """(N,) Pearson correlation of the rows of two (N, K) tensors; 0 where a row is constant up to rounding.

    Example:
        >>> pearson(torch.tensor([[1.0, 2, 3], [1, 1, 1]]), torch.tensor([[2.0, 4, 6], [1, 2, 3]]))
        tensor([1., 0.])
    """
    kind = torch.promote_types(a.dtype, b.dtype)
    a, b = _centred(a), _centred(b)
    size = (a.square().sum(1) * b.square().sum(1)).sqrt()
    varies = size > 0
    return torch.where(varies, ((a * b).sum(1) / torch.where(varies, size, 1.0)).clamp(-1, 1), 0.0).to(kind)


def _centred(rows: Tensor) -> Tensor:
    """Rows less their mean and over their spread; a row whose spread is rounding error becomes zero."""
    rounding = 16 * torch.finfo(rows.dtype).eps * rows.abs().amax(1, keepdim=True)
    rows = widest(rows)
    centred = rows - rows.mean(1, keepdim=True)
    spread = centred.abs().amax(1, keepdim=True)
    return torch.where(spread > rounding, centred / torch.where(spread > rounding, spread, 1.0), 0.0)


def ranks(rows: Tensor) -> Tensor:
    """(N, K) ranks from 1, ties given their mean rank.

    Example:
        >>> ranks(torch.tensor([[30.0, 10.0, 10.0]]))
        tensor([[3.0000, 1.5000, 1.5000]])
    """
    ordered = ascending(rows).contiguous()
    below = torch.searchsorted(ordered, rows.contiguous())
    through = torch.searchsorted(ordered, rows.contiguous(), right=True)
    return (below + through + 1).to(rows.dtype) / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """(N,) Spearman rank correlation of the rows of two (N, K) tensors; 0 where a row is constant."""
    return pearson(ranks(a), ranks(b))


def ssim(a: Tensor, b: Tensor, window: int = 7) -> Tensor:
    """(N,) mean structural similarity of two (N, H, W) stacks of maps (Wang et al. 2004).

    Uniform windows, sample covariances, K1 = 0.01, K2 = 0.03, borders left out; the data range is that of the
    pair. Two equal constant maps have similarity 1.
    """
    size = a.shape[1:]
    window = min(window, *size)
    joint = torch.stack([a, b], 1).flatten(1)
    spread = joint.amax(1) - joint.amin(1)
    spread = by_row(torch.where(spread > 0, spread, torch.ones_like(spread)), a)
    c1, c2 = (0.01 * spread) ** 2, (0.03 * spread) ** 2

    pool = of_dimension("avg_pool", len(size))

    def mean(x: Tensor) -> Tensor:
        pooled: Tensor = pool(x[:, None], window, stride=1)
        return pooled[:, 0]

    count = window ** len(size)
    sample = count / (count - 1) if window > 1 else 1.0
    mean_a, mean_b = mean(a), mean(b)
    variance_a = sample * (mean(a * a) - mean_a**2)
    variance_b = sample * (mean(b * b) - mean_b**2)
    covariance = sample * (mean(a * b) - mean_a * mean_b)
    similar = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    similar = similar / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2))
    return similar.flatten(1).mean(1)


def similarity_called(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The similarity of two (N, H, W) stacks called "spearman", "pearson" or "ssim"."""
    of_rows = {"spearman": spearman, "pearson": pearson}
    if name in of_rows:
        rowwise = of_rows[name]
        return lambda a, b: rowwise(a.flatten(1), b.flatten(1))
    check_known(name, [*of_rows, "ssim"], "similarity")
    return ssim
