"""Faithfulness: does the map say what the model uses?

Notation: x an image of D = H·W pixels (or a signal's samples, a volume's voxels), a its map, y the explained class,
f the logits, p the softmax. A pixel is replaced in all its channels at once. Every metric gives one score per image, an
(N,) tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from egcam.attribution.regions import as_segments, superpixels
from egcam.errors import InputError, check_known
from egcam.imageops import Size, along, by_row, has_double, size_of, upsampled
from egcam.metrics.baselines import Baseline
from egcam.metrics.case import Case, within_run
from egcam.metrics.inputs import Maps, as_maps, check_positive, scaled_by_peak
from egcam.metrics.neighbours import neighbour_shares, standardised, standardised_cells
from egcam.metrics.noise import generator
from egcam.metrics.perturb import Curve, group_sums, pixels_per_step, relevance_ranks, replaced_scores, steps_of
from egcam.metrics.registry import ModelMetric, register
from egcam.metrics.similarity import pearson
from egcam.metrics.undefined import Causes, settle
from egcam.models.class_scores import Score, by_class

InfidelityScale = Literal["best", "unit-sum", "raw"]

_faithful = partial(register, group="faithfulness")


@dataclass(frozen=True)
class CurveMetric(ModelMetric):
    """Read off the score's curve while pixels are replaced in the map's order; the area under it unless said otherwise.

    Conventions: ties in reading order; `step` is one row's worth of pixels (224 at 224 px), the last one may be
    smaller. Only the order of the map matters. Metrics of one case that ask for the same curve share it.

    Attributes:
        step: pixels replaced at once.
        baseline: what they become, or are put into; see `egcam.metrics.replacement`.
        score: "probability", "logit" or "sigmoid".
    """

    step: int | None = None
    baseline: Baseline = "black"
    score: Score = "probability"

    inserting: ClassVar[bool] = False
    most_relevant_first: ClassVar[bool] = True
    is_shown: ClassVar[bool] = False  # whether reports and figures draw the curve

    @within_run
    def curve(self, case: Case) -> Curve:
        """The score while pixels are replaced."""
        step = pixels_per_step(self.step, case.images)
        found = case.curve(self.baseline, step, self.score, self.inserting, self.most_relevant_first)
        if self.is_shown:
            case.curves[self.name] = found
        return found

    def scores(self, case: Case) -> Tensor:
        return self.curve(case).area()


@_faithful(
    "faithfulness-estimate",
    better="higher",
    label="FE",
    meaning="Groups of pixels are removed one at a time; the correlation between their share of the map and the drop "
    "in the class score. 1 if the map's values are in proportion.",
    paper=True,
    paper_options={"step": 224, "baseline": "darkest"},
)
@dataclass(frozen=True)
class FaithfulnessEstimate(ModelMetric):
    """Correlation of attributed and real effect of groups of pixels (Alvarez-Melis 2018); higher is better.

    Pixels are sorted by a and cut into groups S of `step`; each group alone is replaced by the baseline:

        FE = Pearson_S( Σ_{i in S} a_i ,  f_y(x) - f_y(x with S replaced) )

    Conventions: `step` is one row's worth of pixels (224 at 224 px; always 224 in the paper's protocol), the
    last group may be smaller; black is the image's smallest value; a constant map, or a score that never
    changes, has correlation 0. Undefined when there is a single group. Free of the map's scale.

    Attributes:
        step: pixels per group.
        baseline: what replaces pixels, see `egcam.metrics.baselines`.
        score: "logit", "probability" or "sigmoid".

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2, bias=False))
        >>> images = torch.rand(2, 1, 4, 4) + 1
        >>> maps = model[1].weight[0].view(4, 4) * images[:, 0]
        >>> [round(value, 3) for value in FaithfulnessEstimate(step=1, baseline=0.0)(model, images, maps, 0).tolist()]
        [1.0, 1.0]
    """

    step: int | None = None
    baseline: Baseline = "black"
    score: Score = "logit"

    def scores(self, case: Case) -> Tensor:
        images, maps = case.images, case.maps
        step = pixels_per_step(self.step, images)
        groups, count = relevance_ranks(maps) // step, steps_of(step, maps[0].numel())
        if count < 2:
            every = torch.ones(len(images), dtype=torch.bool)
            case.undefined(every, f"one group: a step of {step} pixels is the whole image")
        scorer, counts = case.scorer(self.score), torch.full((len(images),), count, device=images.device)
        end = case.replacement(self.baseline)
        drops = scorer.clean[:, None] - replaced_scores(scorer, images, end, groups, counts, cumulative=False)
        case.undefined(~drops.isfinite().all(1), "the model's output is not finite")
        return pearson(group_sums(maps, groups, count), drops).to(drops)


@_faithful(
    "pixel-flipping",
    better="lower",
    label="PF",
    meaning="Pixels are blackened, the most important ones first; the area under the class score.",
    paper=True,
    paper_options={"step": 224, "baseline": "darkest", "quantus": True},
)
@dataclass(frozen=True)
class PixelFlipping(CurveMetric):
    """Area under the score while pixels are flipped, most relevant first (Bach et al. 2015); lower is better.

        PF = ∫_0^1 p_y(x with its share t of most relevant pixels replaced) dt      (trapezoid, both ends)

    protocol="paper": step 224, `quantus`, and each image's smallest value as black.

    Attributes:
        quantus: the area of Quantus 0.4.4: the unaltered first point left out and unit spacing, so that it
            grows with the number of steps, up to 223 at 224 px.
    """

    quantus: bool = False

    def scores(self, case: Case) -> Tensor:
        curve = self.curve(case)
        return torch.trapezoid(curve.scores[:, 1:], dx=1.0, dim=1) if self.quantus else curve.area()


@_faithful(
    "insertion",
    better="higher",
    label="Ins",
    meaning="Pixels of a blurred image are put back, the most important ones first; the area under the class score. "
    "High if the map finds what the network needs.",
    paper=True,
)
@dataclass(frozen=True)
class Insertion(CurveMetric):
    """Area under the score while the most relevant pixels come first (RISE, Petsiuk et al. 2018); higher is better.

        Insertion = ∫_0^1 p_y(blurred x with its share t of most relevant pixels restored) dt

    Conventions: the start is x under an 11 x 11 Gaussian window of σ = 5 whose border is repeated (RISE pads with
    zeros, which darkens the edges).
    """

    baseline: Baseline = "blur"

    inserting: ClassVar[bool] = True
    is_shown: ClassVar[bool] = True


@_faithful(
    "deletion",
    better="lower",
    label="Del",
    meaning="Pixels are removed, the most important ones first; the area under the class score. Low if the map finds "
    "what the network cannot do without.",
    paper=True,
)
@dataclass(frozen=True)
class Deletion(CurveMetric):
    """Area under the score while the most relevant pixels go first (RISE, Petsiuk et al. 2018); lower is better.

        Deletion = ∫_0^1 p_y(x with its share t of most relevant pixels set to the baseline) dt

    Conventions: trapezoid over the share of pixels with both ends, so a last step that is smaller counts for
    less; deleted pixels become 0, the training mean of normalised images. The paper's own figures come from a library
    that is not available: this follows RISE.
    """

    baseline: Baseline = "zero"

    is_shown: ClassVar[bool] = True


@_faithful(
    "insertion-deletion",
    better="higher",
    label="Ins-Del",
    title="Insertion-deletion",
    meaning="Insertion minus deletion: one number for both.",
    paper=True,
)
@dataclass(frozen=True)
class InsertionDeletion(ModelMetric):
    """Insertion minus deletion; higher is better.

    Conventions and options as in the two.

    Attributes:
        step: pixels changed at once.
        insertion_baseline: what they are inserted into.
        deletion_baseline: what they become.
        score: "probability", "logit" or "sigmoid".
    """

    step: int | None = None
    insertion_baseline: Baseline = "blur"
    deletion_baseline: Baseline = "zero"
    score: Score = "probability"

    @property
    def both(self) -> tuple[Insertion, Deletion]:
        """The two it is made of."""
        inserting = Insertion(self.step, self.insertion_baseline, self.score)
        return inserting, Deletion(self.step, self.deletion_baseline, self.score)

    @within_run
    def curves(self, case: Case) -> tuple[Curve, Curve]:
        """Both curves, insertion first."""
        inserting, deleting = self.both
        return inserting.curve(case), deleting.curve(case)

    def scores(self, case: Case) -> Tensor:
        inserted, deleted = self.curves(case)
        return inserted.area() - deleted.area()


@_faithful(
    "irof",
    better="higher",
    label="IROF",
    title="IROF",
    meaning="Superpixels are removed, the most important ones first; the area over the class score. High if the map "
    "finds what the network cannot do without.",
    paper=True,
    paper_options={"baseline": "grey", "quantus": True},
)
@dataclass(frozen=True)
class Irof(ModelMetric):
    """Area over the relative score while superpixels are removed (Rieger & Hansen 2020); higher is better.

    L segments are sorted by their mean a and replaced one after the other, x_k having lost k of them:

        IROF = 1 - ∫_0^1 p_y(x_{tL}) / p_y(x) dt      (trapezoid over k/L, both ends)

    Conventions: SLIC superpixels of the image stretched to [0, 1] (needs scikit-image, the extra "study"), or
    the `segments` given; the baseline is the image's mean colour; the area is divided by L, so that images
    with other numbers of segments compare; it is negative where removing segments raises the score. A
    vanished p_y(x) gives ratio 0. protocol="paper" (Quantus 0.4.4; inferred): `quantus`, and one grey mean of
    all channels. Only the order of the segments matters.

    Attributes:
        segments: (N, H, W) or (H, W) whole numbers from 0; None makes superpixels.
        n_segments: how many superpixels SLIC aims at.
        baseline: what removed segments become.
        score: "probability", "logit" or "sigmoid".
        quantus: L - the area with unit spacing without the first point.
    """

    segments: Any = None
    n_segments: int = 100
    baseline: Baseline = "mean"
    score: Score = "probability"
    quantus: bool = False

    @within_run
    def curve(self, case: Case) -> Curve:
        """p_y(x_k) / p_y(x) over k / L; rows with fewer segments than the longest end in copies of their last point."""
        images = case.images
        if self.segments is None:
            labels = superpixels(images, check_positive("n_segments", self.n_segments))
        else:
            labels = as_segments(self.segments, images)
        groups, counts = _segments_by_relevance(case.maps, labels)
        scorer, end = case.scorer(self.score), case.replacement(self.baseline)
        altered = replaced_scores(scorer, images, end, groups, counts, cumulative=True)
        clean = scorer.clean[:, None]
        ratios = torch.where(clean != 0, altered / torch.where(clean != 0, clean, 1.0), 0.0)
        places = torch.arange(altered.shape[1] + 1, device=images.device).expand(len(images), -1)
        places = torch.minimum(places, counts[:, None])
        scores = torch.cat([torch.ones_like(clean), ratios], 1).gather(1, places)
        return Curve(places.to(scores) / counts[:, None], scores)

    def scores(self, case: Case) -> Tensor:
        curve = self.curve(case)
        if not self.quantus:
            return 1 - curve.area()
        # Steps of zero width are the copies that fill short rows up.
        widths = (curve.fractions[:, 2:] > curve.fractions[:, 1:-1]).to(curve.scores)
        area = (widths * (curve.scores[:, 2:] + curve.scores[:, 1:-1]) / 2).sum(1)
        return 1 + widths.sum(1) - area


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


@_faithful(
    "sufficiency",
    better="higher",
    label="Suff",
    meaning="Of the images with a similar map, the share that get the same prediction.",
    whole_set=True,
    paper=True,
)
@dataclass(frozen=True)
class Sufficiency(ModelMetric):
    """Share of the images with a similar map that get the same prediction (Dasgupta et al. 2022); higher is better.

    With |a| divided by its maximum, v_p the variance of pixel p over the set, and the distance
    d_ij = sqrt(Σ_p (a_ip - a_jp)² / v_p) divided by its largest value over the set:

        Sufficiency_i = #{j ≠ i : d_ij ≤ threshold, same prediction} / #{j ≠ i : d_ij ≤ threshold}

    Conventions: over the whole set of maps, so give it all of them at once; pixels that are the same in all
    maps are left out; an image without neighbours scores 0; a single image has no score. The target plays no
    part: the predictions do. Free of the map's scale.

    Attributes:
        threshold: the distance, as a share of the largest, up to which maps are neighbours.
    """

    threshold: float = 0.6

    def scores(self, case: Case) -> Tensor:
        predicted = by_class(case.logits, case.names).argmax(1)
        maps = case.maps
        return _sufficiency(maps, Causes(case.unusable), predicted, self.threshold, case.causes)


def sufficiency_of(heatmaps: Maps, predictions: Tensor, threshold: float = 0.6) -> Tensor:
    """`Sufficiency` where the predictions are known: no model, no pass.

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
    scores = _sufficiency(maps, Causes(causes), predictions.to(maps.device), threshold, causes)
    return settle("sufficiency", scores, causes)


