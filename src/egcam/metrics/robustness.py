"""Robustness: does the map stay when the image hardly changes?

x_k = x + noise_k are n perturbed copies of an image, a_k their maps for the same class. The noise depends on
the seed and on k only: all images share it, and a score does not depend on what else is in the batch. All
five metrics are reductions of one table of distances, `Case.perturbed`, which costs n explanations per image.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from egcam.metrics.case import Case
from egcam.metrics.inputs import check_positive
from egcam.metrics.noise import Noise
from egcam.metrics.perturbed import EPSILON, Copies, Perturbed
from egcam.metrics.registry import ExplainerMetric, register

NORMAL = Noise("normal", 0.0, 0.1)
UNIFORM = Noise("uniform", -0.2, 0.2)
PAPER_RELATIVE = Noise("uniform", 0.02, 0.2)
"""What Quantus's relative stabilities draw: their lower bound keeps its own default when the upper is set."""


_of_copies = partial(register, group="robustness", better="lower", reuses_maps=True, paper=True)
"""What all metrics here have in common."""


@dataclass(frozen=True)
class PerturbedMetric(ExplainerMetric):
    """A reduction of the table of distances between an image and perturbed copies of it, and between their maps.

    Attributes:
        noise: what is added to the image.
        samples: perturbations per image.
        seed: of the noise.
    """

    noise: Noise = UNIFORM
    samples: int = 10
    seed: int = 0

    outputs: ClassVar[bool] = False
    exact_zeros: ClassVar[bool] = False

    @property
    def _copies(self) -> Copies:
        return Copies(self.noise, self.seed, self.exact_zeros)

    @abstractmethod
    def reduce(self, seen: Perturbed, case: Case) -> Tensor:
        """(N,) the scores."""

    def foresee(self, case: Case) -> None:
        """Metrics with the same noise use the same perturbed images."""
        samples = check_positive("samples", self.samples)
        case.foresee_perturbed(self._copies, samples, samples if self.outputs else 0)

    def scores(self, case: Case) -> Tensor:
        samples = check_positive("samples", self.samples)
        seen = case.perturbed(self._copies, samples, samples if self.outputs else 0)
        case.undefined(~seen.finite.all(1), "the explainer's map of a perturbed copy holds NaN or infinite values")
        return self.reduce(seen, case)


def _no_map(seen: Perturbed, case: Case) -> None:
    case.undefined(seen.map_size == 0, "its map is zero everywhere, and relative changes of it have no size")


@_of_copies(
    "local-lipschitz",
    label="LLE",
    title="Local Lipschitz estimate",
    meaning="The largest change of the map per change of the image, over slightly noisy copies of the image.",
    paper_options={"samples": 200},
)
@dataclass(frozen=True)
class LocalLipschitz(PerturbedMetric):
    """Largest change of the map per change of the image (Alvarez-Melis & Jaakkola 2018); lower is better.

        LLE = max_k ||â - â_k|| / ||x - x_k||,   â = a / max|a| of each map by itself

    Conventions: noise N(0, 0.1²), 10 perturbations; the perturbed map keeps the class of the unperturbed
    image; a change of the image below 1e-6 counts as 1e-6. An explainer that always returns zero maps does
    not move: 0. Free of the map's scale. protocol="paper": 200 perturbations (inferred, Quantus's default).
    """

    noise: Noise = NORMAL

    def reduce(self, seen: Perturbed, case: Case) -> Tensor:
        return (seen.scaled_map_change / seen.input_change.clamp(min=EPSILON)).amax(1)


