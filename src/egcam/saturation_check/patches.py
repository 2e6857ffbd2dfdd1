"""The few patches of an image a map points to, and what the network says when only they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from egcam.metrics.baselines import Baseline, replacement
from egcam.metrics.cells import cell_box, cells_of, hottest_cells
from egcam.metrics.inputs import Maps, as_images, as_maps, explained_target
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
        height, width = self.shown.shape[-2:]
        return [cell_box(cell, height, width, self.grid) for cell in self.cells[index].tolist()]


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
