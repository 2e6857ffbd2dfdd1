"""Robustness: does the map stay when the image hardly changes?

x_k = x + noise_k are n perturbed copies of an image, a_k their maps for the same class. The noise depends on
the seed and on k only: all images share it, and a score does not depend on what else is in the batch. All
five metrics are reductions of one table of distances, `perturbed_explanations`, which costs n explanations
per image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.metrics.explaining import Explainer, maps_in_batches, maps_of
from egcam.metrics.inputs import (
    Maps,
    Protocol,
    as_images,
    as_maps,
    check_positive,
    check_protocol,
    chunks,
    explained_target,
    scaled_by_peak,
)
from egcam.metrics.noise import Noise
from egcam.metrics.scoring import Scorer, fitting_batch, forward_only
from egcam.metrics.undefined import Causes, settle
from egcam.models.targets import Target, by_class, class_scores, known_classes

NORMAL = Noise("normal", 0.0, 0.1)
UNIFORM = Noise("uniform", -0.2, 0.2)
PAPER_RELATIVE = Noise("uniform", 0.02, 0.2)
"""What Quantus's relative stabilities draw: their lower bound keeps its own default when the upper is set."""

EPSILON = 1e-6


@dataclass(frozen=True)
class Perturbed:
    """Distances between an image and its perturbed copies; all (N, n), `n` perturbations.

    Attributes:
        map_change: ||a - a_k||.
        scaled_map_change: the same for maps divided by their largest absolute value.
        relative_map_change: ||(a - a_k) / a||, |a| kept at 1e-6 or more.
        input_change: ||x - x_k||.
        relative_input_change: ||(x - x_k) / x||, |x| kept at 1e-6 or more.
        output_change: ||f(x) - f(x_k)||, or None when the model was not run.
        same_prediction: whether the class of x_k is that of x, or None.
        vanished: whether a_k is zero everywhere.
        finite: whether a_k is finite.
        map_size: (N,) ||a||.
        causes: images whose unperturbed map is not finite.
    """

    map_change: Tensor
    scaled_map_change: Tensor
    relative_map_change: Tensor
    input_change: Tensor
    relative_input_change: Tensor
    output_change: Tensor | None
    same_prediction: Tensor | None
    vanished: Tensor
    finite: Tensor
    map_size: Tensor
    causes: Causes

    def first(self, samples: int) -> Perturbed:
        """The same with the first `samples` perturbations only: what a run with fewer would have given."""
        cut = {
            name: value[:, :samples]
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and value.ndim == 2
        }
        return Perturbed(**{**vars(self), **cut})


def perturbed_explanations(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    noise: Noise = UNIFORM,
    samples: int = 10,
    outputs: bool = False,
    heatmaps: Maps | None = None,
    seed: int = 0,
    exact_zeros: bool = False,
    batch_size: int | None = None,
) -> Perturbed:
    """Explain `samples` perturbed copies of each image and keep only distances: what the five metrics share.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers.
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
            prediction for the unperturbed image.
        noise: what is added.
        samples: perturbations per image.
        outputs: also run the model on the perturbed images, as the relative stabilities need.
        heatmaps: the explainer's maps of the unperturbed images where they are at hand already.
        seed: of the noise.
        exact_zeros: replace only exact zeros by 1e-6 in relative changes, as Quantus does.
        batch_size: the most images explained at once; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> seen = perturbed_explanations(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1), samples=5)
        >>> seen.map_change.shape
        torch.Size([2, 5])
    """
    images = as_images(images)
    target = explained_target(target, heatmaps)
    samples = check_positive("samples", samples)
    batch_size = fitting_batch(batch_size, images.device)
    with forward_only(model, images.device):
        asked, logits = _known_classes(target, images), None
        # Classes that are known, in a metric that looks at maps only, need no pass.
        if outputs or asked is None:
            scorer = Scorer(model, images, target, "logit", batch_size)
            asked, logits = (scorer.classes if scorer.classes is not None else target), scorer.logits
        if heatmaps is None:
            heatmaps = maps_in_batches(explainer, images, asked, batch_size)
        maps, causes = as_maps(heatmaps)
        watch = _Watch(model, images, maps, logits, outputs, exact_zeros)
        # Perturbation by perturbation over all images, so that each noise is drawn about once.
        jobs = len(images) * samples
        parts = []
        for part in chunks(jobs, batch_size):
            job = torch.arange(part.start, part.stop, device=images.device)
            rows, numbers = job % len(images), job // len(images)
            altered = images[rows] + _draws(noise, seed, numbers, images[0])
            of_rows = asked[rows] if isinstance(asked, Tensor) else asked
            parts.append(watch.distances(rows, altered, maps_of(explainer, altered, of_rows)))
    names = parts[0].keys()
    joined = {name: torch.cat([part[name] for part in parts]).view(samples, len(images)).T for name in names}
    return Perturbed(
        **{name: joined.get(name) for name in _COLUMNS},  # type: ignore[arg-type]
        map_size=_norm(maps),
        causes=causes,
    )


