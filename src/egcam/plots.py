"""Pictures of heat maps: colours, overlays on photographs, labelled grids."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from egcam.errors import InputError

Pixels: TypeAlias = npt.NDArray[np.floating[Any]]

# matplotlib is imported inside functions only: `import egcam` must stay quick.

# Most photographs are warm (skin, fur, wood): viridis stays apart from them where the "hot" maps do not.
POSITIVE_COLORS = "viridis"
SIGNED_COLORS = "RdBu_r"

_FADE = 0.6


@cache
def _color_table(name: str) -> Pixels:
    """(256, 3) the colours of a matplotlib colour map, in [0, 1]."""
    from matplotlib import colormaps

    if name not in colormaps:
        raise InputError(
            f"unknown colour map {name!r}; matplotlib has 'viridis', 'inferno', 'magma', 'turbo', …"
        )
    return np.asarray(colormaps[name](np.linspace(0, 1, 256))[:, :3], dtype=np.float32)


def _checked(heatmap: npt.ArrayLike) -> Pixels:
    values = np.asarray(heatmap, dtype=np.float32)
    if values.ndim != 2:
        raise InputError(f"a heat map to draw has two dimensions (height, width), not shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("the heat map holds NaN or infinite values and cannot be drawn")
    return values


def _colored(values: Pixels, colormap: str | None) -> Pixels:
    """(H, W, 3) colours: a map with negative values runs from -1 to 1, any other from 0 to 1."""
    signed = bool((values < 0).any())
    table = _color_table(colormap or (SIGNED_COLORS if signed else POSITIVE_COLORS))
    position = (values + 1) / 2 if signed else values
    return table[np.clip(np.rint(position * 255), 0, 255).astype(np.intp)]


def _as_image(colors: Pixels) -> Image.Image:
    return Image.fromarray(np.rint(np.clip(colors, 0, 1) * 255).astype(np.uint8))


def heatmap_image(heatmap: npt.ArrayLike, colormap: str | None = None) -> Image.Image:
    """A heat map in colours, without a photograph.

    Args:
        heatmap: (H, W) values in [0, 1], or in [-1, 1] for a signed map.
        colormap: a matplotlib colour map; by default viridis, and red-blue for a signed map.

    Example:
        >>> heatmap_image(np.eye(4)).size
        (4, 4)
    """
    return _as_image(_colored(_checked(heatmap), colormap))


def overlay_image(
    image: Image.Image, heatmap: npt.ArrayLike, alpha: float = 0.65, colormap: str | None = None
) -> Image.Image:
    """A heat map laid over its photograph: the more important a place, the less the photograph shows through.

    Args:
        image: the photograph.
        heatmap: (H, W) values in [0, 1], or in [-1, 1] for a signed map; resized to the photograph.
        alpha: how opaque the most important place is; places of no importance show the bare photograph.
        colormap: a matplotlib colour map; by default viridis, and red-blue for a signed map.

    Example:
        >>> overlay_image(Image.new("RGB", (8, 6), "white"), np.zeros((3, 4))).getpixel((0, 0))
        (255, 255, 255)
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha is the opacity, a number from 0 to 1; not {alpha}")
    photograph = image.convert("RGB")
    values = _resized(_checked(heatmap), photograph.size)
    # Opacity grows faster than importance, so that middling places are not lost on a busy photograph; not for
    # signed maps, where the steep start would draw a line along every change of sign.
    fade = 1.0 if (values < 0).any() else _FADE
    importance = (np.clip(np.abs(values), 0, 1) ** fade)[:, :, None]
    opacity = alpha * importance
    below = _greyed(np.asarray(photograph, dtype=np.float32) / 255, importance)
    return _as_image((1 - opacity) * below + opacity * _colored(values, colormap))


def _greyed(pixels: Pixels, share: Pixels) -> Pixels:
    """The photograph without its colours where the map's come in: an orange cup must not look like heat."""
    grey = (pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32))[:, :, None]
    return (1 - share) * pixels + share * grey


def _resized(values: Pixels, size: tuple[int, int]) -> Pixels:
    if (values.shape[1], values.shape[0]) == size:
        return values
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BILINEAR), dtype=np.float32)


def to_pil(images: Tensor) -> list[Image.Image]:
    """Image tensors as pictures: values in [0, 1] as they are, others (normalised pixels) stretched.

    Args:
        images: (N, C, H, W) or (C, H, W); one channel is grey, of two the first is shown, of more than three
            the first three. Stretching is per image.

    Example:
        >>> to_pil(torch.zeros(2, 3, 4, 5))[0].size
        (5, 4)
    """
    batch = images.detach()
    if batch.ndim == 3:
        batch = batch[None]
    if batch.ndim != 4 or batch.shape[1] == 0:
        raise InputError(f"images to show have shape (N, C, H, W) or (C, H, W), not {tuple(images.shape)}")
    batch = batch[:, :1].expand(-1, 3, -1, -1) if batch.shape[1] < 3 else batch[:, :3]
    batch = batch.to("cpu", torch.float32).permute(0, 2, 3, 1)
    return [_as_image(_to_unit_range(image.numpy())) for image in batch]


def _to_unit_range(pixels: Pixels) -> Pixels:
    low, high = float(pixels.min()), float(pixels.max())
    # Resampling overshoots by a hair; that is no reason to stretch the contrast.
    if low >= -1e-3 and high <= 1 + 1e-3:
        return pixels
    return (pixels - low) / max(high - low, 1e-12)
