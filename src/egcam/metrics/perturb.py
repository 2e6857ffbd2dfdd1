"""Replace groups of pixels, most relevant first, and follow the score: the machinery of every perturbation curve.

A perturbation is a map of group numbers over the pixels. Group k alone is replaced, or all groups up to k
are; what a group is (pixels of like rank, a patch, a superpixel) is the metric's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from egcam.imageops import by_row, size_of
from egcam.metrics.inputs import check_positive
from egcam.metrics.scoring import Scorer


@dataclass(frozen=True)
class Curve:
    """A score followed while pixels are replaced.

    Attributes:
        fractions: (N, K + 1) the share of the image replaced (or inserted) at each point, from 0 to 1.
        scores: (N, K + 1) the score there. Rows that end early are filled up with their last point.
    """

    fractions: Tensor
    scores: Tensor

    def area(self) -> Tensor:
        """(N,) the area under each curve by the trapezoid rule; between the smallest and the largest score.

        Example:
            >>> Curve(torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[1.0, 0.5, 0.0]])).area()
            tensor([0.5000])
        """
        return torch.trapezoid(self.scores, self.fractions.to(self.scores), dim=1)


def relevance_ranks(maps: Tensor, descending: bool = True) -> Tensor:
    """(N, H, W) the place of each pixel in its map's order, 0 first; ties in reading order.

    Example:
        >>> relevance_ranks(torch.tensor([[[0.1, 0.9], [0.5, 0.5]]]))
        tensor([[[3, 0],
                 [1, 2]]])
    """
    order = maps.flatten(1).argsort(dim=1, descending=descending, stable=True)
    places = torch.arange(order.shape[1], device=maps.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).view(maps.shape)


_USUAL_STEPS = 224


def pixels_per_step(step: int | None, images: Tensor) -> int:
    """How many pixels change at once: as given, else one row's worth.

    Signals and volumes have no such rows: there it is the 224th part, as many steps as for an image of 224 pixels.
    """
    if step is not None:
        return check_positive("step", step)
    return images.shape[-1] if images.ndim == 4 else -(-prod(size_of(images)) // _USUAL_STEPS)


def steps_of(step: int, pixels: int) -> int:
    """How many steps of `step` pixels there are; the last may be smaller."""
    return -(-pixels // step)


def group_sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """(N, count) the sum of (N, H, W) `values` over each group; `groups` is (N, H, W) or (1, H, W)."""
    values = values.flatten(1)
    return values.new_zeros(len(values), count).scatter_add_(1, groups.flatten(1).expand_as(values), values)


def replaced_scores(
    scorer: Scorer, start: Tensor, end: Tensor, groups: Tensor, counts: Tensor, cumulative: bool
) -> Tensor:
    """(N, max(counts)) scores with pixels of `start` replaced by those of `end`, group by group.

    Args:
        scorer: gives the score of altered images.
        start: what the images begin as; broadcasts to (N, C, H, W), as does `end`.
        end: what replaced pixels become.
        groups: (N, H, W) or (1, H, W) whole numbers from 0, the group of each pixel.
        counts: (N,) how many groups of each image are replaced in turn; points beyond are NaN.
        cumulative: whether groups before k stay replaced when k is.
    """
    images = scorer.images
    total = len(images)
    rows = torch.repeat_interleave(torch.arange(total, device=images.device), counts)
    starts = counts.cumsum(0) - counts
    steps = torch.arange(len(rows), device=images.device) - starts[rows]
    groups = groups.to(torch.int32)

    def of(tensor: Tensor, chosen: Tensor) -> Tensor:
        return tensor if len(tensor) == 1 else tensor[chosen]

    def make(part: slice) -> Tensor:
        chosen, step = rows[part], by_row(steps[part], groups)
        of_group = of(groups, chosen)
        replaced = of_group <= step if cumulative else of_group == step
        made = torch.where(replaced[:, None], of(end, chosen), of(start, chosen))
        return made.expand(-1, images.shape[1], *size_of(images))

    scores = scorer.altered(rows, make)
    table = scores.new_full((total, int(counts.max())), float("nan"))
    table[rows, steps] = scores
    return table


def ordered_curve(
    scorer: Scorer,
    maps: Tensor,
    baseline: Tensor,
    step: int,
    inserting: bool = False,
    descending: bool = True,
) -> Curve:
    """The curve from the image to the baseline (or back, `inserting`), `step` pixels at a time in the map's order.

    The end that is the unaltered image comes from the scorer's own pass, so a curve of K steps costs K
    passes.
    """
    images = scorer.images
    pixels = maps[0].numel()
    steps = steps_of(step, pixels)
    groups = relevance_ranks(maps, descending) // step
    start, end = (baseline, images) if inserting else (images, baseline)
    if inserting:
        # Shifted by one: the first point is the bare baseline, and the last, the image itself, is known.
        groups = groups + 1
    counts = torch.full((len(images),), steps, device=images.device)
    altered = replaced_scores(scorer, start, end, groups, counts, cumulative=True)
    clean = scorer.clean[:, None]
    scores = torch.cat([altered, clean] if inserting else [clean, altered], 1)
    replaced = torch.arange(steps + 1, device=images.device) * step
    fractions = replaced.clamp(max=pixels).to(scores) / pixels
    return Curve(fractions.expand(len(images), -1), scores)
