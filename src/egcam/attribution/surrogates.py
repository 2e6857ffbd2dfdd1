"""LIME and KernelSHAP: a linear model of how the score depends on the image's cells; captum does the work."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.averaging import check_samples
from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.references import ReferenceLike, as_reference
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import check_count, require
from egcam.imageops import along, places, size_of, wide_enough
from egcam.rng import OwnDraws


class _Surrogate(Explainer):
    """A linear model, fitted to the scores of the image with some of its cells covered."""

    at_input = True
    by_scores = True
    cpu_memory = 256 * 2**20
    cause_of_zero = "covering any cell of the image leaves the score as it is"

    def __init__(
        self,
        model: nn.Module,
        *,
        samples: int = 500,
        cells: int = 8,
        reference: ReferenceLike = "black",
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        for package in ("captum", "sklearn"):
            require(package, "peers", f"the method {self.name!r}")
        super().__init__(model, None, **common)
        check_samples(samples)
        check_count(cells, "cells")
        self.samples, self.cells, self.seed = samples, cells, seed
        self.reference = as_reference(reference, default="black", seed=seed)

    @abstractmethod
    def _attribution(self, score: Any) -> Any:
        """captum's object for a function from images to scores."""

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        reference = self.reference.for_images(task.images)
        covers = reference.draw(task.images, task.rows.tolist(), 0, self.seed).images
        features = self._features(task.images)
        maps = [self._map(task, row, covers[row, None], features) for row in task.meter.each(range(len(task.images)))]
        return Maps([torch.stack(maps)], None, reference.description)

    def _features(self, images: Tensor) -> Tensor:
        """(1, 1, H, W) the number of the cell each pixel lies in, from 0 without gaps."""
        found = torch.zeros(1, 1, *size_of(images), dtype=torch.long, device=images.device)
        for axis, side in zip(places(images), size_of(images), strict=True):
            cells = min(self.cells, side)
            found = found * cells + along(torch.arange(side, device=images.device) * cells // side, axis, images.ndim)
        return found

    def _map(self, task: Task, row: int, cover: Tensor, features: Tensor) -> Tensor:
        own = torch.tensor([row], device="cpu")

        def score(images: Tensor) -> Tensor:
            return wide_enough(task.scores_at(images, own.expand(len(images))))

        # The draws depend on the seed alone, so that an image has the same map in any batch.
        with OwnDraws(torch.Generator().manual_seed(self.seed)):
            found = self._attribution(score).attribute(
                task.images[row, None],
                baselines=cover,
                feature_mask=features,
                n_samples=self.samples,
                perturbations_per_eval=min(task.batch_size, self.samples),
            )
        # All colours of a pixel belong to one cell.
        return wide_enough(found.detach())[0, 0]

    def _options(self) -> dict[str, Any]:
        return {"samples": self.samples, "cells": self.cells}


@register(
    "lime",
    label="LIME",
    summary="a sparse linear model of the score, fitted with cells of the image covered (extra: peers); slow",
    group="input",
    slow=True,
    line=("orange", "--", "v"),
    package="captum",
)
class LIME(_Surrogate):
    """LIME (Ribeiro et al., 2016), on square cells: the weight of each cell in a sparse linear model of the score.

    captum covers each cell with probability one half, weighs the samples by their nearness to the image and fits a
    Lasso. The map has one value for each cell.

    Args:
        model: the classifier.
        alpha: how sparse: the weight of the Lasso's penalty, in units of the score.
        samples: how many covered copies of the image are shown to the network.
        cells: cells along each side.
        reference: what covers: a name, an image, a function; see `egcam.Expected`'s reference.
        seed: of the samples.
        common: the options all explainers take.
    """

    cause_of_zero = "no cell changes the score by enough to survive the penalty of the sparse model: lower alpha"

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 0.01,
        samples: int = 500,
        cells: int = 8,
        reference: ReferenceLike = "black",
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, samples=samples, cells=cells, reference=reference, seed=seed, **common)
        self.alpha = alpha

    def _attribution(self, score: Any) -> Any:
        from captum._utils.models.linear_model import SkLearnLasso
        from captum.attr import Lime

        return Lime(score, interpretable_model=SkLearnLasso(alpha=self.alpha))

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "alpha": self.alpha}


@register(
    "kernel-shap",
    label="KernelSHAP",
    summary="the Shapley value of each cell of the image, by weighted regression (extra: peers); slow",
    group="input",
    slow=True,
    line=("orange", "-.", "^"),
    package="captum",
)
class KernelSHAP(_Surrogate):
    """KernelSHAP (Lundberg and Lee, 2017), on square cells: the Shapley value of each cell for the score.

    The values of all cells add up to y(x) - y(reference). The map has one value for each cell; at every pixel it is the
    value of the whole cell. There should be several times more samples than cells in the image.

    Args:
        model: the classifier.
        samples: how many covered copies of the image are shown to the network.
        cells: cells along each side.
        reference: what covers: a name, an image, a function; see `egcam.Expected`'s reference.
        seed: of the samples.
        common: the options all explainers take.
    """

    def _attribution(self, score: Any) -> Any:
        from captum.attr import KernelShap

        return KernelShap(score)
