"""The first principal component of the activations, or of gradient times activations, as the map."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn

from egcam.attribution.cam import _NamedCAM
from egcam.attribution.estimators import Estimator
from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.attribution.weightings import Principal, first_component
from egcam.imageops import wide_enough
from egcam.models.layers import Layer


@register(
    "eigen-cam",
    label="Eigen-CAM",
    summary="the first principal component of the activations, whatever the class",
    group="gradient-free",
    line=("grey", ":", "s"),
)
class EigenCAM(Explainer):
    """Eigen-CAM (Muhammad and Yeasin, 2020): map = relu( sum_k v_k A^k ).

    v is the first right singular vector of the activations as a (h w, K) matrix, its sign such that the map agrees with
    the activations' sum. The map does not depend on the target.

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        centred: take each channel's mean over the positions away first. pytorch-grad-cam does so, the paper does not.
        common: the options all explainers take.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3))
        >>> EigenCAM(net)(torch.rand(1, 1, 8, 8)).maps.shape
        torch.Size([1, 6, 6])
    """

    def __init__(
        self, model: nn.Module, layer: Layer = None, *, centred: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(model, layer, **common)
        self.centred = centred

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        return Maps([first_component(wide_enough(layer), self.centred) for layer in task.activations])

    def _options(self) -> dict[str, Any]:
        return {"centred": self.centred}


@register(
    "eigen-grad-cam",
    label="Eigen-Grad-CAM",
    summary="the first principal component of gradient times activation",
    group="gradient",
    line=("grey", "-.", "s"),
)
class EigenGradCAM(_NamedCAM):
    """Eigen-Grad-CAM: map = relu( sum_k v_k dy/dA^k A^k ), v the first principal direction of the products.

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        centred: take each product's mean over the positions away first, as pytorch-grad-cam does.
        gradient: how dy/dA is obtained; see `GradientCAM`.
        common: the options all explainers take.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        centred: bool = False,
        gradient: Estimator | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, gradient=gradient, **common)
        self.weighting = Principal(centred)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "centred": self.weighting == Principal(centred=True)}