def sufficiency_of_cells(cells: Tensor, size: Sequence[int], predictions: Tensor, threshold: float = 0.6) -> Tensor:
    """`sufficiency_of` for finite maps as a layer has them, which are enlarged to `size`: the same in far less time.

    Args:
        cells: (N, h, w) maps of the whole set, before they are enlarged.
        size: of the images.
        predictions: (N,) the predicted classes.
        threshold: as there.

    Example:
        >>> sufficiency_of_cells(torch.eye(3).repeat(4, 1, 1), (6, 6), torch.tensor([5, 5, 5, 7])).tolist()
        [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 0.0]
    """
    rows = standardised_cells(cells, size) if len(cells) > 1 else None
    if rows is None:
        return sufficiency_of(upsampled(cells, size), predictions, threshold)
    return neighbour_shares(rows, predictions, threshold).to(cells)


def _sufficiency(maps: Tensor, unusable: Causes, predictions: Tensor, threshold: float, causes: Causes) -> Tensor:
    usable = torch.ones(len(maps), dtype=torch.bool, device=maps.device)
    usable[list(unusable)] = False
    if usable.sum() < 2:
        causes.mark(usable, "sufficiency compares images, and there is no other")
        return maps.new_zeros(len(maps))
    rows = standardised(scaled_by_peak(maps[usable]).abs().flatten(1))
    # Not every device supports double precision.
    rows = rows if has_double(rows.device) else rows.cpu()
    scores = maps.new_zeros(len(maps))
    scores[usable] = neighbour_shares(rows, predictions[usable].to(rows.device), threshold).to(scores)
    return scores


