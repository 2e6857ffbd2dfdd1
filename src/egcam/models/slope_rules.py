"""The slopes of operations: closed forms where they pay, nodes on the operation itself for every other.

A rule says what an operation is worth (`run`), and what a backward pass hands on to its inputs (`pull`): for each input
its slope, the mean derivative between the two ends, times the gradient of the value.

    function of single numbers   (f(u) - f(l)) / (u - l), DeepLIFT's rescale rule
    product of two               the slope of each is the other in the middle
    softmax                      its Jacobian with the logarithmic mean of both ends' probabilities
    normalisation                the rules for products and for 1 / sqrt(variance), combined
    maximum                      (a + b + |a - b|) / 2, pair by pair
    any other                    Gauss-Legendre nodes, as many as the operation's own sum needs
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Tensors: TypeAlias = tuple[Tensor, ...]
OfOne: TypeAlias = Callable[[Tensor], Tensor]

_CLOSE = 0.5  # of the digits: ends with fewer different ones have a slope by the derivative in the middle
_NODES = (4, 8, 16, 32, 64)
_PRECISE = {torch.float64: 1e-12, torch.float32: 1e-5}  # of what an operation adds up to, with nodes of its own


def wide(tensor: Tensor) -> Tensor:
    """At least 32 bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class Rule(ABC):
    """An operation with a rule for its slope. `name` tells it from others in a record."""

    name: str

    @abstractmethod
    def run(self, *inputs: Tensor) -> tuple[Any, Tensors]:
        """The value, and what of the lower ends the slope needs."""

    @abstractmethod
    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor | None]:
        """For each input its slope times the gradient of the value: what a backward pass hands on."""


@dataclass(frozen=True)
class Clipped(Rule):
    """The number itself or a constant: clipping rounds nothing. Where the ends meet, the slope is 1 or 0."""

    name: str
    function: OfOne

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        return self.function(inputs[0]), inputs

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (lower,), (above,), (gradient,) = kept, upper, gradients
        run = wide(above) - wide(lower)
        top = self.function(above)
        slope = (wide(top) - wide(self.function(lower))).div_(run)
        # 0 / 0 where the ends meet. On a graphics card, to ask whether there is any takes longer than to replace them.
        if slope.device.type != "cpu" or bool(slope.sum().isnan()):
            slope = torch.where(run == 0, (top == above).to(run), slope)
        return (_times_gradient(slope, gradient),)


