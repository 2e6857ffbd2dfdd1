"""Faithfulness: does the map say what the model uses?

Notation: x an image of D = H·W pixels, a its map, y the explained class, f the logits, p the softmax. A pixel
is replaced in all its channels at once. Every function returns one score per image, an (N,) tensor.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from egcam.errors import InputError, near_misses
from egcam.metrics.baselines import Baseline, replacement
from egcam.metrics.inputs import (
    Maps,
    Protocol,
    as_images,
    as_maps,
    check_positive,
    check_protocol,
    explained_target,
    scaled_by_peak,
)
from egcam.metrics.noise import generator
from egcam.metrics.perturb import (
    Curve,
    group_sums,
    ordered_curve,
    pixels_per_step,
    relevance_ranks,
    replaced_scores,
)
from egcam.metrics.scoring import Scorer, forward_only
from egcam.metrics.segments import as_segments, superpixels
from egcam.metrics.similarity import pearson
from egcam.metrics.undefined import Causes, settle
from egcam.models.targets import Score, Target, by_class, known_classes

InfidelityScale = Literal["best", "unit-sum", "raw"]


def faithfulness_estimate(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "black",
    score: Score = "logit",
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Correlation of attributed and real effect of groups of pixels (Alvarez-Melis 2018); higher is better.

    Pixels are sorted by a and cut into groups S of `step`; each group alone is replaced by the baseline:

        FE = Pearson_S( Σ_{i in S} a_i ,  f_y(x) - f_y(x with S replaced) )

    Conventions: `step` is one row's worth of pixels (224 at 224 px; always 224 in the paper's protocol), the
    last group may be smaller; black is the image's smallest value; a constant map, or a score that never
    changes, has correlation 0. Undefined when there is a single group. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        step: pixels per group.
        baseline: what replaces pixels, see `egcam.metrics.baselines`.
        score: "logit", "probability" or "sigmoid".
        protocol: "default" or "paper".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False))
        >>> images = torch.rand(2, 1, 4, 4) + 1
        >>> maps = model[1].weight[0].view(4, 4) * images[:, 0]
        >>> [round(value, 3) for value in faithfulness_estimate(model, images, maps, 0, step=1, baseline=0.0).tolist()]
        [1.0, 1.0]
    """
    paper = check_protocol(protocol)
    images = as_images(images)
    maps, causes = as_maps(heatmaps, images)
    step = pixels_per_step(step, images, paper)
    groups = relevance_ranks(maps) // step
    count = -(-maps[0].numel() // step)
    if count < 2:
        causes.mark(
            torch.ones(len(images), dtype=torch.bool),
            f"one group: {step} pixels in a step are the whole image",
        )
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        counts = torch.full((len(images),), count, device=images.device)
        end = replacement(baseline, images)
        drops = scorer.clean[:, None] - replaced_scores(scorer, images, end, groups, counts, cumulative=False)
    scores = pearson(group_sums(maps, groups, count), drops).to(drops)
    causes.mark(~drops.isfinite().all(1), "the model's output is not finite")
    return settle("faithfulness-estimate", scores, causes)


def pixel_flipping_curve(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "black",
    score: Score = "probability",
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Curve:
    """The score while pixels are flipped to the baseline, most relevant first; options as in `pixel_flipping`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> pixel_flipping_curve(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4)).scores.shape
        torch.Size([2, 5])
    """
    paper = check_protocol(protocol)
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        return ordered_curve(scorer, maps, replacement(baseline, images), pixels_per_step(step, images, paper))


def pixel_flipping(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "black",
    score: Score = "probability",
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Area under the score while pixels are flipped, most relevant first (Bach et al. 2015); lower is better.

        PF = ∫_0^1 p_y(x with its share t of most relevant pixels replaced) dt      (trapezoid, both ends)

    Conventions: ties in reading order; `step` is one row's worth of pixels (224 at 224 px); black is the
    image's smallest value. protocol="paper" (Quantus 0.4.4): step 224, the unaltered first point left out and
    unit spacing, so the area grows with the number of steps, up to 223 at 224 px. Only the order of the map
    matters.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        step: pixels flipped at once.
        baseline: what they become, see `egcam.metrics.baselines`.
        score: "probability", "logit" or "sigmoid".
        protocol: "default" or "paper".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> pixel_flipping(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4)).shape
        torch.Size([2])
    """
    causes = as_maps(heatmaps, as_images(images))[1]
    curve = pixel_flipping_curve(
        model,
        images,
        heatmaps,
        target,
        step=step,
        baseline=baseline,
        score=score,
        protocol=protocol,
        batch_size=batch_size,
    )
    area = torch.trapezoid(curve.scores[:, 1:], dx=1.0, dim=1) if check_protocol(protocol) else curve.area()
    return settle("pixel-flipping", area, causes)


def deletion_curve(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Curve:
    """The score while pixels are deleted, most relevant first; options as in `deletion`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> deletion_curve(model, torch.rand(1, 3, 4, 4), torch.rand(1, 4, 4)).fractions.tolist()
        [[0.0, 0.25, 0.5, 0.75, 1.0]]
    """
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        return ordered_curve(scorer, maps, replacement(baseline, images), pixels_per_step(step, images, False))


def insertion_curve(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "blur",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Curve:
    """The score while pixels are inserted into the baseline, most relevant first; options as in `insertion`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> insertion_curve(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4), step=8).scores.shape
        torch.Size([2, 3])
    """
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        start, pixels = replacement(baseline, images), pixels_per_step(step, images, False)
        return ordered_curve(scorer, maps, start, pixels, inserting=True)


def deletion(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """Area under the score while the most relevant pixels go first (RISE, Petsiuk et al. 2018); lower is better.

        Deletion = ∫_0^1 p_y(x with its share t of most relevant pixels set to the baseline) dt

    Conventions: trapezoid over the share of pixels with both ends, so a last step that is smaller counts for
    less; `step` is one row's worth of pixels (224 at 224 px, as RISE); deleted pixels become 0, the training
    mean of normalised images; ties in reading order. The paper's own figures come from a library that cannot
    be had: this follows RISE. Only the order of the map matters.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        step: pixels deleted at once.
        baseline: what they become, see `egcam.metrics.baselines`.
        score: "probability", "logit" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> deletion(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4)).shape
        torch.Size([2])
    """
    causes = as_maps(heatmaps, as_images(images))[1]
    curve = deletion_curve(
        model, images, heatmaps, target, step=step, baseline=baseline, score=score, batch_size=batch_size
    )
    return settle("deletion", curve.area(), causes)


def insertion(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "blur",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """Area under the score while the most relevant pixels come first (RISE, Petsiuk et al. 2018); higher is better.

        Insertion = ∫_0^1 p_y(blurred x with its share t of most relevant pixels restored) dt

    Conventions: as in `deletion`; the start is x under an 11 x 11 Gaussian window of σ = 5 whose border is
    repeated (RISE pads with zeros, which darkens the edges).

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        step: pixels inserted at once.
        baseline: what they are inserted into, see `egcam.metrics.baselines`.
        score: "probability", "logit" or "sigmoid".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> insertion(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4)).shape
        torch.Size([2])
    """
    causes = as_maps(heatmaps, as_images(images))[1]
    curve = insertion_curve(
        model, images, heatmaps, target, step=step, baseline=baseline, score=score, batch_size=batch_size
    )
    return settle("insertion", curve.area(), causes)


def insertion_deletion(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    insertion_baseline: Baseline = "blur",
    deletion_baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Tensor:
    """Insertion less deletion; higher is better. Conventions and options as in the two.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> insertion_deletion(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4)).shape
        torch.Size([2])
    """
    images = as_images(images)
    maps, causes = as_maps(heatmaps, images)
    inserted, deleted = insertion_deletion_curves(
        model,
        images,
        maps,
        explained_target(target, heatmaps),
        step=step,
        insertion_baseline=insertion_baseline,
        deletion_baseline=deletion_baseline,
        score=score,
        batch_size=batch_size,
    )
    return settle("insertion-deletion", inserted.area() - deleted.area(), causes)


def insertion_deletion_curves(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    insertion_baseline: Baseline = "blur",
    deletion_baseline: Baseline = "zero",
    score: Score = "probability",
    batch_size: int | None = None,
) -> tuple[Curve, Curve]:
    """Both curves, insertion first, from one pass over the unaltered images.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> inserted, deleted = insertion_deletion_curves(model, torch.rand(1, 3, 4, 4), torch.rand(1, 4, 4))
        >>> bool(inserted.scores[0, -1] == deleted.scores[0, 0])
        True
    """
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    pixels = pixels_per_step(step, images, False)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        inserted = ordered_curve(scorer, maps, replacement(insertion_baseline, images), pixels, inserting=True)
        deleted = ordered_curve(scorer, maps, replacement(deletion_baseline, images), pixels)
    return inserted, deleted


def irof_curve(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    segments: Any = None,
    n_segments: int = 100,
    baseline: Baseline = "mean",
    score: Score = "probability",
    batch_size: int | None = None,
) -> Curve:
    """p_y(x_k) / p_y(x) while superpixels are removed, most relevant first; options as in `irof`.

    The fractions are those of the number of segments, k / L. A row with fewer segments than the longest ends
    in copies of its last point.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> quarters = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]])
        >>> irof_curve(model, torch.rand(1, 3, 4, 4), torch.rand(1, 4, 4), segments=quarters).scores.shape
        torch.Size([1, 5])
    """
    images = as_images(images)
    maps, _ = as_maps(heatmaps, images)
    if segments is None:
        labels = superpixels(images, check_positive("n_segments", n_segments))
    else:
        labels = as_segments(segments, images)
    groups, counts = _segments_by_relevance(maps, labels)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        altered = replaced_scores(scorer, images, replacement(baseline, images), groups, counts, cumulative=True)
    clean = scorer.clean[:, None]
    ratios = torch.where(clean != 0, altered / torch.where(clean != 0, clean, 1.0), 0.0)
    places = torch.arange(altered.shape[1] + 1, device=images.device).expand(len(images), -1)
    places = torch.minimum(places, counts[:, None])
    scores = torch.cat([torch.ones_like(clean), ratios], 1).gather(1, places)
    return Curve(places.to(scores) / counts[:, None], scores)


def _segments_by_relevance(maps: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N, H, W) the place of each pixel's segment in the order of mean relevance, and (N,) segments per image."""
    count = int(labels.max()) + 1
    sizes = group_sums(torch.ones_like(maps), labels, count)
    means = group_sums(maps, labels, count) / sizes.clamp(min=1)
    # Numbers that name no segment sort last, after every real one.
    means = means.masked_fill(sizes == 0, float("-inf"))
    order = means.argsort(dim=1, descending=True, stable=True)
    places = torch.empty_like(order).scatter_(1, order, torch.arange(count, device=maps.device).expand_as(order))
    return places.gather(1, labels.flatten(1)).view(labels.shape), (sizes > 0).sum(1)


