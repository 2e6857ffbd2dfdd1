"""Estimators: how the gradient dy/dA at a layer is obtained.

    Vanilla      at the image itself
    Smooth       averaged over noisy copies of the image
    Integrated   averaged along the straight path from one baseline
    Expected     averaged over references, path points and noise: the estimator of Expected Grad-CAM

Every estimator fits every gradient CAM. The averaged ones evaluate the gradient at points z_s and average d_s * g_s,
with d the difference term (1 unless asked for).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import ceil
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from egcam.errors import SamplingError, near_misses
from egcam.explainers.kernels import Kernel, KernelLike, as_kernel
from egcam.explainers.options import is_whole
from egcam.explainers.paths import Linear, PathLike, as_path
from egcam.explainers.sampling import Midpoints, Sampling, Scheme, check_sampling, scheme
from egcam.explainers.task import Task, chunks
from egcam.randomness import generator
from egcam.references import Drawn, Reference, ReferenceLike, Visit, as_reference

Difference: TypeAlias = Literal["none", "input", "latent"]
DIFFERENCES: tuple[Difference, ...] = ("none", "input", "latent")

_CHECK_FROM = 4  # replicates before a standard error is believed enough to stop on it
_MOST_LATENTS = 256  # reference activations kept for the latent difference


@dataclass(frozen=True)
class Moments:
    """Averages of g, and where they are asked for of g^2, g^3 and |g| (`size`), at one layer; each (n, K, h, w)."""

    first: Tensor
    second: Tensor | None = None
    third: Tensor | None = None
    size: Tensor | None = None

    @staticmethod
    def of(gradient: Tensor, order: int) -> Moments:
        """The moments of a single gradient."""
        return Moments.listed(powers(gradient, order), gradient.abs())

    @staticmethod
    def listed(powers_of_g: Sequence[Tensor], size: Tensor | None) -> Moments:
        """From [g], [g, g^2] or [g, g^2, g^3], and |g|."""
        first, second, third = [*powers_of_g, None, None][:3]
        assert first is not None
        return Moments(first, second, third, size)

    def scaled(self, factor: Tensor) -> Moments:
        """The moments of g * factor."""
        second = None if self.second is None else self.second * factor**2
        third = None if self.third is None else self.third * factor**3
        size = None if self.size is None else self.size * factor.abs()
        return Moments(self.first * factor, second, third, size)


def powers(gradient: Tensor, order: int) -> list[Tensor]:
    """[g], or [g, g^2, g^3] in the widest float the device has: cubes of small gradients underflow in float32."""
    if order == 1:
        return [gradient]
    wide = gradient if gradient.device.type == "mps" else gradient.double()
    return [gradient, wide**2, wide**3][:order]


def wide_enough(tensor: Tensor) -> Tensor:
    """At least float32, so that half-precision gradients are averaged without loss."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@dataclass(frozen=True)
class Wanted:
    """What a CAM wants of an estimator.

    Attributes:
        order: how many moments of the gradient the weighting needs.
        sizes: whether the mean of |g| is needed as well.
        rectify: whether maps will be rectified; the stopping rule looks at what the user will see.
        by_sample: average the (rectified) maps of the single gradients rather than take the map of their average.
    """

    order: int = 1
    sizes: bool = False
    rectify: bool = True
    by_sample: bool = False


MapOf: TypeAlias = Callable[[list[Moments], Tensor], list[Tensor]]


@dataclass(frozen=True)
class Estimate:
    """Maps before the ReLU, one (n, h, w) per layer, with their standard errors where they were sampled."""

    maps: list[Tensor]
    errors: list[Tensor] | None = None
    reference: str | None = None


class Estimator(ABC):
    """How dy/dA is obtained."""

    @property
    @abstractmethod
    def passes(self) -> int:
        """Passes through the network for each image (at most, where sampling may stop early)."""

    @abstractmethod
    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Estimate:
        """The maps of a task's images.

        Args:
            task: the images, not yet looked at.
            wanted: which moments of the gradient the maps are made of, and how.
            map_of: from moments (one per layer) and the numbers of the images they belong to, to maps before the ReLU.
        """


