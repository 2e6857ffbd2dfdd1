"""Shapley-CAM: Grad-CAM with half the curvature taken into account."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from egcam.attribution.explainer import Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.imageops import places, wide_enough
from egcam.models.replay import Replay


@register(
    "shapley-cam",
    label="Shapley-CAM",
    summary="Grad-CAM with gradients less half the curvature along the activations",
    group="gradient",
    line=("blue", "--", "d"),
)
class ShapleyCAM(Explainer):
    """Shapley-CAM (Cai, 2025): map = relu( sum_k w_k A^k ),   w_k = mean( g_k - 1/2 (H A)_k ).

    g is the gradient of the score at the layer and H its second derivatives there: the weights are Shapley values of
    the channels for a score that is a quadratic function of them. Where all that follows is piecewise linear, H is 0
    and the map is Grad-CAM's.
    """

    def _explain(self, task: Task) -> Maps:
        task.first_pass_with_tails()
        return Maps([self._layer_maps(task, tail) for tail in task.meter.each(task.tails)])

    def _layer_maps(self, task: Task, tail: Replay) -> Tensor:
        found = []
        for own in task.meter.each(
            torch.split(torch.arange(len(task.images), device="cpu"), max(1, task.tails_at_once))
        ):
            here = tail.activations[own.to(tail.activations.device)]
            gradient, product = tail.curvature(here, own, partial(task.scores_of, own=own))
            task.meter.tails += len(own)
            weights = wide_enough(tail.as_maps(gradient - product / 2))
            activations = wide_enough(tail.as_maps(here))
            found.append((weights.mean(places(weights), keepdim=True) * activations).sum(1))
        return torch.cat(found)
