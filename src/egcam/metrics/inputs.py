"""What metrics are given, checked and brought to one form: images, maps and masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from egcam.errors import InputError, TargetError
from egcam.imageops import by_row, size_of, upsampled
from egcam.metrics.undefined import Causes
from egcam.models.inputs import is_listed, stacked
from egcam.models.targets import Target

Maps: TypeAlias = Any
"""A (N, H, W) or (N, 1, H, W) tensor or array, (H, W) for one image, or an explanation (anything with `heatmaps`).

Maps of signals have one axis in place of height and width, those of volumes and video three.
"""


def check_positive(name: str, value: int) -> int:
    """`value`, or an error that names the option when it is not at least 1."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
    return int(value)


def as_images(images: Any, dimensions: int = 2) -> Tensor:
    """(N, C, H, W) floating-point images; (C, H, W) is one; a list of images is a batch.

    Of signals (1) and volumes (3), (N, C, L) and so on.
    """
    tensor = stacked(images) if is_listed(images) else as_tensor(images, "images")
    if tensor.ndim == dimensions + 1:
        tensor = tensor[None]
    if tensor.ndim != dimensions + 2:
        raise InputError(f"images must be (N, C, H, W) or (C, H, W), got {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise InputError(f"images must be floating-point as the model takes them, not {tensor.dtype}")
    if not tensor.numel():
        raise InputError(f"there is no image in a batch of shape {tuple(tensor.shape)}")
    return tensor.detach()


def as_maps(heatmaps: Maps, images: Tensor | None = None, dimensions: int | None = None) -> tuple[Tensor, Causes]:
    """(N, H, W) maps at the size and on the device of `images`, and the images whose map is not finite.

    Smaller or larger maps are resized linearly (corners not aligned), as heat maps are. A map with NaN or
    infinite values becomes zero here and its image is in the causes, so that the others can still be scored.
    One (H, W) map goes with one image; without images it must be an explanation's, for (N, pixels) look the same.
    Without images or `dimensions`, bare maps are of images, or (N, 1, D, H, W) of volumes.
    """
    tensor = as_tensor(getattr(heatmaps, "heatmaps", heatmaps), "maps").detach()
    axes = 1 + _dimensions_of(heatmaps, tensor, images, dimensions)
    if tensor.ndim == axes + 1 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    is_single = getattr(heatmaps, "is_single", False) or (images is not None and len(images) == 1)
    if tensor.ndim == axes - 1 and is_single:
        tensor = tensor[None]
    if tensor.ndim != axes or not tensor.numel():
        wanted = {2: "(N, L) or (N, 1, L)", 4: "(N, D, H, W) or (N, 1, D, H, W)"}.get(axes, "(N, H, W) or (N, 1, H, W)")
        raise InputError(f"maps must be {wanted}, got {tuple(tensor.shape)}; one map is maps[None]")
    if tensor.is_complex():
        raise InputError("maps must be real numbers")
    if not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    if images is not None:
        if len(tensor) != len(images):
            raise InputError(f"{len(tensor)} map(s) for {len(images)} image(s)")
        tensor = tensor.to(images.device)
    causes = Causes()
    # One quick sum settles the usual case; a sum that is not finite may also be an overflow.
    finite = None if tensor.sum().isfinite() else tensor.flatten(1).isfinite().all(1)
    if finite is not None and not finite.all():
        causes.mark(~finite, "its map holds NaN or infinite values")
        tensor = torch.where(by_row(finite, tensor), tensor, torch.zeros_like(tensor))
    if images is not None:
        tensor = upsampled(tensor, size_of(images))
    return tensor, causes


def _dimensions_of(heatmaps: Maps, tensor: Tensor, images: Tensor | None, said: int | None) -> int:
    """How many dimensions of places maps have: as the images, else as is said, else as the explanation's own."""
    if images is not None:
        return images.ndim - 2
    if said is not None:
        return said
    size = getattr(heatmaps, "size", None)
    if isinstance(size, tuple):
        return len(size)
    return 3 if tensor.ndim == 5 else 2


def explained_target(target: Target, heatmaps: Maps | None) -> Target:
    """What is scored: the target given; else the classes of the explanation given; else None, the prediction.

    Example:
        >>> from types import SimpleNamespace
        >>> explanation = SimpleNamespace(heatmaps=torch.rand(2, 4, 4), targets=torch.tensor([3, 0]))
        >>> explained_target(None, explanation)
        tensor([3, 0])
        >>> explained_target(1, explanation), explained_target(None, explanation.heatmaps)
        (1, None)
    """
    if target is not None or heatmaps is None or not hasattr(heatmaps, "targets"):
        return target
    if heatmaps.targets is None:
        raise TargetError(
            "this explanation explained a callable target, which it does not keep, so what to score is unknown: "
            "pass target=… again, the same callable or a class"
        )
    classes: Tensor = heatmaps.targets
    return classes.reshape(-1)


def as_masks(masks: Any, maps: Tensor) -> Tensor:
    """(N, H, W) booleans on the maps' device: true where the mask is above one half (floats) or above 0 (all else).

    A mask of another size than the map is an error: resizing one silently would hide that image and mask were
    cropped differently.
    """
    tensor = as_tensor(masks, "masks").detach()
    if tensor.ndim == maps.ndim + 1 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.ndim == maps.ndim - 1 and len(maps) == 1:
        tensor = tensor[None]
    if tensor.ndim != maps.ndim or len(tensor) != len(maps):
        raise InputError(f"masks must be (N, H, W), one per map: got {tuple(tensor.shape)} for {len(maps)} map(s)")
    if tensor.shape != maps.shape:
        raise InputError(
            f"masks are {tuple(tensor.shape[1:])} and maps {tuple(maps.shape[1:])}: bring them to one size with the "
            "crop and resize the image went through, e.g. torch.nn.functional.interpolate(..., mode='nearest')"
        )
    if tensor.dtype == torch.bool:
        return tensor.to(maps.device)
    if tensor.is_floating_point():
        unreadable = tensor.flatten(1).isnan().any(1).nonzero().flatten().tolist()
        if unreadable:
            raise InputError(f"the mask of image {unreadable[0]} holds NaN")
        return (tensor > 0.5).to(maps.device)
    return (tensor > 0).to(maps.device)


def chunks(total: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` that cover `total`."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def scaled_by_peak(maps: Tensor) -> Tensor:
    """Each (H, W) map divided by its largest absolute value; a zero map stays zero."""
    peak = maps.flatten(1).abs().amax(1)
    return maps / by_row(torch.where(peak > 0, peak, torch.ones_like(peak)), maps)


def as_tensor(value: Any, what: str) -> Tensor:
    """A tensor, or an array or list made one."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{what} must be a tensor or an array, not {type(value).__name__}") from None