@dataclass(frozen=True)
class Vanilla(Estimator):
    """The gradient at the image: g = dy/dA at x. One pass."""

    @property
    def passes(self) -> int:
        """One."""
        return 1

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Estimate:
        """The maps from one pass."""
        seen = task.look(with_gradient=True)
        assert seen.gradients is not None
        moments = [Moments.of(wide_enough(gradient), wanted.order) for gradient in seen.gradients]
        return Estimate(map_of(moments, torch.arange(len(task.images), device="cpu")))


class _Draws(ABC):
    """Where an averaged estimator looks at the gradient, for the images of one task."""

    reference: str | None = None

    @abstractmethod
    def points(self, own: Tensor, evaluation: int) -> Points:
        """The points of evaluation number `evaluation` for the images numbered `own`."""

    def factors(self, own: Tensor, points: Points) -> list[Tensor] | None:
        """The difference term d at each layer, (B, K, h, w), or None for 1."""
        return None

    def channel_factors(self, own: Tensor) -> list[Tensor] | None:
        """A factor for each channel of each layer, (n or 1, K, 1, 1), or None for 1."""
        return None


@dataclass(frozen=True)
class Points:
    """Points z (B, C, H, W) and the references they were made from."""

    images: Tensor
    references: Drawn | None = None

    @staticmethod
    def joined(parts: Sequence[Points]) -> Points:
        """Several sets of points as one."""
        points = torch.cat([part.images for part in parts])
        drawn = [part.references for part in parts if part.references is not None]
        if not drawn:
            return Points(points)
        keys = [key for part in drawn for key in part.keys]
        return Points(points, Drawn(torch.cat([part.images for part in drawn]), keys))


class Averaged(Estimator):
    """An estimator that averages over evaluations, grouped into independent replicates.

    Each replicate is a complete small version of the design, so the scatter of the replicates' maps gives an honest
    standard error, whatever happens inside a replicate (stratification, references without repetition). The replicates
    of a lattice fill each other's gaps rather than being independent, so there the error is an upper bound.
    """

    @abstractmethod
    def _draws(self, task: Task) -> _Draws: ...

    @abstractmethod
    def _replicates(self) -> list[int]:
        """How many samples each replicate has; a single replicate gives no error."""

    @property
    def _evaluations_per_sample(self) -> int:
        return 1

    @property
    def _tolerance(self) -> float | None:
        return None

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Estimate:
        """Average over rounds of whole replicates until all are done or every image's error is small enough."""
        task.look()
        draws = self._draws(task)
        average = (_OfMaps if wanted.by_sample else _OfGradients)(draws, wanted, map_of)
        ledger = _Ledger(len(task.images), wanted.rectify)
        totals = _Totals(len(task.images))
        active = torch.arange(len(task.images), device="cpu")
        evaluation = 0
        remaining = self._replicates()
        while remaining and len(active):
            now = self._round(remaining, len(active), task.batch_size)
            if self._tolerance is not None:
                # What lies beyond the point where an image stops is thrown away: at most as much again as was used.
                now = now[: max(_CHECK_FROM, len(self._replicates()) - len(remaining))]
            remaining = remaining[len(now) :]
            sums = _replicate_sums(task, draws, active, evaluation, now, self._evaluations_per_sample, average)
            evaluation += sum(now) * self._evaluations_per_sample
            alive = torch.ones(len(active), dtype=torch.bool, device="cpu")
            for number, size in enumerate(now):
                counted = size * self._evaluations_per_sample
                part = [[power[alive, number] for power in layer] for layer in sums]
                own = active[alive]
                means = [[power / counted for power in layer] for layer in part]
                ledger.add(own, counted, average.maps(means, own))
                totals.add(own, counted, part)
                if self._tolerance is not None:
                    alive[alive.clone()] = ~ledger.within(own, self._tolerance)
                    if not alive.any():
                        break
            active = active[alive]
        everyone = torch.arange(len(task.images), device="cpu")
        return Estimate(average.maps(totals.means(), everyone), ledger.errors(), draws.reference)

    def _round(self, remaining: list[int], images: int, batch_size: int) -> list[int]:
        """As many whole replicates as it takes to fill a batch: more would only cost memory."""
        chosen: list[int] = []
        for size in remaining:
            chosen.append(size)
            if sum(chosen) * self._evaluations_per_sample * images >= batch_size:
                break
        return chosen


