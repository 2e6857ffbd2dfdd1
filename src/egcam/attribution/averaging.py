"""Averages over evaluations of the gradient, in replicates whose scatter gives the standard error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from egcam.attribution.task import Maps, Task, chunks
from egcam.attribution.weightings import Moments, powers
from egcam.errors import SamplingError, check_count
from egcam.imageops import by_row

_CHECK_FROM = 4  # replicates before a standard error is reliable enough to stop on it


@dataclass(frozen=True)
class Wanted:
    """What a CAM wants of an estimator.

    Attributes:
        order: how many moments of the gradient the weighting needs.
        rectify: whether maps will be rectified; the stopping rule looks at what the user will see.
    """

    order: int = 1
    rectify: bool = True


MapOf: TypeAlias = Callable[[list[Moments], Tensor], list[Tensor]]


class Run(NamedTuple):
    """One evaluation for some images of a task: its number, and the numbers of the images."""

    evaluation: int
    images: Tensor


class Evaluations(ABC):
    """Where an averaged estimator evaluates the gradient, for the images of one task."""

    reference: str | None = None

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def at_once(self) -> int:
        """How many are made in one batch."""
        return self.task.batch_size

    @abstractmethod
    def weighted_gradients(self, runs: Sequence[Run]) -> list[Tensor]:
        """d * g at each layer, (B, K, h, w), for all images of all runs in order; d is the difference term."""

    def channel_factors(self, images: Tensor) -> list[Tensor] | None:
        """A factor for each channel of each layer, (n or 1, K, 1, 1), or None for 1."""
        return None


@dataclass(frozen=True)
class Design:
    """How many evaluations there are and when they end.

    Attributes:
        replicates: how many samples each replicate has. Each is a complete small version of the design, so the scatter
            of their maps gives an honest standard error, whatever happens inside a replicate (stratification,
            references without repetition). The replicates of a lattice fill each other's gaps rather than being
            independent, so there the error is an upper bound. A single replicate gives none.
        per_sample: evaluations of each sample.
        tolerance: ||error|| / ||map|| at which an image's sampling stops.
    """

    replicates: tuple[int, ...]
    per_sample: int = 1
    tolerance: float | None = None


def averaged(task: Task, evaluations: Evaluations, design: Design, wanted: Wanted, map_of: MapOf) -> Maps:
    """Average over rounds of whole replicates until all are done or every image's error is small enough."""

    def maps_of(means: list[list[Tensor]], images: Tensor) -> list[Tensor]:
        moments = [Moments(*layer) for layer in means]
        factors = evaluations.channel_factors(images)
        if factors is not None:
            moments = [layer.scaled(factor) for layer, factor in zip(moments, factors, strict=True)]
        return map_of(moments, images)

    ledger = _Ledger(len(task.images), wanted.rectify)
    totals = _Totals(len(task.images))
    active = torch.arange(len(task.images), device="cpu")
    evaluation = 0
    remaining = list(design.replicates)
    per_image = sum(remaining) * design.per_sample
    while remaining and len(active):
        now = _round(remaining, design.per_sample * len(active), evaluations.at_once)
        if design.tolerance is not None:
            # What lies beyond the point where an image stops is thrown away: at most as much again as was used.
            now = now[: max(_CHECK_FROM, len(design.replicates) - len(remaining))]
        remaining = remaining[len(now) :]
        stretch = (evaluation / per_image, (evaluation + sum(now) * design.per_sample) / per_image)
        sums = _replicate_sums(evaluations, active, evaluation, now, design.per_sample, wanted, stretch)
        evaluation += sum(now) * design.per_sample
        alive = torch.ones(len(active), dtype=torch.bool, device="cpu")
        for number, size in enumerate(now):
            counted = size * design.per_sample
            part = [[power[alive, number] for power in layer] for layer in sums]
            own = active[alive]
            means = [[power / counted for power in layer] for layer in part]
            ledger.add(own, counted, maps_of(means, own))
            totals.add(own, counted, part)
            if design.tolerance is not None:
                alive[alive.clone()] = ~ledger.within(own, design.tolerance)
                if not alive.any():
                    break
        active = active[alive]
    everyone = torch.arange(len(task.images), device="cpu")
    return Maps(maps_of(totals.means(), everyone), ledger.errors(), evaluations.reference)


