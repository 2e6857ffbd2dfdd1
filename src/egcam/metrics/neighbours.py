"""Which maps of a set are alike: standardised distances between all pairs, a block at a time.

Every pair is compared, so the work grows with the square of the set. It is kept small in two ways. Distances are
products of matrices in double precision. And maps that were enlarged from a few cells differ by no more than these
cells do: with a = U c for cells c ≥ 0, Σ_p (a_ip - a_jp)² / v_p = (c_i - c_j)ᵀ Uᵀ V⁻¹ U (c_i - c_j), a distance between
rows of as many numbers as there are cells; 49 in place of 50,176 for a map of 7 x 7 at 224 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from egcam.imageops import upsampled

_BLOCK = 512
# Sets up to this size keep the distances of the first look for the second.
_KEPT = 4096
# Of the enlargement as a matrix: cells times pixels.
_LARGEST_MATRIX = 1 << 26
# Distances are known to about 1e-15 of the largest; what is closer than this to a bound lies on it.
_TIE = 1e-12


def neighbour_shares(rows: Tensor, predictions: Tensor, threshold: float) -> Tensor:
    """(N,) of the other rows within `threshold` times the largest distance, the share with the same prediction.

    Args:
        rows: (N, D) whose Euclidean distances count.
        predictions: (N,) whole numbers.
        threshold: as a share of the largest distance in the set.

    Example:
        >>> rows = torch.tensor([[0.0], [0.1], [0.2], [1.0]])
        >>> neighbour_shares(rows, torch.tensor([5, 5, 7, 7]), 0.3).tolist()
        [0.5, 0.5, 0.0, 0.0]
    """
    found = list(_blocks(rows)) if len(rows) <= _KEPT else None
    largest = max((float(squared.max()) for _, _, squared in found or _blocks(rows)), default=0.0)
    bound = largest * (threshold**2 + _TIE)
    near, same = (torch.zeros(len(rows), dtype=torch.int64, device=rows.device) for _ in range(2))
    for one, other, squared in found if found is not None else _blocks(rows):
        close = squared <= bound
        if one == other:
            close.fill_diagonal_(False)
        agree = close & (predictions[one, None] == predictions[None, other])
        near[one] += close.sum(1)
        same[one] += agree.sum(1)
        if one != other:
            near[other] += close.sum(0)
            same[other] += agree.sum(0)
    return same.double() / near.clamp(min=1)


def _blocks(rows: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """The squared distances of each pair of blocks of rows, in double precision."""
    centred = rows - rows.mean(0, keepdim=True)
    places = _places(len(rows))
    for number, one in enumerate(places):
        left = centred[one].double()
        for other in places[number:]:
            right = centred[other].double()
            squared = left.square().sum(1)[:, None] + right.square().sum(1)[None] - 2 * left @ right.T
            yield one, other, squared.clamp_(min=0)


def _places(count: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]


def standardised(maps: Tensor) -> Tensor:
    """(N, D) rows whose distances are the standardised ones of (N, P) non-negative maps.

    Each pixel is divided by its deviation over the set; pixels that are the same in all maps are left out.
    """
    variance = maps.var(0)
    varying = variance > _rounding(maps.dtype, maps.amax(0))
    return maps[:, varying] / variance[varying].sqrt()


def standardised_cells(cells: Tensor, size: Sequence[int]) -> Tensor | None:
    """The same for maps that are (N, *s) non-negative cells enlarged to `size` and divided by their peak.

    None if that is no shorter way: signed cells, or too many of them.
    """
    count, pixels = cells[0].numel(), torch.Size(size).numel()
    if bool((cells < 0).any()) or count >= pixels or count * pixels > _LARGEST_MATRIX:
        return None
    basis = upsampled(
        torch.eye(count, dtype=torch.float64, device="cpu").reshape(count, *cells.shape[1:]), size
    ).flatten(1)
    flat = cells.flatten(1).double()
    highest = torch.zeros(pixels)
    for place in _places(len(flat)):
        large = upsampled(cells[place].float(), size).flatten(1)
        peaks = large.amax(1, keepdim=True)
        peaks = torch.where(peaks > 0, peaks, torch.ones_like(peaks))
        highest = torch.maximum(highest, (large / peaks).amax(0))
        flat[place] /= peaks
    centred = flat - flat.mean(0)
    covariance = centred.T @ centred / (len(flat) - 1)
    variance = (basis * (covariance @ basis)).sum(0)
    varying = variance > _rounding(cells.dtype, highest)
    weighed = basis[:, varying] / variance[varying]
    values, vectors = torch.linalg.eigh(weighed @ basis[:, varying].T)
    rows: Tensor = flat @ (vectors * values.clamp(min=0).sqrt())
    return rows


def _rounding(dtype: torch.dtype, largest: Tensor) -> Tensor:
    """The variance that rounding alone can make."""
    return (4 * torch.finfo(dtype).eps * largest) ** 2
