"""Weightings: how a gradient weighs the channels of the activations.

    GradientMean    Grad-CAM      w_k = mean_ij g
    Elementwise     HiResCAM     w_k,ij = g
    Positive        LayerCAM      w_k,ij = relu(g)
    Normalised      XGrad-CAM     w_k = sum_ij(g A) / sum_ij A
    PlusPlus        Grad-CAM++    w_k = sum_ij alpha relu(g)
    Principal       Eigen-Grad-CAM, w_k,ij = v_k g, v the first principal direction of g A
    Summed          the attribution itself, for a gradient that already holds a difference term

The map is sum_k w_k A^k, (n, h, w), before the ReLU. At signals and volumes ij stands for all places, (l) or (d, h, w).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from egcam.errors import MethodError, check_known
from egcam.imageops import by_row, places, widest

WeightingLike: TypeAlias = "Weighting | str | Callable[[Tensor, Tensor], Tensor]"


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


class Weighting(ABC):
    """From moments of the gradient and activations A, both (n, K, h, w), to a map (n, h, w)."""

    order: int = 1

    @abstractmethod
    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1) weights for each channel, or (n, K, h, w) for each position."""

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w) what each channel adds to the map: w_k A^k."""
        return self.weights(moments, activations) * activations

    def map(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, h, w) sum_k w_k A^k."""
        return self.contributions(moments, activations).sum(1)


class GradientMean(Weighting):
    """Grad-CAM: w_k = mean_ij g_k,ij."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1)."""
        return moments.first.mean(places(moments.first), keepdim=True)


class Elementwise(Weighting):
    """HiResCAM: each position is weighed by its own gradient."""

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
        product = (moments.first * activations).sum(places(activations), keepdim=True)
        total = activations.sum(places(activations), keepdim=True)
        return torch.where(total == 0, torch.zeros_like(total), product / total)


class PlusPlus(Weighting):
    """Grad-CAM++ and, on averaged moments, Smooth Grad-CAM++.

    alpha = E[g^2] / (2 E[g^2] + sum_ij(A) E[g^3]),   w_k = sum_ij alpha relu(E[g])

    computed as 1 / (2 + sum(A) E[g^3]/E[g^2]): the textbook fraction with a small number added below is wrong wherever
    the squared gradient is of that number's size.
    """

    order = 3

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, 1, 1)."""
        assert moments.second is not None
        assert moments.third is not None
        ratio = torch.where(moments.second == 0, 0.0, moments.third / moments.second).to(activations.dtype)
        below = 2 + activations.sum(places(activations), keepdim=True) * ratio
        alpha = torch.where((below == 0) | (moments.second == 0), torch.zeros_like(below), 1 / below)
        return (alpha * moments.first.relu()).sum(places(activations), keepdim=True)


@dataclass(frozen=True)
class Principal(Weighting):
    """Eigen-Grad-CAM: the map is the first principal component of the products g A; see `first_component`.

    Attributes:
        centred: take each channel's mean over the positions away first, as pytorch-grad-cam does.
    """

    centred: bool = False

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first * self._direction(moments, activations)

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """v_k g A^k."""
        products = moments.first * activations
        products = _centred(products) if self.centred else products
        return products * principal_direction(products)

    def _direction(self, moments: Moments, activations: Tensor) -> Tensor:
        products = moments.first * activations
        return principal_direction(_centred(products) if self.centred else products)


def first_component(planes: Tensor, centred: bool = False) -> Tensor:
    """(n, h, w) the first principal component of (n, K, h, w) planes: sum_k v_k B^k.

    v is the first right singular vector of the planes as a (h w, K) matrix; with `centred`, of the planes less their
    means.

    >>> first_component(torch.tensor([[[[3.0, 0.0]], [[4.0, 0.0]]]]))
    tensor([[[5., 0.]]])
    """
    planes = _centred(planes) if centred else planes
    return (planes * principal_direction(planes)).sum(1)


def principal_direction(planes: Tensor) -> Tensor:
    """(n, K, 1, 1) the direction v, of length 1.

    A singular vector has no sign of its own: this one makes the component agree with the planes' sum, that is
    sum_ij (sum_k v_k B^k)(sum_k B^k) >= 0. Planes that are not finite have NaN.
    """
    # Double precision: of two components of nearly the same size, batches must not disagree which is the first.
    flat = widest(planes.flatten(2))
    broken = ~flat.flatten(1).isfinite().all(1)
    flat = torch.where(broken[:, None, None], torch.zeros_like(flat), flat)
    direction = torch.linalg.svd(flat, full_matrices=False).U[:, :, :1]
    agreement = ((direction * flat).sum(1) * flat.sum(1)).sum(1)
    direction = torch.where((agreement < 0)[:, None, None], -direction, direction)
    direction = torch.where(broken[:, None, None], torch.full_like(direction, float("nan")), direction)
    return by_row(direction[..., 0], planes).to(planes.dtype)


def _centred(planes: Tensor) -> Tensor:
    return planes - planes.mean(places(planes), keepdim=True)


class Summed(Weighting):
    """The layer attribution itself: map = sum_k W_k. Makes sense only with a difference term in the gradient."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """W_k."""
        return moments.first


class Magnitude(Weighting):
    """The size of the gradient itself: map = sum_k |W_k|, as gradients at the input are usually shown."""

    def weights(self, moments: Moments, activations: Tensor) -> Tensor:
        """(n, K, h, w)."""
        return moments.first

    def contributions(self, moments: Moments, activations: Tensor) -> Tensor:
        """|W_k|."""
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
    "principal": Principal,
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
        check_known(weighting, BY_NAME, "weighting", MethodError)
        return BY_NAME[weighting]()
    if callable(weighting) and not isinstance(weighting, type):
        return FromFunction(weighting)
    raise MethodError("a weighting is a Weighting object, its name or a function (gradient, activations) -> weights")
