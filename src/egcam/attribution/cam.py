"""Class activation maps: layer x gradient x weighting, and the named methods made of them."""

from __future__ import annotations

from typing import Any, Literal, TypeGuard, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.averaging import Wanted, check_samples
from egcam.attribution.estimators import Estimator, Expected, Smooth, Vanilla
from egcam.attribution.explainer import Common, Explainer, plain_settings
from egcam.attribution.kernels import Kernel, KernelLike
from egcam.attribution.paths import Difference, PathLike
from egcam.attribution.references import ReferenceLike, as_reference
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task, chunks
from egcam.attribution.weightings import (
    Elementwise,
    GradientMean,
    Moments,
    Normalised,
    PlusPlus,
    Positive,
    Weighting,
    WeightingLike,
    as_weighting,
)
from egcam.errors import MethodError, ModelError, TargetError, check_known
from egcam.imageops import by_row, places, wide_enough
from egcam.models.class_scores import by_class, class_scores
from egcam.models.layers import Layer

_UNIFORM = Kernel("uniform", scale=1.0)


class _NamedCAM(Explainer):
    """A gradient CAM whose weighting is what its name stands for, so it takes no other."""

    weighting: Weighting = GradientMean()

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        gradient: Estimator | None = None,
        **common: Unpack[Common],
    ) -> None:
        if "weighting" in common:
            raise MethodError(
                f"{self.name} is defined by its weighting; for another one "
                "use egcam.GradientCAM(model, gradient=..., weighting=...)"
            )
        super().__init__(model, layer, **common)
        self.gradient = Vanilla() if gradient is None else gradient
        if not isinstance(self.gradient, Estimator):
            raise MethodError(
                f"gradient must be an estimator such as egcam.Expected(), not {type(self.gradient).__name__}"
            )

    def _explain(self, task: Task) -> Maps:
        def map_of(moments: list[Moments], own: Tensor) -> list[Tensor]:
            return [
                self.weighting.map(layer, wide_enough(activations)[own.to(activations.device)])
                for layer, activations in zip(moments, task.activations, strict=True)
            ]

        return self.gradient.estimate(task, Wanted(self.weighting.order, not self.signed), map_of)

    def _options(self) -> dict[str, Any]:
        return {
            "gradient": plain_settings(self.gradient),
            "weighting": type(self.weighting).__name__,
        }


class GradientCAM(_NamedCAM):
    """Any gradient CAM: map = relu( sum_k w_k A^k ), w from a weighting of a gradient estimate.

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        gradient: how dy/dA is obtained: `Vanilla()`, `Smooth()`, `Integrated()`, `Expected()`.
        weighting: how it weighs the channels: a `Weighting`; its name, "mean" (Grad-CAM), "elementwise" (HiResCAM),
            "positive" (LayerCAM), "normalised" (XGrad-CAM), "plus-plus" (Grad-CAM++), "principal" (Eigen-Grad-CAM) or
            "summed" (the gradient times its difference term, the attribution itself); or a function
            (gradient, activations) -> weights.
        common: the options all explainers take.
    """

    name = "gradient-cam"

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        gradient: Estimator | None = None,
        weighting: WeightingLike | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, gradient=gradient, **common)
        if weighting is not None:
            self.weighting = as_weighting(weighting)


@register(
    "grad-cam",
    label="Grad-CAM",
    summary="channels weighted by their mean gradient",
    group="gradient",
    line=("black", "-", "s"),
    usual=True,
)
class GradCAM(_NamedCAM):
    """Grad-CAM (Selvaraju et al., 2017): w_k = mean_ij dy/dA^k.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3))
        >>> GradCAM(net, signed=True)(torch.ones(1, 1, 8, 8), target=0).maps.shape
        torch.Size([1, 6, 6])
    """


@register(
    "hires-cam",
    label="HiResCAM",
    summary="gradient times activation at every place",
    group="gradient",
    line=("purple", "-", "P"),
    usual=True,
)
class HiResCAM(_NamedCAM):
    """HiResCAM (Draelos and Carin, 2020): map = relu( sum_k dy/dA^k * A^k ), position by position."""

    weighting = Elementwise()


@register(
    "xgrad-cam",
    label="XGrad-CAM",
    summary="channels weighted by gradients in proportion to activations",
    group="gradient",
    line=("blue", "--", "X"),
)
class XGradCAM(_NamedCAM):
    """XGrad-CAM (Fu et al., 2020): w_k = sum_ij(dy/dA^k * A^k) / sum_ij A^k."""

    weighting = Normalised()


@register(
    "layer-cam",
    label="LayerCAM",
    summary="positive gradient times activation at every place",
    group="gradient",
    line=("sky", "-", "<"),
    usual=True,
)
class LayerCAM(_NamedCAM):
    """LayerCAM (Jiang et al., 2021): map = relu( sum_k relu(dy/dA^k) * A^k )."""

    weighting = Positive()


