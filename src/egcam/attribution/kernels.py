"""Smoothing noise added at the path points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from egcam.attribution.references import value_range
from egcam.errors import SamplingError, check_known, near_misses
from egcam.rng import generator, like

Distribution: TypeAlias = Literal["gaussian", "uniform"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "uniform")


@dataclass(frozen=True)
class Kernel:
    """Noise eta of a smoothing kernel.

    Args:
        distribution: "gaussian", N(0, scale^2), or "uniform", U(0, scale).
        scale: the standard deviation, or the width.
        relative: multiply the scale by each image's range, max - min.
        draws: how many noise draws each path point gets; the passes grow with it.
        normaliser: multiply channel k by 1 / E_eta[mean_ij f_k(eta)], the inverse of the layer's mean response to the
            noise alone (the paper's k(x)); a channel without response gets the factor 1. Costs one pass up to the layer
            for each draw.

    Example:
        >>> Kernel("uniform", scale=1.0).draws
        1
    """

    distribution: Distribution = "gaussian"
    scale: float = 0.15
    relative: bool = False
    draws: int = 1
    normaliser: bool = False

    def __post_init__(self) -> None:
        check_known(self.distribution, DISTRIBUTIONS, "kernel distribution", SamplingError)
        if not self.scale >= 0:
            raise SamplingError(f"the kernel's scale must not be negative: {self.scale}")
        if self.draws < 1:
            raise SamplingError(f"the kernel needs at least one draw, not {self.draws}")

    def noise(self, images: Tensor, sample: int, seed: int) -> Tensor:
        """(n, C, H, W) the noise of one sample: the same draw for every image, scaled for each where relative."""
        scale = self.scale * value_range(images) if self.relative else self.scale
        return (scale * self._drawn(images, sample, seed)).expand(images.shape)

    def _drawn(self, tensor: Tensor, sample: int, seed: int) -> Tensor:
        draw = torch.randn if self.distribution == "gaussian" else torch.rand
        source = generator(seed, "kernel", sample)
        return like(draw(tensor.shape[1:], generator=source, device="cpu", dtype=torch.float32), tensor)[None]


KernelLike: TypeAlias = Kernel | str | Mapping[str, Any] | None


def as_kernel(kernel: KernelLike) -> Kernel | None:
    """The kernel for a `Kernel`, a distribution's name with its usual scale, its options as a mapping, or None.

    Example:
        >>> as_kernel({"distribution": "gaussian", "scale": 0.3}) == Kernel("gaussian", 0.3)
        True
    """
    if kernel is None or isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, Mapping):
        known = [field.name for field in fields(Kernel)]
        for key in kernel:
            if key not in known:
                raise SamplingError(f"a kernel has no option {key!r}; {near_misses(str(key), known)}")
        return Kernel(**kernel)
    if kernel == "uniform":
        return Kernel("uniform", scale=1.0)
    return Kernel(kernel)  # type: ignore[arg-type]
