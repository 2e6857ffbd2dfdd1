"""Volumes and video under their heat maps: slices side by side, or one after the other as an animated GIF."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from egcam.drawing.overlays import Tile, as_map, grid, heatmap_image, laid_over, legible, to_pil
from egcam.drawing.palette import OPACITY, Pixels, is_signed
from egcam.errors import InputError

Volume = Tensor | npt.NDArray[Any]


def montage(
    volume: Volume | None,
    heat: npt.ArrayLike | Tensor,
    alpha: float = OPACITY,
    colormap: str | None = None,
    sharpness: float = 1.0,
    count: int = 12,
    columns: int = 4,
    side: int = 200,
    signed: bool | None = None,
) -> Image.Image:
    """Slices of a volume, or frames of a video, under the heat map, each with its number.

    All have the same colours and contrast, so that they compare.

    Args:
        volume: (C, D, H, W), or a video (C, T, H, W); None draws the map alone.
        heat: (D, H, W) values in [0, 1], or in [-1, 1] for a signed map.
        alpha: how opaque the most important place is.
        colormap: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        sharpness: an exponent of what is shown.
        count: the most slices, evenly spread from the first to the last, but for the one with the most important place,
            which is among them.
        columns: how many stand in a row.
        side: of one slice, in pixels.
        signed: from -1 rather than from 0; None is where there are negative values.

    Example:
        >>> montage(torch.rand(1, 16, 20, 20), np.ones((16, 20, 20)), count=4, side=90).size
        (385, 125)
    """
    slices = _slices(volume, heat, alpha, colormap, sharpness, side, signed)
    chosen = _worth_showing(as_map(heat, 3), count)
    kind = "frame" if volume is not None and volume.shape[0] == 3 else "slice"
    return grid([Tile(slices[number], f"{kind} {number}") for number in chosen], columns, side)


def animation(
    volume: Volume | None,
    heat: npt.ArrayLike | Tensor,
    alpha: float = OPACITY,
    colormap: str | None = None,
    sharpness: float = 1.0,
    seconds: float = 0.15,
    side: int = 320,
    signed: bool | None = None,
) -> bytes:
    """All slices or frames under the heat map, one after the other: the bytes of an animated GIF, to write to a file.

    Args:
        volume: (C, D, H, W), or a video (C, T, H, W); None draws the map alone.
        heat: (D, H, W) values in [0, 1], or in [-1, 1] for a signed map.
        alpha: how opaque the most important place is.
        colormap: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        sharpness: an exponent of what is shown.
        seconds: how long each is shown.
        side: the longer one of the picture, in pixels.
        signed: from -1 rather than from 0; None is where there are negative values.

    Example:
        >>> animation(torch.rand(1, 3, 8, 8), np.ones((3, 8, 8)), side=64)[:6]
        b'GIF89a'
    """
    frames = _slices(volume, heat, alpha, colormap, sharpness, side, signed)
    written = BytesIO()
    frames[0].save(
        written, "GIF", save_all=True, append_images=frames[1:], duration=round(1000 * seconds), loop=0, disposal=2
    )
    return written.getvalue()


def _worth_showing(values: Pixels, count: int) -> list[int]:
    """Numbers of slices, rising.

    >>> _worth_showing(np.eye(9)[4].reshape(9, 1, 1), 3), _worth_showing(np.eye(9)[6].reshape(9, 1, 1), 3)
    ([0, 4, 8], [0, 6, 8])
    """
    spread = np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)
    hottest = int(np.abs(values).reshape(len(values), -1).max(1).argmax())
    spread[np.abs(spread - hottest).argmin()] = hottest
    return sorted(set(spread.tolist()))


def _slices(
    volume: Volume | None,
    heat: npt.ArrayLike | Tensor,
    alpha: float,
    colormap: str | None,
    sharpness: float,
    side: int,
    signed: bool | None,
) -> list[Image.Image]:
    """Every slice as a picture whose longer side is `side`."""
    values = legible(as_map(heat, 3))
    signed = is_signed(values) if signed is None else signed
    if volume is None:
        return [_scaled(heatmap_image(one, colormap, sharpness, signed), side) for one in values]
    return [
        laid_over(_scaled(picture, side), one, colormap, signed, alpha, sharpness)
        for picture, one in zip(_pictures(volume, values), values, strict=True)
    ]


def _pictures(volume: Volume, values: Pixels) -> list[Image.Image]:
    tensor = torch.as_tensor(volume).detach()
    if tensor.ndim != 4 or tuple(tensor.shape[1:]) != values.shape:
        raise InputError(f"a volume to draw is (C, {', '.join(map(str, values.shape))}), not {tuple(tensor.shape)}")
    # Stretched as one tall picture, so that all slices have the same contrast.
    (tall,) = to_pil(tensor.flatten(1, 2))
    height = values.shape[1]
    return [tall.crop((0, number * height, tall.width, (number + 1) * height)) for number in range(len(values))]


def _scaled(picture: Image.Image, side: int) -> Image.Image:
    scale = side / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size, Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.LANCZOS)
