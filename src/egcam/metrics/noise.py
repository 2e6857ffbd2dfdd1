"""Random numbers that depend on the seed and the draw's number, never on the batch or the global state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from egcam.errors import InputError


def generator(seed: int, *numbers: int) -> torch.Generator:
    """A CPU generator of its own for every (seed, numbers).

    CPU on purpose: the same draw on every device.

    Example:
        >>> a, b = (torch.rand(1, generator=generator(0, 5)) for _ in range(2))
        >>> bool(a == b)
        True
    """
    state = seed & 0xFFFFFFFFFFFFFFFF
    for number in numbers:
        # One round of SplitMix64 per number: neighbouring seeds and draws give unrelated streams.
        state = (state + 0x9E3779B97F4A7C15 * (number + 1)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return torch.Generator().manual_seed(state >> 1)


@dataclass(frozen=True)
class Noise:
    """What robustness metrics add to an image: normal N(low, high²) or uniform U(low, high), in the model's units.

    Example:
        >>> Noise("uniform", -0.2, 0.2).draw(seed=0, number=3, like=torch.zeros(3, 4, 4)).abs().max() < 0.2
        tensor(True)
    """

    kind: Literal["normal", "uniform"]
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.kind not in ("normal", "uniform"):
            raise InputError(f"noise is 'normal' or 'uniform', not {self.kind!r}")
        if self.kind == "uniform" and self.low >= self.high:
            raise InputError(f"uniform noise needs low < high, got {self.low} and {self.high}")
        if self.kind == "normal" and self.high <= 0:
            raise InputError(f"normal noise needs a standard deviation above 0, got {self.high}")

    def draw(self, seed: int, number: int, like: Tensor) -> Tensor:
        """The noise of perturbation `number`, in the shape, dtype and place of `like`."""
        source = generator(seed, number)
        # Drawn in float32 whatever the images are, so that a float64 run sees the same perturbations.
        if self.kind == "normal":
            drawn = torch.randn(like.shape, generator=source) * self.high + self.low
        else:
            drawn = torch.rand(like.shape, generator=source) * (self.high - self.low) + self.low
        return drawn.to(like)