def _round(remaining: list[int], evaluations_per_sample: int, at_once: int) -> list[int]:
    """As many whole replicates as it takes to fill a batch: more would only cost memory."""
    chosen: list[int] = []
    for size in remaining:
        chosen.append(size)
        if sum(chosen) * evaluations_per_sample >= at_once:
            break
    return chosen


def _replicate_sums(
    evaluations: Evaluations,
    active: Tensor,
    first: int,
    sizes: list[int],
    per_sample: int,
    wanted: Wanted,
    stretch: tuple[float, float],
) -> list[list[Tensor]]:
    """For each layer, the sum of each averaged term over each replicate: (active, replicates, …).

    They are a `stretch` of all evaluations, from one share to another.
    """
    replicate_of = [number for number, size in enumerate(sizes) for _ in range(size * per_sample)]
    pairs = [(evaluation, position) for evaluation in range(len(replicate_of)) for position in range(len(active))]
    sums: list[list[Tensor]] = []
    for batch in evaluations.task.meter.each(chunks(pairs, evaluations.at_once), *stretch):
        runs = list(_runs(batch))
        weighted = evaluations.weighted_gradients(
            [Run(first + evaluation, active[start:stop]) for evaluation, start, stop in runs]
        )
        for layer, gradient in enumerate(weighted):
            terms = powers(gradient, wanted.order)
            if len(sums) <= layer:
                sums.append([term.new_zeros(len(active), len(sizes), *term.shape[1:]) for term in terms])
            for total, term in zip(sums[layer], terms, strict=True):
                _add_runs(total, term, runs, replicate_of)
    return sums


def _add_runs(sums: Tensor, terms: Tensor, runs: list[tuple[int, int, int]], replicate_of: list[int]) -> None:
    """Add in a fixed order: the result must not depend on how a device schedules atomic additions."""
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
            share = by_row((weight / self.weight[own]).to(mean.device, mean.dtype), mean)
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
        return by_row(divisor.to(like.device, like.dtype), like)

    def within(self, own: Tensor, tolerance: float) -> Tensor:
        """Which images have ||error|| <= tolerance * ||map|| at every layer."""
        fine = self.replicates[own] >= _CHECK_FROM
        for mean, error in zip(self.mean, self._errors(own), strict=True):
            shown = mean[own.to(mean.device)]
            shown = shown.relu() if self.rectify else shown
            size = shown.flatten(1).norm(dim=1)
            fine &= ((error.flatten(1).norm(dim=1) <= tolerance * size) & (size > 0)).cpu()
        return fine


def replicate_sizes(samples: int, small: bool = False) -> tuple[int, ...]:
    """Split samples into replicates: large enough to stratify, sizes differing by one at most.

    At most 16 of them, since larger replicates have more strata; with `small`, as many as there can be, since sampling
    can stop only between replicates.

    >>> replicate_sizes(32)
    (4, 4, 4, 4, 4, 4, 4, 4)
    >>> replicate_sizes(5)
    (3, 2)
    >>> len(replicate_sizes(256)), len(replicate_sizes(256, small=True))
    (16, 64)
    """
    least = 1 if samples < 4 else 2 if samples < 16 else 4
    count = max(1, samples // (least if small else max(least, ceil(samples / 16))))
    return tuple(samples // count + (number < samples % count) for number in range(count))


def check_samples(samples: int, name: str = "samples") -> None:
    """Refuse anything but a positive whole number."""
    check_count(samples, name, SamplingError)
