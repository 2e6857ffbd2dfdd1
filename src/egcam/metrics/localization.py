"""Localization: does the map lie on the object? S is the object's mask; no model is needed.

An image whose mask is empty has no score. Where the order of pixels counts, tied pixels count at their
expected value under a random order: a constant map scores as chance does, wherever the object is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import InputError
from egcam.imageops import area_mean, of_dimension
from egcam.metrics.case import Case
from egcam.metrics.inputs import check_positive
from egcam.metrics.registry import MaskMetric, register
from egcam.metrics.sorting import count_true, kth_largest

_on_object = partial(register, group="localization", better="higher")
"""What all metrics here have in common."""


def _maps_and_masks(case: Case) -> tuple[Tensor, Tensor]:
    """(N, D) maps and masks."""
    inside = case.masks.flatten(1)
    case.undefined(count_true(inside) == 0, "its mask is empty")
    return case.maps.flatten(1), inside


def _sum_inside(values: Tensor, inside: Tensor) -> Tensor:
    """(N,) the sum of each row's values inside the mask."""
    return (values * inside.to(values)).sum(1)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where the whole is 0."""
    return torch.where(whole != 0, part / torch.where(whole != 0, whole, 1.0), 0.0)


@_on_object(
    "attribution-localization",
    label="AL",
    meaning="The share of the map's mass that lies on the object.",
    paper=True,
)
@dataclass(frozen=True)
class AttributionLocalization(MaskMetric):
    """Share of the map's mass that lies on the object (Kohlbrenner et al. 2020); higher is better.

        AL = Σ_S |a| / Σ |a|        weighted: AL · D / |S|

    Conventions: a zero map scores 0; weighted, 1 is what a uniform map gets. Free of the map's scale.

    Attributes:
        weighted: divide by the object's share of the image.

    Example:
        >>> AttributionLocalization()(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.7500])
    """

    weighted: bool = False

    def scores(self, case: Case) -> Tensor:
        maps, inside = _maps_and_masks(case)
        mass = maps.abs()
        scores = _share(_sum_inside(mass, inside), mass.sum(1))
        if self.weighted:
            scores = scores * maps.shape[1] / inside.sum(1).clamp(min=1)
        return scores


def _hits_among_largest(maps: Tensor, inside: Tensor, counts: Tensor) -> Tensor:
    """(N,) the expected number of the `counts` largest pixels that are inside, ties broken at random."""
    threshold = kth_largest(maps, counts)
    above, tied = maps > threshold, maps == threshold
    sure = count_true(above & inside)
    drawn = counts - count_true(above)
    chance = count_true(tied & inside).to(maps) / count_true(tied)
    return sure + drawn * chance


@_on_object(
    "top-k-intersection",
    label="TKI",
    title="Top-k intersection",
    meaning="The share of the most relevant pixels that lie on the object.",
    paper=True,
    many_ties=True,
)
@dataclass(frozen=True)
class TopKIntersection(MaskMetric):
    """Share of the K most relevant pixels that lie on the object (Theiner et al. 2021); higher is better.

        TKI = |top-K(a) ∩ S| / K

    Conventions: K is at most the number of pixels; ties at their expected value. Only the order of the map
    matters.

    Attributes:
        k: how many pixels.

    Example:
        >>> TopKIntersection(k=1)(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([1.])
    """

    k: int = 1000

    def scores(self, case: Case) -> Tensor:
        maps, inside = _maps_and_masks(case)
        taken = min(check_positive("k", self.k), maps.shape[1])
        counts = torch.full((len(maps),), taken, device=maps.device)
        return _hits_among_largest(maps, inside, counts) / taken


@_on_object(
    "relevance-rank-accuracy",
    label="RRA",
    meaning="Among the k most relevant pixels, k being the object's size in pixels, the share that lies on it.",
    paper=True,
    many_ties=True,
)
@dataclass(frozen=True)
class RelevanceRankAccuracy(MaskMetric):
    """Share of the |S| most relevant pixels that lie on the object (Arras et al. 2022); higher is better.

        RRA = |top-|S|(a) ∩ S| / |S|

    Conventions: ties at their expected value, so a constant map scores |S| / D. Only the order of the map
    matters.
    """

    def scores(self, case: Case) -> Tensor:
        maps, inside = _maps_and_masks(case)
        sizes = count_true(inside).clamp(min=1)
        return _hits_among_largest(maps, inside, sizes) / sizes


@_on_object(
    "relevance-mass-accuracy",
    label="RMA",
    meaning="The share of the signed map that lies on the object.",
    paper=True,
)
@dataclass(frozen=True)
class RelevanceMassAccuracy(MaskMetric):
    """Share of the signed map that lies on the object (Arras et al. 2022); higher is better.

        RMA = Σ_S a / Σ a

    Conventions: equal to Attribution Localization for maps without negative values; a zero map scores 0; a
    map whose values cancel (|Σ a| below 1e-6 of Σ|a|) has no score. Free of the map's scale.
    """

    def scores(self, case: Case) -> Tensor:
        maps, inside = _maps_and_masks(case)
        total, mass = maps.sum(1), maps.abs().sum(1)
        case.undefined((total.abs() <= 1e-6 * mass) & (mass > 0), "its map's positive and negative values cancel")
        return _share(_sum_inside(maps, inside), total)


@_on_object(
    "pointing-game",
    label="PG",
    meaning="Whether the map's highest point lies on the object.",
    many_ties=True,
)
@dataclass(frozen=True)
class PointingGame(MaskMetric):
    """1 when the map's highest pixel is on the object, else 0 (Zhang et al. 2018); higher is better.

    Conventions: several highest pixels count by the share of them that hit; `tolerance` widens the object by
    this many pixels in every direction (a square; the original game allows 15). Only the order of the map
    matters.

    Attributes:
        tolerance: pixels by which the highest point may miss.
    """

    tolerance: int = 0

    def scores(self, case: Case) -> Tensor:
        maps, inside = case.maps, case.masks
        case.undefined(~inside.flatten(1).any(1), "its mask is empty")
        if self.tolerance < 0:
            raise InputError(f"tolerance must not be negative, got {self.tolerance}")
        if self.tolerance:
            width = 2 * self.tolerance + 1
            widen = of_dimension("max_pool", inside.ndim - 1)
            inside = widen(inside[:, None].float(), width, stride=1, padding=self.tolerance)[:, 0] > 0
        maps, inside = maps.flatten(1), inside.flatten(1)
        highest = maps == maps.amax(1, keepdim=True)
        return (highest & inside).sum(1).to(maps) / highest.sum(1)


@_on_object(
    "energy-pointing-game",
    label="EBPG",
    meaning="The share of the map's positive mass that lies on the object.",
)
@dataclass(frozen=True)
class EnergyPointingGame(MaskMetric):
    """Share of the map's positive mass on the object (Score-CAM, Wang et al. 2020); higher is better.

        EBPG = Σ_S max(a, 0) / Σ max(a, 0)

    Conventions: a map without positive values scores 0. Free of the map's scale.
    """

    def scores(self, case: Case) -> Tensor:
        maps, inside = _maps_and_masks(case)
        energy = maps.clamp(min=0)
        return _share(_sum_inside(energy, inside), energy.sum(1))


@_on_object(
    "cell-mass-accuracy",
    label="CMA",
    meaning="The share of the positive heat that lies in cells of the map that the object touches.",
)
@dataclass(frozen=True)
class CellMassAccuracy(MaskMetric):
    """Share of the positive heat in the cells of the map that the object touches; higher is better.

        CMA = Σ over cells that touch S of max(a, 0) / Σ max(a, 0)

    Relevance mass accuracy at the size the map was made at: nothing is blurred by enlarging it, so a map on the
    object's cells alone scores 1, however small the object. It is the score of `egcam.truth`.

    Conventions: a map without positive heat scores 0; maps of which no other size is known are taken as they are.

    Attributes:
        whole_cells: False counts a cell by the part of it that lies on the object.

    Example:
        >>> mask = torch.tensor([[[True, False, False, False]]])
        >>> CellMassAccuracy()(torch.tensor([[[3.0, 1.0, -2.0, 0.0]]]), mask)
        tensor([0.7500])
    """

    whole_cells: bool = True

    def scores(self, case: Case) -> Tensor:
        _, inside = _maps_and_masks(case)
        if case.maps.ndim != 3:
            raise InputError(f"{self.name} is for maps of images, (N, H, W)")
        return share_inside(case.at_layer.maps, inside.reshape(case.masks.shape), self.whole_cells)


def share_inside(maps: Tensor, masks: Tensor, whole_cells: bool = False) -> Tensor:
    """(N,) the share of the positive heat that lies inside the masks; 0 of a map without any.

        share = sum of max(a, 0) m / sum of max(a, 0)

    m is the part of a cell that the mask covers, so that nothing is blurred by enlarging the map: a uniform map scores
    the mask's share of the image.

    Args:
        maps: (N, h, w) of any size.
        masks: (N, H, W) at the size of the images, from 0 to 1.
        whole_cells: a cell that the mask touches counts as a whole, so that a map on such cells alone scores 1.

    Example:
        >>> mask = torch.zeros(1, 4, 4)
        >>> mask[:, :2, :2] = 1
        >>> share_inside(torch.ones(1, 2, 2), mask), share_inside(torch.tensor([[[3.0, 0], [-1, 0]]]), mask)
        (tensor([0.2500]), tensor([1.]))
    """
    if maps.ndim != 3 or len(maps) != len(masks):
        raise InputError(f"maps of shape {tuple(maps.shape)} do not go with masks of shape {tuple(masks.shape)}")
    size, masks = (maps.shape[-2], maps.shape[-1]), masks.to(maps)
    # The windows of this pooling are the pixels that a cell touches.
    inside = functional.adaptive_max_pool2d(masks[:, None], size)[:, 0] if whole_cells else area_mean(masks, size)
    heat = maps.clamp(min=0).flatten(1)
    total = heat.sum(1)
    share = (heat * inside.flatten(1)).sum(1) / torch.where(total > 0, total, 1.0)
    return torch.where(total.isfinite(), share, torch.nan)