def _known_classes(target: Target, images: Tensor) -> Target:
    """The target where it is one class for each image already, else None."""
    if not isinstance(target, Tensor) or target.shape != (len(images),):
        return None
    if target.dtype == torch.bool or target.is_floating_point() or target.is_complex():
        return None
    return target.to(images.device)


_COLUMNS = (
    "map_change",
    "scaled_map_change",
    "relative_map_change",
    "input_change",
    "relative_input_change",
    "output_change",
    "same_prediction",
    "vanished",
    "finite",
)


def _draws(noise: Noise, seed: int, numbers: Tensor, like: Tensor) -> Tensor:
    """(B, C, H, W) the noise of each perturbation number, every distinct one drawn once."""
    first, last = int(numbers.min()), int(numbers.max())
    return torch.stack([noise.draw(seed, number, like) for number in range(first, last + 1)])[numbers - first]


class _Watch:
    """Measures perturbed copies against the images they were made from."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        maps: Tensor,
        logits: Tensor | None,
        outputs: bool,
        exact_zeros: bool,
    ) -> None:
        self.model, self.images, self.maps, self.logits, self.outputs = model, images, maps, logits, outputs
        self.scaled = scaled_by_peak(maps)
        guarded = _exact_zeros_replaced if exact_zeros else _kept_from_zero
        self.map_divisor, self.image_divisor = guarded(maps), guarded(images)
        if outputs and logits is None:
            raise InputError("relative stability compares predictions: it needs class targets, not a callable")

    def distances(self, rows: Tensor, altered: Tensor, maps: Tensor) -> dict[str, Tensor]:
        """Everything the metrics need to know of a batch of perturbed copies of the images `rows`."""
        if maps.shape[1:] != self.maps.shape[1:]:
            raise InputError(
                f"maps of perturbed images are {tuple(maps.shape[1:])}, of the images {tuple(self.maps.shape[1:])}"
            )
        finite = maps.flatten(1).isfinite().all(1)
        maps = torch.where(finite[:, None, None], maps, torch.zeros_like(maps)).to(self.maps)
        change, moved = self.maps[rows] - maps, self.images[rows] - altered
        seen = {
            "map_change": _norm(change),
            "scaled_map_change": _norm(self.scaled[rows] - scaled_by_peak(maps)),
            "relative_map_change": _norm(change / self.map_divisor[rows]),
            "input_change": _norm(moved).to(maps),
            "relative_input_change": _norm(moved / self.image_divisor[rows]).to(maps),
            "vanished": ~maps.flatten(1).any(1),
            "finite": finite,
        }
        if self.outputs:
            assert self.logits is not None
            before, after = self.logits[rows], class_scores(self.model(altered.clone()), len(rows))
            seen["output_change"] = _norm(before - after).to(maps)
            names = known_classes(self.model, None)
            seen["same_prediction"] = by_class(before, names).argmax(1) == by_class(after, names).argmax(1)
        return seen


def _norm(values: Tensor) -> Tensor:
    return values.flatten(1).square().sum(1).sqrt()


def _kept_from_zero(values: Tensor) -> Tensor:
    """Values whose size is at least 1e-6, signs kept."""
    small = values.abs() < EPSILON
    return torch.where(small, torch.where(values < 0, -EPSILON, EPSILON).to(values), values)


def _exact_zeros_replaced(values: Tensor) -> Tensor:
    return torch.where(values == 0, torch.full_like(values, EPSILON), values)


def _samples(samples: int | None, usual: int, paper: bool) -> int:
    """The number of perturbations: as told, else 200 in the paper's protocol and few in ours."""
    return check_positive("samples", samples) if samples is not None else (200 if paper else usual)


