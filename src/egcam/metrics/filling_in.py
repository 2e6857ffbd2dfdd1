"""Fill in removed pixels from their neighbours: a linear system over the image, solved on grids of every resolution."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import InputError

_MOST_STEPS = 100
# Of a sweep of Jacobi's method: where pixels have few neighbours, a whole step would swing for ever.
_DAMPING = 0.9


def fill_in(images: Tensor, removed: Tensor) -> Tensor:
    """(B, C, H, W) images whose removed pixels are the weighted mean of their neighbours, removed ones included.

    That is a linear system, u_i Σ_j w_ij = Σ_j w_ij u_j for every removed i, solved by conjugate gradients with a
    multigrid cycle as preconditioner, to a relative residual of 1e-4 (1e-10 in double precision): about ten steps,
    whatever the size. Each image and channel stops by itself, so the batch plays no part.

    Args:
        images: (B, C, H, W).
        removed: (B, H, W) booleans, at least one false per image.

    Example:
        >>> line = torch.tensor([[[[0.0, 9.0, 9.0, 3.0]]]])
        >>> fill_in(line, torch.tensor([[[False, True, True, False]]])).round(decimals=3).tolist()
        [[[[0.0, 1.0, 2.0, 3.0]]]]
    """
    if bool(removed.flatten(1).all(1).any()):
        raise InputError("every pixel of an image is removed, and none is left to fill it in from: leave at least one")
    if images.dtype in (torch.float16, torch.bfloat16):  # too coarse for sums over an image
        return fill_in(images.float(), removed).to(images.dtype)
    if images.device.type == "cpu" and len(images) > 1:
        # One image stays in the processor's cache and does not wait for the slowest of the batch.
        return torch.cat([fill_in(images[row : row + 1], removed[row : row + 1]) for row in range(len(images))])
    gone = removed[:, None].to(images)
    system = _System(gone)
    known = images * (1 - gone)
    wanted = gone * _neighbours(known)
    unknown = torch.zeros_like(known)
    residual = wanted.clone()
    relative = 1e-10 if images.dtype == torch.float64 else 1e-4
    enough = relative**2 * _inner(wanted, wanted)
    nearer = system.cycle(residual)
    direction, gain = nearer, _inner(residual, nearer)
    for _ in range(_MOST_STEPS):
        open_ = _inner(residual, residual) > enough
        if not open_.any():
            break
        moved = system(direction)
        step = torch.where(open_, gain / _inner(direction, moved).clamp(min=1e-38), 0.0)
        unknown.addcmul_(step, direction)
        residual.addcmul_(step, moved, value=-1)
        nearer = system.cycle(residual)
        before, gain = gain, torch.where(open_, _inner(residual, nearer), gain)
        direction = nearer.addcmul(torch.where(open_, gain / before.clamp(min=1e-38), 0.0), direction)
    return known + unknown


class _System:
    """What the removed pixels' values are put into, at one resolution and, for the cycle, at all coarser ones.

        (A u)_i = u_i Σ_j w_ij - Σ_j w_ij u_j    for removed i, 0 for others

    Written so, without the width of a pixel, it is the same at every resolution if residuals are added up.
    """

    def __init__(self, gone: Tensor) -> None:
        """(B, 1, H, W): 1 where a pixel is removed, else 0."""
        degree = _neighbours(torch.ones_like(gone))
        self.gone = gone
        self.diagonal = gone * degree
        self.sweep = _DAMPING * gone / degree.clamp(min=1e-12)
        self.coarser: _System | None = None
        if max(gone.shape[-2:]) > 2:
            coarse = 1 - functional.max_pool2d(_to_even(1 - gone), 2)  # removed if no pixel is left
            self.coarser = _System(coarse) if coarse.any() else None

    def __call__(self, values: Tensor) -> Tensor:
        """A u for (B, C, H, W) values, which are 0 where nothing is removed."""
        return _neighbours(values).mul_(self.gone).neg_().addcmul_(self.diagonal, values)

    def cycle(self, residual: Tensor) -> Tensor:
        """About A⁻¹ r, and symmetric, as conjugate gradients need it: a sweep, what the coarser grids add, a sweep."""
        values = self.sweep * residual
        if self.coarser is not None:
            left = _added_up(_added_up(_to_even(residual - self(values)), 2), 3)
            found = self.coarser.cycle(left * self.coarser.gone)
            finer = functional.interpolate(found, scale_factor=2, mode="bilinear", align_corners=False)
            values.addcmul_(self.gone, finer[..., : values.shape[2], : values.shape[3]])
        return values.addcmul_(self.sweep, residual - self(values))


def _neighbours(values: Tensor) -> Tensor:
    """The weighted sum of a pixel's eight neighbours: 1/6 for those beside it, 1/12 for those across its corners.

    The weights are the outer product of (1, 2, 1) with itself over 12, less its centre: two cheap passes.
    """
    rows = 2 * values
    rows[..., 1:] += values[..., :-1]
    rows[..., :-1] += values[..., 1:]
    both = rows / 6
    both[..., 1:, :].add_(rows[..., :-1, :], alpha=1 / 12)
    both[..., :-1, :].add_(rows[..., 1:, :], alpha=1 / 12)
    return both.sub_(values, alpha=1 / 3)


def _to_even(values: Tensor) -> Tensor:
    """With a row or a column of zeros more where their number is odd."""
    height, width = values.shape[-2:]
    return functional.pad(values, (0, width % 2, 0, height % 2))


def _added_up(values: Tensor, axis: int) -> Tensor:
    """Half as many along the axis: the transpose of bilinear interpolation to twice as many.

    The autograd of torch has it, too, but in no fixed order on a GPU.
    """
    length = values.shape[axis] // 2
    pairs = values.reshape(*values.shape[:axis], length, 2, *values.shape[axis + 1 :])
    even, odd = pairs.unbind(axis + 1)
    result = 0.75 * (even + odd)
    result.narrow(axis, 0, length - 1).add_(even.narrow(axis, 1, length - 1), alpha=0.25)
    result.narrow(axis, 1, length - 1).add_(odd.narrow(axis, 0, length - 1), alpha=0.25)
    result.select(axis, 0).add_(even.select(axis, 0), alpha=0.25)
    result.select(axis, -1).add_(odd.select(axis, -1), alpha=0.25)
    return result


def _inner(one: Tensor, other: Tensor) -> Tensor:
    """(B, C, 1, 1) for each image and channel."""
    return (one * other).sum((2, 3), keepdim=True)
