"""A grid over an image: which of its cells a map makes hottest, and where they lie."""

from __future__ import annotations

import torch
from torch import Tensor

from egcam.errors import InputError
from egcam.metrics.inputs import check_positive
from egcam.metrics.perturb import group_sums


def cells_of(height: int, width: int, grid: int) -> Tensor:
    """(H, W) the number of the cell each pixel lies in, row by row; cells differ by a pixel at most.

    Example:
        >>> cells_of(2, 4, 2)
        tensor([[0, 0, 1, 1],
                [2, 2, 3, 3]])
    """
    down = torch.arange(height, device="cpu") * grid // height
    across = torch.arange(width, device="cpu") * grid // width
    return down[:, None] * grid + across


def cell_box(cell: int, height: int, width: int, grid: int) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of the pixels in a cell of `cells_of`, as shares of the width and the height.

    Example:
        >>> cell_box(1, 2, 4, 2)
        (0.5, 0.0, 1.0, 0.5)
    """
    row, column = divmod(cell, grid)
    # Pixel i lies in cell floor(i * grid / length), so cell k begins with pixel ceil(k * length / grid).
    across, down = ([-(-k * length // grid) / length for k in range(grid + 1)] for length in (width, height))
    return across[column], down[row], across[column + 1], down[row + 1]


def hottest_cells(heatmaps: Tensor, grid: int = 4, count: int = 4) -> Tensor:
    """(N, count) the cells with the highest mean heat, the hottest first; ties in reading order.

    Means, not sums, decide: a cell is not more important for being a pixel wider.

    Example:
        >>> hottest_cells(torch.tensor([[[0.1, 0.2], [0.9, 0.4]]]), grid=2, count=2)
        tensor([[2, 3]])
    """
    height, width = heatmaps.shape[-2:]
    if check_positive("grid", grid) > min(height, width):
        raise InputError(f"a grid of {grid} x {grid} patches does not fit maps of {height} x {width}")
    if check_positive("count", count) > grid * grid:
        raise InputError(f"{count} patches of a grid with {grid * grid}: pass {grid * grid} or less")
    cells = cells_of(height, width, grid).to(heatmaps.device)[None]
    pixels = group_sums(torch.ones_like(heatmaps[:1]), cells, grid * grid)
    heat = group_sums(heatmaps, cells, grid * grid) / pixels
    return heat.argsort(dim=1, descending=True, stable=True)[:, :count]