def _finite_maps(seen: Perturbed) -> Causes:
    causes = Causes(seen.causes)
    causes.mark(~seen.finite.all(1), "the explainer's map of a perturbed copy holds NaN or infinite values")
    return causes


def reduce_local_lipschitz(seen: Perturbed, paper: bool = False) -> Tensor:
    """(N,) Local Lipschitz from the table of distances."""
    return settle(
        "local-lipschitz",
        (seen.scaled_map_change / seen.input_change.clamp(min=EPSILON)).amax(1),
        _finite_maps(seen),
    )


def _sensitivities(seen: Perturbed) -> tuple[Tensor, Causes]:
    causes = _finite_maps(seen)
    causes.mark(seen.map_size == 0, "its map is zero everywhere, and relative changes of it have no size")
    return seen.map_change / torch.where(seen.map_size > 0, seen.map_size, 1.0)[:, None], causes


def reduce_max_sensitivity(seen: Perturbed, paper: bool = False) -> Tensor:
    """(N,) Max-Sensitivity from the table of distances."""
    ratios, causes = _sensitivities(seen)
    return settle("max-sensitivity", ratios.amax(1), causes)


def reduce_avg_sensitivity(seen: Perturbed, paper: bool = False) -> Tensor:
    """(N,) Avg-Sensitivity from the table of distances."""
    ratios, causes = _sensitivities(seen)
    return settle("avg-sensitivity", ratios.mean(1), causes)


def _largest_while_same(name: str, ratios: Tensor, seen: Perturbed, paper: bool) -> Tensor:
    """The largest ratio over the perturbations that keep the prediction, and why there may be none."""
    causes = _finite_maps(seen)
    assert seen.same_prediction is not None
    same = seen.same_prediction
    causes.mark(seen.map_size == 0, "its map is zero everywhere, and relative changes of it have no size")
    causes.mark((seen.vanished & same).any(1), "its map becomes zero everywhere under perturbation")
    causes.mark(~same.any(1), "every perturbation changes the prediction")
    if paper:
        causes.mark(~same.all(1), "a perturbation changes the prediction (the paper's protocol drops the image)")
    return settle(name, torch.where(same, ratios, 0.0).amax(1), causes)


def reduce_relative_input_stability(seen: Perturbed, paper: bool = False) -> Tensor:
    """(N,) Relative Input Stability from the table of distances."""
    ratios = seen.relative_map_change / seen.relative_input_change.clamp(min=EPSILON)
    return _largest_while_same("relative-input-stability", ratios, seen, paper)


def reduce_relative_output_stability(seen: Perturbed, paper: bool = False) -> Tensor:
    """(N,) Relative Output Stability from the table of distances."""
    assert seen.output_change is not None
    ratios = seen.relative_map_change / seen.output_change.clamp(min=EPSILON)
    return _largest_while_same("relative-output-stability", ratios, seen, paper)