@_faithful(
    "infidelity",
    better="lower",
    label="Inf",
    meaning="Patches are removed one at a time; how badly the map predicts the change in the class score.",
    paper=True,
    paper_options={"patch": "paper", "scale": "unit-sum", "baseline": "darkest"},
)
@dataclass(frozen=True)
class Infidelity(ModelMetric):
    """How far the map is from predicting what removing a patch does (Yeh et al. 2019); lower is better.

    Each square patch of a grid is replaced by the baseline in turn; I is x less the altered image:

        s = <a, I> = Σ_channels,pixels a·I        d = f_y(x) - f_y(x - I)        Infidelity = E_patches[(β s -
        d)²]

    Conventions: `scale` chooses β. "best" (default): β = E[s d] / E[s²], the scalar that fits best (0 for a
    zero map), so that the size of the map plays no part; note that β may be negative. "unit-sum": a is
    divided by Σ|a|. "raw": β = 1 on the map as given, the definition as written. Patches at the right and
    lower border are cut. The grid is deterministic, so each patch is run once. protocol="paper": its patches
    and, inferred from the size of the published figures, unit-sum maps.

    Attributes:
        patch: the side of a patch in pixels, no larger than the image; None is a quarter of the shorter side
            (56 at 224 px), a sixteenth of a signal, a quarter of each side of a volume or video; "paper" is 56, and 32
            below 224 px.
        scale: "best", "unit-sum" or "raw".
        baseline: what a patch becomes, see `egcam.metrics.baselines`.
        cumulative: keep earlier patches replaced, as Quantus 0.6.0 does.
        score: "logit", "probability" or "sigmoid".

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2, bias=False))
        >>> maps = model[1].weight[1].view(1, 4, 4)
        >>> bool(Infidelity(scale="raw")(model, torch.rand(1, 1, 4, 4), maps, 1) < 1e-10)
        True
    """

    patch: int | Literal["paper"] | None = None
    scale: InfidelityScale = "best"
    baseline: Baseline = "black"
    cumulative: bool = False
    score: Score = "logit"

    def scores(self, case: Case) -> Tensor:
        check_known(self.scale, get_args(InfidelityScale), "scale")
        images, maps = case.images, case.maps
        groups, count = _patch_grid(images, patch_sides(self.patch, size_of(images)))
        # Once, because a function given as baseline may be random.
        end = case.replacement(self.baseline)
        drops = self._drops(case, end)
        said = group_sums(maps * (images - end).sum(1).to(maps), groups, count).to(drops)
        if self.cumulative:
            said = said.cumsum(1)
        return (_scaling(self.scale, said, drops, maps) * said - drops).square().mean(1)

    @within_run
    def patch_drops(self, case: Case) -> Tensor:
        """(N, patches) how much the score falls when each patch is replaced: the part that no map plays in."""
        return self._drops(case, case.replacement(self.baseline))

    def _drops(self, case: Case, end: Tensor) -> Tensor:
        sides = patch_sides(self.patch, size_of(case.images))
        groups, count = _patch_grid(case.images, sides)
        key = ("patches", *sides, self.baseline, self.cumulative, self.score)
        return case.patch_drops(key, end, groups, count, self.cumulative, self.score)


