"""The few patches of an image a map points to, and what the network says when only they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.metrics.baselines import Baseline, replacement
from egcam.metrics.inputs import Maps, as_images, as_maps, check_positive, explained_target
from egcam.metrics.perturb import group_sums
from egcam.metrics.scoring import Scorer, forward_only
from egcam.models.targets import Score, Target


@dataclass(frozen=True, eq=False)
class Patches:
    """The hottest patches of some maps and their insertion score.

    Attributes:
        cells: (N, count) numbers of the grid's cells, row by row from 0, the hottest first.
        grid: how many cells there are in a row and in a column.
        shown: (N, C, H, W) the images as the network saw them: the patches sharp, all else background.
        scores: (N,) the insertion score: the label's score for `shown`.
        background: (N,) the label's score for the background alone.
        full: (N,) the label's score for the image.
    """

    cells: Tensor
    grid: int
    shown: Tensor
    scores: Tensor
    background: Tensor
    full: Tensor

    def boxes(self, index: int) -> list[tuple[float, float, float, float]]:
        """(left, top, right, bottom) of each patch of one image, as shares of its width and height."""
        places = [divmod(cell, self.grid) for cell in self.cells[index].tolist()]
        step = 1 / self.grid
        return [(column * step, row * step, (column + 1) * step, (row + 1) * step) for row, column in places]


def cells_of(height: int, width: int, grid: int) -> Tensor:
    """(H, W) the number of the cell each pixel lies in, row by row.

    Example:
        >>> cells_of(2, 4, 2)
        tensor([[0, 0, 1, 1],
                [2, 2, 3, 3]])
    """
    down = torch.arange(height, device="cpu") * grid // height
    across = torch.arange(width, device="cpu") * grid // width
    return down[:, None] * grid + across


def hottest_cells(heatmaps: Tensor, grid: int = 4, count: int = 4) -> Tensor:
    """(N, count) the cells with the highest mean heat, the hottest first; ties in reading order.

    Example:
        >>> hottest_cells(torch.tensor([[[0.1, 0.2], [0.9, 0.4]]]), grid=2, count=2)
        tensor([[2, 3]])
    """
    height, width = heatmaps.shape[-2:]
    if check_positive("grid", grid) > min(height, width):
        raise InputError(f"a grid of {grid} x {grid} patches does not fit maps of {height} x {width}")
    if check_positive("count", count) > grid * grid:
        raise InputError(f"{count} patches of a grid with {grid * grid}: pass count={grid * grid} or less")
    cells = cells_of(height, width, grid).to(heatmaps.device)[None]
    pixels = group_sums(torch.ones_like(heatmaps[:1]), cells, grid * grid)
    heat = group_sums(heatmaps, cells, grid * grid) / pixels
    return heat.argsort(dim=1, descending=True, stable=True)[:, :count]


def top_patches(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    grid: int = 4,
    count: int = 4,
    background: Baseline = "blur",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Patches:
    """The `count` hottest patches of each map, and their insertion score.

    The image is divided into grid x grid patches (16 of 56 pixels at 224), and those with the highest mean heat are
    chosen. The insertion score is that of the insertion metric stopped at these patches: the label's softmax score
    when they are sharp and all else is the metric's blurred background (an 11 x 11 Gaussian window of σ = 5). It is to
    be read next to `background`, the score of the blurred image alone.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the labels; None is the explanation's own, and the prediction for maps alone.
        grid: patches in a row and in a column.
        count: how many patches are shown.
        background: what the rest becomes, see `egcam.metrics.baselines`.
        score: "probability", "logit" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> corner = torch.zeros(1, 4, 4)
        >>> corner[:, :2, 2:] = 1
        >>> top_patches(net, torch.rand(1, 1, 4, 4), corner, grid=2, count=1).cells
        tensor([[1]])
    """
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    cells = hottest_cells(maps, grid, count)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        behind = replacement(background, images).expand_as(images)
        where = cells_of(images.shape[-2], images.shape[-1], grid).to(cells.device)
        chosen = (where[None, None] == cells[:, :, None, None]).any(1)
        shown = torch.where(chosen[:, None], images, behind)
        everyone = torch.arange(len(images), device=images.device)
        scores = scorer.altered(everyone, lambda part: shown[part])
        alone = scorer.altered(everyone, lambda part: behind[part].contiguous())
    return Patches(cells, grid, shown, scores, alone, scorer.clean)