@dataclass(frozen=True)
class Elementwise(Rule):
    """A function of single numbers. Where its ends are so close that their difference has lost digits, the derivative.

    Straight between corners (`bent`) only ends that are equal are too close.
    """

    name: str
    function: OfOne
    bent: bool = False

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        value = self.function(inputs[0])
        return value, (inputs[0], value)

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (lower, below), (above,), (gradient,) = (tuple(map(wide, kept)), tuple(map(wide, upper)), gradients)
        if kept[1].dtype != below.dtype:
            below = self.function(lower)
        run, rise = above - lower, self.function(above) - below
        reach = 0.0 if self.bent else torch.finfo(run.dtype).eps ** _CLOSE
        close = run.abs() <= reach * (1 + lower.abs())
        if not self.bent:
            # A small rise on a long way is a small slope: digits are lost only where the values are large beside it.
            close &= rise.abs() <= reach * (2 * below.abs() + rise.abs())
        slope = rise.div_(run)
        if bool(close.any()):
            middle = ((above + lower) / 2)[close]
            slope[close] = self._derivative(middle)
        return (_times_gradient(slope, gradient),)

    def _derivative(self, at: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = at.detach().requires_grad_()
            (derivative,) = torch.autograd.grad(self.function(leaf).sum(), leaf)
        return derivative


def _times_gradient(slope: Tensor, gradient: Tensor) -> Tensor:
    """Their product, in the slope's memory, which is of no further use."""
    return slope.mul_(gradient) if slope.dtype == gradient.dtype and slope.shape == gradient.shape else slope * gradient


@dataclass(frozen=True)
class Maximum(Rule):
    """The larger of two numbers: (a + b + |a - b|) / 2."""

    name: str = "maximum"

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        a, b = inputs
        return torch.maximum(a, b), (wide(a) - wide(b),)

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (lower,), (gradient,) = kept, gradients
        above = wide(upper[0]) - wide(upper[1])
        run = above - lower
        lean = torch.where(run == 0, lower.sign(), (above.abs() - lower.abs()).div_(run))
        return gradient * (1 + lean) / 2, gradient * (1 - lean) / 2


@dataclass(frozen=True)
class Product(Rule):
    """Of two tensors, number by number: the slope of each is the other in the middle between its ends."""

    name: str = "mul"

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        return inputs[0] * inputs[1], inputs

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (a, b), (gradient,) = (_middles(kept, upper), gradients)
        return gradient * b, gradient * a


@dataclass(frozen=True)
class MatrixProduct(Rule):
    """Of two (…, i, k) and (…, k, j) with the same first sizes: as of numbers."""

    name: str = "matmul"

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        return inputs[0] @ inputs[1], inputs

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (a, b), (gradient,) = (_middles(kept, upper), gradients)
        return gradient.to(b.dtype) @ b.transpose(-1, -2), a.transpose(-1, -2) @ gradient.to(a.dtype)


def _middles(kept: Tensors, upper: Sequence[Tensor]) -> list[Tensor]:
    return [(lower + above).mul_(0.5) for lower, above in zip(kept, upper, strict=True)]


@dataclass(frozen=True)
class Softmax(Rule):
    """With m the logarithmic mean of both ends' probabilities, dp_i = m_i (ds_i - sum_j m_j ds_j / sum_j m_j), exactly.

    For p = exp(s - L): the slope of exp is m, and since p adds up to 1 at both ends, L rises by the m-weighted mean of
    ds.
    """

    dim: int
    name: str = "softmax"

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        logarithms = functional.log_softmax(wide(inputs[0]), self.dim)
        return logarithms.exp().to(inputs[0].dtype), (logarithms,)

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (lower,), (gradient,) = kept, gradients
        above = functional.log_softmax(wide(upper[0]), self.dim)
        apart = (above - lower).abs_()
        shrink = torch.where(apart > 1e-4, -torch.expm1(-apart) / apart, 1 - apart / 2)
        # What is masked has no probability at either end.
        mean = torch.maximum(lower, above).exp_().mul_(shrink).nan_to_num_(0.0, 0.0, 0.0)
        centre = (mean * gradient).sum(self.dim, keepdim=True) / mean.sum(self.dim, keepdim=True)
        return (mean.mul_(gradient - centre).to(gradient.dtype),)


@dataclass(frozen=True)
class Standardised(Rule):
    """c r with c = z - mean(z), or z itself, and r = 1 / sqrt(mean(c²) + eps), over the last dimension.

    Products by their rule: d(c r) = dc r̄ + c̄ dr, dr = -d(v) / (s t (s + t)) with s and t the roots at the two ends, and
    d(v) = 2 mean(c̄ dc).
    """

    eps: float
    centred: bool = True
    name: str = "standardised"

    def run(self, *inputs: Tensor) -> tuple[Tensor, Tensors]:
        lower, root = self._parts(inputs[0])
        return (lower / root).to(inputs[0].dtype), (lower, root)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z = wide(z)
        centred = z - z.mean(-1, keepdim=True) if self.centred else z
        return centred, (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor]:
        (lower, s), (gradient,) = kept, gradients
        above, t = self._parts(upper[0])
        middle = (lower + above).mul_(0.5)
        of_variance = -2 / (s * t * (s + t)) * (gradient * middle).mean(-1, keepdim=True)
        inner = gradient * ((1 / s + 1 / t) / 2) + middle.mul_(of_variance)
        return ((inner - inner.mean(-1, keepdim=True) if self.centred else inner).to(gradient.dtype),)


@dataclass(frozen=True)
class AtNodes(Rule):
    """Any operation: its derivative at Gauss-Legendre nodes between the ends.

    Args:
        name: of the operation.
        function: from its moving inputs to its value, a tensor or a tuple of tensors.
        nodes: how many make it exact; None takes more and more until the operation's own sum is right.
    """

    name: str
    function: Callable[..., Any]
    nodes: int | None = None

    def run(self, *inputs: Tensor) -> tuple[Any, Tensors]:
        with torch.no_grad():
            return self.function(*(tensor.clone() for tensor in inputs)), inputs

    def pull(self, kept: Tensors, upper: Sequence[Tensor], gradients: Tensors) -> Sequence[Tensor | None]:
        steps = [above - lower for lower, above in zip(kept, upper, strict=True)]
        if self.nodes is not None:
            return self._mean(kept, steps, gradients, self.nodes)
        rise = self._rise(kept, steps, gradients)
        found: Sequence[Tensor | None] = []
        for nodes in _NODES:
            found = self._mean(kept, steps, gradients, nodes)
            parts = [(slope * step).sum() for slope, step in zip(found, steps, strict=True) if slope is not None]
            off = (sum(parts, torch.zeros_like(rise[0])) - rise[0]).abs()
            if not bool(off > _PRECISE.get(kept[0].dtype, 1e-3) * rise[1]):
                break
        return found

    def _rise(self, kept: Tensors, steps: list[Tensor], gradients: Tensors) -> tuple[Tensor, Tensor]:
        """What the slopes add up to if they are right, and how large its parts are."""
        with torch.no_grad():
            below = _tuple(self.function(*(tensor.clone() for tensor in kept)))
            above = _tuple(self.function(*(lower + step for lower, step in zip(kept, steps, strict=True))))
        parts = [
            gradient * (high - low)
            for gradient, low, high in zip(gradients, below, above, strict=True)
            if low.is_floating_point()
        ]
        return sum(part.sum() for part in parts), sum(part.abs().sum() for part in parts)

    def _mean(self, kept: Tensors, steps: list[Tensor], gradients: Tensors, nodes: int) -> Sequence[Tensor | None]:
        total: list[Tensor | None] = [None] * len(kept)
        for share, weight in gauss_legendre(nodes):
            with torch.enable_grad():
                points = [(low + share * step).requires_grad_() for low, step in zip(kept, steps, strict=True)]
                values = _tuple(self.function(*(point.clone() for point in points)))
                pairs = [(v, g) for v, g in zip(values, gradients, strict=True) if v.requires_grad]
                if not pairs:
                    break
                ends, weights = zip(*pairs, strict=True)
                found = torch.autograd.grad(ends, points, weights, allow_unused=True)
            for number, slope in enumerate(found):
                if slope is not None:
                    before = total[number]
                    total[number] = slope * weight if before is None else before.add_(slope, alpha=weight)
        return total


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


@cache
def gauss_legendre(nodes: int) -> list[tuple[float, float]]:
    """Nodes in [0, 1] and their weights, which add up to 1."""
    at, weights = np.polynomial.legendre.leggauss(nodes)
    return [(float(share + 1) / 2, float(weight) / 2) for share, weight in zip(at, weights, strict=True)]
