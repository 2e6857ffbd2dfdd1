"""Sanity: an explanation must change when the model or the class does (Adebayo et al. 2018, Sixt et al. 2020)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.imageops import by_row
from egcam.metrics.case import Case
from egcam.metrics.explaining import Explainer
from egcam.metrics.inputs import as_maps, check_positive
from egcam.metrics.noise import generator
from egcam.metrics.registry import ExplainerMetric, register
from egcam.metrics.similarity import similarity_called
from egcam.models.class_scores import by_class, class_count

_of_sanity = partial(register, group="sanity")
"""What all metrics here have in common."""


@_of_sanity(
    "model-randomization",
    better="lower",
    label="MPRT",
    meaning="The network's layers are randomised one after another; how similar the maps remain.",
)
@dataclass(frozen=True)
class ModelRandomization(ExplainerMetric):
    """Mean likeness of the maps while the model is randomised (MPRT, Adebayo et al. 2018); lower is better.

        MPRT = mean_l similarity( |a(x)|, |a_l(x)| ),   a_l the map with layers l and above randomised

    Conventions: cascading, from the last registered layer to the first; the class stays that of the intact
    model; constant maps (a randomised network often gives zero maps) have rank correlation 0. The explainer is
    one of egcam's (copied together with its model), or a function model -> explainer. Works on a deep copy:
    the model is not touched.

    Attributes:
        stages: how many stages are compared, evenly spread; None is every layer.
        similarity: "spearman", "pearson" or "ssim".
        absolute: compare the maps' absolute values.
        seed: of the new parameters.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> ModelRandomization()(model, torch.rand(2, 3, 4, 4), lambda net: lambda x, y: x.mean(1))
        tensor([1., 1.])
    """

    stages: int | None = None
    similarity: str = "spearman"
    absolute: bool = True
    seed: int = 0

    def curve(self, case: Case) -> Tensor:
        """(N, stages) likeness of the maps after each randomised layer, top first."""
        compare = similarity_called(self.similarity)
        twin, explain = _bound_to_copy(case.model, case.maker or case.explainer)
        twin.eval()
        layers = _layer_count(twin)
        wanted = None if self.stages is None else check_positive("stages", self.stages)

        def maps() -> Tensor:
            made = self._maps(case, explain)
            return made.abs() if self.absolute else made

        before = maps()
        stages = _cascade(twin, self.seed, _stages(layers, wanted))
        return torch.stack([compare(before, maps().to(before)) for _ in stages], 1)

    def _maps(self, case: Case, explain: Explainer) -> Tensor:
        return case.maps_by(explain)

    def scores(self, case: Case) -> Tensor:
        return self.curve(case).mean(1)


@_of_sanity(
    "smooth-model-randomization",
    better="lower",
    label="sMPRT",
    meaning="Model randomization with maps averaged over noisy copies of the image, so that noise does not count as "
    "change.",
)
@dataclass(frozen=True)
class SmoothModelRandomization(ModelRandomization):
    """MPRT of maps averaged over noisy images (smooth MPRT, Hedström et al. 2024); lower is better.

        sMPRT = mean_l similarity( |s(x)|, |s_l(x)| ),   s(x) = mean_j a(x + e_j),   e_j ~ N(0, noise^2 range(x)^2)

    A map that is noise changes with any weight, and so does well in MPRT; its average does not. The class stays that of
    the image without noise. Otherwise as `ModelRandomization`.

    Attributes:
        samples: how many noisy copies are averaged.
        noise: standard deviation, as a share of the image's range.
    """

    samples: int = 8
    noise: float = 0.1

    def _maps(self, case: Case, explain: Explainer) -> Tensor:
        check_positive("samples", self.samples)
        images = case.images
        extent = by_row(images.flatten(1).amax(1) - images.flatten(1).amin(1), images)

        def of_copy(number: int) -> Tensor:
            # The same for every image, so that the other images of the batch play no part.
            drawn = torch.randn(
                images.shape[1:], generator=generator(self.seed, number), device="cpu", dtype=torch.float64
            )
            return case.maps_by(explain, images + self.noise * extent * drawn.to(images))

        return reduce(add, map(of_copy, range(self.samples))) / self.samples


@_of_sanity(
    "efficient-model-randomization",
    better="higher",
    label="eMPRT",
    meaning="How much more uniform the map becomes once the whole network is randomised; 0 or less if the map does not "
    "depend on what the network has learned.",
)
@dataclass(frozen=True)
class EfficientModelRandomization(ExplainerMetric):
    """Rise of the map's complexity by randomising the model (eMPRT, Hedström et al. 2024); higher is better.

        eMPRT = ( H(a_random(x)) - H(a(x)) ) / H(a(x)),   H(a) = - sum over bins of q_b ln q_b

    q_b is the share of the map's values in bin b of a histogram between its least and its largest value. Nothing is
    compared pixel by pixel, and the network is randomised once, all layers together.

    Conventions: a constant map has H = 0; where the map of the intact model is constant there is no score.

    Attributes:
        bins: of the histogram.
        seed: of the new parameters.
    """

    bins: int = 100
    seed: int = 0

    def scores(self, case: Case) -> Tensor:
        check_positive("bins", self.bins)
        twin, explain = _bound_to_copy(case.model, case.maker or case.explainer)
        twin.eval()
        layers = _layer_count(twin)
        before = case.maps_by(explain)
        list(_cascade(twin, self.seed, [layers]))
        after = case.maps_by(explain)
        intact, random = self._entropy(before), self._entropy(after).to(before)
        case.undefined(intact == 0, "the map of the intact model is constant")
        return torch.where(intact == 0, torch.nan, (random - intact) / torch.where(intact == 0, 1.0, intact))

    def _entropy(self, maps: Tensor) -> Tensor:
        """(N,) of the histograms."""
        values = maps.flatten(1)
        low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
        extent = torch.where(high > low, high - low, 1.0)
        bins = ((values - low) / extent * self.bins).long().clamp(0, self.bins - 1)
        counts = torch.zeros(len(values), self.bins, dtype=values.dtype, device=values.device)
        counts.scatter_add_(1, bins, torch.ones_like(values))
        found: Tensor = torch.special.entr(counts / values.shape[1]).sum(1)
        return found


@_of_sanity(
    "class-sensitivity",
    better="lower",
    label="CS",
    meaning="How far the hottest places for the class and for the next most likely one overlap; 0 is chance.",
    reuses_maps=True,
)
@dataclass(frozen=True)
class ClassSensitivity(ExplainerMetric):
    """Overlap of the top places of the maps of two classes, beyond chance (after CASE, 2025); lower is better.

        o = |T(y) and T(y')| / max(|T(y)|, |T(y')|),   score = (o - chance) / (1 - chance)

    T are the map's top places, y' is the most likely class besides y. 1: the same places for both classes; 0: as many
    in common as two unrelated maps of so many top places.

    Conventions: maps are compared as the explainer gives them, egcam's at the size of the image. Places of a map's
    lowest value, and those without positive heat where there is any, are never its top, so that maps of a few hot
    places are compared by these; other ties go by one order of chance for both classes. A constant map scores 0.

    Attributes:
        share: of the places that are the top.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> ClassSensitivity(share=0.25)(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1))
        tensor([1., 1.])
    """

    share: float = 0.1

    def scores(self, case: Case) -> Tensor:
        if not 0 < self.share < 1:
            raise InputError(f"share must lie between 0 and 1, got {self.share}")
        classes = case.classes
        if classes is None:
            raise InputError("class-sensitivity explains a second class: it needs class targets, not a callable")
        logits = by_class(case.logits, case.names)
        if logits.shape[1] < 2:
            raise InputError("class-sensitivity explains a second class, and the model has one output only")
        others = logits.scatter(1, classes[:, None].to(logits.device), -torch.inf).argmax(1)
        return top_overlap(*_of_both_classes(case, others), self.share)


def top_overlap(first: Tensor, second: Tensor, share: float) -> Tensor:
    """(N,) how far the top places of two (N, h, w) stacks of maps are the same, beyond chance.

        (o - c) / (1 - c),   o = |T and T'| / max(|T|, |T'|),   c = min(|T|, |T'|) / (h w)

    Example:
        >>> a = torch.tensor([[[4.0, 3.0, 0.0, 0.0]]])
        >>> top_overlap(a, a, 0.5), top_overlap(a, a.flip(2), 0.5), top_overlap(a, torch.ones(1, 1, 4), 0.5)
        (tensor([1.]), tensor([-1.]), tensor([0.]))
        >>> top_overlap(a, a, 0.75)  # two of the three have heat
        tensor([1.])
    """
    places = first[0].numel()
    count = max(1, round(share * places))
    tops = [_top(maps, count) for maps in (first, second)]
    sizes = torch.stack([top.sum(1) for top in tops]).to(first)
    common = (tops[0] & tops[1]).sum(1) / sizes.amax(0).clamp(min=1)
    chance = sizes.amin(0) / places
    return torch.where(chance > 0, (common - chance) / (1 - chance), 0.0)


def _top(maps: Tensor, count: int) -> Tensor:
    """(N, D) which places are the largest, `count` at most, and no cold ones."""
    values = maps.flatten(1)
    order = torch.randperm(values.shape[1], generator=generator(0), device="cpu").to(values.device)
    ranked = order[values[:, order].argsort(dim=1, descending=True, stable=True)[:, :count]]
    top = torch.zeros_like(values, dtype=torch.bool).scatter_(1, ranked, True)
    least, most = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    # Of a signed map with positive heat that alone is at the top.
    return top & (values > torch.where(most > 0, least.clamp(min=0), least))


@_of_sanity(
    "random-logit",
    better="lower",
    label="RL",
    meaning="How similar the maps of the class and of another class are.",
    reuses_maps=True,
)
@dataclass(frozen=True)
class RandomLogit(ExplainerMetric):
    """Likeness of the maps for the class and for another one (Sixt et al. 2020); lower is better.

        RL = similarity( a(x, y), a(x, y') ),   y' ≠ y drawn at random

    Conventions: y' = y + r modulo the number of classes, r drawn once from the seed, so that it does not
    depend on the batch; maps are compared as the explainer gives them. "ssim" is 2-D structural similarity
    with 7 x 7 windows; "spearman" and "pearson" give 0 for constant maps.

    Attributes:
        similarity: "ssim", "spearman" or "pearson".
        seed: of the other class.
    """

    similarity: str = "ssim"
    seed: int = 0

    def scores(self, case: Case) -> Tensor:
        compare, classes = similarity_called(self.similarity), case.classes
        if classes is None:
            raise InputError("random-logit explains another class: it needs class targets, not a callable")
        total = class_count(case.logits.shape[1], case.names)
        if total < 2:
            raise InputError("random-logit explains another class, and the model has one output only")
        shift = int(torch.randint(1, total, (1,), generator=generator(self.seed)))
        return compare(*_of_both_classes(case, (classes + shift) % total))


def _of_both_classes(case: Case, others: Tensor) -> tuple[Tensor, Tensor]:
    """(N, h, w) the maps of the explained classes, and those of others, at the explainer's own size."""
    maps = case.own_maps
    made, causes = as_maps(case.maps_by(case.explainer, target=others), dimensions=case.images.ndim - 2)
    case.causes.update(causes)
    return maps, made.to(maps)


def _layer_count(model: nn.Module) -> int:
    layers = len(_layers(model))
    if not layers:
        raise InputError("model-randomization needs a model with parameters")
    return layers


def _layers(model: nn.Module) -> list[nn.Module]:
    """The modules that own parameters, from the output to the input in the order they were registered."""
    owning = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    return owning[::-1]


def _randomise(module: nn.Module, seed: int, number: int) -> None:
    """Give a module's own parameters the values of a fresh, untrained one.

    Weights of two or more dimensions are drawn from U(-b, b), b = 1 / sqrt(inputs per output), as PyTorch
    draws them, but from a generator of our own; biases of the same module likewise; normalisation layers go
    back to the identity.
    """
    source = generator(seed, number)
    weights = [value for value in module.parameters(recurse=False) if value.ndim > 1]
    reset: Any = getattr(module, "reset_parameters", None)
    if not weights and callable(reset):
        reset()
        return
    bound = 1 / math.sqrt(max(1, weights[0][0].numel())) if weights else 0.1
    with torch.no_grad():
        for value in module.parameters(recurse=False):
            drawn = torch.rand(value.shape, generator=source) * 2 * bound - bound
            value.copy_(drawn.to(value))


def _bound_to_copy(model: nn.Module, explainer: Any) -> tuple[nn.Module, Explainer]:
    """A copy of the model and an explainer of that copy; the user's own are never touched."""
    own = getattr(explainer, "model", None)
    if isinstance(own, nn.Module):
        try:
            copied = copy.deepcopy(explainer)
        except TypeError as error:
            raise InputError(
                f"this explainer cannot be copied together with its model ({error}): pass a function that makes one, "
                "e.g. lambda net: egcam.GradCAM(net)"
            ) from error
        return copied.model, copied
    twin = copy.deepcopy(model)
    try:
        made = explainer(twin)
    except TypeError:
        made = None
    if not callable(made):
        raise InputError(
            "model-randomization explains a changed copy of the model, so it needs one of egcam's explainers or a "
            "function that makes one for a model, model -> explainer"
        )
    return twin, made


def _stages(layers: int, wanted: int | None) -> list[int]:
    """After how many randomised layers the maps are compared: evenly spread, the last included."""
    if wanted is None or wanted >= layers:
        return list(range(1, layers + 1))
    return sorted({round(layers * (number + 1) / wanted) for number in range(wanted)})


def _cascade(model: nn.Module, seed: int, stages: list[int]) -> Iterator[int]:
    """Randomise layer after layer from the top, pausing at each stage."""
    for number, module in enumerate(_layers(model), 1):
        _randomise(module, seed, number)
        if number in stages:
            yield number
