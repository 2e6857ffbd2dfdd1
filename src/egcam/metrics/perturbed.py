"""How far maps move when the image hardly does: the table of distances that all robustness metrics reduce."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from egcam.errors import InputError
from egcam.imageops import by_row
from egcam.metrics.explaining import maps_of
from egcam.metrics.inputs import chunks, scaled_by_peak
from egcam.metrics.noise import Noise
from egcam.models.class_scores import by_class, class_scores
from egcam.models.targets import of_images

if TYPE_CHECKING:
    from egcam.metrics.case import Case

EPSILON = 1e-6


@dataclass(frozen=True)
class Copies:
    """How images are perturbed and compared.

    Attributes:
        noise: what is added.
        seed: of the noise.
        exact_zeros: replace only exact zeros by 1e-6 in relative changes, as Quantus does.
    """

    noise: Noise
    seed: int
    exact_zeros: bool = False


@dataclass(frozen=True)
class Perturbed:
    """Distances between an image and its perturbed copies; all (N, n), `n` perturbations.

    Attributes:
        map_change: ||a - a_k||.
        scaled_map_change: the same for maps divided by their largest absolute value.
        relative_map_change: ||(a - a_k) / a||, |a| kept at 1e-6 or more.
        input_change: ||x - x_k||.
        relative_input_change: ||(x - x_k) / x||, |x| kept at 1e-6 or more.
        vanished: whether a_k is zero everywhere.
        finite: whether a_k is finite.
        map_size: (N,) ||a||.
        output_change: ||f(x) - f(x_k)|| of those on which the model was run, or None.
        same_prediction: whether the class of x_k is that of x, of the same ones, or None.
    """

    map_change: Tensor
    scaled_map_change: Tensor
    relative_map_change: Tensor
    input_change: Tensor
    relative_input_change: Tensor
    vanished: Tensor
    finite: Tensor
    map_size: Tensor
    output_change: Tensor | None = None
    same_prediction: Tensor | None = None

    def first(self, samples: int) -> Perturbed:
        """The same with the first `samples` perturbations only: what a run with fewer would have given."""
        tables = {name: value for name, value in vars(self).items() if value is not None and value.ndim == 2}
        return replace(self, **{name: value[:, :samples] for name, value in tables.items()})


def measure_perturbed(case: Case, copies: Copies, samples: int, outputs: int) -> Perturbed:
    """Explain `samples` perturbed copies of each image and keep only distances.

    Args:
        case: with an explainer; its maps are used where it has them.
        copies: how they are made.
        samples: perturbations per image.
        outputs: the model is run on that many of them too, as the relative stabilities need.
    """
    images = case.images
    # Classes that are known, in a metric that looks at maps only, need no pass.
    logits = case.logits if outputs and case.classes is not None else None
    asked, maps = case.asked, case.own_maps
    watch = _Watch(case, maps, logits, bool(outputs), copies.exact_zeros)
    # Perturbation by perturbation over all images, so that each noise is drawn about once.
    parts = []
    for part in chunks(len(images) * samples, case.batch_size):
        job = torch.arange(part.start, part.stop, device=images.device)
        rows, numbers = job % len(images), job // len(images)
        altered = images[rows] + _draws(copies.noise, copies.seed, numbers, images[0])
        made = maps_of(case.explainer, altered, of_images(asked, rows), case.extra.part(rows))
        seen = watch.distances(rows, altered, made)
        parts.append(seen | watch.outputs_of(rows, altered, numbers < outputs))
    joined = {name: torch.cat([part[name] for part in parts]).view(-1, len(images)).T for name in parts[0]}
    return Perturbed(**joined, map_size=_norm(maps))


def _draws(noise: Noise, seed: int, numbers: Tensor, like: Tensor) -> Tensor:
    """(B, C, H, W) the noise of each perturbation number, every distinct one drawn once."""
    first, last = int(numbers.min()), int(numbers.max())
    return torch.stack([noise.draw(seed, number, like) for number in range(first, last + 1)])[numbers - first]


class _Watch:
    """Measures perturbed copies against the images they were made from."""

    def __init__(self, case: Case, maps: Tensor, logits: Tensor | None, outputs: bool, exact_zeros: bool) -> None:
        self.case, self.images, self.maps, self.logits = case, case.images, maps, logits
        self.scaled = scaled_by_peak(maps)
        guarded = _exact_zeros_replaced if exact_zeros else _kept_from_zero
        self.map_divisor, self.image_divisor = guarded(maps), guarded(case.images)
        if outputs and logits is None:
            raise InputError("relative stability compares predictions: it needs class targets, not a callable")

    def distances(self, rows: Tensor, altered: Tensor, maps: Tensor) -> dict[str, Tensor]:
        """Everything the metrics need to know of a batch of perturbed copies of the images `rows`."""
        if maps.shape[1:] != self.maps.shape[1:]:
            raise InputError(
                f"maps of perturbed images are {tuple(maps.shape[1:])}, of the images {tuple(self.maps.shape[1:])}"
            )
        finite = maps.flatten(1).isfinite().all(1)
        maps = torch.where(by_row(finite, maps), maps, torch.zeros_like(maps)).to(self.maps)
        change, moved = self.maps[rows] - maps, self.images[rows] - altered
        return {
            "map_change": _norm(change),
            "scaled_map_change": _norm(self.scaled[rows] - scaled_by_peak(maps)),
            "relative_map_change": _norm(change / self.map_divisor[rows]),
            "input_change": _norm(moved).to(maps),
            "relative_input_change": _norm(moved / self.image_divisor[rows]).to(maps),
            "vanished": ~maps.flatten(1).any(1),
            "finite": finite,
        }

    def outputs_of(self, rows: Tensor, altered: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """What the model makes of the copies that are `wanted`."""
        if self.logits is None:
            return {}
        rows, altered = rows[wanted], altered[wanted]
        if not len(rows):
            none = self.maps.new_empty(0)
            return {"output_change": none, "same_prediction": none.bool()}
        args, kwargs = self.case.extra.rows(rows)
        before, after = self.logits[rows], class_scores(self.case.model(altered.clone(), *args, **kwargs), len(rows))
        names = self.case.names
        same = by_class(before, names).argmax(1) == by_class(after, names).argmax(1)
        return {"output_change": _norm(before - after).to(self.maps), "same_prediction": same}


def _norm(values: Tensor) -> Tensor:
    return values.flatten(1).square().sum(1).sqrt()


def _kept_from_zero(values: Tensor) -> Tensor:
    """Values whose size is at least 1e-6, signs kept."""
    small = values.abs() < EPSILON
    return torch.where(small, torch.where(values < 0, -EPSILON, EPSILON).to(values), values)


def _exact_zeros_replaced(values: Tensor) -> Tensor:
    return torch.where(values == 0, torch.full_like(values, EPSILON), values)
