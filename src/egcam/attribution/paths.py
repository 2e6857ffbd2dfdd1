"""Points on the path from references to the images, in the space of images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from egcam.attribution.averaging import Evaluations, Run
from egcam.attribution.kernels import Kernel
from egcam.attribution.references import Drawn, Reference, Visit
from egcam.attribution.sampling import Scheme
from egcam.attribution.task import Task, chunks
from egcam.errors import SamplingError, check_known
from egcam.imageops import places, size_of, wide_enough
from egcam.rng import generator

PathCallable: TypeAlias = Callable[[Tensor, Tensor, float], Tensor]
PathLike: TypeAlias = "Path | str | PathCallable"


class Path(ABC):
    """From x' (a = 0) to x (a = 1)."""

    @abstractmethod
    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """The points (n, C, H, W) at `share` a, with chance, if there is any, from `source`."""


@dataclass(frozen=True)
class Linear(Path):
    """z = x' + a (x - x')."""

    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """The straight line."""
        # Written as the image minus a rest, so that a = 1 gives the image to the last bit.
        return images - (1.0 - share) * (images - references)


@dataclass(frozen=True)
class RandomSubset(Path):
    """A share a of the pixels of x', chosen at random, is replaced by those of x.

    With `patch` > 1 squares of that side (runs of a signal, cubes of a volume) are replaced as a whole. The number
    replaced is exact: round(a * total).
    """

    patch: int = 1

    def __post_init__(self) -> None:
        if self.patch < 1:
            raise SamplingError(f"the side of a patch must be at least 1 pixel, not {self.patch}")

    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """Pixels of x where the mask says so, pixels of x' elsewhere."""
        size = size_of(images)
        cells = [-(-side // self.patch) for side in size]
        total = prod(cells)
        order = torch.randperm(total, generator=source, device="cpu")
        mask = torch.zeros(total, device="cpu")
        mask[order[: round(share * total)]] = 1.0
        full = functional.interpolate(mask.reshape(1, 1, *cells), scale_factor=self.patch, mode="nearest")
        chosen = full[(slice(None), slice(None), *(slice(side) for side in size))].to(images.device) > 0.5
        return torch.where(chosen, images, references)


@dataclass(frozen=True)
class Custom(Path):
    """The user's function of (references, images, a)."""

    function: PathCallable

    def between(self, references: Tensor, images: Tensor, share: float, source: torch.Generator) -> Tensor:
        """Whatever the function says, if it has the right shape."""
        points = self.function(references, images, share)
        if not isinstance(points, Tensor) or points.shape != images.shape:
            got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
            raise SamplingError(f"the path callable gave {got} for images of shape {tuple(images.shape)}")
        return points


PATHS: dict[str, Callable[[], Path]] = {"linear": Linear, "subset": RandomSubset}


def as_path(path: PathLike) -> Path:
    """The path of that name, a `Path` as it is, or that of a callable (references, images, a) -> points."""
    if isinstance(path, Path):
        return path
    if isinstance(path, str):
        check_known(path, PATHS, "path", SamplingError)
        return PATHS[path]()
    if callable(path):
        return Custom(path)
    raise SamplingError(f"a path is 'linear', 'subset' or a callable, not {type(path).__name__}")


Difference: TypeAlias = Literal["none", "input", "latent"]
DIFFERENCES: tuple[Difference, ...] = ("none", "input", "latent")

_MOST_LATENTS = 256  # reference activations kept for the latent difference


@dataclass(frozen=True)
class PathPlan:
    """The points of a path estimator, before any image is known.

    Attributes:
        samples: how many points.
        scheme: with which reference and where on the path each is taken.
        path: what lies between a reference and the image.
        kernel: smoothing noise added at the points.
        difference: the difference term d.
        seed: of all draws.
        per_sample: evaluations of each sample.
        fixed_reference: whether all samples of an image share its first reference.
        distinct: how many of a pool's references are drawn, if that is known beforehand.
    """

    samples: int
    scheme: Scheme
    path: Path = field(default_factory=Linear)
    kernel: Kernel | None = None
    difference: Difference = "none"
    seed: int = 0
    per_sample: int = 1
    fixed_reference: bool = False
    distinct: int | None = None


class DrawnReferences:
    """The references of one task's images, sample by sample."""

    def __init__(self, task: Task, source: Reference, plan: PathPlan) -> None:
        self.task = task
        self.source = source
        self.plan = plan
        self._bound = source.bind(task.images, task.rows.tolist(), plan.seed)
        self._fixed: Drawn | None = None

    def draw(self, images: Tensor, sample: int) -> tuple[Drawn, list[float]]:
        """The reference of each of the images numbered `images`, and its share a of the way.

        An image among its own references has one less of them, so its share may differ from the other images'.
        """
        drawn = self._drawn(images, sample)
        visits = drawn.visits if drawn.visits is not None else [Visit(sample, 0)] * len(images)
        return drawn, [self.plan.scheme.share(sample, visit) for visit in visits]

    def _drawn(self, images: Tensor, sample: int) -> Drawn:
        if self.source.varies and not self.plan.fixed_reference:
            return self._bound(images.tolist(), self.plan.scheme.draw_number(sample))
        if self._fixed is None:
            rows = self.task.rows.tolist()
            drawn = self._bound(list(range(len(rows))), 0)
            keys = [("fixed", row) if key is None else key for key, row in zip(drawn.keys, rows, strict=True)]
            self._fixed = Drawn(lambda: drawn.images, keys)
        fixed = self._fixed
        keys = [fixed.keys[row] for row in images.tolist()]
        return Drawn(lambda: fixed.images[images], keys, [Visit(0, sample)] * len(keys))


@dataclass(frozen=True)
class _Points:
    """Points z (B, C, H, W), the references they were made from, and where on the path each lies."""

    images: Tensor
    references: Tensor
    keys: list[Hashable]
    shares: list[float]

    @staticmethod
    def joined(parts: Sequence[_Points]) -> _Points:
        return _Points(
            torch.cat([part.images for part in parts]),
            torch.cat([part.references for part in parts]),
            [key for part in parts for key in part.keys],
            [share for part in parts for share in part.shares],
        )


class PathPoints(Evaluations):
    """The gradient at points between references and the images of one task, times the difference term."""

    def __init__(self, task: Task, source: Reference, plan: PathPlan) -> None:
        super().__init__(task)
        self.plan = plan
        self.references = DrawnReferences(task, source, plan)
        self.reference = source.described(plan.distinct)
        # Shared by all images of the call, which draw from the same references.
        self._latents: dict[Hashable, list[Tensor]] = task.memo.setdefault("latents", {})
        self._responses: list[Tensor] | None = None

    def weighted_gradients(self, runs: Sequence[Run]) -> list[Tensor]:
        """d * g at each layer."""
        own = torch.cat([run.images for run in runs])
        points = _Points.joined([self._points(run) for run in runs])
        gradients = [wide_enough(layer) for layer in self.task.gradients(points.images, own).gradients]
        factors = self._factors(own, points)
        if factors is None:
            return gradients
        return [factor * layer for factor, layer in zip(factors, gradients, strict=True)]

    def _points(self, run: Run) -> _Points:
        sample = run.evaluation // self.plan.per_sample
        images = self.task.images[run.images]
        drawn, shares = self.references.draw(run.images, sample)
        points = self._between(drawn.images, images, shares, [sample] * len(shares))
        if self.plan.kernel is not None:
            points = points + self.plan.kernel.noise(images, run.evaluation, self.plan.seed)
        return _Points(points, drawn.images, drawn.keys, shares)

    def _between(self, references: Tensor, images: Tensor, shares: Sequence[float], samples: Sequence[int]) -> Tensor:
        if len(set(zip(shares, samples, strict=True))) == 1:
            return self._at_share(references, images, shares[0], samples[0])
        parts = [
            self._at_share(references[row, None], images[row, None], share, sample)
            for row, (share, sample) in enumerate(zip(shares, samples, strict=True))
        ]
        return torch.cat(parts)

    def _at_share(self, references: Tensor, images: Tensor, share: float, sample: int) -> Tensor:
        return self.plan.path.between(references, images, share, generator(self.plan.seed, "path", sample))

    def _factors(self, own: Tensor, points: _Points) -> list[Tensor] | None:
        """The difference term d at each layer, (B, K, h, w), or None for 1."""
        if self.plan.difference == "none":
            return None
        if self.plan.difference == "input":
            found = self.task.features(self.task.images[own] - points.references, own)
            return [wide_enough(layer) for layer in found]
        here = [wide_enough(layer)[own.to(layer.device)] for layer in self.task.activations]
        there = self._latent(own, points)
        return [at_image - at_reference for at_image, at_reference in zip(here, there, strict=True)]

    def _latent(self, own: Tensor, points: _Points) -> list[Tensor]:
        """f(x') for each row; references that come again are passed through the network once."""
        keys = self._latent_keys(own, points.keys)
        missing = {key: row for row, key in enumerate(keys) if key is not None and key not in self._latents}
        rows = sorted({*missing.values(), *(row for row, key in enumerate(keys) if key is None)})
        fresh: dict[int, list[Tensor]] = {}
        if rows:
            found = self.task.features(points.references[rows], own[rows])
            fresh = {row: [wide_enough(layer[number]) for layer in found] for number, row in enumerate(rows)}
            self._latents.update({key: fresh[row] for key, row in missing.items()})
        per_row = [
            fresh[row] if key is None or key not in self._latents else self._latents[key]
            for row, key in enumerate(keys)
        ]
        while len(self._latents) > _MOST_LATENTS:
            self._latents.pop(next(iter(self._latents)))
        return [torch.stack(layer) for layer in zip(*per_row, strict=True)]

    def _latent_keys(self, own: Tensor, keys: list[Hashable]) -> list[Hashable]:
        """Keys by which f(x') may be looked up: with further inputs of the model, each image has its own f."""
        if not (self.task.probe.extra.args or self.task.probe.extra.kwargs):
            return keys
        rows = self.task.rows[own].tolist()
        return [None if key is None else (key, row) for key, row in zip(keys, rows, strict=True)]

    def channel_factors(self, images: Tensor) -> list[Tensor] | None:
        """The kernel's normaliser: the inverse of each channel's mean response to the noise alone."""
        kernel = self.plan.kernel
        if kernel is None or not kernel.normaliser:
            return None
        if self._responses is None:
            self._responses = self._mean_responses(kernel)
        chosen = [layer[images.to(layer.device)] if kernel.relative else layer for layer in self._responses]
        return [torch.where(layer == 0, torch.ones_like(layer), 1 / layer) for layer in chosen]

    def _mean_responses(self, kernel: Kernel) -> list[Tensor]:
        """E_eta[mean_ij f_k(eta)] for each layer, (n or 1, K, 1, 1)."""
        images = self.task.images if kernel.relative else self.task.images[:1]
        evaluations = self.plan.samples * self.plan.per_sample
        pairs = [(evaluation, row) for evaluation in range(evaluations) for row in range(len(images))]
        totals: list[Tensor] = []
        for batch in chunks(pairs, self.task.batch_size):
            noise = torch.cat([kernel.noise(images[row, None], e, self.plan.seed) for e, row in batch])
            own = torch.tensor([row for _, row in batch], device="cpu")
            for layer, found in enumerate(self.task.features(noise, own)):
                means = wide_enough(found).mean(places(found), keepdim=True)
                if len(totals) <= layer:
                    totals.append(means.new_zeros(len(images), *means.shape[1:]))
                for number, (_, row) in enumerate(batch):
                    totals[layer][row] += means[number]
        return [total * len(images) / len(pairs) for total in totals]


class NoisyCopies(Evaluations):
    """The gradient at noisy copies of the images."""

    def __init__(self, task: Task, kernel: Kernel, seed: int) -> None:
        super().__init__(task)
        self.kernel = kernel
        self.seed = seed

    def weighted_gradients(self, runs: Sequence[Run]) -> list[Tensor]:
        """g at x + eta."""
        own = torch.cat([run.images for run in runs])
        points = [self._points(run) for run in runs]
        return [wide_enough(layer) for layer in self.task.gradients(torch.cat(points), own).gradients]

    def _points(self, run: Run) -> Tensor:
        images = self.task.images[run.images]
        return images + self.kernel.noise(images, run.evaluation, self.seed)
