"""Guided backpropagation, and Guided Grad-CAM, which is that times Grad-CAM."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import warn_user
from egcam.imageops import places, size_of, upsampled, wide_enough
from egcam.models.layers import INPUT, Layer


def guide(scores: Tensor) -> int:
    """Let only positive gradients pass the ReLUs that led to `scores`; how many there are.

    The rule is attached to this graph alone, not to the model: ReLUs called as functions or in place are met as well,
    and other threads and later passes know nothing of it.
    """
    found, todo, seen = 0, [scores.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if _is_relu(node):
            found += 1
            node.register_prehook(_positive)
        todo += [before for before, _ in node.next_functions]
    return found


def _is_relu(node: Any) -> bool:
    name = node.name()
    return bool(name == "ReluBackward0" or (name == "HardtanhBackward0" and node._saved_min_val == 0))


def _positive(gradients: tuple[Tensor | None, ...]) -> Any:
    return tuple(None if one is None else one.clamp(min=0) for one in gradients)


def _guide_or_warn(scores: Tensor) -> None:
    if scores.grad_fn is not None and not guide(scores):
        warn_user(
            "guided backpropagation changes the gradient at ReLUs, and this network has none: what you get is its "
            "plain gradient, as with 'input-gradient'",
            UserWarning,
        )


def _over_colours(gradient: Tensor, signed: bool) -> Tensor:
    gradient = wide_enough(gradient)
    return gradient.sum(1) if signed else gradient.abs().sum(1)


@register(
    "guided-backprop",
    label="Guided backprop",
    summary="the gradient at the pixels, only its positive part passed on at every ReLU",
    group="input",
    line=("purple", ":", "p"),
)
class GuidedBackprop(Explainer):
    """Guided backpropagation (Springenberg et al., 2015): sum_c |g_c|; signed, sum_c g_c.

    g is the gradient at the input where every ReLU (and ReLU6) passes on relu(gradient) wherever it was open. The map
    shows edges that the class's ReLUs like; it hardly depends on the class (Adebayo et al., 2018).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
        >>> _ = net[0].bias.data.fill_(9), net[3].weight.data.abs_()  # open ReLUs, a class that likes them
        >>> GuidedBackprop(net, signed=True)(torch.rand(1, 1, 8, 8), target=0).maps.shape
        torch.Size([1, 8, 8])
    """

    at_input = True

    def __init__(self, model: nn.Module, **common: Unpack[Common]) -> None:
        super().__init__(model, None, **common)

    def _explain(self, task: Task) -> Maps:
        (gradient,) = task.first_gradients(_guide_or_warn).gradients
        return Maps([_over_colours(gradient, self.signed)])


@register(
    "guided-grad-cam",
    label="Guided Grad-CAM",
    summary="guided-backprop at the places that grad-cam points at",
    group="gradient",
    line=("purple", "-.", "P"),
)
class GuidedGradCAM(Explainer):
    """Guided Grad-CAM (Selvaraju et al., 2017): upsampled(Grad-CAM) * guided backpropagation, at every pixel.

    Grad-CAM is taken after its ReLU, as in the paper; guided backpropagation is sum_c |g_c|, signed sum_c g_c. Two
    passes. The network must let the gradient through to the image.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
        >>> _ = net[0].bias.data.fill_(9), net[3].weight.data.abs_()  # open ReLUs, a class that likes them
        >>> GuidedGradCAM(net, signed=True)(torch.rand(1, 1, 8, 8), target=0).maps.shape
        torch.Size([1, 8, 8])
    """

    cause_of_zero = "Grad-CAM is zero everywhere: every position is negative evidence, or has no gradient"

    def __init__(self, model: nn.Module, layer: Layer = None, **common: Unpack[Common]) -> None:
        super().__init__(model, layer, **common)

    def _explain(self, task: Task) -> Maps:
        gradients = [wide_enough(gradient) for gradient in task.first_gradients().gradients]
        everyone = torch.arange(len(task.images), device="cpu")

        def score(output: Any) -> Tensor:
            scores = task.scores_of(output, everyone)
            _guide_or_warn(scores)
            return scores

        (guided,) = task.probe.at(INPUT).gradients(task.images, task.rows, score).gradients
        task.meter.add(len(task.images))
        maps = []
        for gradient, layer in zip(gradients, task.activations, strict=True):
            cam = (gradient.mean(places(gradient), keepdim=True) * wide_enough(layer)).sum(1).relu()
            maps.append(upsampled(cam, size_of(task.images)) * _over_colours(guided, self.signed).to(cam))
        return Maps(maps)
