"""Test-time augmentation as an estimator: maps of altered copies of the image, mapped back to it and averaged."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from egcam.attribution.averaging import MapOf, Wanted
from egcam.attribution.estimators import Estimator, Vanilla
from egcam.attribution.task import Maps, Task
from egcam.errors import EgcamError, ModelError, SamplingError
from egcam.imageops import Size, size_of, upsampled


class Copy(NamedTuple):
    """How a copy differs from the image."""

    flipped: bool
    scale: float
    contrast: float

    @property
    def is_image(self) -> bool:
        """Whether it is the image itself."""
        return self == (False, 1.0, 1.0)

    def of(self, images: Tensor) -> Tensor:
        """The copies of (N, C, H, W) images."""
        if self.scale != 1:
            size = [max(1, round(side * self.scale)) for side in images.shape[-2:]]
            images = functional.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
        return (images.flip(-1) if self.flipped else images) * self.contrast

    def laid_back(self, maps: Tensor, size: Size) -> Tensor:
        """(N, h, w) maps of the copies as maps of the images, at `size`."""
        return upsampled(maps.flip(-1) if self.flipped else maps, size)


@dataclass(frozen=True)
class Augmented(Estimator):
    """A gradient estimate at altered copies of the image; their maps, mapped back to the image, are averaged.

        map = mean over copies t of  t^-1( map of t(x) )

    before the ReLU. Copies are all combinations of flip, scale and contrast. The explained class is the image's own.
    Works with every gradient CAM; costs as many passes as there are copies, times those of `gradient`.

    Args:
        gradient: how the gradient of each copy is obtained; by default `Vanilla()`.
        flip: add mirrored copies.
        scales: factors of the copies' sides; others than 1 need a network that takes any size.
        contrasts: factors of the pixels; by default as in pytorch-grad-cam's `aug_smooth`.

    Example:
        >>> import egcam
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 3))
        >>> cam = egcam.GradCAM(net, gradient=Augmented(), signed=True)
        >>> cam(torch.rand(1, 1, 8, 8), target=0).passes
        6
    """

    gradient: Estimator = field(default_factory=Vanilla)
    _: KW_ONLY
    flip: bool = True
    scales: tuple[float, ...] = (1.0,)
    contrasts: tuple[float, ...] = (0.9, 1.0, 1.1)

    def __post_init__(self) -> None:
        if not isinstance(self.gradient, Estimator):
            raise SamplingError(f"gradient must be an estimator such as Vanilla(), not {type(self.gradient).__name__}")
        for name in ("scales", "contrasts"):
            values = tuple(float(value) for value in getattr(self, name))
            if not values or not all(isfinite(value) and value > 0 for value in values):
                raise SamplingError(f"{name} are positive numbers, at least one, not {getattr(self, name)!r}")
            object.__setattr__(self, name, values)

    @property
    def _copies(self) -> list[Copy]:
        mirrored = (False, True) if self.flip else (False,)
        return [Copy(*one) for one in product(mirrored, self.scales, self.contrasts)]

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The averaged maps."""
        self._check_dimensions(task.images.ndim - 2)
        if task.targets.by_image and (self.flip or set(self.scales) != {1.0}):
            raise SamplingError(
                "a target that reads one image's output, such as a box, may have a place in the image, and a mirrored "
                "or scaled copy has it elsewhere: pass flip=False, scales=(1.0,)"
            )
        copies = sorted(self._copies, key=lambda copy: not copy.is_image)
        if not copies[0].is_image:
            task.first_pass()
        sizes: list[Size] = [] if copies[0].is_image else [size_of(layer) for layer in task.activations]
        parts: list[Maps] = []
        for copy in task.meter.each(copies):
            found = (
                self.gradient.estimate(task, wanted, map_of) if copy.is_image else self._at(copy, task, wanted, map_of)
            )
            sizes = sizes or [tuple(layer.shape[1:]) for layer in found.maps]
            parts.append(_laid_back(copy, found, sizes))
        maps = [torch.stack(layer).mean(0) for layer in zip(*(part.maps for part in parts), strict=True)]
        return Maps(maps, _mean_errors(parts), parts[0].reference)

    def _check_dimensions(self, dimensions: int) -> None:
        if self.flip and dimensions == 1:
            raise SamplingError("mirrored, a signal runs backwards: pass flip=False to leave that out")
        if dimensions != 2 and set(self.scales) != {1.0}:
            raise SamplingError("scales are for images: leave them at (1.0,) for signals, volumes and video")

    def _at(self, copy: Copy, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        try:
            with task.showing(copy.of(task.images)):
                return self.gradient.estimate(task, wanted, map_of)
        except EgcamError:
            raise
        except RuntimeError as error:
            if copy.scale == 1:
                raise
            raise ModelError(
                f"the network does not take images scaled by {copy.scale}, so leave scales at (1.0,): {error}"
            ) from error


def _laid_back(copy: Copy, found: Maps, sizes: list[Size]) -> Maps:
    def back(layers: list[Tensor]) -> list[Tensor]:
        return [copy.laid_back(layer, size) for layer, size in zip(layers, sizes, strict=True)]

    return Maps(back(found.maps), None if found.errors is None else back(found.errors), found.reference)


def _mean_errors(parts: list[Maps]) -> list[Tensor] | None:
    """An upper bound: the copies are drawn with one seed, so their errors may be alike."""
    layers: list[list[Tensor]] = []
    for part in parts:
        if part.errors is None:
            return None
        layers.append(part.errors)
    return [torch.stack(errors).mean(0) for errors in zip(*layers, strict=True)]
