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
    picture: Pixels
    coarse: Mapping[str, Pixels]
    heat: Mapping[str, Pixels]


@dataclass(frozen=True)
class _Look:
    """How maps are coloured."""

    colors: str | None
    signed: bool
    opacity: float


@dataclass(frozen=True)
class _Layout:
    """Where things are, in inches. The image is two tiles wide and high; methods fill the rest, band after band."""

    tile: float
    tall: float
    columns: int
    bands: tuple[tuple[str, ...], ...]
    header: float

    @property
    def band(self) -> float:
        return self.header + 2 * self.tall + GAP

    def header_of(self, number: int) -> float:
        """Method names stand above the first image only, where all methods fit in one band."""
        return self.header if self.has_names(number) else text_layout.height_of("x", style.SMALL) + 0.03

    def has_names(self, number: int) -> bool:
        return number == 0 or len(self.bands) > 1

    def height_of(self, number: int) -> float:
        return len(self.bands) * (self.band + GAP) + _BETWEEN - (self.header - self.header_of(number))

    def across(self, column: int) -> float:
        return MARGIN + column * (self.tile + GAP)


@style.context()
def method_grid(
    explanations: Mapping[str, Explanation],
    images: Tensor | Sequence[Picture] | Picture | None = None,
    *,
    captions: Sequence[str] | None = None,
    width: style.Width | float = "page",
    colors: str | None = None,
    opacity: float = OPACITY,
) -> Figure:
    """A labelled grid: for each image its picture and, for each method, the raw coarse map above the overlay.

    Coarse maps are divided by their largest absolute value and their cells are left sharp. Signed maps are drawn from
    -1 to 1. Methods that do not fit beside the image continue below it.

    Args:
        explanations: by method, each of the same images.
        images: the pictures; by default the explained tensors.
        captions: one for each picture; by default the explained classes.
        width: "column", "page" or inches.
        colors: a matplotlib colour map; by default viridis, and a diverging one for signed maps.
        opacity: of the most important place in the overlay.

    Example:
        >>> import torch, egcam
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Sigmoid(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(144, 2))
        >>> pixels = torch.rand(1, 3, 8, 8)
        >>> maps = {name: egcam.explain(net, pixels, name, signed=True) for name in ("grad-cam", "hires-cam")}
        >>> len(method_grid(maps).axes)
        7
    """
    blocks = _blocks(explanations, images)
    captions = [block.caption for block in blocks] if captions is None else captions
    if len(captions) != len(blocks):
        raise InputError(f"{len(captions)} captions for {len(blocks)} images: pass one for each")
    look = _Look(colors, any(is_signed(*block.heat.values()) for block in blocks), opacity)
    inches = style.width_in_inches(width)
    layout = _layout(tuple(explanations), blocks[0].heat, inches)
    heights = [layout.height_of(number) for number in range(len(blocks))]
    sheet = Sheet(inches, MARGIN + sum(heights) + _FOOT)
    top = MARGIN
    for number, (block, caption) in enumerate(zip(blocks, captions, strict=True)):
        _draw_block(sheet, layout, block, caption, top, number, look)
        top += heights[number]
    _draw_bars(sheet, layout, top, look)
    return sheet.page


def _blocks(
    explanations: Mapping[str, Explanation], images: Tensor | Sequence[Picture] | Picture | None
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

    def of_image(number: int, batch: Tensor) -> Tensor:
        return batch if batch.ndim == 2 else batch[number]

    return [
        _Block(
            first.label(number).split(",")[0],
            picture,
            {method: as_map(of_image(number, explanation.maps)) for method, explanation in explanations.items()},
            {method: as_heat(of_image(number, explanation.heatmaps)) for method, explanation in explanations.items()},
        )
        for number, picture in enumerate(pictures)
    ]


def _layout(methods: tuple[str, ...], heat: Mapping[str, Pixels], width: float) -> _Layout:
    room = width - 2 * MARGIN - _SIDE_WORDS
    most = max(3, floor((room + GAP) / (_SMALLEST_TILE + GAP)))
    cells = len(methods) + 2
    columns = ceil(cells / ceil(cells / most))
    bands = [methods[: columns - 2]]
    bands += [methods[start : start + columns] for start in range(columns - 2, len(methods), columns)]
    # One or two methods alone would get tiles as large as a hand.
    tile = min((room - (columns - 1) * GAP) / columns, 1.6)
    rows, across = next(iter(heat.values())).shape
    titles = [text_layout.fitted(style.label(method), tile, style.SMALL, lines=2, bold=True) for method in methods]
    header = max(text_layout.height_of(title, style.SMALL) for title in titles) + 0.03
    return _Layout(tile, tile * rows / across, columns, tuple(bands), header)


def _draw_block(
    sheet: Sheet, layout: _Layout, block: _Block, caption: str, top: float, block_number: int, look: _Look
) -> None:
    large = 2 * layout.tile + GAP
    header = layout.header_of(block_number)
    # The image and its caption; the maps begin to its right.
    text = text_layout.fitted(caption, large, style.TEXT, lines=1)
    sheet.write(text, MARGIN + large / 2, top + header - 0.03, size=style.TEXT, down="bottom")
    draw_picture(sheet.axes(MARGIN, top + header, large, 2 * layout.tall + GAP), block.picture)
    for number, band in enumerate(layout.bands):
        above = top + number * (layout.band + GAP)
        first = 2 if number == 0 else 0
        for column, method in enumerate(band, start=first):
            left = layout.across(column)
            if layout.has_names(block_number):
                sheet.name_method(method, left + layout.tile / 2, above + header - 0.03, layout.tile)
            coarse = sheet.axes(left, above + header, layout.tile, layout.tall)
            draw_coarse(coarse, block.coarse[method], look.colors, look.signed)
            overlay = sheet.axes(left, above + header + layout.tall + GAP, layout.tile, layout.tall)
            draw_overlay(overlay, block.picture, block.heat[method], look.colors, look.signed, look.opacity)
        # Names of the two rows, beside the last tile of the band.
        right = layout.across(len(band) + first) - GAP + 0.04
        for row, name in enumerate(("coarse", "overlay")):
            middle = above + header + row * (layout.tall + GAP) + layout.tall / 2
            sheet.write(name, right, middle, across="left", down="center", rotation=270, color=style.FAINT)


def _draw_bars(sheet: Sheet, layout: _Layout, top: float, look: _Look) -> None:
    """One bar for the coarse maps, one for the overlays, side by side below everything."""
    whole = layout.across(layout.columns) - GAP - MARGIN
    wide = min(1.4, (whole - 0.3) / 2)
    for aside, label, opacity in ((-0.15 - wide, "coarse map", None), (0.15, "overlay, on grey", look.opacity)):
        axes = sheet.axes(MARGIN + whole / 2 + aside, top, wide, BAR)
        draw_color_bar(axes, label, look.colors, look.signed, opacity, across=True)