@register(
    "grad-cam++",
    label="Grad-CAM++",
    summary="channels weighted by their positive gradients, each place by its own share",
    group="gradient",
    line=("blue", "-", "^"),
    usual=True,
)
class GradCAMPlusPlus(_NamedCAM):
    """Grad-CAM++ (Chattopadhay et al., 2018): w_k = sum_ij alpha relu(g), alpha = g^2 / (2 g^2 + sum(A) g^3)."""

    weighting = PlusPlus()


@register(
    "smooth-grad-cam++",
    label="Smooth Grad-CAM++",
    summary="grad-cam++ with gradients averaged over noisy copies of the image",
    group="gradient",
    line=("sky", "--", "v"),
)
class SmoothGradCAMPlusPlus(_NamedCAM):
    """Smooth Grad-CAM++ (Omeiza et al., 2019): Grad-CAM++ on the moments of g averaged over noisy copies of the image.

    The activations are those of the clean image. The noise's standard deviation is `scale` * (max - min).
    """

    weighting = PlusPlus()

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        samples: int = 25,
        scale: float = 0.15,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, gradient=Smooth(samples, scale=scale, seed=seed), **common)


@register(
    "expected-grad-cam",
    label="Expected Grad-CAM",
    summary="the gradient averaged over references and the way from them to the image, weighed by what differs",
    group="gradient",
    line=("orange", "-", "D"),
    usual=True,
)
class ExpectedGradCAM(_NamedCAM):
    """Expected Grad-CAM (Buono et al., 2024), as we read its paper.

        z_s = x'_s + a_s (x - x'_s) + eta_s,     W_k,ij = k_k/n sum_s f_k,ij(x - x'_s) * dy/dA^k_ij at z_s
        map = relu( sum_k W_k A^k )

    x' is drawn from `reference`, a from U(0, 1), eta from `kernel`. What the paper leaves open, and which reading its
    own numbers speak for, is in the guide to the method.

    Args:
        model: the classifier.
        layer: where; see `Explainer`. By default the last spatial layer, as in the paper.
        reference: what x' is drawn from: best images of your data set; see `Expected`. By default photographs that come
            with the package.
        samples: n.
        seed: of all draws.
        kernel: of eta; see `Kernel`. Its `normaliser` is the paper's k, 1 unless asked for.
        difference: "input", f(x - x'); "latent", f(x) - f(x'); or "none", 1.
        weighting: "elementwise", weights by location; or "mean", pooled over the places.
        path: "linear", "subset" or a callable; see `Expected`.
        tolerance: the relative standard error of the map at which sampling stops.
        common: the options all explainers take.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        reference: ReferenceLike = None,
        samples: int = 16,
        seed: int = 0,
        kernel: KernelLike = _UNIFORM,
        difference: Difference = "input",
        weighting: Literal["elementwise", "mean"] = "elementwise",
        path: PathLike = "linear",
        tolerance: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        gradient = Expected(
            reference, samples, path=path, kernel=kernel, difference=difference, tolerance=tolerance, seed=seed
        )
        super().__init__(model, layer, gradient=gradient, **common)
        check_known(weighting, ("elementwise", "mean"), "weighting of Expected Grad-CAM", MethodError)
        self.weighting = as_weighting(weighting)


@register(
    "integrated-grad-cam",
    label="Integrated Grad-CAM",
    summary="grad-cam averaged over the path from a black image to the image",
    group="gradient",
    line=("green", "-", "d"),
    usual=True,
)
class IntegratedGradCAM(Explainer):
    """Integrated Grad-CAM (Sattarzadeh et al., 2021).

        map = 1/n sum_j relu( sum_k mean_ij(dy/dA^k at z_j) * (A^k(z_j) - A^k(b)) )
        z_j = b + a_j (x - b),  a_j = (j + 1/2) / n,  b the reference

    The midpoint rule converges as n, the number of samples, grows. With `authors=True` it is computed as its authors
    coded it: a_j = j/n, which never reaches the image, A^k(z_j) without A^k(b), and a sum instead of a mean, which
    grows with n. Costs n + 2 passes for each image, n + 1 with `authors`.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        samples: int = 50,
        reference: ReferenceLike = "black",
        authors: bool = False,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, **common)
        check_samples(samples)
        self.samples = samples
        self.reference = as_reference(reference, default="black", seed=seed)
        self.authors = authors
        self.seed = seed

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        images = task.images
        reference = self.reference.for_images(images)
        starts = reference.draw(images, task.rows.tolist(), 0, self.seed).images
        everyone = torch.arange(len(images), device="cpu")
        at_start = None if self.authors else [wide_enough(a) for a in task.features(starts, everyone)]
        totals = [torch.zeros_like(wide_enough(layer[:, 0])) for layer in task.activations]
        pairs = [(sample, row) for sample in range(self.samples) for row in range(len(images))]
        for batch in task.meter.each(chunks(pairs, task.batch_size)):
            own = torch.tensor([row for _, row in batch], device="cpu")
            shares = images.new_tensor([self._share(sample) for sample, _ in batch])
            points = images[own] - (1 - by_row(shares, images)) * (images[own] - starts[own])
            seen = task.gradients(points, own)
            for layer, (activations, gradient) in enumerate(zip(seen.activations, seen.gradients, strict=True)):
                rise = wide_enough(activations)
                if at_start is not None:
                    rise = rise - at_start[layer][own.to(rise.device)]
                maps = (wide_enough(gradient).mean(places(gradient), keepdim=True) * rise).sum(1)
                maps = maps if self.signed else maps.relu()
                for place, (_, row) in enumerate(batch):
                    totals[layer][row] += maps[place]
        return Maps([t if self.authors else t / self.samples for t in totals], None, reference.description)

    def _share(self, sample: int) -> float:
        return sample / self.samples if self.authors else (sample + 0.5) / self.samples

    def _options(self) -> dict[str, Any]:
        return {"samples": self.samples, "authors": self.authors}


