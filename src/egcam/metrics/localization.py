"""Localization: does the map lie on the object? S is the object's mask; no model is needed.

An image whose mask is empty has no score. Where the order of pixels counts, tied pixels count at their
expected value under a random order: a constant map scores as chance does, wherever the object is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import InputError
from egcam.metrics.inputs import Maps, as_maps, as_masks, check_positive
from egcam.metrics.sorting import count_true, kth_largest
from egcam.metrics.undefined import Causes, settle


def _maps_and_masks(heatmaps: Maps, masks: Any) -> tuple[Tensor, Tensor, Causes]:
    """(N, D) maps and masks, and the images that cannot be scored."""
    maps, causes = as_maps(heatmaps)
    inside = as_masks(masks, maps).flatten(1)
    causes.mark(count_true(inside) == 0, "its mask is empty")
    return maps.flatten(1), inside, causes


def _sum_inside(values: Tensor, inside: Tensor) -> Tensor:
    """(N,) the sum of each row's values inside the mask."""
    return (values * inside.to(values)).sum(1)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where the whole is 0."""
    return torch.where(whole != 0, part / torch.where(whole != 0, whole, 1.0), 0.0)


def attribution_localization(heatmaps: Maps, masks: Any, *, weighted: bool = False) -> Tensor:
    """Share of the map's mass that lies on the object (Kohlbrenner et al. 2020); higher is better.

        AL = Σ_S |a| / Σ |a|        weighted: AL · D / |S|

    Conventions: a zero map scores 0; weighted, 1 is what a uniform map gets. Free of the map's scale.

    Args:
        heatmaps: (N, H, W) maps or an explanation.
        masks: (N, H, W) masks of the object: booleans, whole numbers, or floats cut at one half.
        weighted: divide by the object's share of the image.

    Example:
        >>> attribution_localization(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.7500])
    """
    maps, inside, causes = _maps_and_masks(heatmaps, masks)
    mass = maps.abs()
    scores = _share(_sum_inside(mass, inside), mass.sum(1))
    if weighted:
        scores = scores * maps.shape[1] / inside.sum(1).clamp(min=1)
    return settle("attribution-localization", scores, causes)


def relevance_mass_accuracy(heatmaps: Maps, masks: Any) -> Tensor:
    """Share of the signed map that lies on the object (Arras et al. 2022); higher is better.

        RMA = Σ_S a / Σ a

    Conventions: equal to Attribution Localization for maps without negative values; a zero map scores 0; a
    map whose values cancel (|Σ a| below 1e-6 of Σ|a|) has no score. Free of the map's scale.

    Args:
        heatmaps: (N, H, W) maps or an explanation.
        masks: (N, H, W) masks of the object.

    Example:
        >>> relevance_mass_accuracy(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.7500])
    """
    maps, inside, causes = _maps_and_masks(heatmaps, masks)
    total, mass = maps.sum(1), maps.abs().sum(1)
    causes.mark((total.abs() <= 1e-6 * mass) & (mass > 0), "its map's positive and negative values cancel")
    return settle("relevance-mass-accuracy", _share(_sum_inside(maps, inside), total), causes)


def _hits_among_largest(maps: Tensor, inside: Tensor, counts: Tensor) -> Tensor:
    """(N,) the expected number of the `counts` largest pixels that are inside, ties broken at random."""
    threshold = kth_largest(maps, counts)
    above, tied = maps > threshold, maps == threshold
    sure = count_true(above & inside)
    drawn = counts - count_true(above)
    chance = count_true(tied & inside).to(maps) / count_true(tied)
    return sure + drawn * chance


def top_k_intersection(heatmaps: Maps, masks: Any, *, k: int = 1000) -> Tensor:
    """Share of the K most relevant pixels that lie on the object (Theiner et al. 2021); higher is better.

        TKI = |top-K(a) ∩ S| / K

    Conventions: K is at most the number of pixels; ties at their expected value. Only the order of the map
    matters.

    Args:
        heatmaps: (N, H, W) maps or an explanation.
        masks: (N, H, W) masks of the object.
        k: how many pixels.

    Example:
        >>> top_k_intersection(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]), k=1)
        tensor([1.])
    """
    maps, inside, causes = _maps_and_masks(heatmaps, masks)
    taken = min(check_positive("k", k), maps.shape[1])
    counts = torch.full((len(maps),), taken, device=maps.device)
    return settle("top-k-intersection", _hits_among_largest(maps, inside, counts) / taken, causes)


def relevance_rank_accuracy(heatmaps: Maps, masks: Any) -> Tensor:
    """Share of the |S| most relevant pixels that lie on the object (Arras et al. 2022); higher is better.

        RRA = |top-|S|(a) ∩ S| / |S|

    Conventions: ties at their expected value, so a constant map scores |S| / D. Only the order of the map
    matters.

    Args:
        heatmaps: (N, H, W) maps or an explanation.
        masks: (N, H, W) masks of the object.

    Example:
        >>> relevance_rank_accuracy(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([1.])
    """
    maps, inside, causes = _maps_and_masks(heatmaps, masks)
    sizes = count_true(inside).clamp(min=1)
    return settle("relevance-rank-accuracy", _hits_among_largest(maps, inside, sizes) / sizes, causes)


def pointing_game(heatmaps: Maps, masks: Any, *, tolerance: int = 0) -> Tensor:
    """1 when the map's highest pixel is on the object, else 0 (Zhang et al. 2018); higher is better.

    Conventions: several highest pixels count by the share of them that hit; `tolerance` widens the object by
    so many pixels in every direction (a square; the original game allows 15). Only the order of the map
    matters.

    Args:
        heatmaps: (N, H, W) maps or an explanation.
        masks: (N, H, W) masks of the object.
        tolerance: pixels by which the highest point may miss.

    Example:
        >>> pointing_game(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([1.])
    """
    maps, causes = as_maps(heatmaps)
    inside = as_masks(masks, maps)
    causes.mark(~inside.flatten(1).any(1), "its mask is empty")
    if tolerance < 0:
        raise InputError(f"tolerance must not be negative, got {tolerance}")
    if tolerance:
        wide = functional.max_pool2d(inside[:, None].float(), 2 * tolerance + 1, stride=1, padding=tolerance)
        inside = wide[:, 0] > 0
    maps, inside = maps.flatten(1), inside.flatten(1)
    highest = maps == maps.amax(1, keepdim=True)
    return settle("pointing-game", (highest & inside).sum(1).to(maps) / highest.sum(1), causes)


def energy_pointing_game(heatmaps: Maps, masks: Any) -> Tensor:
    """Share of the map's positive mass on the object (Score-CAM, Wang et al. 2020); higher is better.

        EBPG = Σ_S max(a, 0) / Σ max(a, 0)

    Conventions: a map without positive values scores 0. Free of the map's scale.

    Args:
        heatmaps: (N, H, W) maps or an explanation.
        masks: (N, H, W) masks of the object.

    Example:
        >>> energy_pointing_game(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.7500])
    """
    maps, inside, causes = _maps_and_masks(heatmaps, masks)
    energy = maps.clamp(min=0)
    return settle("energy-pointing-game", _share(_sum_inside(energy, inside), energy.sum(1)), causes)
