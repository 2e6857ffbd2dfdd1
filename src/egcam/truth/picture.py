"""The truth beside the maps: a row for each test, a column for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from egcam.drawing.overlays import as_map
from egcam.figures import style
from egcam.figures.pictures import as_rgb, draw_coarse, draw_color_bar, draw_picture
from egcam.figures.sheet import BAR, GAP, MARGIN, Sheet
from egcam.truth.trial import Trial

_NAMES = 0.55
_TILE = 0.72
_HEADER = 0.34
_FOOT = BAR + 0.36
_PARTS = ((0.0, 0.5, 1.0), (1.0, 0.5, 0.0), (0.4, 0.4, 0.4))  # what is taken from white: orange, blue, grey


@style.context()
def truth_picture(examples: Mapping[str, tuple[Trial, Mapping[str, Tensor]]], methods: Sequence[str]) -> Figure:
    """The first image of each test, its truth, and each method's signed map at the layer's own size."""
    columns = len(methods) + 2
    sheet = Sheet(
        2 * MARGIN + _NAMES + columns * (_TILE + GAP), MARGIN + _HEADER + len(examples) * (_TILE + GAP) + _FOOT
    )
    for place, name in enumerate(("image", "truth", *methods)):
        sheet.name_method(name, _left(place) + _TILE / 2, MARGIN + _HEADER - 0.04, _TILE)
    for row, (test, (trial, maps)) in enumerate(examples.items()):
        top = MARGIN + _HEADER + row * (_TILE + GAP)
        sheet.write(test, MARGIN, top + _TILE / 2, size=style.TEXT, across="left", down="center")
        draw_picture(sheet.axes(_left(0), top, _TILE, _TILE), as_rgb(_visible(trial.images[0])))
        draw_coarse(sheet.axes(_left(1), top, _TILE, _TILE), as_map(trial.truth[0]), None, True)
        for place, name in enumerate(methods):
            tile = sheet.axes(_left(place + 2), top, _TILE, _TILE)
            if name in maps and bool(maps[name].isfinite().all()):
                draw_coarse(tile, as_map(maps[name]), None, True)
            else:
                draw_coarse(tile, np.zeros((1, 1), np.float32), None, True)
                tile.text(0.5, 0.5, "no map", ha="center", va="center", transform=tile.transAxes, fontsize=style.SMALL)
    bottom = MARGIN + _HEADER + len(examples) * (_TILE + GAP) + 0.06
    bar = sheet.axes(_left(1), bottom, 2 * _TILE + GAP, BAR)
    draw_color_bar(bar, "evidence against · for the class", None, True, None, across=True)
    return sheet.page


def _left(column: int) -> float:
    return MARGIN + _NAMES + column * (_TILE + GAP)


def _visible(image: Tensor) -> Tensor:
    """Pixels around 0 moved into [0, 1]; the parts of unit networks, which are 0 or 1, in colours on white."""
    if set(torch.unique(image).tolist()) <= {0.0, 1.0}:
        return 1 - (image[:, None] * image.new_tensor(_PARTS)[:, :, None, None]).sum(0)
    return (image * 0.25 + 0.5).clamp(0, 1)
