"""Finer-CAM: evidence for a class rather than for those that look like it."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.cam import GradientCAM
from egcam.attribution.estimators import Estimator
from egcam.attribution.explainer import Common
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.attribution.weightings import WeightingLike
from egcam.errors import MethodError, TargetError, is_whole
from egcam.models.class_scores import by_class, class_score
from egcam.models.layers import Layer


@register(
    "finer-cam",
    label="Finer-CAM",
    summary="grad-cam of the class score minus the scores of the most similar classes",
    group="gradient",
    line=("sky", "-.", "<"),
)
class FinerCAM(GradientCAM):
    """Finer-CAM (Zhang et al., 2025): any gradient CAM of y_c - gamma * mean of y_d over the classes like c.

    The classes d like c are those with the logits nearest to c's for the image. Scores in the explanation are those of
    the class itself.

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        gamma: how much the similar classes count; 0 is the plain CAM.
        similar: how many of them.
        gradient: how the gradient is obtained; see `GradientCAM`.
        weighting: how it weighs the channels; see `GradientCAM`. By default as in Grad-CAM.
        common: the options all explainers take.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3))
        >>> FinerCAM(net, similar=1, signed=True)(torch.rand(1, 1, 8, 8), target=0).maps.shape
        torch.Size([1, 6, 6])
    """

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        gamma: float = 1.0,
        similar: int = 3,
        gradient: Estimator | None = None,
        weighting: WeightingLike | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, gradient=gradient, weighting=weighting, **common)
        if not is_whole(similar) or similar < 1:
            raise MethodError(f"similar is a number of classes, at least 1, not {similar!r}")
        self.gamma, self.similar = float(gamma), similar

    def _explain(self, task: Task) -> Maps:
        if not task.targets.are_classes:
            raise TargetError(
                "Finer-CAM compares a class with others, and a callable target has none: explain a class, or let the "
                "callable return the difference itself and use 'grad-cam'"
            )
        task.class_weights = self._class_weights
        found = super()._explain(task)
        assert task.outputs is not None
        assert task.indices is not None
        task.scores = class_score(task.outputs, task.indices, self.score, self.classes)
        return found

    def _class_weights(self, outputs: Tensor, indices: Tensor) -> Tensor:
        """(n, classes): 1 for the class, -gamma / m for each of the m most similar ones."""
        logits = by_class(outputs, self.classes).detach()
        count = min(self.similar, logits.shape[1] - 1)
        if count < 1:
            raise TargetError("Finer-CAM compares a class with others, and the model has one only; use 'grad-cam'")
        own = logits.gather(1, indices[:, None])
        away = (logits - own).abs().scatter(1, indices[:, None], float("inf"))
        nearest = away.argsort(dim=1, stable=True)[:, :count]
        weights = torch.zeros_like(logits).scatter(1, nearest, -self.gamma / count)
        return weights.scatter(1, indices[:, None], 1.0)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "gamma": self.gamma, "similar": self.similar}
