"""How a point between a reference x' and the image x is made, for a share a of x."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import SamplingError, check_known
from egcam.imageops import size_of

PathCallable: TypeAlias = Callable[[Tensor, Tensor, float], Tensor]
PathLike: TypeAlias = "Path | str | PathCallable"


class Path(ABC):
    """From x' (a = 0) to x (a = 1)."""

    @abstractmethod
    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """The points (n, C, H, W) at `share` a, with chance, if there is any, from `source`."""


@dataclass(frozen=True)
class Linear(Path):
    """z = x' + a (x - x')."""

    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """The straight line."""
        # Written as the image minus a rest, so that a = 1 gives the image to the last bit.
        return images - (1.0 - share) * (images - references)


@dataclass(frozen=True)
class RandomSubset(Path):
    """A share a of the pixels of x', chosen at random, is replaced by those of x.

    With `patch` > 1 squares of that side (runs of a signal, cubes of a volume) are replaced as a whole. The number
    replaced is exact: round(a * total).
    """

    patch: int = 1

    def __post_init__(self) -> None:
        if self.patch < 1:
            raise SamplingError(f"the side of a patch must be at least 1 pixel, not {self.patch}")

    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """Pixels of x where the mask says so, pixels of x' elsewhere."""
        size = size_of(images)
        cells = [-(-side // self.patch) for side in size]
        total = prod(cells)
        order = torch.randperm(total, generator=source, device="cpu")
        mask = torch.zeros(total, device="cpu")
        mask[order[: round(share * total)]] = 1.0
        full = functional.interpolate(mask.reshape(1, 1, *cells), scale_factor=self.patch, mode="nearest")
        chosen = full[(slice(None), slice(None), *(slice(side) for side in size))].to(images.device) > 0.5
        return torch.where(chosen, images, references)


@dataclass(frozen=True)
class Custom(Path):
    """The user's function of (references, images, a)."""

    function: PathCallable

    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """Whatever the function says, if it has the right shape."""
        points = self.function(references, images, share)
        if not isinstance(points, Tensor) or points.shape != images.shape:
            got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
            raise SamplingError(f"the path callable gave {got} for images of shape {tuple(images.shape)}")
        return points


PATHS: dict[str, Callable[[], Path]] = {"linear": Linear, "subset": RandomSubset}


def as_path(path: PathLike) -> Path:
    """The path of that name, a `Path` as it is, or that of a callable (references, images, a) -> points."""
    if isinstance(path, Path):
        return path
    if isinstance(path, str):
        check_known(path, PATHS, "path", SamplingError)
        return PATHS[path]()
    if callable(path):
        return Custom(path)
    raise SamplingError(f"a path is 'linear', 'subset' or a callable, not {type(path).__name__}")
