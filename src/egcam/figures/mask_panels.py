"""Image, mask and maps in a row, with how much of each map lies on the object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from egcam.drawing import text_layout
from egcam.drawing.palette import OPACITY, is_signed
from egcam.errors import InputError
from egcam.figures import style
from egcam.figures.pictures import Picture, as_heat, as_rgb, draw_color_bar, draw_overlay, draw_picture
from egcam.figures.sheet import BAR, BAR_WORDS, GAP, MARGIN, Sheet
from egcam.metrics.case import Case
from egcam.metrics.registry import MetricError, metric


def mask_scores(
    mask: Tensor | npt.ArrayLike, heatmaps: Mapping[str, Any], measure: str = "relevance-mass-accuracy"
) -> dict[str, float]:
    """How well each heat map keeps to the object, by a localization metric.

    Example:
        >>> mask_scores([[1, 0]], {"grad-cam": [[3 / 4, 1 / 4]]})
        {'grad-cam': 0.75}
    """
    found = metric(measure)
    if "masks" not in found.needs:
        raise MetricError(f"{found.name} does not compare a map with a mask; a localization metric does")
    inside = torch.from_numpy(_as_mask(mask))[None]
    maps = {method: torch.from_numpy(np.array(as_heat(heat)))[None] for method, heat in heatmaps.items()}
    return {method: float(found().of(Case(heatmaps=heat, masks=inside))[0]) for method, heat in maps.items()}


@style.context()
def mask_comparison(
    image: Picture,
    mask: Tensor | npt.ArrayLike,
    heatmaps: Mapping[str, Any],
    *,
    scores: Mapping[str, float] | None = None,
    measure: str = "relevance-mass-accuracy",
    caption: str = "image",
    width: style.Width | float = "page",
    colors: str | None = None,
    opacity: float = OPACITY,
) -> Figure:
    """Image, mask, and the overlay of each method with the object's outline; the localisation score beneath.

    Args:
        image: the picture.
        mask: (H, W), above 0 (or True) on the object, of the maps' size.
        heatmaps: by method, (H, W) in [0, 1] or [-1, 1]: Grad-CAM and ours, or more.
        scores: by method, written beneath; by default `mask_scores`.
        measure: the localization metric the scores are of.
        caption: what stands above the image.
        width: "column", "page" or inches.
        colors: a matplotlib colour map.
        opacity: of the most important place in the overlay.

    Example:
        >>> heat = np.linspace(0, 1, 64).reshape(8, 8)
        >>> figure = mask_comparison(np.zeros((8, 8, 3)), heat > 0.5, {"grad-cam": heat, "slope-cam": heat**4})
        >>> len(figure.axes)
        5
    """
    if not heatmaps:
        raise InputError("there is nothing to draw: pass heat maps by method")
    inside = _as_mask(mask)
    heat = {method: as_heat(one) for method, one in heatmaps.items()}
    for method, one in heat.items():
        if one.shape != inside.shape:
            raise InputError(f"the mask is {inside.shape} and the map of {method} {one.shape}: pass them in one size")
    scores = mask_scores(mask, heatmaps, measure) if scores is None else scores
    signed = is_signed(*heat.values())
    inches = style.width_in_inches(width)
    count = 2 + len(heat)
    tile = min(1.9, (inches - 2 * MARGIN - (count - 1) * GAP - GAP - BAR - BAR_WORDS) / count)
    tall = tile * inside.shape[0] / inside.shape[1]
    picture = as_rgb(image)
    titles = [caption, "mask", *(style.label(method) for method in heat)]
    titles = [text_layout.fitted(title, tile, style.SMALL, lines=2, bold=True) for title in titles]
    header = max(text_layout.height_of(title, style.SMALL) for title in titles) + 0.03
    foot = text_layout.height_of("x", style.SMALL) + 0.05
    sheet = Sheet(inches, MARGIN + header + tall + foot + MARGIN)
    top = MARGIN + header

    def place(number: int) -> Axes:
        return sheet.axes(MARGIN + number * (tile + GAP), top, tile, tall)

    def write(text: str, number: int, height: float, **look: Any) -> None:
        sheet.write(text, MARGIN + number * (tile + GAP) + tile / 2, height, **look)

    draw_picture(place(0), picture)
    draw_picture(place(1), np.repeat(inside[:, :, None].astype(np.float32), 3, 2))
    for number, method in enumerate(heat, start=2):
        axes = place(number)
        draw_overlay(axes, picture, heat[method], colors, signed, opacity)
        draw_outline(axes, inside)
    said = metric(measure).name.replace("-", " ")
    if text_layout.width_of(f"{said} 0.000", style.SMALL, bold=True) > tile:
        said = metric(measure).label
    methods: list[str | None] = [None, None, *heat]
    for number, (title, shown) in enumerate(zip(titles, methods, strict=True)):
        ours = shown is not None and style.color(shown) == style.EMPHASIS
        look: dict[str, Any] = {"bold": ours, "color": style.EMPHASIS if ours else style.INK}
        write(title, number, top - 0.03, down="bottom", **look)
        if shown is not None:
            write(f"{said} {scores[shown]:.3f}", number, top + tall + 0.03, **look)
    write(f"{inside.mean():.0%} of the image", 1, top + tall + 0.03, color=style.FAINT)
    right = MARGIN + count * (tile + GAP)
    draw_color_bar(sheet.axes(right, top, BAR, tall), "importance", colors, signed, opacity)
    return sheet.page


def draw_outline(axes: Axes, mask: npt.NDArray[np.bool_]) -> None:
    """The border of the object: white within black, seen on light and on dark."""
    rows, columns = mask.shape
    padded = np.pad(mask.astype(np.float32), 1)
    across = (np.arange(-1, columns + 1) + 0.5) / columns
    down = (np.arange(-1, rows + 1) + 0.5) / rows
    if not mask.any():
        return
    for line, color in ((1.6, "black"), (0.8, "white")):
        axes.contour(across, down, padded, levels=[0.5], colors=[color], linewidths=line)
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)


def _as_mask(mask: Tensor | npt.ArrayLike) -> npt.NDArray[np.bool_]:
    values = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    values = values[0] if values.ndim == 3 and len(values) == 1 else values
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"a mask has two dimensions (height, width), not shape {values.shape}")
    found: npt.NDArray[np.bool_] = values > 0
    return found