@register(
    "cam",
    label="CAM",
    summary="channels weighted by the last linear layer; for networks that end in pooling and one such layer",
    group="gradient-free",
    line=("grey", "-", "*"),
)
class CAM(Explainer):
    """CAM (Zhou et al., 2016): map = relu( sum_k w_k A^k ), w the target class's weights in the last linear layer.

    For networks that end in global average pooling and one linear layer (or 1x1 convolution). That they do is seen by
    their numbers: the weights W and biases b are those for which logits = W mean_ij(A) + b. Where no linear layer
    gives the logits in this way, the network is refused.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
        >>> CAM(net, signed=True)(torch.rand(1, 1, 8, 8), target=0).maps.shape
        torch.Size([1, 6, 6])
    """

    def _explain(self, task: Task) -> Maps:
        seen = task.first_pass()
        if task.indices is None:
            raise TargetError("CAM takes its weights from a class; a callable target has none. Use 'grad-cam'")
        outputs = class_scores(seen.output, len(task.images))
        maps = []
        for point, layer in zip(task.probe.points, task.activations, strict=True):
            weights = by_class(self._weights(point.name, layer, outputs).T, self.classes).T
            rows = weights[task.indices.to(weights.device)].to(layer.device)
            maps.append((by_row(rows, layer) * wide_enough(layer)).sum(1))
        return Maps(maps)

    def _weights(self, name: str, layer: Tensor, outputs: Tensor) -> Tensor:
        """(outputs, K) of the linear layer that makes the outputs from the layer's averaged activations."""
        count, channels = outputs.shape[1], layer.shape[1]
        linear = [module for module in self.model.modules() if _is_linear(module) and len(module.weight) == count]
        if not linear:
            raise ModelError(
                f"CAM needs a network that ends in a linear layer with one output for each of the {count} classes, "
                "and this one has none; use 'grad-cam'"
            )
        fitting = [module for module in linear if module.weight[0].numel() == channels]
        if not fitting:
            raise ModelError(
                "CAM needs a network that ends in global average pooling and one linear layer: the last linear layer "
                f"takes {linear[-1].weight[0].numel()} features, the explained layer has {channels} channels; "
                "use 'grad-cam'"
            )
        for module in reversed(fitting):
            if _makes(module, layer, outputs):
                return wide_enough(module.weight.detach().flatten(1))
        raise ModelError(
            "CAM needs a network that ends in global average pooling and one linear layer, whose output is the logits: "
            f"averaging the activations of {name!r} and applying a linear layer of this network does not give its "
            "logits, so something else lies between (another pooling, block, layer or activation); choose the layer "
            "right before the pooling, or use 'grad-cam'"
        )


def _is_linear(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return set(module.kernel_size) == {1} and module.groups == 1
    return isinstance(module, nn.Linear)


def _makes(module: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d, layer: Tensor, outputs: Tensor) -> bool:
    """Whether `outputs` (N, C) are W mean_ij(A) + b of the linear layer, as far as rounding lets one tell."""
    weight, pooled = wide_enough(module.weight.detach().flatten(1)), wide_enough(layer).mean(places(layer))
    bias = weight.new_zeros(len(weight)) if module.bias is None else wide_enough(module.bias.detach())
    pooled, found = pooled.to(weight), wide_enough(outputs.detach()).to(weight)
    rounding = max(_ROUNDING.get(tensor.dtype, 1e-4) for tensor in (module.weight, layer, outputs))
    # Rounding grows with what is added up, not with the sum: terms may cancel.
    size = pooled.abs() @ weight.abs().T + bias.abs()
    return bool(((pooled @ weight.T + bias - found).abs() <= rounding * size).all())


_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
