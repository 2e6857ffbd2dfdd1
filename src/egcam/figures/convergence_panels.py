"""A sampled map settling: its error over the number of samples, and the maps themselves underneath."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egcam.drawing import text_layout
from egcam.drawing.palette import OPACITY, is_signed
from egcam.errors import InputError
from egcam.figures import style
from egcam.figures.pictures import Picture, as_rgb, draw_coarse, draw_color_bar, draw_overlay
from egcam.figures.sampling import Convergence
from egcam.figures.sheet import BAR, BAR_WORDS, GAP, MARGIN, Sheet
from egcam.figures.ticks import power_of_ten, these_numbers
from egcam.imageops import heatmaps


@style.context()
def convergence(
    data: Convergence,
    image: Picture | None = None,
    *,
    shown: int = 4,
    width: style.Width | float = "column",
    colors: str | None = None,
    opacity: float = OPACITY,
    sharpness: float = 1.0,
) -> Figure:
    """The relative error against a long run, with the band of errors the runs report themselves; maps underneath.

    Dots are single runs, the line is their root mean square; the band spans the smallest to the largest standard error
    the runs report, and its middle line their root mean square. The thin dashed line falls as 1/sqrt(n).

    Args:
        data: what `sampling_convergence` returned.
        image: the picture; with it the maps are overlays, without it coarse maps.
        shown: how many maps underneath, the long run aside.
        width: "column", "page" or inches.
        colors: a matplotlib colour map.
        opacity: of the most important place in the overlays.
        sharpness: an exponent of the overlays, 1 showing the map as it is.

    Example:
        >>> data = Convergence((1, 4), np.array([[0.2, 0.1]]), np.array([[np.nan, 0.1]]), np.ones((2, 3, 3)),
        ...                    np.ones((3, 3)), 64, 0.01, "slope-cam", "cat", (1,))
        >>> len(convergence(data, shown=2).axes)
        5
    """
    if shown < 1:
        raise InputError(f"shown is the number of maps, 1 or more; not {shown}")
    inches = style.width_in_inches(width)
    places = _spread(len(data.samples), shown)
    tiles = len(places) + 1
    tile = min(1.3, (inches - 2 * MARGIN - tiles * GAP - BAR - BAR_WORDS) / tiles)
    tall = tile * data.long_map.shape[0] / data.long_map.shape[1]
    line = text_layout.height_of("x", style.SMALL)
    plot = min(0.55 * inches, 2.2)
    left, below, legend = 0.68, 0.36, 2 * line + 0.16
    sheet = Sheet(inches, 0.06 + plot + below + legend + line + tall + 0.05 + 2 * MARGIN)
    axes = sheet.axes(left, 0.06, inches - left - 0.08, plot)
    _draw_errors(axes, data)
    anchor = (0.5, 1 - (0.06 + plot + below) / sheet.height)
    sheet.legend(*axes.get_legend_handles_labels(), loc="upper center", bbox_to_anchor=anchor, ncols=2)
    top = 0.06 + plot + below + legend + line + MARGIN
    _draw_maps(sheet, data, places, image, (top, tile, tall), (colors, opacity, sharpness))
    return sheet.page


def _spread(count: int, shown: int) -> list[int]:
    """Which of `count` places to show: the first, the last, and evenly between."""
    if shown >= count:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, shown)}) if shown > 1 else [count - 1]


def _draw_errors(axes: Axes, data: Convergence) -> None:
    samples = np.array(data.samples, dtype=np.float64)
    look = style.line(data.method)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    guide = data.error[-1] * np.sqrt(samples[-1] / samples)
    axes.plot(samples, guide, color=style.FAINT, linewidth=0.8, linestyle=(0, (4, 3)), label="slope 1/√n", zorder=1)
    known = np.isfinite(data.reported).all(0)
    if known.any():
        band = data.reported[:, known]
        middle = np.sqrt((band**2).mean(0))
        axes.fill_between(
            samples[known],
            band.min(0),
            band.max(0),
            color=style.BLUE,
            alpha=0.22,
            linewidth=0,
            zorder=1.5,
            label="its range over runs" if len(band) > 1 else None,
        )
        axes.plot(samples[known], middle, color=style.BLUE, linewidth=1.1, zorder=2, label="standard error it reports")
    for run in data.errors:
        axes.plot(samples, run, linestyle="none", marker=".", markersize=3, color=look.color, alpha=0.6, zorder=2.5)
    runs = len(data.errors)
    text = f"true error ({runs} runs)" if runs > 1 else "true error"
    axes.plot(samples, data.error, label=text, **look.options())
    these_numbers(axes.xaxis, [float(count) for count in data.samples])
    _few_levels(axes)
    axes.set_xlabel(f"samples n of {style.label(data.method)}", labelpad=1)
    axes.set_ylabel(f"error relative to\nthe map of n = {data.long_samples}", labelpad=2)
    axes.grid(visible=True)
    axes.set_axisbelow(True)


def _few_levels(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, within the axis: errors seldom span a whole decade."""
    low, high = axes.get_ylim()
    wanted = [step * 10.0**power for power in range(-12, 7) for step in (1, 2, 5)]
    inside = [value for value in wanted if low <= value <= high]
    if len(inside) > 6:
        inside = [value for value in inside if abs(np.log10(value) % 1) < 1e-9]
    these_numbers(axes.yaxis, inside)
    axes.set_yticks(inside, [power_of_ten(value) for value in inside])
    axes.set_ylim(low, high)


def _draw_maps(
    sheet: Sheet,
    data: Convergence,
    places: list[int],
    image: Picture | None,
    box: tuple[float, float, float],
    look: tuple[str | None, float, float],
) -> None:
    top, tile, tall = box
    colors, opacity, sharpness = look
    coarse = [*(data.maps[place] for place in places), data.long_map]
    titles = [f"n = {data.samples[place]}" for place in places] + [f"n = {data.long_samples}"]
    signed = is_signed(*coarse)
    used = (len(coarse)) * (tile + GAP) + BAR + BAR_WORDS
    start = (sheet.width - used) / 2
    for number, (values, title) in enumerate(zip(coarse, titles, strict=True)):
        left = start + number * (tile + GAP)
        axes = sheet.axes(left, top, tile, tall)
        if image is None:
            draw_coarse(axes, values, colors, signed)
        else:
            picture = as_rgb(image)
            draw_overlay(axes, picture, _heat(values, picture.shape[:2]), colors, signed, opacity, sharpness)
        sheet.write(title, left + tile / 2, top - 0.02, down="bottom")
    bar = sheet.axes(start + len(coarse) * (tile + GAP), top, BAR, tall)
    # Beside small tiles there is no room for a word between the bar's numbers.
    label = "importance" if tall > 0.8 else ""
    if image is None:
        draw_color_bar(bar, label, colors, signed)
    else:
        draw_color_bar(bar, label, colors, signed, opacity, sharpness=sharpness)


def _heat(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], size: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    import torch

    return heatmaps(torch.from_numpy(values)[None], (size[0], size[1]))[0].numpy()
