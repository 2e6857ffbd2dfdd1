"""Operations on images and maps: enlarge, scale, fuse, blur."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import SamplingError


def upsampled(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(N, h, w) maps at (N, H, W): bilinear, corners not aligned."""
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def scaled(maps: Tensor) -> Tensor:
    """Each map divided by the maximum of its absolute value; a map of zeros stays zero.

    >>> import torch
    >>> scaled(torch.tensor([[[1.0, 4.0]], [[0.0, 0.0]]])).tolist()
    [[[0.25, 1.0]], [[0.0, 0.0]]]
    """
    largest = maps.abs().amax((1, 2), keepdim=True)
    return maps / largest.masked_fill(largest == 0, 1)


def heatmaps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(N, H, W) in [0, 1], or [-1, 1] for signed maps: upsampled, then divided by the largest absolute value.

    >>> import torch
    >>> heatmaps(torch.tensor([[[1.0, 4.0]]]), (1, 2)).tolist()
    [[[0.25, 1.0]]]
    """
    return scaled(upsampled(maps, size))


def fused(maps: list[Tensor]) -> Tensor:
    """One map from the maps of several layers: each upsampled to the finest, divided by its maximum, then averaged."""
    if len(maps) == 1:
        return maps[0]
    height, width = max(tuple(layer.shape[-2:]) for layer in maps)
    parts = [scaled(upsampled(layer, (height, width))) for layer in maps]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts)


def fused_errors(errors: list[Tensor], maps: list[Tensor]) -> Tensor:
    """An upper bound of the fused map's standard error: the layers' errors, scaled as their maps, averaged."""
    if len(errors) == 1:
        return errors[0]
    height, width = max(tuple(layer.shape[-2:]) for layer in maps)
    total = errors[0].new_zeros(len(errors[0]), height, width)
    for error, layer in zip(errors, maps, strict=True):
        largest = upsampled(layer, (height, width)).abs().amax((1, 2), keepdim=True)
        total = total + upsampled(error, (height, width)) / largest.masked_fill(largest == 0, 1)
    return total / len(errors)


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Blur (N, C, H, W) with a Gaussian of `sigma` pixels; the border is mirrored."""
    if sigma <= 0:
        raise SamplingError(f"the blur's sigma must be positive, not {sigma}")
    for dim in (2, 3):
        size = images.shape[dim]
        radius = min(int(3 * sigma + 0.5), size - 1)
        if radius < 1:
            continue
        offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
        weights = (-0.5 * (offsets / sigma) ** 2).exp()
        weights = (weights / weights.sum()).reshape((1, 1, -1, 1) if dim == 2 else (1, 1, 1, -1))
        padding = (0, 0, radius, radius) if dim == 2 else (radius, radius, 0, 0)
        padded = functional.pad(images, padding, mode="reflect")
        images = functional.conv2d(padded.flatten(0, 1)[:, None], weights)[:, 0].reshape(images.shape)
    return images
