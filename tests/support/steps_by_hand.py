"""The slopes of `egcam.models.slopes`, worked out module by module for plain chains of modules, without any hook."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

ELEMENTWISE = (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Softplus, nn.Sigmoid, nn.GELU, nn.SiLU)


def chain(module: nn.Module) -> list[nn.Module]:
    return [one for child in module for one in chain(child)] if isinstance(module, nn.Sequential) else [module]


def secant(f: nn.Module, lower: Tensor, upper: Tensor) -> Tensor:
    rise = f(upper.clone()) - f(lower.clone())
    return torch.where(upper == lower, torch.zeros_like(rise), rise / torch.where(upper == lower, 1.0, upper - lower))


def slope(head: nn.Module, lower: Tensor, upper: Tensor, target: int, score: str = "logit") -> Tensor:
    """The slope of the score at each number of `lower`, (…), on the way to `upper`."""
    inputs = []
    low, high = lower[None], upper[None]
    for module in chain(head):
        inputs.append((module, low, high))
        with torch.no_grad():
            low, high = module(low.clone()), module(high.clone())
    back = slope_of_score(low[0], high[0], target, score)[None]
    for module, low, high in reversed(inputs):
        if isinstance(module, ELEMENTWISE):
            back = back * secant(module, low, high).detach()
        else:  # linear: its transpose, at any point
            leaf = torch.zeros_like(low).requires_grad_()
            (back,) = torch.autograd.grad(module(leaf), leaf, back)
    return back[0]


def slope_of_score(low: Tensor, high: Tensor, target: int, score: str) -> Tensor:
    chosen = torch.zeros_like(low)
    chosen[target] = 1.0
    if score == "sigmoid":
        return chosen * secant(nn.Sigmoid(), low, high)
    if score == "probability":
        p, q = low.softmax(0), high.softmax(0)
        mean = (q - p) / (q.log() - p.log())
        return mean * (chosen - mean[target] / mean.sum())
    return chosen


def attribution(head: nn.Module, there: np.ndarray, here: np.ndarray, target: int, score: str = "logit") -> np.ndarray:
    """(K, h, w) slope times step."""
    lower, upper = torch.from_numpy(there), torch.from_numpy(here)
    return (slope(head, lower, upper, target, score) * (upper - lower)).numpy()