def irof(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    segments: Any = None,
    n_segments: int = 100,
    baseline: Baseline | None = None,
    score: Score = "probability",
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Area over the relative score while superpixels are removed (Rieger & Hansen 2020); higher is better.

    L segments are sorted by their mean a and replaced one after the other, x_k having lost k of them:

        IROF = 1 - ∫_0^1 p_y(x_{tL}) / p_y(x) dt      (trapezoid over k/L, both ends)

    Conventions: SLIC superpixels of the image stretched to [0, 1] (needs scikit-image, the extra "study"), or
    the `segments` given; the baseline is the image's mean colour; the area is divided by L, so that images
    with other numbers of segments compare; it is negative where removing segments raises the score. A
    vanished p_y(x) gives ratio 0. protocol="paper" (Quantus 0.4.4; inferred): L - the area with unit spacing
    without the first point, and one grey mean of all channels. Only the order of the segments matters.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        segments: (N, H, W) or (H, W) whole numbers from 0; None makes superpixels.
        n_segments: how many superpixels SLIC aims at.
        baseline: what removed segments become; None is "mean" ("grey" in the paper's protocol).
        score: "probability", "logit" or "sigmoid".
        protocol: "default" or "paper".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> quarters = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]])
        >>> irof(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4), segments=quarters).shape
        torch.Size([2])
    """
    paper = check_protocol(protocol)
    causes = as_maps(heatmaps, as_images(images))[1]
    curve = irof_curve(
        model,
        images,
        heatmaps,
        target,
        segments=segments,
        n_segments=n_segments,
        baseline=baseline if baseline is not None else ("grey" if paper else "mean"),
        score=score,
        batch_size=batch_size,
    )
    if not paper:
        return settle("irof", 1 - curve.area(), causes)
    # Steps of zero width are the copies that fill short rows up.
    widths = (curve.fractions[:, 2:] > curve.fractions[:, 1:-1]).to(curve.scores)
    area = (widths * (curve.scores[:, 2:] + curve.scores[:, 1:-1]) / 2).sum(1)
    return settle("irof", 1 + widths.sum(1) - area, causes)


def sufficiency(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    threshold: float = 0.6,
    batch_size: int | None = None,
) -> Tensor:
    """Share of the images with a like map that get the same prediction (Dasgupta et al. 2022); higher is better.

    With |a| divided by its maximum, v_p the variance of pixel p over the set, and the distance
    d_ij = sqrt(Σ_p (a_ip - a_jp)² / v_p) divided by its largest value over the set:

        Sufficiency_i = #{j ≠ i : d_ij ≤ threshold, same prediction} / #{j ≠ i : d_ij ≤ threshold}

    Conventions: over the whole set of maps, so give it all of them at once; pixels that are the same in all
    maps are left out; an image without neighbours scores 0; a single image has no score. The target plays no
    part: the predictions do. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W), the whole set.
        heatmaps: (N, H, W) maps or an explanation.
        target: not used; there so that all metrics of maps are called alike.
        threshold: the distance, as a share of the largest, up to which maps are neighbours.
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> sufficiency(model, torch.rand(4, 3, 4, 4), torch.rand(4, 4, 4)).shape
        torch.Size([4])
    """
    images = as_images(images)
    maps, causes = as_maps(heatmaps, images)
    with forward_only(model, images.device):
        logits = Scorer(model, images, None, "logit", batch_size).logits
    assert logits is not None
    predicted = by_class(logits, known_classes(model, None)).argmax(1)
    return _sufficiency(maps, causes, predicted, threshold)


def sufficiency_of(heatmaps: Maps, predictions: Tensor, threshold: float = 0.6) -> Tensor:
    """`sufficiency` where the predictions are known: no model, no pass.

    Args:
        heatmaps: (N, H, W) maps of the whole set, or an explanation.
        predictions: (N,) the predicted classes.
        threshold: as there.

    Example:
        >>> alike = torch.eye(3).repeat(4, 1, 1)
        >>> sufficiency_of(alike, torch.tensor([5, 5, 5, 7])).tolist()
        [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 0.0]
    """
    maps, causes = as_maps(heatmaps)
    if predictions.shape != maps.shape[:1]:
        raise InputError(f"{len(maps)} map(s) need as many predictions, (N,), got {tuple(predictions.shape)}")
    return _sufficiency(maps, causes, predictions.to(maps.device), threshold)


def _sufficiency(maps: Tensor, causes: Causes, predictions: Tensor, threshold: float) -> Tensor:
    usable = torch.ones(len(maps), dtype=torch.bool, device=maps.device)
    usable[list(causes)] = False
    if usable.sum() < 2:
        causes.mark(usable, "sufficiency compares images, and there is no other")
        return settle("sufficiency", maps.new_zeros(len(maps)), causes)
    distances = _standardised_distances(scaled_by_peak(maps[usable]).abs().flatten(1))
    near = distances <= threshold
    near.fill_diagonal_(False)
    predicted = predictions[usable]
    same = near & (predicted[:, None] == predicted[None])
    scores = maps.new_zeros(len(maps))
    scores[usable] = same.sum(1).to(maps) / near.sum(1).clamp(min=1)
    return settle("sufficiency", scores, causes)


def _standardised_distances(rows: Tensor) -> Tensor:
    """(N, N) standardised Euclidean distances of the rows over the largest of them; all 0 when the rows are equal."""
    variance = rows.var(0)
    rounding = (4 * torch.finfo(rows.dtype).eps * rows.abs().amax(0)) ** 2
    varying = variance > rounding
    scaled = rows[:, varying] / variance[varying].sqrt()
    # The direct form: the faster |a|² + |b|² - 2ab loses small distances to rounding.
    distances = torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist")
    largest = distances.max() if distances.numel() else distances.new_zeros(())
    return distances / torch.where(largest > 0, largest, torch.ones_like(largest))


def infidelity(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    patch: int | None = None,
    scale: InfidelityScale | None = None,
    baseline: Baseline = "black",
    cumulative: bool = False,
    score: Score = "logit",
    protocol: Protocol = "default",
    batch_size: int | None = None,
    drops: Tensor | None = None,
) -> Tensor:
    """How far the map is from predicting what removing a patch does (Yeh et al. 2019); lower is better.

    Each square patch of a grid is replaced by the baseline in turn; I is x less the altered image:

        s = <a, I> = Σ_channels,pixels a·I        d = f_y(x) - f_y(x - I)        Infidelity = E_patches[(β s -
        d)²]

    Conventions: `scale` chooses β. "best" (default): β = E[s d] / E[s²], the scalar that fits best (0 for a
    zero map), so that the size of the map plays no part; note that β may be negative. "unit-sum": a is
    divided by Σ|a|. "raw": β = 1 on the map as given, the definition as written. Patches are a quarter of the
    shorter side (56 at 224 px); at the right and lower border they are cut. The grid is deterministic, so
    each patch is run once. protocol="paper": patch 56 (32 below 224 px) and, inferred from the size of the
    published figures, unit-sum maps.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        patch: the side of a patch in pixels; no larger than the image.
        scale: "best", "unit-sum" or "raw".
        baseline: what a patch becomes, see `egcam.metrics.baselines`.
        cumulative: keep earlier patches replaced, as Quantus 0.6.0 does.
        score: "logit", "probability" or "sigmoid".
        protocol: "default" or "paper".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.
        drops: (N, patches) what `patch_drops` gave for these images and options, where it is known: it does not depend
            on the maps, and then nothing is run.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False))
        >>> maps = model[1].weight[1].view(1, 4, 4)
        >>> bool(infidelity(model, torch.rand(1, 1, 4, 4), maps, 1, scale="raw") < 1e-10)
        True
    """
    paper = check_protocol(protocol)
    images = as_images(images)
    maps, causes = as_maps(heatmaps, images)
    scale = scale or ("unit-sum" if paper else "best")
    if scale not in ("best", "unit-sum", "raw"):
        raise InputError(f"unknown scale {scale!r}; {near_misses(scale, ('best', 'unit-sum', 'raw'))}")
    groups, count = _patch_grid(images, patch_side(patch, *images.shape[-2:], paper=paper))
    # Once, for a function given as baseline may draw.
    end = replacement(baseline, images)
    if drops is None:
        asked = explained_target(target, heatmaps)
        drops = _drops(model, images, asked, end, groups, count, cumulative, score, batch_size)
    elif drops.shape != (len(images), count):
        raise InputError(
            f"drops of shape {tuple(drops.shape)} for {len(images)} image(s) of {count} patches: "
            "they belong to other images or another patch"
        )
    change = (images - end).sum(1).to(maps)
    said = group_sums(maps * change, groups, count).to(drops)
    if cumulative:
        said = said.cumsum(1)
    return settle("infidelity", (_scaling(scale, said, drops, maps) * said - drops).square().mean(1), causes)


def patch_drops(
    model: nn.Module,
    images: Any,
    target: Target = None,
    *,
    patch: int | None = None,
    baseline: Baseline = "black",
    cumulative: bool = False,
    score: Score = "logit",
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """(N, patches) how much the score falls when each patch of a grid is replaced: infidelity's part without maps.

        d_k = f_y(x) - f_y(x with patch k replaced)

    Args:
        model: the classifier.
        images: (N, C, H, W).
        target: the explained classes; None is the prediction.
        patch: the side of a patch in pixels; no larger than the image.
        baseline: what a patch becomes, see `egcam.metrics.baselines`.
        cumulative: keep earlier patches replaced.
        score: "logit", "probability" or "sigmoid".
        protocol: "default" or "paper".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model, images = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), torch.rand(1, 1, 4, 4)
        >>> drops = patch_drops(model, images, 1)
        >>> maps = [torch.rand(1, 4, 4) for _ in range(10)]
        >>> scores = [infidelity(model, images, one, 1, drops=drops) for one in maps]
        >>> torch.equal(scores[0], infidelity(model, images, maps[0], 1))
        True
    """
    images = as_images(images)
    groups, count = _patch_grid(images, patch_side(patch, *images.shape[-2:], paper=check_protocol(protocol)))
    return _drops(model, images, target, replacement(baseline, images), groups, count, cumulative, score, batch_size)


def _drops(
    model: nn.Module,
    images: Tensor,
    target: Target,
    end: Tensor,
    groups: Tensor,
    count: int,
    cumulative: bool,
    score: Score,
    batch_size: int | None,
) -> Tensor:
    with forward_only(model, images.device):
        scorer = Scorer(model, images, target, score, batch_size)
        counts = torch.full((len(images),), count, device=images.device)
        return scorer.clean[:, None] - replaced_scores(scorer, images, end, groups, counts, cumulative)


def patch_side(patch: int | None, height: int, width: int, *, paper: bool) -> int:
    """The side in pixels of the patches that infidelity replaces: the one asked for, or that of the protocol.

    Example:
        >>> [patch_side(None, size, size, paper=True) for size in (224, 96)], patch_side(None, 90, 96, paper=False)
        ([56, 32], 22)
    """
    shorter = min(height, width)
    if patch is None:
        if not paper:
            return max(1, shorter // 4)
        patch = 56 if shorter >= 224 else 32
    if check_positive("patch", patch) > shorter:
        raise InputError(
            f"a patch of {patch} px does not fit images of {height} x {width}: pass patch={shorter} or less"
        )
    return int(patch)


def patch_count(side: int, height: int, width: int) -> int:
    """How many patches of this side cover an image; those at the right and lower border may be cut.

    Example:
        >>> patch_count(32, 96, 100)
        12
    """
    return -(-height // side) * -(-width // side)


def _patch_grid(images: Tensor, side: int) -> tuple[Tensor, int]:
    """(1, H, W) the number of the patch each pixel is in, row by row, and how many patches there are."""
    height, width = images.shape[-2:]
    across = -(-width // side)
    down = torch.arange(height, device=images.device)[:, None] // side
    groups = down * across + torch.arange(width, device=images.device) // side
    return groups[None], patch_count(side, height, width)


def _scaling(scale: str, said: Tensor, drops: Tensor, maps: Tensor) -> Tensor:
    """(N, 1) the factor β on what the map says."""
    if scale == "raw":
        return torch.ones_like(said[:, :1])
    over = maps.flatten(1).abs().sum(1, keepdim=True).to(said)
    fit = torch.ones_like(over)
    if scale == "best":
        fit, over = (said * drops).mean(1, keepdim=True), said.square().mean(1, keepdim=True)
    return torch.where(over > 0, fit / torch.where(over > 0, over, 1.0), 0.0)


def sensitivity_n(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    subsets: int = 20,
    baseline: Baseline = "black",
    score: Score = "logit",
    seed: int = 0,
    batch_size: int | None = None,
) -> Tensor:
    """Correlation of attributed and real effect of random sets of n pixels (Ancona et al. 2018); higher is better.

        Sensitivity-n = mean_n Pearson_S( Σ_{i in S} a_i ,  f_y(x) - f_y(x with S replaced) ),   |S| = n

    Conventions: for each share n / D, `subsets` sets drawn uniformly, the same for every image; a constant
    side of the correlation gives 0. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        shares: the sizes of the sets, as shares of the image.
        subsets: sets per size.
        baseline: what replaces pixels.
        score: "logit", "probability" or "sigmoid".
        seed: of the sets.
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> sensitivity_n(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4), subsets=5).shape
        torch.Size([2])
    """
    images = as_images(images)
    maps, causes = as_maps(heatmaps, images)
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"shares must lie above 0 and up to 1, got {shares}")
    places = _random_places(images, seed, check_positive("subsets", subsets))
    pixels = maps[0].numel()
    sizes = torch.tensor([max(1, round(share * pixels)) for share in shares], device=images.device)
    # Jobs in the order (image, size, subset).
    total, per_image = len(images), len(sizes) * subsets
    rows = torch.arange(total, device=images.device).repeat_interleave(per_image)
    drawn = torch.arange(total * per_image, device=images.device) % subsets
    wanted = sizes.repeat_interleave(subsets).repeat(total)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        end = replacement(baseline, images).expand_as(images)

        def make(part: slice) -> Tensor:
            gone = places[drawn[part]] < wanted[part].view(-1, 1, 1)
            return torch.where(gone[:, None], end[rows[part]], images[rows[part]])

        drops = scorer.clean[rows] - scorer.altered(rows, make)
    said = torch.stack([(places < size).flatten(1).to(maps) @ maps.flatten(1).T for size in sizes])
    said = said.permute(2, 0, 1).reshape(-1, subsets)
    causes.mark(~drops.view(total, -1).isfinite().all(1), "the model's output is not finite")
    correlations = pearson(said, drops.view(-1, subsets)).view(total, len(sizes))
    return settle("sensitivity-n", correlations.mean(1).to(drops), causes)


def _random_places(images: Tensor, seed: int, subsets: int) -> Tensor:
    """(subsets, H, W) random orders of the pixels; the first n places of one are a random set of n."""
    height, width = images.shape[-2:]
    orders = [torch.randperm(height * width, generator=generator(seed, number)) for number in range(subsets)]
    return torch.stack(orders).view(-1, height, width).to(images.device)


def monotonicity(
    model: nn.Module,
    images: Any,
    heatmaps: Maps,
    target: Target = None,
    *,
    step: int | None = None,
    baseline: Baseline = "black",
    score: Score = "probability",
    strict: bool = False,
    batch_size: int | None = None,
) -> Tensor:
    """Share of steps that do not lower the score, least relevant added first (Arya et al. 2019); higher is better.

        Monotonicity = #{k : p_y(x_k) ≥ p_y(x_{k-1})} / K,   x_0 the baseline, x_K the image

    Conventions: ties in reading order; `step` is one row's worth of pixels. `strict` gives Arya's own yes or
    no: 1 when every step rises or stays, else 0. Only the order of the map matters.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        heatmaps: (N, H, W) maps or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        step: pixels added at once.
        baseline: what they are added to.
        score: "probability", "logit" or "sigmoid".
        strict: all steps or nothing.
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> monotonicity(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4)).shape
        torch.Size([2])
    """
    images = as_images(images)
    maps, causes = as_maps(heatmaps, images)
    with forward_only(model, images.device):
        scorer = Scorer(model, images, explained_target(target, heatmaps), score, batch_size)
        start, pixels = replacement(baseline, images), pixels_per_step(step, images, False)
        curve = ordered_curve(scorer, maps, start, pixels, inserting=True, descending=False)
    causes.mark(~curve.scores.isfinite().all(1), "the model's output is not finite")
    rising = (curve.scores.diff(dim=1) >= 0).to(curve.scores)
    return settle("monotonicity", rising.amin(1) if strict else rising.mean(1), causes)


__all__ = [
    "deletion",
    "deletion_curve",
    "faithfulness_estimate",
    "infidelity",
    "insertion",
    "insertion_curve",
    "insertion_deletion",
    "insertion_deletion_curves",
    "irof",
    "irof_curve",
    "monotonicity",
    "pixel_flipping",
    "pixel_flipping_curve",
    "sensitivity_n",
    "sufficiency",
]
