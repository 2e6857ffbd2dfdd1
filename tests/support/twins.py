"""Networks of signals and of volumes that compute what a network of images does: convolutions whose kernel has one row.

A signal of length L is an image of height 1, and a volume of depth 1 is an image, so that all three must get the same
maps and the same scores.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

_CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_MEAN_POOL = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


def _along_the_last(value: int, dimensions: int, else_: int) -> tuple[int, ...]:
    return (*[else_] * (dimensions - 1), value)


def twin(dimensions: int, pooled: bool = True) -> nn.Sequential:
    """Two convolutions along the last axis, a pooling between them, and a head that is linear or, if not pooled, not.

    The weights are the same for any number of dimensions.
    """

    def convolution(channels: int, out: int) -> nn.Module:
        kernel, padding = _along_the_last(3, dimensions, 1), _along_the_last(1, dimensions, 0)
        made: nn.Module = _CONVOLUTION[dimensions](channels, out, kernel, padding=padding)
        return made

    pool = _MAX_POOL[dimensions](_along_the_last(2, dimensions, 1))
    head = [_MEAN_POOL[dimensions](1), nn.Flatten(), nn.Linear(5, 3)]
    if not pooled:
        head = [nn.Flatten(), nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 3)]
    made = nn.Sequential(convolution(2, 4), nn.Tanh(), pool, convolution(4, 5), nn.Sigmoid(), *head)
    for number, parameter in enumerate(made.parameters()):
        drawn = torch.randn(parameter.numel(), generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        parameter.data = 0.5 * drawn.reshape(parameter.shape)
    return made.double().eval()


def signals(count: int = 2, seed: int = 0) -> Tensor:
    """(count, 2, 16)."""
    return torch.randn(count, 2, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lifted(signal: Tensor, dimensions: int) -> Tensor:
    """(…, L) as (…, 1, L) for images, (…, 1, 1, L) for volumes."""
    return signal.reshape(*signal.shape[:-1], *[1] * (dimensions - 1), signal.shape[-1])


def solid(seed: int = 0) -> tuple[nn.Sequential, Tensor]:
    """A network of volumes with kernels of 3 x 3 x 3, and two volumes (2, 1, 4, 6, 5)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(
            nn.Conv3d(1, 3, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool3d((1, 2, 1)),
            nn.Conv3d(3, 4, 3, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(240, 5),
            nn.Tanh(),
            nn.Linear(5, 3),
        )
        return copy.deepcopy(made).double().eval(), torch.randn(2, 1, 4, 6, 5, dtype=torch.float64)