def _with_channel_factors(moments: list[Moments], draws: _Draws, own: Tensor) -> list[Moments]:
    factors = draws.channel_factors(own)
    if factors is None:
        return moments
    return [layer.scaled(factor) for layer, factor in zip(moments, factors, strict=True)]


@dataclass(frozen=True)
class _Average(ABC):
    """What is averaged over the samples, and how maps come of it."""

    draws: _Draws
    wanted: Wanted
    map_of: MapOf

    @abstractmethod
    def terms(self, gradients: list[Tensor], own: Tensor) -> list[list[Tensor]]:
        """From d * g at each layer, (B, K, h, w), the tensors (B, …) of each layer that are averaged."""

    @abstractmethod
    def maps(self, means: list[list[Tensor]], own: Tensor) -> list[Tensor]:
        """(n, h, w) maps at each layer, from the averages of its terms."""


class _OfGradients(_Average):
    """The map of the averaged gradient: moments of d * g."""

    def terms(self, gradients: list[Tensor], own: Tensor) -> list[list[Tensor]]:
        sizes = [[layer.abs()] if self.wanted.sizes else [] for layer in gradients]
        return [powers(layer, self.wanted.order) + size for layer, size in zip(gradients, sizes, strict=True)]

    def maps(self, means: list[list[Tensor]], own: Tensor) -> list[Tensor]:
        order = self.wanted.order
        moments = [Moments.listed(layer[:order], layer[order] if self.wanted.sizes else None) for layer in means]
        return self.map_of(_with_channel_factors(moments, self.draws, own), own)


class _OfMaps(_Average):
    """The average of each gradient's own map, rectified: what one sample counts against is not made up by another."""

    def terms(self, gradients: list[Tensor], own: Tensor) -> list[list[Tensor]]:
        moments = [Moments.of(layer, self.wanted.order) for layer in gradients]
        maps = self.map_of(_with_channel_factors(moments, self.draws, own), own)
        return [[layer.relu() if self.wanted.rectify else layer] for layer in maps]

    def maps(self, means: list[list[Tensor]], own: Tensor) -> list[Tensor]:
        return [layer[0] for layer in means]


def _replicate_sums(
    task: Task, draws: _Draws, active: Tensor, first: int, sizes: list[int], per_sample: int, average: _Average
) -> list[list[Tensor]]:
    """For each layer, the sum of each averaged term over each replicate: (active, replicates, …)."""
    replicate_of = [number for number, size in enumerate(sizes) for _ in range(size * per_sample)]
    pairs = [(evaluation, position) for evaluation in range(len(replicate_of)) for position in range(len(active))]
    sums: list[list[Tensor]] = []
    for batch in chunks(pairs, task.batch_size):
        runs = list(_runs(batch))
        own = torch.cat([active[start:stop] for _, start, stop in runs])
        points = Points.joined(
            [draws.points(active[start:stop], first + evaluation) for evaluation, start, stop in runs]
        )
        gradients = task.gradients(points.images, own).gradients
        factors = draws.factors(own, points)
        assert gradients is not None
        wide = [wide_enough(layer) for layer in gradients]
        if factors is not None:
            wide = [factor * layer for factor, layer in zip(factors, wide, strict=True)]
        for layer, terms in enumerate(average.terms(wide, own)):
            if len(sums) <= layer:
                sums.append([term.new_zeros(len(active), len(sizes), *term.shape[1:]) for term in terms])
            for total, term in zip(sums[layer], terms, strict=True):
                _add_runs(total, term, runs, replicate_of)
    return sums


def _add_runs(sums: Tensor, terms: Tensor, runs: list[tuple[int, int, int]], replicate_of: list[int]) -> None:
    """Add in a fixed order, for the result must not depend on how a device schedules atomic additions."""
    row = 0
    for evaluation, start, stop in runs:
        sums[start:stop, replicate_of[evaluation]] += terms[row : row + stop - start]
        row += stop - start


