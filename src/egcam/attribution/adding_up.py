"""Maps that add up exactly: the sum of an attribution is known beforehand, so the samples can be corrected by it."""

from __future__ import annotations

import torch
from torch import Tensor

from egcam.imageops import in_double

_PRIOR = 8  # so many samples' worth of belief that cells share an error in proportion to their size


class AddingUp:
    """The attributions of each image's samples, and how an error of their sum is spread over the cells.

    Sample s attributes m_s to the cells, t_s in all. The mean of t is known to be D = y(x) - E[y(x')], so t is a
    control variate: if the samples' t̄ is too large, each cell is too large by its regression on t,

        map = m̄ + b (D - t̄),    b = (sum_s (t_s - t̄) m_s + k v p) / ((n + k) v),    v = 1/n sum_s (t_s - t̄)²

    where p = |m̄| / sum |m̄| is what we believe of b before any sample, and k = 8 (1 + (D - t̄)² / v) how firmly: the
    more, the further the sum is off. Since b adds up to 1, the map adds up to D; a cell that is 0 in every sample
    stays 0. What is attributed to tokens that belong to no cell takes its part.

    Example:
        >>> sums = AddingUp(1)
        >>> sums.add(torch.tensor([0, 0]), torch.tensor([[[1.0, 3.0]], [[1.0, 5.0]]]), torch.tensor([4.0, 6.0]))
        >>> sums.corrected(torch.tensor([[[1.0, 4.0]]]), torch.tensor([5.5]))[0]
        tensor([[[1.0833, 4.4167]]])
    """

    def __init__(self, images: int) -> None:
        self._count, self._total, self._square = torch.zeros(3, images, dtype=torch.float64, device="cpu")
        self._cells = torch.zeros(2, images, 0, dtype=torch.float64, device="cpu")

    def add(self, own: Tensor, maps: Tensor, totals: Tensor) -> None:
        """Take in samples of the images `own`: their maps (B, h, w) and what they attribute in all, (B,)."""
        totals = in_double(totals)
        cells = _with_rest(in_double(maps), totals)
        if not self._cells.shape[2]:
            self._cells = cells.new_zeros(2, len(self._count), cells.shape[1])
        self._count += torch.bincount(own, minlength=len(self._count))
        self._total.index_add_(0, own, totals)
        self._square.index_add_(0, own, totals**2)
        self._cells[0].index_add_(0, own, cells)
        self._cells[1].index_add_(0, own, cells * totals[:, None])

    def means(self) -> Tensor:
        """(N,) what the samples attribute in all, on average."""
        return torch.div(self._total, self._count)

    def corrected(self, maps: Tensor, expected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps (N, h, w) that add up to `expected` (N,), what they and the rest do add up to, and what was added.

        A map that is zero, or not finite, stays as it is.
        """
        count, expected = self._count[:, None], in_double(expected)[:, None]
        mean, moment = self._cells / count
        total = self.means()[:, None]
        variance = (self._square[:, None] / count - total**2).clamp_min(0)
        # The map as it is, not the mean of the samples in float64: what is missing includes its rounding.
        cells = torch.cat([in_double(maps).flatten(1), mean[:, -1:]], dim=1)
        lacking = expected - cells.sum(1, keepdim=True)
        sizes = cells.abs()
        shares = sizes / sizes.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        vary = variance > 1e-10 * total**2
        spread = variance.where(vary, torch.ones_like(variance))
        belief = _PRIOR * (1 + lacking**2 / spread)
        learnt = (count * (moment - total * mean) + belief * spread * shares) / ((count + belief) * spread)
        found = cells + learnt.where(vary, shares) * lacking
        # A score or a cell that overflows must not spoil the other cells, and a map of zeros has nowhere to put it.
        right = found.isfinite().all(1, keepdim=True) & cells.any(1, keepdim=True)
        found = found.where(right, cells)
        added = lacking.where(right, torch.zeros_like(lacking))
        return found[:, :-1].reshape(maps.shape).to(maps), found.sum(1), added[:, 0]


def _with_rest(maps: Tensor, totals: Tensor) -> Tensor:
    """(B, cells + 1) the cells, and what is attributed to none of them."""
    cells = maps.flatten(1)
    return torch.cat([cells, (totals - cells.sum(1))[:, None]], dim=1)
