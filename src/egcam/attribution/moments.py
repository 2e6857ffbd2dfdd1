"""Averages of powers of the gradient: what an estimator hands to a weighting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from egcam.imageops import widest


@dataclass(frozen=True)
class Moments:
    """Averages of g, and where they are asked for of g^2 and g^3, at one layer; each (n, K, h, w)."""

    first: Tensor
    second: Tensor | None = None
    third: Tensor | None = None

    @staticmethod
    def of(gradient: Tensor, order: int) -> Moments:
        """The moments of a single gradient."""
        return Moments(*powers(gradient, order))

    def scaled(self, factor: Tensor) -> Moments:
        """The moments of g * factor."""
        second = None if self.second is None else self.second * factor**2
        third = None if self.third is None else self.third * factor**3
        return Moments(self.first * factor, second, third)


def powers(gradient: Tensor, order: int) -> list[Tensor]:
    """[g], or [g, g^2, g^3] in the widest float the device has: cubes of small gradients underflow in float32."""
    if order == 1:
        return [gradient]
    wide = widest(gradient)
    return [gradient, wide**2, wide**3][:order]


def wide_enough(tensor: Tensor) -> Tensor:
    """At least float32, so that half-precision gradients are averaged without loss."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
