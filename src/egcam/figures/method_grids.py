"""Methods side by side: the image, the raw coarse map of each method, and its overlay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor

from matplotlib.figure import Figure
from torch import Tensor

from egcam.attribution.explanation import Explanation
from egcam.drawing import text_layout
from egcam.drawing.palette import OPACITY, Pixels, is_signed
from egcam.errors import InputError
from egcam.figures import style
from egcam.figures.pictures import (
    Picture,
    as_heat,
    as_map,
    as_pictures,
    draw_coarse,
    draw_color_bar,
    draw_overlay,
    draw_picture,
)
from egcam.figures.sheet import BAR, GAP, MARGIN, Sheet

# A tile must hold "Integrated" and "Grad-CAM" in letters of 7 points.
_SMALLEST_TILE = 0.66
_SIDE_WORDS = 0.15
_BETWEEN = 0.1
_FOOT = BAR + 0.34


@dataclass(frozen=True)
class _Block:
    """One image and what each method says about it."""

    caption: str
    group: str
    picture: Pixels
    coarse: Mapping[str, Pixels]
    heat: Mapping[str, Pixels]


@dataclass(frozen=True)
class _Layout:
    """Where things are, in inches. The image is two tiles wide and high; methods fill the rest, band after band."""

    left: float
    tile: float
    tall: float
    columns: int
    bands: tuple[tuple[str, ...], ...]
    header: float

    @property
    def band(self) -> float:
        return self.header + 2 * self.tall + GAP

    @property
    def block(self) -> float:
        return len(self.bands) * (self.band + GAP) + _BETWEEN

    def across(self, column: int) -> float:
        return self.left + column * (self.tile + GAP)


@style.context()
def method_grid(
    explanations: Mapping[str, Explanation],
    images: Tensor | Sequence[Picture] | Picture | None = None,
    *,
    saturated: Mapping[str, Explanation] | None = None,
    saturated_images: Tensor | Sequence[Picture] | Picture | None = None,
    captions: Sequence[str] | None = None,
    groups: tuple[str, str] = ("normal", "saturated"),
    width: style.Width | float = "page",
    colors: str | None = None,
    opacity: float = OPACITY,
    sharpness: float = 1.0,
) -> Figure:
    """A labelled grid: for each image its picture and, for each method, the raw coarse map above the overlay.

    Coarse maps are divided by their largest absolute value and their cells are left sharp. Signed maps are drawn from
    -1 to 1. Methods that do not fit beside the image continue below it.

    Args:
        explanations: by method, each of the same images.
        images: the pictures; by default the explained tensors.
        saturated: explanations of images whose score is saturated, a second block under the first, by the same methods.
        saturated_images: their pictures.
        captions: one for each picture, those of the saturated images last; by default the explained classes.
        groups: what the two blocks are called, where there are two.
        width: "column", "page" or inches.
        colors: a matplotlib colour map; by default viridis, and a diverging one for signed maps.
        opacity: of the most important place in the overlay.
        sharpness: an exponent of the overlays, 1 showing the map as it is.

    Example:
        >>> import torch, egcam
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Sigmoid(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(144, 2))
        >>> pixels = torch.rand(1, 3, 8, 8)
        >>> maps = {name: egcam.explain(net, pixels, name, signed=True) for name in ("grad-cam", "hires-cam")}
        >>> len(method_grid(maps).axes)
        7
    """
    blocks = _blocks(explanations, images, groups[0] if saturated else "")
    if saturated is not None:
        if list(saturated) != list(explanations):
            raise InputError("the saturated images are explained by other methods than the normal ones")
        blocks += _blocks(saturated, saturated_images, groups[1])
    captions = [block.caption for block in blocks] if captions is None else captions
    if len(captions) != len(blocks):
        raise InputError(f"{len(captions)} captions for {len(blocks)} images: pass one for each")
    signed = any(is_signed(*block.heat.values()) for block in blocks)
    inches = style.width_in_inches(width)
    layout = _layout(tuple(explanations), blocks[0].heat, inches, grouped=saturated is not None)
    one_band = len(layout.bands) == 1
    heights = [
        layout.block if not one_band or not number else layout.block - _saved(layout) for number in range(len(blocks))
    ]
    sheet = Sheet(inches, MARGIN + sum(heights) + _FOOT)
    top = MARGIN
    for number, (block, caption, height) in enumerate(zip(blocks, captions, heights, strict=True)):
        titled = not one_band or number == 0
        _draw_block(sheet, layout, block, caption, top, titled, (colors, signed, opacity, sharpness))
        top += height
    _draw_bars(sheet, layout, top, (colors, signed, opacity, sharpness))
    if saturated is not None:
        _draw_groups(sheet, layout, blocks, heights)
    return sheet.page


def _blocks(
    explanations: Mapping[str, Explanation], images: Tensor | Sequence[Picture] | Picture | None, group: str
) -> list[_Block]:
    if not explanations:
        raise InputError("there is nothing to draw: pass explanations by method")
    first = next(iter(explanations.values()))
    images = first.images if images is None else images
    if images is None:
        raise InputError("these explanations were loaded without their images: pass images=…")
    pictures = as_pictures(images)
    for method, explanation in explanations.items():
        if len(explanation) != len(pictures):
            raise InputError(f"{len(pictures)} images, but {method} explains {len(explanation)}: pass the same for all")
    return [
        _Block(
            first.label(number).split(",")[0],
            group,
            picture,
            {method: as_map(one.maps if one.is_single else one.maps[number]) for method, one in explanations.items()},
            {
                method: as_heat(one.heatmaps if one.is_single else one.heatmaps[number])
                for method, one in explanations.items()
            },
        )
        for number, picture in enumerate(pictures)
    ]


def _layout(methods: tuple[str, ...], heat: Mapping[str, Pixels], width: float, grouped: bool) -> _Layout:
    left = MARGIN + (_SIDE_WORDS if grouped else 0)
    room = width - left - MARGIN - _SIDE_WORDS
    most = max(3, floor((room + GAP) / (_SMALLEST_TILE + GAP)))
    cells = len(methods) + 2
    columns = ceil(cells / ceil(cells / most))
    bands = [methods[: columns - 2]]
    bands += [methods[start : start + columns] for start in range(columns - 2, len(methods), columns)]
    tile = (room - (columns - 1) * GAP) / columns
    # One or two methods alone would get tiles as large as a hand.
    tile = min(tile, 1.6)
    rows, across = next(iter(heat.values())).shape
    titles = [text_layout.fitted(style.label(method), tile, style.SMALL, lines=2, bold=True) for method in methods]
    header = max(text_layout.height_of(title, style.SMALL) for title in titles) + 0.03
    return _Layout(left, tile, tile * rows / across, columns, tuple(bands), header)


def _saved(layout: _Layout) -> float:
    """The height that blocks without method titles save: their caption has one line."""
    return layout.header - _caption_height()


def _caption_height() -> float:
    return text_layout.height_of("x", style.SMALL) + 0.03


def _draw_block(
    sheet: Sheet,
    layout: _Layout,
    block: _Block,
    caption: str,
    top: float,
    titled: bool,
    look: tuple[str | None, bool, float, float],
) -> None:
    colors, signed, opacity, sharpness = look
    big = 2 * layout.tile + GAP
    header = layout.header if titled else _caption_height()
    # The image and its caption; the maps begin to its right.
    text = text_layout.fitted(caption, big, style.TEXT, lines=1)
    sheet.write(text, layout.left + big / 2, top + header - 0.03, size=style.TEXT, down="bottom")
    draw_picture(sheet.axes(layout.left, top + header, big, 2 * layout.tall + GAP), block.picture)
    for number, band in enumerate(layout.bands):
        above = top + number * (layout.band + GAP)
        for place, method in enumerate(band):
            left = layout.across(place + (2 if number == 0 else 0))
            if titled:
                sheet.name_method(method, left + layout.tile / 2, above + header - 0.03, layout.tile)
            coarse = sheet.axes(left, above + header, layout.tile, layout.tall)
            draw_coarse(coarse, block.coarse[method], colors, signed)
            overlay = sheet.axes(left, above + header + layout.tall + GAP, layout.tile, layout.tall)
            draw_overlay(overlay, block.picture, block.heat[method], colors, signed, opacity, sharpness)
        # Names of the two rows, beside the last tile of the band.
        right = layout.across(len(band) + (2 if number == 0 else 0)) - GAP + 0.04
        for row, name in enumerate(("coarse", "overlay")):
            middle = above + header + row * (layout.tall + GAP) + layout.tall / 2
            sheet.write(name, right, middle, across="left", down="center", rotation=270, color=style.FAINT)


def _draw_bars(sheet: Sheet, layout: _Layout, top: float, look: tuple[str | None, bool, float, float]) -> None:
    """One bar for the coarse maps, one for the overlays, side by side below everything."""
    colors, signed, opacity, sharpness = look
    whole = layout.across(layout.columns) - GAP - layout.left
    wide = min(1.4, (whole - 0.3) / 2)
    bars = (("coarse map", None, 1.0), ("overlay, on grey", opacity, sharpness))
    for place, (label, shown, exponent) in enumerate(bars):
        left = layout.left + whole / 2 + (0.15 if place else -0.15 - wide)
        axes = sheet.axes(left, top, wide, BAR)
        draw_color_bar(axes, label, colors, signed, shown, across=True, sharpness=exponent)


def _draw_groups(sheet: Sheet, layout: _Layout, blocks: Sequence[_Block], heights: Sequence[float]) -> None:
    """The names of the two groups, standing to the left of their blocks."""
    tops = [MARGIN + sum(heights[:number]) for number in range(len(blocks) + 1)]
    for name in dict.fromkeys(block.group for block in blocks):
        own = [number for number, block in enumerate(blocks) if block.group == name]
        middle = (tops[own[0]] + tops[own[-1] + 1]) / 2
        sheet.write(name, MARGIN, middle, size=style.TITLE, across="left", down="center", rotation=90, bold=True)
