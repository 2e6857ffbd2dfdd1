"""Confidence: what is left of the score when only what the map shows is shown.

The masked image is b + h·(x - b), h the map cut at 0 and divided by its maximum, b the baseline (0, the
training mean of normalised images, unless told otherwise). A zero map shows nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from egcam.metrics.baselines import Baseline, replacement
from egcam.metrics.explaining import Explainer, maps_in_batches
from egcam.metrics.inputs import Maps, as_images, as_maps, chunks, explained_target, resized, scaled_by_peak
from egcam.metrics.scoring import Scorer, forward_only
from egcam.metrics.similarity import pearson
from egcam.metrics.undefined import Causes, settle
from egcam.models.targets import Score, Target


def _shown(images: Tensor, maps: Tensor, baseline: Baseline) -> Tensor:
    """The images seen through their maps."""
    window = scaled_by_peak(maps.clamp(min=0))[:, None].to(images)
    empty = replacement(baseline, images)
    return empty + window * (images - empty)


def masked_confidence(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(N,) scores of the images and (N,) of the images seen through their maps: what three metrics share.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> before, after = masked_confidence(model, torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4))
        >>> torch.allclose(before, after)
        True
    """
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    rows = torch.arange(len(images), device=images.device)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        shown = scorer.altered(rows, lambda part: _shown(images[part], maps[part], baseline))
    return scorer.clean, shown


def drop_of(before: Tensor, after: Tensor) -> Tensor:
    """max(0, before - after) / before, 0 where there was nothing to lose; NaN stays NaN."""
    nothing = before <= 0
    return torch.where(nothing, 0.0 * after, (before - after).clamp(min=0) / torch.where(nothing, 1.0, before))


def gain_of(before: Tensor, after: Tensor) -> Tensor:
    """max(0, after - before) / (1 - before), 0 where there was nothing to gain; NaN stays NaN."""
    full = before >= 1
    return torch.where(full, 0.0 * after, (after - before).clamp(min=0) / torch.where(full, 1.0, 1 - before))


def increase_of(before: Tensor, after: Tensor) -> Tensor:
    """1 where the score rose, else 0; NaN stays NaN."""
    return torch.where((after - before).isfinite(), (after > before).to(before), float("nan"))


def average_drop(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """Share of the score lost when only the map is shown (Chattopadhay et al. 2018); lower is better.

        AD = max(0, p_y(x) - p_y(x seen through a)) / p_y(x)

    Conventions: a share, 0 to 1, not per cent. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        baseline: what shows where the map is 0.
        score: "probability" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> average_drop(model, torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4))
        tensor([0., 0.])
    """
    causes = as_maps(heatmaps, as_images(images))[1]
    before, after = masked_confidence(
        model, images, heatmaps, target, baseline=baseline, score=score, batch_size=batch_size
    )
    return settle("average-drop", drop_of(before, after), causes)


def increase_in_confidence(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """1 where showing only the map raises the score, else 0 (Chattopadhay et al. 2018); higher is better.

        IC = [p_y(x seen through a) > p_y(x)]

    Conventions: its mean over images is the published rate. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        baseline: what shows where the map is 0.
        score: "probability" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> increase_in_confidence(model, torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4))
        tensor([0., 0.])
    """
    causes = as_maps(heatmaps, as_images(images))[1]
    before, after = masked_confidence(
        model, images, heatmaps, target, baseline=baseline, score=score, batch_size=batch_size
    )
    return settle("increase-in-confidence", increase_of(before, after), causes)


def average_gain(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """Share of the missing score gained when only the map is shown (Zhang et al. 2024); higher is better.

        AG = max(0, p_y(x seen through a) - p_y(x)) / (1 - p_y(x))

    Conventions: a share, 0 to 1, not per cent; the counterpart of Average Drop. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        baseline: what shows where the map is 0.
        score: "probability" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> average_gain(model, torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4))
        tensor([0., 0.])
    """
    causes = as_maps(heatmaps, as_images(images))[1]
    before, after = masked_confidence(
        model, images, heatmaps, target, baseline=baseline, score=score, batch_size=batch_size
    )
    return settle("average-gain", gain_of(before, after), causes)


def adcc(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    heatmaps: Maps | None = None,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """Harmonic mean of coherency, simplicity and kept confidence (Poppi et al. 2021); higher is better.

        ADCC = 3 / ( 1/Coherency + 1/(1 - mean h) + 1/(1 - AD) )
        Coherency = (1 + Pearson(a(x), a(x seen through a))) / 2,   h = max(a, 0) / max a

    Conventions: 0 as soon as one of the three is 0; a constant map has Pearson 0. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> maps, or one of egcam's explainers.
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the prediction.
        heatmaps: the explainer's maps of the images where they are at hand already.
        baseline: what shows where the map is 0.
        score: "probability" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> adcc(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)).shape
        torch.Size([2])
    """
    images = as_images(images)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        asked: Target = scorer.classes if scorer.classes is not None else target
        if heatmaps is None:
            heatmaps = maps_in_batches(explainer, images, asked, scorer.batch_size)
        maps, causes = as_maps(heatmaps, images)
        after, again = [], []
        for part in chunks(len(images), scorer.batch_size):
            shown = _shown(images[part], maps[part], baseline)
            rows = torch.arange(part.start, part.stop, device=images.device)
            after.append(scorer(shown, rows))
            of_part = asked[part] if isinstance(asked, Tensor) else asked
            again.append(maps_in_batches(explainer, shown, of_part, scorer.batch_size))
    seen_again = resized(torch.cat(again), (images.shape[-2], images.shape[-1]))
    causes = _lost(causes, seen_again)
    coherency = (1 + pearson(maps.flatten(1), seen_again.nan_to_num().flatten(1).to(maps))) / 2
    simplicity = 1 - scaled_by_peak(maps.clamp(min=0)).flatten(1).mean(1)
    kept = 1 - drop_of(scorer.clean, torch.cat(after))
    terms = torch.stack([coherency.to(kept), simplicity.to(kept), kept])
    positive = (terms > 0).all(0)
    harmonic = 3 / (1 / torch.where(positive, terms, 1.0)).sum(0)
    # NaN terms are not positive either, and must stay visible.
    scores = torch.where(positive, harmonic, torch.where(terms.isfinite().all(0), 0.0, float("nan")))
    return settle("adcc", scores, causes)


def _lost(causes: Causes, maps: Tensor) -> Causes:
    found = Causes(causes)
    found.mark(~maps.flatten(1).isfinite().all(1), "the explainer's map of the masked image is not finite")
    return found
