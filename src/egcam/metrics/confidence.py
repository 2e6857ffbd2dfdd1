"""Confidence: what is left of the score when only what the map shows is shown.

The masked image is b + h·(x - b), h the map cut at 0 and divided by its maximum, b the baseline (0, the
training mean of normalised images, unless another is given). A zero map shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from egcam.imageops import size_of, upsampled
from egcam.metrics.baselines import Baseline
from egcam.metrics.case import Case, shown, within_run
from egcam.metrics.explaining import maps_in_batches
from egcam.metrics.imputation import SHARES, RoadBothOrders
from egcam.metrics.inputs import chunks, scaled_by_peak
from egcam.metrics.registry import ExplainerMetric, ModelMetric, register
from egcam.metrics.similarity import pearson
from egcam.models.class_scores import Score
from egcam.models.targets import of_images

_of_confidence = partial(register, group="confidence")


@dataclass(frozen=True)
class ConfidenceMetric(ModelMetric):
    """A comparison of the score before and after.

    Attributes:
        baseline: what shows where the map is 0.
        score: "probability" or "sigmoid".
    """

    baseline: Baseline = "zero"
    score: Score = "probability"

    @within_run
    def confidence(self, case: Case) -> tuple[Tensor, Tensor]:
        """(N,) scores of the images and (N,) of the images seen through their maps."""
        return case.shown_through_maps(self.baseline, self.score)


@_of_confidence(
    "average-drop",
    better="lower",
    label="AD",
    meaning="The share of the class score that is lost when only what the map shows is left.",
    many_ties=True,
)
@dataclass(frozen=True)
class AverageDrop(ConfidenceMetric):
    """Share of the score lost when only the map is shown (Chattopadhay et al. 2018); lower is better.

        AD = max(0, p_y(x) - p_y(x seen through a)) / p_y(x)

    Conventions: a share, 0 to 1, not per cent. Free of the map's scale.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
        >>> AverageDrop()(model, torch.rand(2, 3, 4, 4), torch.ones(2, 4, 4))
        tensor([0., 0.])
    """

    def scores(self, case: Case) -> Tensor:
        return _drop(*self.confidence(case))


def _drop(before: Tensor, after: Tensor) -> Tensor:
    """max(0, before - after) / before, 0 where there was nothing to lose; NaN stays NaN."""
    nothing = before <= 0
    return torch.where(nothing, 0.0 * after, (before - after).clamp(min=0) / torch.where(nothing, 1.0, before))


@_of_confidence(
    "increase-in-confidence",
    better="higher",
    label="IC",
    meaning="Whether the class score rises when only what the map shows is left.",
    many_ties=True,
)
@dataclass(frozen=True)
class IncreaseInConfidence(ConfidenceMetric):
    """1 where showing only the map raises the score, else 0 (Chattopadhay et al. 2018); higher is better.

        IC = [p_y(x seen through a) > p_y(x)]

    Conventions: its mean over images is the published rate. Free of the map's scale.
    """

    def scores(self, case: Case) -> Tensor:
        before, after = self.confidence(case)
        return torch.where((after - before).isfinite(), (after > before).to(before), float("nan"))


@_of_confidence(
    "average-gain",
    better="higher",
    label="AG",
    meaning="The share of the missing class score that is gained when only what the map shows is left.",
    many_ties=True,
)
@dataclass(frozen=True)
class AverageGain(ConfidenceMetric):
    """Share of the missing score gained when only the map is shown (Zhang et al. 2024); higher is better.

        AG = max(0, p_y(x seen through a) - p_y(x)) / (1 - p_y(x))

    Conventions: a share, 0 to 1, not per cent; the counterpart of Average Drop; 0 where there was nothing to
    gain. Free of the map's scale.
    """

    def scores(self, case: Case) -> Tensor:
        before, after = self.confidence(case)
        full = before >= 1
        return torch.where(full, 0.0 * after, (after - before).clamp(min=0) / torch.where(full, 1.0, 1 - before))


@_of_confidence(
    "adcc",
    better="higher",
    label="ADCC",
    title="ADCC",
    meaning="Three in one: whether the map stays the same when only what it shows is left, is concentrated, and keeps "
    "the class score.",
    reuses_maps=True,
)
@dataclass(frozen=True)
class Adcc(ExplainerMetric):
    """Harmonic mean of coherency, simplicity and kept confidence (Poppi et al. 2021); higher is better.

        ADCC = 3 / ( 1/Coherency + 1/(1 - mean h) + 1/(1 - AD) )
        Coherency = (1 + Pearson(a(x), a(x seen through a))) / 2,   h = max(a, 0) / max a

    Conventions: 0 as soon as one of the three is 0; a constant map has Pearson 0. Free of the map's scale.

    Attributes:
        baseline: what shows where the map is 0.
        score: "probability" or "sigmoid".
    """

    baseline: Baseline = "zero"
    score: Score = "probability"

    def scores(self, case: Case) -> Tensor:
        coherency, simplicity, after = _seen_through_map(case, self.baseline, self.score)
        kept = 1 - _drop(case.scorer(self.score).clean, after)
        return _harmonic_mean(coherency, simplicity, kept)


@_of_confidence(
    "arcc",
    better="higher",
    label="ARCC",
    title="ARCC",
    meaning="Three in one: whether the map stays the same when only what it shows is left, is concentrated, and does "
    "well on ROAD in both orders.",
    reuses_maps=True,
)
@dataclass(frozen=True)
class Arcc(ExplainerMetric):
    """Harmonic mean of coherency, simplicity and ROAD from both ends (Domeniconi et al. 2026); higher is better.

        ARCC = 3 / ( 1/Coherency + 1/(1 - mean h) + 1/R ),   R = 2 * ROAD from both ends, cut to [0, 1]

    ADCC with the drop of the masked image, which large maps do well in, replaced; see `Adcc` and `RoadBothOrders`.

    Attributes:
        baseline: what shows where the map is 0.
        shares: the shares of pixels removed.
        noise: standard deviation of the noise on filled-in pixels.
        score: "probability" or "sigmoid".
        seed: of the noise.
    """

    baseline: Baseline = "zero"
    shares: tuple[float, ...] = SHARES
    noise: float = 0.01
    score: Score = "probability"
    seed: int = 0

    def scores(self, case: Case) -> Tensor:
        coherency, simplicity, _ = _seen_through_map(case, self.baseline, self.score)
        road = RoadBothOrders(self.shares, self.noise, self.score, self.seed).scores(case)
        return _harmonic_mean(coherency, simplicity, (2 * road).clamp(0, 1))


def _seen_through_map(case: Case, baseline: Baseline, score: Score) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) coherency, simplicity, and the score of the image seen through its map."""
    scorer, images, asked, maps = case.scorer(score), case.images, case.asked, case.maps
    after, again = [], []
    for part in chunks(len(images), scorer.batch_size):
        seen = shown(images[part], maps[part], case.replacement(baseline, images[part]))
        after.append(scorer(seen, torch.arange(part.start, part.stop, device=images.device)))
        own = case.extra.part(torch.arange(part.start, part.stop, device="cpu"))
        again.append(maps_in_batches(case.explainer, seen, of_images(asked, part), scorer.batch_size, own))
    seen_again = upsampled(torch.cat(again), size_of(images))
    lost = ~seen_again.flatten(1).isfinite().all(1)
    case.undefined(lost, "the explainer's map of the masked image is not finite")
    coherency = (1 + pearson(maps.flatten(1), seen_again.nan_to_num().flatten(1).to(maps))) / 2
    simplicity = 1 - scaled_by_peak(maps.clamp(min=0)).flatten(1).mean(1)
    return coherency, simplicity, torch.cat(after)


def _harmonic_mean(coherency: Tensor, simplicity: Tensor, third: Tensor) -> Tensor:
    """(N,) 0 as soon as one is 0."""
    terms = torch.stack([coherency.to(third), simplicity.to(third), third])
    positive = (terms > 0).all(0)
    harmonic = 3 / (1 / torch.where(positive, terms, 1.0)).sum(0)
    # NaN terms are not positive either, and must stay visible.
    return torch.where(positive, harmonic, torch.where(terms.isfinite().all(0), 0.0, float("nan")))
