"""Operations on images and maps: enlarge, scale, fuse, blur.

"Image" stands for whatever a network looks at, (N, C, *size): a signal has size (L,), an image (H, W), a volume
(D, H, W) and a video (T, H, W). A map has one value for each place of it, (N, *size).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import SamplingError

Size = tuple[int, ...]

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def places(images: Tensor) -> tuple[int, ...]:
    """The axes of (N, C, *size) that are places: all but the first two.

    >>> places(torch.zeros(2, 3, 4, 5)), places(torch.zeros(2, 3, 4))
    ((2, 3), (2,))
    """
    return tuple(range(2, images.ndim))


def size_of(images: Tensor) -> Size:
    """The size of (N, C, *size): (L,), (H, W), (D, H, W) or (T, H, W)."""
    return tuple(images.shape[2:])


def has_double(device: torch.device) -> bool:
    """Whether a device has float64."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def in_double(values: Tensor) -> Tensor:
    """On the CPU in float64, for exact sums; moved before it is widened, as not every device has float64."""
    return values.detach().cpu().double()


def widest(values: Tensor) -> Tensor:
    """In float64 where the device has it, else as they are."""
    return values.double() if has_double(values.device) else values


def wide_enough(tensor: Tensor) -> Tensor:
    """At least float32, so that half-precision gradients are averaged without loss."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """(N,) numbers as (N, 1, …, 1), with as many axes as `like`; (N, K) as (N, K, 1, …, 1).

    >>> by_row(torch.ones(2), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    return values.reshape(*values.shape, *[1] * (like.ndim - values.ndim))


def of_dimension(operation: str, dimensions: int) -> Callable[..., Any]:
    """torch's function for signals (1), images (2) or volumes (3), as conv2d for "conv" and 2."""
    found: Callable[..., Any] = getattr(functional, f"{operation}{dimensions}d")
    return found


def interpolated(values: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """(N, C, *size) at another size: linear along every axis."""
    mode = _LINEAR[values.ndim - 2]
    return functional.interpolate(values, size=tuple(size), mode=mode, align_corners=align_corners)


def area_mean(values: Tensor, size: Sequence[int]) -> Tensor:
    """(…, *size) the mean of (…, H, W) over each cell of a coarser grid, or a finer one, by exact areas.

    `adaptive_avg_pool2d` is the same where the sizes divide; elsewhere its windows overlap.

    Example:
        >>> area_mean(torch.tensor([[0.0, 3.0, 6.0]]), [2]), area_mean(torch.tensor([[2.0, 4.0]]), [4])
        (tensor([[1., 5.]]), tensor([[2., 2., 4., 4.]]))
    """
    for axis, cells in enumerate(size, start=values.ndim - len(size)):
        pixels = values.shape[axis]
        if cells == pixels:
            continue
        edges = torch.arange(cells + 1, dtype=torch.float64, device="cpu") * pixels / cells
        left = torch.arange(pixels, dtype=torch.float64, device="cpu")
        within = torch.minimum(edges[1:, None], left + 1) - torch.maximum(edges[:-1, None], left)
        shares = (within.clamp(min=0) * cells / pixels).to(values)
        values = torch.tensordot(values, shares, dims=([axis], [1])).movedim(-1, axis)
    return values


def upsampled(maps: Tensor, size: Sequence[int]) -> Tensor:
    """(N, *s) maps at another size: linear along every axis, corners not aligned.

    >>> upsampled(torch.tensor([[0.0, 1.0]]), (4,)).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
    if tuple(maps.shape[1:]) == tuple(size):
        return maps
    return interpolated(maps[:, None], size)[:, 0]


def scaled(maps: Tensor) -> Tensor:
    """Each map divided by the maximum of its absolute value; a map of zeros stays zero.

    >>> import torch
    >>> scaled(torch.tensor([[[1.0, 4.0]], [[0.0, 0.0]]])).tolist()
    [[[0.25, 1.0]], [[0.0, 0.0]]]
    """
    largest = _largest(maps)
    return maps / largest.masked_fill(largest == 0, 1)


def _largest(maps: Tensor) -> Tensor:
    """(N, 1, …) each map's largest absolute value."""
    return maps.abs().amax(tuple(range(1, maps.ndim)), keepdim=True)


def heatmaps(maps: Tensor, size: Sequence[int]) -> Tensor:
    """(N, *size) in [0, 1], or [-1, 1] for signed maps: upsampled, then divided by the largest absolute value.

    >>> import torch
    >>> heatmaps(torch.tensor([[[1.0, 4.0]]]), (1, 2)).tolist()
    [[[0.25, 1.0]]]
    """
    return scaled(upsampled(maps, size))


def fused(maps: list[Tensor]) -> Tensor:
    """One map from the maps of several layers: each upsampled to the finest, divided by its maximum, then averaged.

    The finest has along every axis as many places as the map with the most.
    """
    if len(maps) == 1:
        return maps[0]
    size = _finest(maps)
    parts = [scaled(upsampled(layer, size)) for layer in maps]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts)


def fused_errors(errors: list[Tensor], maps: list[Tensor]) -> Tensor:
    """An upper bound of the fused map's standard error: the layers' errors, scaled as their maps, averaged."""
    if len(errors) == 1:
        return errors[0]
    size = _finest(maps)
    total = errors[0].new_zeros(len(errors[0]), *size)
    for error, layer in zip(errors, maps, strict=True):
        largest = _largest(upsampled(layer, size))
        total = total + upsampled(error, size) / largest.masked_fill(largest == 0, 1)
    return total / len(errors)


def _finest(maps: list[Tensor]) -> Size:
    return tuple(max(sizes) for sizes in zip(*(layer.shape[1:] for layer in maps), strict=True))


def gaussian_blur(images: Tensor, sigma: float | Sequence[float]) -> Tensor:
    """Blur (N, C, *size) with a Gaussian of `sigma` pixels, the same along every axis or one each; borders mirrored."""
    axes = places(images)
    sigmas = list(sigma) if isinstance(sigma, Sequence) else [sigma] * len(axes)
    if not all(one > 0 for one in sigmas):
        raise SamplingError(f"the blur's sigma must be positive, not {sigma}")
    convolve = of_dimension("conv", len(axes))
    for axis, one in zip(axes, sigmas, strict=True):
        radius = min(int(3 * one + 0.5), images.shape[axis] - 1)
        if radius < 1:
            continue
        offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
        weights = (-0.5 * (offsets / one) ** 2).exp()
        weights = along(weights / weights.sum(), axis, images.ndim)
        # torch counts what it pads from the last axis on.
        padding = [0] * (2 * len(axes))
        start = 2 * (images.ndim - 1 - axis)
        padding[start : start + 2] = radius, radius
        padded = functional.pad(images, padding, mode="reflect")
        images = convolve(padded.flatten(0, 1)[:, None], weights)[:, 0].reshape(images.shape)
    return images


def along(values: Tensor, axis: int, axes: int) -> Tensor:
    """(K,) values laid along one of that many axes: (1, …, K, …, 1).

    >>> along(torch.ones(5), 2, 4).shape
    torch.Size([1, 1, 5, 1])
    """
    return values.reshape([-1 if number == axis else 1 for number in range(axes)])
