"""Averages of powers of the gradient: what an estimator hands to a weighting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egcam.imageops import widest


@dataclass(frozen=True)
class Moments:
    """Averages of g, and where they are asked for of g^2, g^3 and |g| (`size`), at one layer; each (n, K, h, w)."""

    first: Tensor
    second: Tensor | None = None
    third: Tensor | None = None
    size: Tensor | None = None

    @staticmethod
    def of(gradient: Tensor, order: int) -> Moments:
        """The moments of a single gradient."""
        return Moments.listed(powers(gradient, order), gradient.abs())

    @staticmethod
    def listed(powers_of_g: Sequence[Tensor], size: Tensor | None) -> Moments:
        """From [g], [g, g^2] or [g, g^2, g^3], and |g|."""
        first, second, third = [*powers_of_g, None, None][:3]
        assert first is not None
        return Moments(first, second, third, size)

    def scaled(self, factor: Tensor) -> Moments:
        """The moments of g * factor."""
        second = None if self.second is None else self.second * factor**2
        third = None if self.third is None else self.third * factor**3
        size = None if self.size is None else self.size * factor.abs()
        return Moments(self.first * factor, second, third, size)


def powers(gradient: Tensor, order: int) -> list[Tensor]:
    """[g], or [g, g^2, g^3] in the widest float the device has: cubes of small gradients underflow in float32."""
    if order == 1:
        return [gradient]
    wide = widest(gradient)
    return [gradient, wide**2, wide**3][:order]


def wide_enough(tensor: Tensor) -> Tensor:
    """At least float32, so that half-precision gradients are averaged without loss."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