@dataclass(frozen=True)
class Recipe:
    """How a robustness metric perturbs and reduces, so that several can share one table of distances."""

    reduce: Callable[[Perturbed, bool], Tensor]
    noise: Noise
    paper_noise: Noise
    samples: int
    outputs: bool = False

    def setting(self, paper: bool, noise: Noise | None, samples: int | None) -> tuple[Noise, int]:
        """The noise and the number of perturbations in force."""
        return noise or (self.paper_noise if paper else self.noise), _samples(samples, self.samples, paper)


RECIPES: dict[str, Recipe] = {
    "local-lipschitz": Recipe(reduce_local_lipschitz, NORMAL, NORMAL, 10),
    "max-sensitivity": Recipe(reduce_max_sensitivity, UNIFORM, UNIFORM, 10),
    "avg-sensitivity": Recipe(reduce_avg_sensitivity, UNIFORM, UNIFORM, 10),
    "relative-input-stability": Recipe(reduce_relative_input_stability, UNIFORM, PAPER_RELATIVE, 5, True),
    "relative-output-stability": Recipe(reduce_relative_output_stability, UNIFORM, PAPER_RELATIVE, 5, True),
}


def _robustness(
    name: str,
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target,
    noise: Noise | None,
    samples: int | None,
    heatmaps: Maps | None,
    seed: int,
    protocol: Protocol,
    batch_size: int | None,
) -> Tensor:
    recipe, paper = RECIPES[name], check_protocol(protocol)
    noise, samples = recipe.setting(paper, noise, samples)
    seen = perturbed_explanations(
        model,
        images,
        explainer,
        target,
        noise=noise,
        samples=samples,
        outputs=recipe.outputs,
        heatmaps=heatmaps,
        seed=seed,
        exact_zeros=paper,
        batch_size=batch_size,
    )
    return recipe.reduce(seen, paper)


def local_lipschitz(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    noise: Noise | None = None,
    samples: int | None = None,
    heatmaps: Maps | None = None,
    seed: int = 0,
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Largest change of the map per change of the image (Alvarez-Melis & Jaakkola 2018); lower is better.

        LLE = max_k ||â - â_k|| / ||x - x_k||,   â = a / max|a| of each map by itself

    Conventions: noise N(0, 0.1²), 10 perturbations; the perturbed map keeps the class of the unperturbed
    image; a change of the image below 1e-6 counts as 1e-6. An explainer that always returns zero maps does
    not move: 0. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps
            count).
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
            prediction for the unperturbed image.
        noise: what is added to the image; None is the default above.
        samples: perturbations per image; None is the default above.
        heatmaps: the explainer's maps of the unperturbed images where they are at hand already.
        seed: of the noise.
        protocol: "default" or "paper" (200 perturbations unless told otherwise; inferred, Quantus's default).
        batch_size: the most images explained at once; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> local_lipschitz(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)).shape
        torch.Size([2])
    """
    return _robustness(
        "local-lipschitz",
        model,
        images,
        explainer,
        target,
        noise,
        samples,
        heatmaps,
        seed,
        protocol,
        batch_size,
    )


def max_sensitivity(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    noise: Noise | None = None,
    samples: int | None = None,
    heatmaps: Maps | None = None,
    seed: int = 0,
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Largest relative change of the map (Yeh et al. 2019); lower is better.

        MS = max_k ||a - a_k|| / ||a||

    Conventions: noise U(-0.2, 0.2), 10 perturbations; a zero map has no score. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps
            count).
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
            prediction for the unperturbed image.
        noise: what is added to the image; None is the default above.
        samples: perturbations per image; None is the default above.
        heatmaps: the explainer's maps of the unperturbed images where they are at hand already.
        seed: of the noise.
        protocol: "default" or "paper" (200 perturbations unless told otherwise; inferred, Quantus's default).
        batch_size: the most images explained at once; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> max_sensitivity(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)).shape
        torch.Size([2])
    """
    return _robustness(
        "max-sensitivity",
        model,
        images,
        explainer,
        target,
        noise,
        samples,
        heatmaps,
        seed,
        protocol,
        batch_size,
    )


