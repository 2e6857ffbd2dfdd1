"""Maps that ignore the class: what a method must beat before its scores mean anything.

They are methods by name, in the group "control": `egcam.explain`, `egcam.evaluate` and studies take them, lists of
methods leave them out, and tables mark what does not beat them.
"""

from __future__ import annotations

from abc import abstractmethod
from hashlib import blake2b
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import MethodError
from egcam.imageops import along, in_double, of_dimension, wide_enough
from egcam.models.layers import Layer
from egcam.rng import generator

_SLOPE, _SMOOTH = (-1.0, 0.0, 1.0), (1.0, 2.0, 1.0)  # a Sobel kernel is one along an axis, the other along all others


class _Control(Explainer):
    """Makes one map for each layer, of the layer's size, from the image or the activations."""

    by_scores = True

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        return Maps([self._control_maps(task.images, layer) for layer in task.activations])

    @abstractmethod
    def _control_maps(self, images: Tensor, activations: Tensor) -> Tensor:
        """(n, h, w) for images (n, C, H, W) and activations (n, K, h, w); of signals and volumes accordingly."""


@register(
    "random",
    label="Random",
    summary="control: numbers drawn at random",
    group="control",
    line=("grey", ":", "x"),
)
class RandomMap(_Control):
    """Independent numbers, uniform on [0, 1), for each cell of the layer.

    The draw depends on the image's pixels and the seed alone: the same image has the same map in any batch.
    """

    def __init__(self, model: nn.Module, layer: Layer = None, *, seed: int = 0, **common: Unpack[Common]) -> None:
        super().__init__(model, layer, **common)
        self.seed = seed

    def _control_maps(self, images: Tensor, activations: Tensor) -> Tensor:
        return torch.stack([self._drawn(image, activations.shape[2:]) for image in images]).to(wide_enough(activations))

    def _drawn(self, image: Tensor, size: torch.Size) -> Tensor:
        pixels = in_double(image)
        digest = blake2b(pixels.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        return torch.rand(size, generator=generator(self.seed, "random map", digest), device="cpu")

    def _options(self) -> dict[str, Any]:
        return {"seed": self.seed}


@register(
    "centre",
    label="Centre",
    summary="control: a Gaussian in the middle of every image",
    group="control",
    line=("grey", ":", "+"),
)
class CentreMap(_Control):
    """exp( -(u^2 + v^2) / (2 width^2) ), u, v from -1/2 to 1/2 across the map: subjects are mostly centred.

    Along a signal u alone; of volumes and video all three axes.
    """

    def __init__(self, model: nn.Module, layer: Layer = None, *, width: float = 0.25, **common: Unpack[Common]) -> None:
        super().__init__(model, layer, **common)
        if not width > 0:
            raise MethodError(f"width is the Gaussian's, as a share of the image, and must be positive, not {width!r}")
        self.width = width

    def _control_maps(self, images: Tensor, activations: Tensor) -> Tensor:
        values = wide_enough(activations)
        size = values.shape[2:]
        away = torch.zeros(size).to(values)
        for axis, side in enumerate(size):
            away = away + along((torch.arange(side).to(values) + 0.5) / side - 0.5, axis, len(size)).square()
        return (-away / (2 * self.width**2)).exp().expand(len(images), *size).clone()

    def _options(self) -> dict[str, Any]:
        return {"width": self.width}


@register(
    "edges",
    label="Edges",
    summary="control: how strong the edges of the image are",
    group="control",
    line=("grey", ":", "1"),
)
class EdgeMap(_Control):
    """The length of the Sobel gradient of the mean of the colours, averaged over each cell of the layer."""

    def _control_maps(self, images: Tensor, activations: Tensor) -> Tensor:
        grey = wide_enough(images).mean(1, keepdim=True)
        axes = images.ndim - 2
        kernels = torch.stack([_sobel(axis, axes) for axis in reversed(range(axes))])[:, None].to(grey)
        gradient = of_dimension("conv", axes)(functional.pad(grey, (1, 1) * axes, mode="replicate"), kernels)
        strength = gradient.square().sum(1, keepdim=True).sqrt()
        pooled: Tensor = of_dimension("adaptive_avg_pool", axes)(strength, tuple(activations.shape[2:]))
        return pooled[:, 0]


def _sobel(axis: int, axes: int) -> Tensor:
    """(3, …) the kernel that measures the slope along one of the axes."""
    kernel = torch.ones((3,) * axes, device="cpu")
    for other in range(axes):
        kernel = kernel * along(torch.tensor(_SLOPE if other == axis else _SMOOTH, device="cpu"), other, axes)
    return kernel


@register(
    "mean-activation",
    label="Mean activation",
    summary="control: the mean of the layer's channels, whatever the class",
    group="control",
    line=("grey", ":", "2"),
)
class MeanActivation(_Control):
    """mean_k A^k: where the layer is active, for no class in particular (LaFAM, Karjauv and Albayrak, 2024)."""

    def _control_maps(self, images: Tensor, activations: Tensor) -> Tensor:
        return wide_enough(activations).mean(1)
