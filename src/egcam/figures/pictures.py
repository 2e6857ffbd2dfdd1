"""Photographs, coarse maps and overlays on axes, and the colour bars that go with them.

An overlay is two layers, those of `drawing.overlays.overlay_layers`: the photograph and, above it, the map's colours.
The colour bar of an overlay shows the same colours with the same alpha over a middle grey, as the photograph would be;
that of a coarse map shows them plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from PIL import Image
from torch import Tensor

from egcam.drawing import overlays
from egcam.drawing.overlays import overlay_layers, to_pil
from egcam.drawing.palette import OPACITY, Pixels, heat_colors, heat_layer
from egcam.errors import InputError
from egcam.figures import style

Picture: TypeAlias = Tensor | Image.Image | npt.NDArray[Any]

_GREY = 0.5


def as_rgb(picture: Picture) -> Pixels:
    """(H, W, 3) red, green and blue in [0, 1].

    Args:
        picture: a PIL image; an array (H, W), (H, W, 3) or (H, W, 4), whole numbers to 255 or fractions to 1; or a
            tensor (C, H, W), where values outside [0, 1] (normalised pixels) are stretched.

    Example:
        >>> as_rgb(Image.new("RGB", (2, 1), "red"))[0, 0].tolist()
        [1.0, 0.0, 0.0]
    """
    if isinstance(picture, Tensor):
        if picture.ndim == 4 and len(picture) == 1:
            picture = picture[0]
        if picture.ndim != 3:
            raise InputError(f"a picture to draw is a tensor (C, H, W), not {tuple(picture.shape)}")
        picture = to_pil(picture)[0]
    if isinstance(picture, Image.Image):
        return np.asarray(picture.convert("RGB"), dtype=np.float32) / 255
    values = np.asarray(picture)
    if values.ndim == 2:
        values = np.repeat(values[:, :, None], 3, 2)
    if values.ndim != 3 or values.shape[2] not in (3, 4):
        raise InputError(f"a picture to draw is an array (H, W, 3) or (H, W), not {values.shape}")
    scale = 255 if np.issubdtype(values.dtype, np.integer) else 1
    found = values[:, :, :3].astype(np.float32) / scale
    if not np.isfinite(found).all() or found.min() < 0 or found.max() > 1:
        raise InputError("a picture's colours are fractions from 0 to 1, or whole numbers from 0 to 255")
    return found


def as_pictures(pictures: Tensor | Sequence[Picture] | Picture) -> list[Pixels]:
    """Several pictures: a batch (N, C, H, W), a list, or a single one."""
    if isinstance(pictures, Image.Image):
        return [as_rgb(pictures)]
    if isinstance(pictures, Tensor | np.ndarray) and pictures.ndim < 4:
        return [as_rgb(pictures)]
    return [as_rgb(picture) for picture in pictures]


def as_heat(heatmap: Tensor | npt.ArrayLike) -> Pixels:
    """(H, W) a finite map in [-1, 1].

    Example:
        >>> as_heat([[0, 1]]).tolist()
        [[0.0, 1.0]]
    """
    values = as_map(heatmap)
    if np.abs(values).max() > 1 + 1e-5:
        raise InputError("a heat map runs from 0 to 1 (or -1 to 1): pass explanation.heatmaps, not explanation.maps")
    return np.clip(values, -1, 1)


def as_map(values: Tensor | npt.ArrayLike) -> Pixels:
    """(h, w) a finite map of any scale; of one image in a batch, (1, h, w), that image's."""
    found = np.asarray(values.detach().float().cpu() if isinstance(values, Tensor) else values)
    return overlays.as_map(found[0] if found.ndim == 3 and len(found) == 1 else found)


def draw_picture(axes: Axes, picture: Pixels, interpolation: str = "antialiased") -> AxesImage:
    """The picture itself, filling the axes."""
    _frame(axes, picture.shape[0] / picture.shape[1])
    return axes.imshow(picture, extent=_WHOLE, aspect="auto", interpolation=interpolation)


def draw_coarse(axes: Axes, values: Pixels, colors: str | None = None, signed: bool = False) -> AxesImage:
    """A map at the layer's own resolution, its cells sharp, divided by its largest absolute value."""
    largest = float(np.abs(values).max())
    values = values / largest if largest > 0 else values
    _frame(axes, values.shape[0] / values.shape[1])
    return axes.imshow(
        values,
        cmap=heat_colors(colors, signed),
        vmin=-1 if signed else 0,
        vmax=1,
        extent=_WHOLE,
        aspect="auto",
        interpolation="nearest",
    )


def draw_overlay(
    axes: Axes,
    picture: Pixels,
    heat: Pixels,
    colors: str | None = None,
    signed: bool = False,
    opacity: float = OPACITY,
) -> tuple[AxesImage, AxesImage]:
    """The picture, and over it the heat map's colours, the more opaque the more important."""
    below, layer = overlay_layers(picture, heat, colors, signed, opacity)
    shown = draw_picture(axes, below)
    return shown, axes.imshow(layer, extent=_WHOLE, aspect="auto", interpolation="bilinear")


def draw_color_bar(
    axes: Axes,
    label: str = "",
    colors: str | None = None,
    signed: bool = False,
    opacity: float | None = None,
    across: bool = False,
) -> AxesImage:
    """A colour bar that fills the axes, from 0 (or -1) to 1.

    Args:
        axes: a narrow one.
        label: what the colours are of.
        colors: a matplotlib colour map.
        signed: from -1 rather than from 0.
        opacity: of an overlay: the colours are then shown over middle grey with the overlay's alpha; None is plain.
        across: lies on its side.
    """
    low = -1.0 if signed else 0.0
    values = np.linspace(low, 1, 256, dtype=np.float32)[:, None]
    layer = heat_layer(values, colors, signed, 1.0 if opacity is None else opacity)
    alpha = 1 if opacity is None else layer[:, :, 3:]
    shown = alpha * layer[:, :, :3] + (1 - alpha) * _GREY
    shown = shown.transpose(1, 0, 2) if across else shown
    extent = (low, 1, 0, 1) if across else (0, 1, low, 1)
    image = axes.imshow(shown, extent=extent, aspect="auto", origin="lower", interpolation="bilinear")
    ticks = [-1, 0, 1] if signed else [0, 1]
    labels = [f"{tick}".replace("-", "−") for tick in ticks]
    if across:
        axes.set_xticks(ticks, labels)
        axes.set_yticks([])
        axes.set_xlabel(label, labelpad=1)
    else:
        axes.yaxis.tick_right()
        axes.yaxis.set_label_position("right")
        axes.set_yticks(ticks, labels)
        axes.set_xticks([])
        axes.set_ylabel(label, labelpad=1)
    axes.tick_params(length=2, pad=1.5)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.4)
    return image


# Every layer fills the same unit square, whatever its resolution, so that they lie exactly over each other.
_WHOLE = (0.0, 1.0, 1.0, 0.0)


def _frame(axes: Axes, shape: float) -> None:
    """A thin frame without ticks."""
    axes.set_box_aspect(shape)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.4)
        spine.set_edgecolor(style.FAINT)
