"""Sanity: an explanation must change when the model or the class does (Adebayo et al. 2018, Sixt et al. 2020)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.metrics.case import Case
from egcam.metrics.explaining import Explainer, maps_in_batches
from egcam.metrics.functions import function_of
from egcam.metrics.inputs import as_maps, check_positive
from egcam.metrics.noise import generator
from egcam.metrics.registry import CLEAN, Metric, Work, register
from egcam.metrics.similarity import similarity_called
from egcam.models.targets import Target

USUAL_STAGES = 10
"""How many layers a model is thought to have before it is looked at."""


@register(
    "model-randomization",
    group="sanity",
    better="lower",
    label="MPRT",
    meaning="The network's layers are randomised one after the other; how alike the maps stay.",
    needs=["model", "explainer"],
)
@dataclass(frozen=True)
class ModelRandomization(Metric):
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
        >>> model_randomization(model, torch.rand(2, 3, 4, 4), lambda net: lambda x, y: x.mean(1))
        tensor([1., 1.])
    """

    stages: int | None = None
    similarity: str = "spearman"
    absolute: bool = True
    seed: int = 0

    def curve(self, case: Case) -> Tensor:
        """(N, stages) likeness of the maps after each randomised layer, top first."""
        compare = similarity_called(self.similarity)
        asked: Target = case.target if case.classes is None else case.classes
        twin, explain = _bound_to_copy(case.model, case.maker or case.explainer)
        twin.eval()
        layers = len(_layers(twin))
        if not layers:
            raise InputError("model-randomization needs a model with parameters")
        wanted = None if self.stages is None else check_positive("stages", self.stages)

        def maps() -> Tensor:
            made = maps_in_batches(explain, case.images, asked, case.batch_size)
            return made.abs() if self.absolute else made

        before = maps()
        stages = _cascade(twin, self.seed, _stages(layers, wanted))
        return torch.stack([compare(before, maps().to(before)) for _ in stages], 1)

    def scores(self, case: Case) -> Tensor:
        """(N,) the scores."""
        return self.curve(case).mean(1)

    def work(self, size: int, explanation: int) -> Sequence[Work]:
        """About an explanation for each stage; how many layers there are is not known before the model is."""
        return CLEAN, Work(self.name, (self.stages or USUAL_STAGES) * (explanation + 1))


@register(
    "random-logit",
    group="sanity",
    better="lower",
    label="RL",
    meaning="How alike the maps of the class and of another one are.",
    needs=["model", "explainer"],
    reuses_maps=True,
)
@dataclass(frozen=True)
class RandomLogit(Metric):
    """Likeness of the maps for the class and for another one (Sixt et al. 2020); lower is better.

        RL = similarity( a(x, y), a(x, y') ),   y' ≠ y drawn at random

    Conventions: y' = y + r modulo the number of classes, r drawn once from the seed, so that it does not
    depend on the batch; maps are compared as the explainer gives them. "ssim" is 2-D structural similarity
    with 7 x 7 windows; "spearman" and "pearson" give 0 for constant maps.

    Attributes:
        similarity: "ssim", "spearman" or "pearson".
        seed: of the other class.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> random_logit(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1))
        tensor([1., 1.])
    """

    similarity: str = "ssim"
    seed: int = 0

    def scores(self, case: Case) -> Tensor:
        """(N,) the scores."""
        compare, classes = similarity_called(self.similarity), case.classes
        if classes is None:
            raise InputError("random-logit explains another class: it needs class targets, not a callable")
        total = case.logits.shape[1]
        if total < 2:
            raise InputError("random-logit explains another class, and the model has one output only")
        shift = int(torch.randint(1, total, (1,), generator=generator(self.seed)))
        maps = case.own_maps
        others = maps_in_batches(case.explainer, case.images, (classes + shift) % total, case.batch_size)
        other_maps, causes = as_maps(others)
        case.causes.update(causes)
        return compare(maps, other_maps.to(maps))

    def work(self, size: int, explanation: int) -> Sequence[Work]:
        """One more explanation."""
        return CLEAN, Work(self.name, explanation)


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


model_randomization = ModelRandomization.function
random_logit = RandomLogit.function
model_randomization_curve = function_of(
    ModelRandomization,
    ModelRandomization.curve,
    """(N, stages) likeness of the maps after each randomised layer, top first; options as in `model_randomization`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model_randomization_curve(model, torch.rand(2, 3, 4, 4), lambda net: lambda x, y: x.mean(1)).shape
        torch.Size([2, 2])
    """,
    name="model_randomization_curve",
)