def patch_sides(patch: int | Literal["paper"] | None, size: Size) -> Size:
    """The sides in pixels of the patches that infidelity replaces.

    Example:
        >>> [patch_sides("paper", (side, side)) for side in (224, 96)], patch_sides(None, (90, 96))
        ([(56, 56), (32, 32)], (22, 22))
        >>> patch_sides(None, (1000,)), patch_sides(None, (16, 112, 112))
        ((62,), (4, 28, 28))
    """
    shorter = min(size)
    if patch is None:
        usual = {1: [shorter // 16], 2: [shorter // 4] * 2}.get(len(size), [side // 4 for side in size])
        return tuple(max(1, side) for side in usual)
    if isinstance(patch, str):
        if patch != "paper":
            raise InputError(f"patch is a number of pixels, or 'paper', not {patch!r}")
        if len(size) != 2:
            raise InputError("the paper's patches are those of images: pass patch=None, or a number")
        patch = 56 if shorter >= 224 else 32
    if check_positive("patch", patch) > shorter:
        of = " x ".join(map(str, size))
        raise InputError(f"a patch of {patch} px does not fit images of {of}: pass patch={shorter} or less")
    return (int(patch),) * len(size)


def patch_count(sides: Size, size: Size) -> int:
    """How many patches of these sides cover an image; those at the far borders may be cut.

    Example:
        >>> patch_count((32, 32), (96, 100))
        12
    """
    return prod(-(-whole // side) for side, whole in zip(sides, size, strict=True))


def _patch_grid(images: Tensor, sides: Size) -> tuple[Tensor, int]:
    """(1, H, W) the number of the patch each pixel is in, row by row, and how many patches there are."""
    size = size_of(images)
    groups = torch.zeros((), dtype=torch.long, device=images.device)
    for axis, (side, whole) in enumerate(zip(sides, size, strict=True)):
        numbers = torch.arange(whole, device=images.device) // side
        groups = groups * -(-whole // side) + along(numbers, axis, len(size))
    return groups[None], patch_count(sides, size)


def _scaling(scale: str, said: Tensor, drops: Tensor, maps: Tensor) -> Tensor:
    """(N, 1) the factor β on what the map says."""
    if scale == "raw":
        return torch.ones_like(said[:, :1])
    over = maps.flatten(1).abs().sum(1, keepdim=True).to(said)
    fit = torch.ones_like(over)
    if scale == "best":
        fit, over = (said * drops).mean(1, keepdim=True), said.square().mean(1, keepdim=True)
    return torch.where(over > 0, fit / torch.where(over > 0, over, 1.0), 0.0)


@_faithful(
    "sensitivity-n",
    better="higher",
    label="Sens-n",
    meaning="Random sets of pixels are removed; the correlation between their share of the map and the drop in the "
    "class score.",
)
@dataclass(frozen=True)
class SensitivityN(ModelMetric):
    """Correlation of attributed and real effect of random sets of n pixels (Ancona et al. 2018); higher is better.

        Sensitivity-n = mean_n Pearson_S( Σ_{i in S} a_i ,  f_y(x) - f_y(x with S replaced) ),   |S| = n

    Conventions: for each share n / D, `subsets` sets drawn uniformly, the same for every image; a constant
    side of the correlation gives 0. Free of the map's scale.

    Attributes:
        shares: the sizes of the sets, as shares of the image.
        subsets: sets per size.
        baseline: what replaces pixels.
        score: "logit", "probability" or "sigmoid".
        seed: of the sets.
    """

    shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    subsets: int = 20
    baseline: Baseline = "black"
    score: Score = "logit"
    seed: int = 0

    def scores(self, case: Case) -> Tensor:
        images, maps, subsets = case.images, case.maps, check_positive("subsets", self.subsets)
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise InputError(f"shares must lie above 0 and up to 1, got {self.shares}")
        places = _random_places(images, self.seed, subsets)
        pixels = maps[0].numel()
        sizes = torch.tensor([max(1, round(share * pixels)) for share in self.shares], device=images.device)
        # Jobs in the order (image, size, subset).
        total, per_image = len(images), len(sizes) * subsets
        rows = torch.arange(total, device=images.device).repeat_interleave(per_image)
        drawn = torch.arange(total * per_image, device=images.device) % subsets
        wanted = sizes.repeat_interleave(subsets).repeat(total)
        scorer, end = case.scorer(self.score), case.replacement(self.baseline).expand_as(images)

        def make(part: slice) -> Tensor:
            gone = places[drawn[part]] < by_row(wanted[part], places)
            return torch.where(gone[:, None], end[rows[part]], images[rows[part]])

        drops = scorer.clean[rows] - scorer.altered(rows, make)
        said = torch.stack([(places < size).flatten(1).to(maps) @ maps.flatten(1).T for size in sizes])
        said = said.permute(2, 0, 1).reshape(-1, subsets)
        case.undefined(~drops.view(total, -1).isfinite().all(1), "the model's output is not finite")
        return pearson(said, drops.view(-1, subsets)).view(total, len(sizes)).mean(1).to(drops)


def _random_places(images: Tensor, seed: int, subsets: int) -> Tensor:
    """(subsets, H, W) random orders of the pixels; the first n places of one are a random set of n."""
    size = size_of(images)
    orders = [torch.randperm(prod(size), generator=generator(seed, number)) for number in range(subsets)]
    return torch.stack(orders).view(-1, *size).to(images.device)


@_faithful(
    "monotonicity",
    better="higher",
    label="Mono",
    meaning="Pixels are added, the least important ones first; the share of steps that do not lower the class score.",
)
@dataclass(frozen=True)
class Monotonicity(CurveMetric):
    """Share of steps that do not lower the score, least relevant added first (Arya et al. 2019); higher is better.

        Monotonicity = #{k : p_y(x_k) ≥ p_y(x_{k-1})} / K,   x_0 the baseline, x_K the image

    Attributes:
        strict: Arya's own yes or no: 1 when every step rises or stays, else 0.
    """

    strict: bool = False

    inserting: ClassVar[bool] = True
    most_relevant_first: ClassVar[bool] = False

    def scores(self, case: Case) -> Tensor:
        curve = self.curve(case)
        case.undefined(~curve.scores.isfinite().all(1), "the model's output is not finite")
        rising = (curve.scores.diff(dim=1) >= 0).to(curve.scores)
        return rising.amin(1) if self.strict else rising.mean(1)