def _runs(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Consecutive (evaluation, position) pairs of one evaluation, as (evaluation, first position, past the last)."""
    start = 0
    for index in range(1, len(pairs) + 1):
        if index == len(pairs) or pairs[index][0] != pairs[start][0]:
            yield pairs[start][0], pairs[start][1], pairs[index - 1][1] + 1
            start = index


class _Totals:
    """Sums over everything evaluated, for each image."""

    def __init__(self, images: int) -> None:
        self.counts = torch.zeros(images, dtype=torch.float64, device="cpu")
        self.sums: list[list[Tensor]] = []

    def add(self, own: Tensor, count: int, sums: list[list[Tensor]]) -> None:
        self.counts[own] += count
        for layer, terms in enumerate(sums):
            if len(self.sums) <= layer:
                self.sums.append([term.new_zeros(len(self.counts), *term.shape[1:]) for term in terms])
            for total, term in zip(self.sums[layer], terms, strict=True):
                total[own.to(total.device)] += term

    def means(self) -> list[list[Tensor]]:
        return [[term / self._counts_like(term) for term in layer] for layer in self.sums]

    def _counts_like(self, term: Tensor) -> Tensor:
        return self.counts.to(term.device, term.dtype).reshape(-1, *[1] * (term.ndim - 1))


class _Ledger:
    """Running weighted mean and scatter of the replicates' maps (West's update), for each image."""

    def __init__(self, images: int, rectify: bool) -> None:
        self.weight = torch.zeros(images, dtype=torch.float64, device="cpu")
        self.replicates = torch.zeros(images, dtype=torch.float64, device="cpu")
        self.rectify = rectify
        self.mean: list[Tensor] = []
        self.scatter: list[Tensor] = []

    def add(self, own: Tensor, weight: int, maps: list[Tensor]) -> None:
        self.weight[own] += weight
        self.replicates[own] += 1
        for layer, new in enumerate(maps):
            if len(self.mean) <= layer:
                self.mean.append(new.new_zeros(len(self.weight), *new.shape[1:]))
                self.scatter.append(new.new_zeros(len(self.weight), *new.shape[1:]))
            mean, scatter = self.mean[layer], self.scatter[layer]
            rows = own.to(mean.device)
            away = new - mean[rows]
            share = (weight / self.weight[own]).to(mean.device, mean.dtype)[:, None, None]
            mean[rows] += share * away
            scatter[rows] += weight * away * (new - mean[rows])

    def errors(self) -> list[Tensor] | None:
        """SE = sqrt( sum_r w_r (M_r - M)^2 / ((R - 1) sum_r w_r) ), or None with a single replicate."""
        if bool((self.replicates < 2).any()):
            return None
        return self._errors(torch.arange(len(self.weight), device="cpu"))

    def _errors(self, own: Tensor) -> list[Tensor]:
        return [
            (scatter[own.to(scatter.device)] / self._divisor(own, scatter)).clamp_min(0).sqrt()
            for scatter in self.scatter
        ]

    def _divisor(self, own: Tensor, like: Tensor) -> Tensor:
        divisor = (self.replicates[own] - 1).clamp_min(1) * self.weight[own]
        return divisor.to(like.device, like.dtype)[:, None, None]

    def within(self, own: Tensor, tolerance: float) -> Tensor:
        """Which images have ||error|| <= tolerance * ||map|| at every layer."""
        fine = self.replicates[own] >= _CHECK_FROM
        for mean, error in zip(self.mean, self._errors(own), strict=True):
            shown = mean[own.to(mean.device)]
            shown = shown.relu() if self.rectify else shown
            size = shown.flatten(1).norm(dim=1)
            fine &= ((error.flatten(1).norm(dim=1) <= tolerance * size) & (size > 0)).cpu()
        return fine


def replicate_sizes(samples: int, small: bool = False) -> list[int]:
    """Split samples into replicates: large enough to stratify, sizes differing by one at most.

    At most 16 of them, since larger replicates have more strata; with `small`, as many as there can be, since sampling
    can stop only between replicates.

    >>> replicate_sizes(32)
    [4, 4, 4, 4, 4, 4, 4, 4]
    >>> replicate_sizes(5)
    [3, 2]
    >>> len(replicate_sizes(256)), len(replicate_sizes(256, small=True))
    (16, 64)
    """
    least = 1 if samples < 4 else 2 if samples < 16 else 4
    count = max(1, samples // (least if small else max(least, ceil(samples / 16))))
    return [samples // count + (number < samples % count) for number in range(count)]


def check_samples(samples: int, name: str = "samples") -> None:
    """Refuse anything but a positive whole number."""
    if not is_whole(samples):
        raise SamplingError(f"{name} must be a whole number, not {samples!r}")
    if samples < 1:
        raise SamplingError(f"{name} must be at least 1, not {samples}")


@dataclass(frozen=True)
class Smooth(Averaged):
    """The gradient averaged over noisy copies: W = 1/n sum_s dy/dA at x + eta_s, eta ~ N(0, (scale (max - min))^2).

    Costs n + 1 passes: one for the image itself.
    """

    samples: int = 25
    _: KW_ONLY
    scale: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)

    @property
    def passes(self) -> int:
        """n + 1."""
        return self.samples + 1

    def _replicates(self) -> list[int]:
        return replicate_sizes(self.samples)

    def _draws(self, task: Task) -> _Draws:
        return _NoisyCopies(task, Kernel("gaussian", self.scale, relative=True), self.seed)


@dataclass(frozen=True)
class _NoisyCopies(_Draws):
    task: Task
    kernel: Kernel
    seed: int

    def points(self, own: Tensor, evaluation: int) -> Points:
        images = self.task.images[own]
        return Points(images + self.kernel.noise(images, evaluation, self.seed))


@dataclass(frozen=True)
class Integrated(Averaged):
    """The gradient averaged along the line from a baseline: W = 1/n sum_j dy/dA at b + a_j (x - b), a_j = (j + 1/2)/n.

    `difference="latent"` multiplies by f(x) - f(b) at the layer (at the input: x - b), which makes the sum over all
    positions and channels equal y(x) - y(b) as n grows, wherever what follows the layer is linear. Costs n + 1 passes,
    and one more up to the layer with the difference.
    """

    steps: int = 50
    _: KW_ONLY
    baseline: ReferenceLike = "black"
    difference: Difference = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.steps, "steps")
        _check_difference(self.difference)

    @property
    def passes(self) -> int:
        """n + 1, or n + 2 with the difference."""
        return self.steps + 1 + (self.difference != "none")

    def _replicates(self) -> list[int]:
        return [self.steps]

    def _draws(self, task: Task) -> _Draws:
        baseline = as_reference(self.baseline, default="black", seed=self.seed)
        plan = _PathPlan(
            self.steps, Midpoints(self.steps), fixed_reference=True, difference=self.difference, seed=self.seed
        )
        return _PathDraws(task, baseline, plan)

    def _round(self, remaining: list[int], images: int, batch_size: int) -> list[int]:
        return remaining


@dataclass(frozen=True)
class Expected(Averaged):
    r"""The expected gradient: W = k/n sum_s d_s * dy/dA at z_s, z_s = path(x'_s, x, a_s) + eta_s.

    x' is drawn from `reference`, a from U(0, 1), eta from `kernel`. Costs n * draws + 1 passes, and with a difference
    term further ones that end at the layer: n * draws for "input", one for each distinct reference for "latent".

    Args:
        reference: images (a tensor, data set or loader), a name ("mixed", "blurred", "colours", "noise", "uniform",
            "constant", "black", "white"), a callable, or None: "mixed", blurred copies and plain colours in turn.
        samples: n, the number of path points.
        path: "linear", x' + a (x - x'); "subset", a share a of the pixels of x' replaced by those of x; or a callable
            (references, images, a) -> points.
        kernel: smoothing noise, a `Kernel`, "gaussian", "uniform" or None.
        difference: "none", d = 1; "input", d = f(x - x') as in the paper's last formula; "latent", d = f(x) - f(x').
        sampling: "lattice", a evenly spread over the whole run and over the visits of each reference; "stratified", a
            from equal strata of each replicate; "monte-carlo", a and x' independent. Same mean, more and more variance.
        tolerance: stop an image's sampling once ||error|| <= tolerance * ||map||.
        seed: of all draws. Draws depend on the seed and the sample's number only.

    Example:
        >>> Expected("black", samples=16).passes
        17
    """

    reference: ReferenceLike = None
    samples: int = 32
    _: KW_ONLY
    path: PathLike = "linear"
    kernel: KernelLike = None
    difference: Difference = "none"
    sampling: Sampling = "lattice"
    tolerance: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)
        _check_difference(self.difference)
        check_sampling(self.sampling)
        as_path(self.path)
        as_kernel(self.kernel)
        if self.tolerance is not None and not self.tolerance > 0:
            raise SamplingError(f"the tolerance must be positive, not {self.tolerance}")
        # Read once, not at every call: the reference may be a loader.
        object.__setattr__(self, "reference", as_reference(self.reference, samples=self.samples, seed=self.seed))

    @property
    def passes(self) -> int:
        """n * draws + 1, and the passes up to the layer that difference and normaliser need (at most)."""
        kernel = as_kernel(self.kernel)
        evaluations = self.samples * self._evaluations_per_sample
        to_layer = {"none": 0, "input": evaluations, "latent": self.samples}[self.difference]
        normaliser = evaluations if kernel is not None and kernel.normaliser else 0
        return evaluations + 1 + to_layer + normaliser

    @property
    def _evaluations_per_sample(self) -> int:
        kernel = as_kernel(self.kernel)
        return 1 if kernel is None else kernel.draws

    @property
    def _tolerance(self) -> float | None:
        return self.tolerance

    def _replicates(self) -> list[int]:
        return replicate_sizes(self.samples, small=self.tolerance is not None)

    def _draws(self, task: Task) -> _Draws:
        assert isinstance(self.reference, Reference)
        plan = _PathPlan(
            self.samples,
            scheme(self.sampling, self._replicates(), self.seed),
            path=self.path,
            kernel=as_kernel(self.kernel),
            difference=self.difference,
            seed=self.seed,
            per_sample=self._evaluations_per_sample,
        )
        return _PathDraws(task, self.reference, plan)


def _check_difference(difference: str) -> None:
    if difference not in DIFFERENCES:
        raise SamplingError(f"unknown difference {difference!r}; {near_misses(str(difference), DIFFERENCES)}")


@dataclass(frozen=True)
class _PathPlan:
    """The points of a path estimator, before any image is known."""

    samples: int
    scheme: Scheme
    path: PathLike = field(default_factory=Linear)
    kernel: Kernel | None = None
    difference: Difference = "none"
    seed: int = 0
    per_sample: int = 1
    fixed_reference: bool = False


class _PathDraws(_Draws):
    """Points between references and the images of one task, and what the difference term needs."""

    def __init__(self, task: Task, source: Reference, plan: _PathPlan) -> None:
        self.task = task
        self.source = source
        self.plan = plan
        self.path = as_path(plan.path)
        self.reference = source.description
        self._fixed: Drawn | None = None
        # Shared by all images of the call, which draw from the same references.
        self._latents: dict[Hashable, list[Tensor]] = task.memo.setdefault("latents", {})
        self._responses: list[Tensor] | None = None

    def points(self, own: Tensor, evaluation: int) -> Points:
        sample = evaluation // self.plan.per_sample
        images = self.task.images[own]
        drawn = self._drawn(own, sample)
        points = self._between(drawn, images, sample)
        if self.plan.kernel is not None:
            points = points + self.plan.kernel.noise(images, evaluation, self.plan.seed)
        return Points(points, drawn)

    def _drawn(self, own: Tensor, sample: int) -> Drawn:
        if self.source.varies and not self.plan.fixed_reference:
            number = self.plan.scheme.draw_number(sample)
            return self.source.draw(self.task.images[own], self.task.rows[own].tolist(), number, self.plan.seed)
        if self._fixed is None:
            rows = self.task.rows.tolist()
            drawn = self.source.draw(self.task.images, rows, 0, self.plan.seed)
            self._fixed = Drawn(drawn.images, [("fixed", row) for row in rows])
        keys = [self._fixed.keys[row] for row in own.tolist()]
        return Drawn(self._fixed.images[own], keys, [Visit(0, sample)] * len(keys))

    def _between(self, drawn: Drawn, images: Tensor, sample: int) -> Tensor:
        """The points of a sample. An image among its own references has one less of them, so maybe another share."""
        visits = drawn.visits if drawn.visits is not None else [Visit(sample, 0)] * len(images)
        shares = [self.plan.scheme.share(sample, visit) for visit in visits]
        if len(set(shares)) == 1:
            return self._at_share(drawn.images, images, shares[0], sample)
        parts = [
            self._at_share(drawn.images[row, None], images[row, None], share, sample)
            for row, share in enumerate(shares)
        ]
        return torch.cat(parts)

    def _at_share(self, references: Tensor, images: Tensor, share: float, sample: int) -> Tensor:
        return self.path.between(references, images, share, generator(self.plan.seed, "path", sample))

    def factors(self, own: Tensor, points: Points) -> list[Tensor] | None:
        if self.plan.difference == "none":
            return None
        assert points.references is not None
        if self.plan.difference == "input":
            found = self.task.features(self.task.images[own] - points.references.images, own)
            return [wide_enough(layer) for layer in found]
        here = [wide_enough(layer)[own.to(layer.device)] for layer in self.task.activations]
        there = self._latent(own, points.references)
        return [at_image - at_reference for at_image, at_reference in zip(here, there, strict=True)]

    def _latent(self, own: Tensor, drawn: Drawn) -> list[Tensor]:
        """f(x') for each row; references that come again are passed through the network once."""
        keys = self._latent_keys(own, drawn)
        missing = {key: row for row, key in enumerate(keys) if key is not None and key not in self._latents}
        rows = sorted({*missing.values(), *(row for row, key in enumerate(keys) if key is None)})
        fresh: dict[int, list[Tensor]] = {}
        if rows:
            found = self.task.features(drawn.images[rows], own[rows])
            fresh = {row: [wide_enough(layer[place]) for layer in found] for place, row in enumerate(rows)}
            self._latents.update({key: fresh[row] for key, row in missing.items()})
        per_row = [
            fresh[row] if key is None or key not in self._latents else self._latents[key]
            for row, key in enumerate(keys)
        ]
        while len(self._latents) > _MOST_LATENTS:
            self._latents.pop(next(iter(self._latents)))
        return [torch.stack(layer) for layer in zip(*per_row, strict=True)]

    def _latent_keys(self, own: Tensor, drawn: Drawn) -> list[Hashable]:
        """Keys by which f(x') may be looked up: with further inputs of the model, each image has its own f."""
        if not (self.task.probe.extra.args or self.task.probe.extra.kwargs):
            return drawn.keys
        rows = self.task.rows[own].tolist()
        return [None if key is None else (key, row) for key, row in zip(drawn.keys, rows, strict=True)]

    def channel_factors(self, own: Tensor) -> list[Tensor] | None:
        kernel = self.plan.kernel
        if kernel is None or not kernel.normaliser:
            return None
        if self._responses is None:
            self._responses = self._mean_responses(kernel)
        chosen = [layer[own.to(layer.device)] if kernel.relative else layer for layer in self._responses]
        return [torch.where(layer == 0, torch.ones_like(layer), 1 / layer) for layer in chosen]

    def _mean_responses(self, kernel: Kernel) -> list[Tensor]:
        """E_eta[mean_ij f_k(eta)] for each layer, (n or 1, K, 1, 1)."""
        images = self.task.images if kernel.relative else self.task.images[:1]
        pairs = [
            (evaluation, row)
            for evaluation in range(self.plan.samples * self.plan.per_sample)
            for row in range(len(images))
        ]
        totals: list[Tensor] = []
        for batch in chunks(pairs, self.task.batch_size):
            noise = torch.cat([kernel.noise(images[row, None], e, self.plan.seed) for e, row in batch])
            own = torch.tensor([row for _, row in batch], device="cpu")
            for layer, found in enumerate(self.task.features(noise, own)):
                means = wide_enough(found).mean((2, 3), keepdim=True)
                if len(totals) <= layer:
                    totals.append(means.new_zeros(len(images), *means.shape[1:]))
                for place, (_, row) in enumerate(batch):
                    totals[layer][row] += means[place]
        return [total * len(images) / len(pairs) for total in totals]
