"""Complexity: how much of the image does the map point at? No model is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from egcam.metrics.case import Case
from egcam.metrics.registry import MapMetric, register
from egcam.metrics.sorting import ascending


def _mass(maps: Tensor) -> Tensor:
    """(N, D) absolute values, the largest of each map 1; a zero map is 1 everywhere.

    By the peak, because sums of huge maps overflow and those of tiny ones vanish.
    """
    mass = maps.flatten(1).abs()
    peak = mass.amax(1, keepdim=True)
    empty = peak == 0
    if empty.any():
        mass, peak = mass + empty, peak + empty
    return mass / peak


@register(
    "complexity",
    group="complexity",
    better="lower",
    label="CP",
    meaning="The entropy of the map: low if it is concentrated in few places.",
    paper=True,
)
@dataclass(frozen=True)
class Complexity(MapMetric):
    """Entropy of the map's mass, in nats (Bhatt et al. 2020); lower is better.

        q = |a| / Σ|a|        Complexity = -Σ_i q_i ln q_i

    Conventions: 0 ln 0 is 0; a zero map points nowhere and scores as a uniform one, ln D, the worst there is.
    One pixel scores 0. Free of the map's scale.

    Example:
        >>> Complexity()(torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]))
        tensor([0.0000, 1.3863])
    """

    def scores(self, case: Case) -> Tensor:
        mass = _mass(case.maps)
        entropy: Tensor = torch.special.entr(mass / mass.sum(1, keepdim=True)).sum(1)
        return entropy


@register(
    "sparseness",
    group="complexity",
    better="higher",
    label="SP",
    meaning="The Gini index of the map: near 1 if it is concentrated in few places, 0 if it is uniform.",
    paper=True,
)
@dataclass(frozen=True)
class Sparseness(MapMetric):
    """Gini index of the map's mass (Chalasani et al. 2020); higher is better.

    With |a| sorted ascending, |a|_(1) ≤ … ≤ |a|_(D):

        Sparseness = Σ_i (2i - D - 1) |a|_(i) / (D Σ_i |a|_(i))

    Conventions: 0 for uniform maps, (D - 1) / D for one pixel; a zero map is uniform. Quantus adds 1e-7 to
    the map first, which moves the figure in the seventh digit. Free of the map's scale.

    Example:
        >>> Sparseness()(torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]))
        tensor([0.7500, 0.0000])
    """

    def scores(self, case: Case) -> Tensor:
        mass = _mass(case.maps)
        mass, count = ascending(mass), mass.shape[1]
        weight = torch.arange(1 - count, count, 2, device=mass.device, dtype=mass.dtype)
        return (mass @ weight) / (count * mass.sum(1))