@_of_copies(
    "max-sensitivity",
    label="MaxSens",
    meaning="The largest relative change of the map over slightly noisy copies of the image.",
    paper_options={"samples": 200},
)
@dataclass(frozen=True)
class MaxSensitivity(PerturbedMetric):
    """Largest relative change of the map (Yeh et al. 2019); lower is better.

        MS = max_k ||a - a_k|| / ||a||

    Conventions: noise U(-0.2, 0.2), 10 perturbations; a zero map has no score. Free of the map's scale.
    protocol="paper": 200 perturbations (inferred, Quantus's default).
    """

    def reduce(self, seen: Perturbed, case: Case) -> Tensor:
        return self._ratios(seen, case).amax(1)

    def _ratios(self, seen: Perturbed, case: Case) -> Tensor:
        _no_map(seen, case)
        return seen.map_change / torch.where(seen.map_size > 0, seen.map_size, 1.0)[:, None]


@_of_copies(
    "avg-sensitivity",
    label="AvgSens",
    title="Average sensitivity",
    meaning="The mean relative change of the map over slightly noisy copies of the image.",
    paper_options={"samples": 200},
)
@dataclass(frozen=True)
class AvgSensitivity(MaxSensitivity):
    """Mean relative change of the map (Yeh et al. 2019); lower is better.

        AS = mean_k ||a - a_k|| / ||a||

    Conventions: as in `MaxSensitivity`.
    """

    def reduce(self, seen: Perturbed, case: Case) -> Tensor:
        return self._ratios(seen, case).mean(1)


@_of_copies(
    "relative-input-stability",
    label="RIS",
    meaning="The largest relative change of the map per relative change of the image, if the prediction stays.",
    paper_options={"noise": PAPER_RELATIVE, "samples": 200, "quantus": True},
)
@dataclass(frozen=True)
class RelativeInputStability(PerturbedMetric):
    """Largest relative change of the map per relative change of the image (Agarwal et al. 2022); lower is better.

        RIS = max_k ||(a - a_k) / a|| / max(||(x - x_k) / x||, 1e-6)     over the k that keep the prediction

    Conventions: noise U(-0.2, 0.2), 5 perturbations; divisors are kept at 1e-6 or more in size, so one zero
    pixel of the map that lights up counts a million-fold, as in the definition; no score where the map is
    zero everywhere, becomes so under perturbation, or where every perturbation changes the prediction. Free
    of the map's scale but for that floor. protocol="paper": noise U(0.02, 0.2), 200 perturbations and
    `quantus` (inferred, Quantus's defaults).

    Attributes:
        quantus: as Quantus does it: only exact zeros are replaced, and there is no score as soon as one
            perturbation changes the prediction.
    """

    samples: int = 5
    quantus: bool = False

    outputs: ClassVar[bool] = True

    @property
    def exact_zeros(self) -> bool:  # type: ignore[override]
        """Whether only exact zeros are replaced."""
        return self.quantus

    def reduce(self, seen: Perturbed, case: Case) -> Tensor:
        assert seen.same_prediction is not None
        same = seen.same_prediction
        _no_map(seen, case)
        case.undefined((seen.vanished & same).any(1), "its map becomes zero everywhere under perturbation")
        case.undefined(~same.any(1), "every perturbation changes the prediction")
        if self.quantus:
            cause = "a perturbation changes the prediction (the paper's protocol drops the image)"
            case.undefined(~same.all(1), cause)
        ratios = seen.relative_map_change / self._moved(seen).clamp(min=EPSILON)
        return torch.where(same, ratios, 0.0).amax(1)

    def _moved(self, seen: Perturbed) -> Tensor:
        return seen.relative_input_change


@_of_copies(
    "relative-output-stability",
    label="ROS",
    meaning="The largest relative change of the map per change of the network's output, if the prediction stays.",
    paper_options={"noise": PAPER_RELATIVE, "samples": 200, "quantus": True},
)
@dataclass(frozen=True)
class RelativeOutputStability(RelativeInputStability):
    """Largest relative change of the map per change of the logits (Agarwal et al. 2022); lower is better.

        ROS = max_k ||(a - a_k) / a|| / max(||f(x) - f(x_k)||, 1e-6)     over the k that keep the prediction

    Conventions: as in `RelativeInputStability`; f are all the logits.
    """

    def _moved(self, seen: Perturbed) -> Tensor:
        assert seen.output_change is not None
        return seen.output_change