def avg_sensitivity(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    noise: Noise | None = None,
    samples: int | None = None,
    heatmaps: Maps | None = None,
    seed: int = 0,
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Mean relative change of the map (Yeh et al. 2019); lower is better.

        AS = mean_k ||a - a_k|| / ||a||

    Conventions: noise U(-0.2, 0.2), 10 perturbations; a zero map has no score. Free of the map's scale.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps
            count).
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
            prediction for the unperturbed image.
        noise: what is added to the image; None is the default above.
        samples: perturbations per image; None is the default above.
        heatmaps: the explainer's maps of the unperturbed images where they are at hand already.
        seed: of the noise.
        protocol: "default" or "paper" (200 perturbations unless told otherwise; inferred, Quantus's default).
        batch_size: the most images explained at once; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> avg_sensitivity(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)).shape
        torch.Size([2])
    """
    return _robustness(
        "avg-sensitivity",
        model,
        images,
        explainer,
        target,
        noise,
        samples,
        heatmaps,
        seed,
        protocol,
        batch_size,
    )


def relative_input_stability(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    noise: Noise | None = None,
    samples: int | None = None,
    heatmaps: Maps | None = None,
    seed: int = 0,
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Largest relative change of the map per relative change of the image (Agarwal et al. 2022); lower is better.

        RIS = max_k ||(a - a_k) / a|| / max(||(x - x_k) / x||, 1e-6)     over the k that keep the prediction

    Conventions: noise U(-0.2, 0.2), 5 perturbations; divisors are kept at 1e-6 or more in size, so one zero
    pixel of the map that lights up counts a million-fold, as in the definition; no score where the map is
    zero everywhere, becomes so under perturbation, or where every perturbation changes the prediction. Free
    of the map's scale but for that floor.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps
            count).
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
            prediction for the unperturbed image.
        noise: what is added to the image; None is the default above.
        samples: perturbations per image; None is the default above.
        heatmaps: the explainer's maps of the unperturbed images where they are at hand already.
        seed: of the noise.
        protocol: "default" or "paper" (noise U(0.02, 0.2), 200 perturbations unless told otherwise, only
            exact zeros replaced, and no score as soon as one perturbation changes the prediction; inferred,
            Quantus's defaults).
        batch_size: the most images explained at once; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> relative_input_stability(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)).shape
        torch.Size([2])
    """
    return _robustness(
        "relative-input-stability",
        model,
        images,
        explainer,
        target,
        noise,
        samples,
        heatmaps,
        seed,
        protocol,
        batch_size,
    )


def relative_output_stability(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    noise: Noise | None = None,
    samples: int | None = None,
    heatmaps: Maps | None = None,
    seed: int = 0,
    protocol: Protocol = "default",
    batch_size: int | None = None,
) -> Tensor:
    """Largest relative change of the map per change of the logits (Agarwal et al. 2022); lower is better.

        ROS = max_k ||(a - a_k) / a|| / max(||f(x) - f(x_k)||, 1e-6)     over the k that keep the prediction

    Conventions: as in `relative_input_stability`; f are all the logits.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps
            count).
        target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
            prediction for the unperturbed image.
        noise: what is added to the image; None is the default above.
        samples: perturbations per image; None is the default above.
        heatmaps: the explainer's maps of the unperturbed images where they are at hand already.
        seed: of the noise.
        protocol: "default" or "paper" (as in `relative_input_stability`).
        batch_size: the most images explained at once; None is 8 on a CPU and 32 elsewhere.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> relative_output_stability(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)).shape
        torch.Size([2])
    """
    return _robustness(
        "relative-output-stability",
        model,
        images,
        explainer,
        target,
        noise,
        samples,
        heatmaps,
        seed,
        protocol,
        batch_size,
    )
