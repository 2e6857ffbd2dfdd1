"""The first principal component of the activations, or of gradient times activations, as the map."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.cam import _NamedCAM
from egcam.attribution.estimators import Estimator
from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.attribution.weightings import Principal, first_component
from egcam.imageops import wide_enough, widest
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
    "kpca-cam",
    label="KPCA-CAM",
    summary="the first component of the activations by kernel PCA, whatever the class",
    group="gradient-free",
    line=("grey", ":", "D"),
)
class KPCACAM(Explainer):
    """KPCA-CAM (Karmani et al., 2024): map = relu( sqrt(l) u ), l and u the first eigenvalue and eigenvector of

        H K H,   K_ij = tanh( gamma a_i . a_j + 1 ),   H = 1 - 1/n,

    a_i the activations at cell i, less each channel's mean over the n cells. The sign is such that the map agrees with
    the activations' sum. The map does not depend on the target.

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        gamma: of the kernel; by default 1 / K for K channels.
        common: the options all explainers take.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3))
        >>> KPCACAM(net)(torch.rand(1, 1, 8, 8)).maps.shape
        torch.Size([1, 6, 6])
    """

    def __init__(
        self, model: nn.Module, layer: Layer = None, *, gamma: float | None = None, **common: Unpack[Common]
    ) -> None:
        super().__init__(model, layer, **common)
        self.gamma = gamma

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        return Maps([self._component(wide_enough(layer)) for layer in task.activations])

    def _component(self, activations: Tensor) -> Tensor:
        """(n, h, w)."""
        flat = widest(activations.flatten(2))
        broken = ~flat.flatten(1).isfinite().all(1)[:, None]
        flat = flat.masked_fill(broken[:, None], 0)
        cells = (flat - flat.mean(2, keepdim=True)).mT
        kernel = torch.tanh(cells @ cells.mT * (self.gamma or 1 / flat.shape[1]) + 1)
        rows, columns = kernel.mean(1, keepdim=True), kernel.mean(2, keepdim=True)
        values, vectors = torch.linalg.eigh(kernel - rows - columns + rows.mean(2, keepdim=True))
        first = vectors[..., -1] * values[..., -1:].clamp(min=0).sqrt()
        agrees = (first * flat.sum(1)).sum(1, keepdim=True) >= 0
        first = torch.where(agrees, first, -first).masked_fill(broken, float("nan"))
        return first.to(activations).reshape(len(flat), *activations.shape[2:])

    def _options(self) -> dict[str, Any]:
        return {"gamma": self.gamma}


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
