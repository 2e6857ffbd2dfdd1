"""Weightings: how a gradient weighs the channels of the activations.

    GradientMean    Grad-CAM      w_k = mean_ij g
    Elementwise     HiRes-CAM     w_k,ij = g
    Positive        LayerCAM      w_k,ij = relu(g)
    Normalised      XGrad-CAM     w_k = sum_ij(g A) / sum_ij A
    PlusPlus        Grad-CAM++    w_k = sum_ij alpha relu(g)
    Summed          the attribution itself, for a gradient that already holds a difference term

The map is sum_k w_k A^k, (n, h, w), before the ReLU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from egcam.attribution.moments import Moments
from egcam.errors import MethodError, near_misses

Negative: TypeAlias = float | Literal["agreed"]
WeightingLike: TypeAlias = "Weighting | str | Callable[[Tensor, Tensor], Tensor]"


class Weighting(ABC):
    """From moments of the gradient and activations A, both (n, K, h, w), to a map (n, h, w)."""

    order: int = 1
    is_complete: bool = False  # whether its signed map adds up to all that the gradient and its difference term hold

    @abstractmethod
    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1) weights for each channel, or (n, K, h, w) for each position."""

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w) what each channel adds to the map: w_k A^k."""
        return self.weights(moments, activations) * activations

    def sizes(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w) what each channel would add if all samples spoke with one sign: w_k(E|g|) |A^k|."""
        assert moments.size is not None
        magnitudes = activations.abs()
        return self.weights(Moments(moments.size), magnitudes) * magnitudes

    def map(self, moments: Moments, activations: Tensor, negative: Negative = 1.0) -> Tensor:
        """sum_k c_k with c_k = w_k A^k, where negative evidence may count for less.

        A number: it multiplies negative c_k. "agreed": the samples' mean positive and negative contributions,
        P_k = (s_k + c_k)/2 and N_k = (s_k - c_k)/2 with s_k the `sizes`, are added up as P_k - r_k N_k with
        r_k = |c_k| / s_k: 1 where all samples agree, 0 where they cancel out.
        """
        found = self.contributions(moments, activations)
        if negative == "agreed":
            sizes = torch.maximum(self.sizes(moments, activations), found.abs())
            agreement = found.abs() / torch.where(sizes == 0, torch.ones_like(sizes), sizes)
            return ((sizes + found) - agreement * (sizes - found)).sum(1) / 2
        return (found if negative == 1.0 else functional.leaky_relu(found, negative)).sum(1)


class GradientMean(Weighting):
    """Grad-CAM: w_k = mean_ij g_k,ij."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1)."""
        return moments.first.mean((2, 3), keepdim=True)


class Elementwise(Weighting):
    """HiRes-CAM: each position is weighed by its own gradient."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first


class Positive(Weighting):
    """LayerCAM: each position is weighed by its own gradient where that is positive."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first.relu()


class Normalised(Weighting):
    """XGrad-CAM: w_k = sum_ij(g A) / sum_ij A; a channel whose activations sum to zero weighs nothing."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1)."""
        product = (moments.first * activations).sum((2, 3), keepdim=True)
        total = activations.sum((2, 3), keepdim=True)
        return torch.where(total == 0, torch.zeros_like(total), product / total)


class PlusPlus(Weighting):
    """Grad-CAM++ and, on averaged moments, Smooth Grad-CAM++.

    alpha = E[g^2] / (2 E[g^2] + sum_ij(A) E[g^3]),   w_k = sum_ij alpha relu(E[g])

    computed as 1 / (2 + sum(A) E[g^3]/E[g^2]): the textbook fraction with a small number added below is wrong wherever
    the squared gradient is of that number's size.
    """

    order = 3

    def sizes(self, moments: Moments, activations: Tensor) -> Tensor:
        """The contributions' own: these weights are made of powers of g, which have no sign to agree on."""
        return self.contributions(moments, activations).abs()

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1)."""
        assert moments.second is not None
        assert moments.third is not None
        ratio = torch.where(moments.second == 0, 0.0, moments.third / moments.second).to(activations.dtype)
        below = 2 + activations.sum((2, 3), keepdim=True) * ratio
        alpha = torch.where((below == 0) | (moments.second == 0), torch.zeros_like(below), 1 / below)
        return (alpha * moments.first.relu()).sum((2, 3), keepdim=True)


class Summed(Weighting):
    """The layer attribution itself: map = sum_k W_k. Makes sense only with a difference term in the gradient."""

    is_complete = True

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """W_k."""
        return moments.first

    def sizes(self, moments: Moments, activations: Tensor) -> Tensor:
        """E|g|."""
        assert moments.size is not None
        return moments.size


class Magnitude(Weighting):
    """The size of the gradient itself: map = sum_k |W_k|, as gradients at the input are usually shown."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """|W_k|."""
        return moments.first.abs()

    def sizes(self, moments: Moments, activations: Tensor) -> Tensor:
        """|W_k|: nothing of it is negative."""
        return moments.first.abs()


@dataclass(frozen=True)
class FromFunction(Weighting):
    """A user's function (gradient, activations) -> weights that broadcast over (n, K, h, w)."""

    function: Callable[[Tensor, Tensor], Tensor]

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """Whatever the function returns."""
        return self.function(moments.first, activations)


BY_NAME: dict[str, type[Weighting]] = {
    "mean": GradientMean,
    "elementwise": Elementwise,
    "positive": Positive,
    "normalised": Normalised,
    "plus-plus": PlusPlus,
    "summed": Summed,
}


def as_weighting(weighting: WeightingLike) -> Weighting:
    """A weighting, given as an object, by name, or as a function of (gradient, activations).

    >>> type(as_weighting("summed")).__name__
    'Summed'
    """
    if isinstance(weighting, Weighting):
        return weighting
    if isinstance(weighting, str):
        if weighting not in BY_NAME:
            raise MethodError(f"unknown weighting {weighting!r}; {near_misses(weighting, BY_NAME)}")
        return BY_NAME[weighting]()
    if callable(weighting) and not isinstance(weighting, type):
        return FromFunction(weighting)
    raise MethodError("a weighting is a Weighting object, its name or a function (gradient, activations) -> weights")
