"""The most important patches of an image: where they are, and what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from egcam.drawing import text_layout
from egcam.figures import style
from egcam.figures.pictures import Picture, as_heat, as_rgb, draw_picture
from egcam.figures.sheet import GAP, MARGIN, Sheet
from egcam.metrics.cells import cell_box, cells_of, hottest_cells
from egcam.metrics.perturb import group_sums


@dataclass(frozen=True)
class Patch:
    """One cell of the grid over an image.

    Attributes:
        row: from the top.
        column: from the left.
        box: (left, top, right, bottom) as fractions of the image.
        share: the part of the map's total (positive) importance that lies in it.
    """

    row: int
    column: int
    box: tuple[float, float, float, float]
    share: float


def choose_patches(heatmap: Tensor | npt.ArrayLike, k: int = 4, grid: int = 7) -> list[Patch]:
    """The k cells of a grid x grid mesh that hold most of a map, the largest first; ties in reading order.

    A cell's share is the sum of the map's positive values in it over the sum of them all; the mean of them decides.

    Example:
        >>> heat = np.zeros((4, 4)); heat[2:, :2] = 1.0
        >>> [(patch.row, patch.column, patch.share) for patch in choose_patches(heat, k=1, grid=2)]
        [(1, 0, 1.0)]
    """
    values = torch.from_numpy(as_heat(heatmap).astype(np.float64)).clamp(min=0)
    height, width = values.shape
    cells = hottest_cells(values[None], grid, k)[0].tolist()
    held = group_sums(values[None], cells_of(height, width, grid)[None], grid * grid)[0]
    total = float(held.sum()) or 1.0
    shares = (held / total).tolist()
    boxes = {cell: cell_box(cell, height, width, grid) for cell in cells}
    return [Patch(cell // grid, cell % grid, boxes[cell], shares[cell]) for cell in cells]


@style.context()
def top_patches(
    image: Picture,
    heatmap: Tensor | npt.ArrayLike,
    k: int = 4,
    grid: int = 7,
    *,
    caption: str = "",
    width: style.Width | float = "column",
) -> Figure:
    """The image with its k most important patches marked, and the patches enlarged in order beside it.

    Args:
        image: the picture.
        heatmap: (H, W) in [0, 1]; of a signed map, only positive evidence counts.
        k: how many patches.
        grid: cells along each side of the image.
        caption: what stands above the image.
        width: "column", "page" or inches.

    Example:
        >>> len(top_patches(np.zeros((14, 14, 3)), np.eye(14), k=4).axes)
        5
    """
    patches = choose_patches(heatmap, k, grid)
    picture = as_rgb(image)
    rows, columns = picture.shape[:2]
    inches = style.width_in_inches(width)
    line = text_layout.height_of("x", style.SMALL)
    header = line + 0.03 if caption else 0.0
    # Patches stand in two or more rows beside the image, as high as the image together.
    down = 2 if k <= 8 else 3
    across = -(-k // down)
    side, tile = _sides(inches, rows / columns, down, across, line)
    high = side * rows / columns
    sheet = Sheet(inches, 2 * MARGIN + header + high)
    axes = sheet.axes(MARGIN, MARGIN + header, side, high)
    draw_picture(axes, picture)
    axes.add_patch(Rectangle((0, 0), 1, 1, facecolor="white", alpha=0.45, linewidth=0))
    for number, patch in enumerate(patches, start=1):
        left, top, right, bottom = patch.box
        cut = _cut(picture, patch)
        # The patch itself is shown undimmed, in place.
        axes.imshow(cut, extent=(left, right, bottom, top), aspect="auto", interpolation="antialiased", zorder=3)
        axes.add_patch(
            Rectangle(
                (left, top), right - left, bottom - top, fill=False, edgecolor=style.EMPHASIS, linewidth=1.1, zorder=4
            )
        )
        axes.text(
            (left + right) / 2,
            (top + bottom) / 2,
            str(number),
            ha="center",
            va="center",
            fontsize=style.SMALL,
            fontweight="bold",
            color="white",
            zorder=5,
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": style.EMPHASIS, "edgecolor": "none"},
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    if caption:
        text = text_layout.fitted(caption, side, style.TEXT, lines=1)
        sheet.write(text, MARGIN + side / 2, MARGIN, size=style.TEXT)
    step = (high + 0.02) / down
    for number, patch in enumerate(patches):
        row, column = divmod(number, across)
        left = MARGIN + side + 2 * GAP + column * (tile + GAP)
        top = MARGIN + header + row * step
        sheet.write(f"{number + 1}: {patch.share:.0%}", left + tile / 2, top)
        draw_picture(sheet.axes(left, top + line, tile, tile), _cut(picture, patch), "bicubic").axes.set_box_aspect(1)
    return sheet.page


def _sides(width: float, shape: float, down: int, across: int, line: float) -> tuple[float, float]:
    """The width of the image and of a patch, so that the patches together are as high as the image.

    down (tile + line) = side shape - (down - 1) 0.02  and  side + across (tile + GAP) + GAP = width - margins
    """
    room = width - 2 * MARGIN - GAP - across * GAP
    side = (room + across * line) / (1 + across * shape / down)
    side = min(side, 3.0)
    return side, max(0.2, side * shape / down - line - 0.02)


def _cut(picture: Any, patch: Patch) -> Any:
    rows, columns = picture.shape[:2]
    left, top, right, bottom = patch.box
    return picture[
        round(top * rows) : max(round(bottom * rows), round(top * rows) + 1),
        round(left * columns) : max(round(right * columns), round(left * columns) + 1),
    ]
