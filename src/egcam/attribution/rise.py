"""RISE: the average of random masks, weighted by what the network says of the image behind them."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.averaging import check_samples
from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task, chunks
from egcam.errors import MethodError, check_count
from egcam.imageops import by_row, upsampled, wide_enough
from egcam.models.class_scores import Score
from egcam.rng import generator


@register(
    "rise",
    label="RISE",
    summary="random masks averaged, each weighted by the class score of the image seen through it; slow",
    group="input",
    slow=True,
    line=("black", ":", "*"),
)
class RISE(Explainer):
    """RISE (Petsiuk et al., 2018): map = 1/(n p) sum_s y(x * M_s) M_s.

    M_s is a grid of cells that are 1 with probability p and 0 otherwise, enlarged bilinearly to one cell more than the
    image and cut to it at random. As in the paper, y is the probability unless `score` says otherwise. The error is
    the standard error of the average over masks.

    Args:
        model: the classifier.
        samples: n, the number of masks; the paper takes 4,000 to 8,000.
        cells: the grid's cells along each side.
        probability: p, the share of cells that stay visible.
        seed: of the masks.
        score: "probability", "logit" or "sigmoid".
        common: the options all explainers take.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
        >>> explanation = RISE(net, samples=20, cells=4)(torch.rand(1, 1, 8, 8), target=0)
        >>> explanation.maps.shape, explanation.passes
        (torch.Size([1, 8, 8]), 21)
    """

    at_input = True
    by_scores = True
    cpu_memory = 256 * 2**20

    def __init__(  # type: ignore[misc]  # score is among the common options; its default is not the common one
        self,
        model: nn.Module,
        *,
        samples: int = 1000,
        cells: int = 7,
        probability: float = 0.5,
        seed: int = 0,
        score: Score = "probability",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, None, score=score, **common)
        check_samples(samples)
        check_count(cells, "cells")
        if not 0 < probability <= 1:
            raise MethodError(f"probability is the share of visible cells, above 0 and at most 1, not {probability!r}")
        self.samples, self.cells, self.probability, self.seed = samples, cells, probability, seed

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        images = task.images
        total = wide_enough(images[:, 0]).new_zeros(images[:, 0].shape)
        squares = torch.zeros_like(total)
        pairs = [(sample, row) for sample in range(self.samples) for row in range(len(images))]
        for batch in task.meter.each(chunks(pairs, task.batch_size)):
            own = torch.tensor([row for _, row in batch], device="cpu")
            masks = {sample: self._mask(sample, total) for sample in dict.fromkeys(sample for sample, _ in batch)}
            shown = torch.stack([masks[sample] for sample, _ in batch])
            scores = wide_enough(task.scores_at(images[own] * shown[:, None].to(images), own)).to(total)
            terms = by_row(scores, shown) * shown / self.probability
            for number, (_, row) in enumerate(batch):
                total[row] += terms[number]
                squares[row] += terms[number] ** 2
        mean = total / self.samples
        if self.samples < 2:
            return Maps([mean])
        scatter = (squares / self.samples - mean**2).clamp_min(0)
        return Maps([mean], [(scatter / (self.samples - 1)).sqrt()])

    def _mask(self, sample: int, like: Tensor) -> Tensor:
        """(H, W) in [0, 1]; the same for all images of all calls with this seed."""
        source = generator(self.seed, "rise", sample)
        size = like.shape[1:]
        sides = [-(-side // self.cells) for side in size]
        grid = (
            torch.rand(1, *[self.cells] * len(size), generator=source, device="cpu", dtype=torch.float32)
            < self.probability
        )
        large = upsampled(grid.double(), [(self.cells + 1) * side for side in sides])[0]
        starts = [int(torch.randint(side, (1,), generator=source, device="cpu")) for side in sides]
        return large[tuple(slice(start, start + side) for start, side in zip(starts, size, strict=True))].to(like)

    def _options(self) -> dict[str, Any]:
        return {"samples": self.samples, "cells": self.cells, "probability": self.probability}
