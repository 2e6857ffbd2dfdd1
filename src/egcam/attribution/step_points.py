"""From references to the images in steps at the layer, with the slope of each step in place of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from egcam.attribution.averaging import Run
from egcam.attribution.kernels import Kernel
from egcam.attribution.latent_points import LatentPoints
from egcam.attribution.moments import wide_enough
from egcam.attribution.path_points import Difference, PathPlan
from egcam.attribution.reference_activations import AtReference
from egcam.attribution.references import Reference
from egcam.attribution.task import Task
from egcam.errors import SamplingError
from egcam.imageops import in_double
from egcam.models.cells import Cells
from egcam.models.dense_head import DenseHead
from egcam.models.replay import Replay
from egcam.models.slopes import Record
from egcam.rng import generator

_MISSED = 1e-2  # of the rise of the score, that slopes may miss
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the scores
_COARSE = 2e-2  # the same in 16 bits

Score = Callable[[Any], Tensor]


def check_stepwise(difference: Difference, kernel: Kernel | None) -> None:
    """Refuse what has no meaning for steps."""
    if difference != "latent" or kernel is not None:
        raise SamplingError(
            "path='stepwise' attributes whole steps from references to images, so it needs difference='latent' and no "
            "kernel; path='latent' takes others"
        )


class NoSlopes(Exception):
    """An operation without a rule turned up in the middle of a run: it has to begin again, with derivatives."""


class StepPoints(LatentPoints):
    """What each cell adds to the score on the way from a reference to the image, by slopes between the ends of steps.

        chosen   a random half of the cells; of every two references, the second has the other half
        M        A where chosen, A' elsewhere
        W        slope(A', M) * (M - A') + slope(M, A) * (A - M)

    Slopes times steps add up to y(A) - y(A') exactly, for each reference and at any layer (`egcam.models.slopes`). A
    network may hold an operation without a rule; then the sums are off, and the samples are points on the straight line
    with derivatives, as of the latent path. Before a dense head all cells go in one step.
    """

    def __init__(self, task: Task, source: Reference, plan: PathPlan, by_channel: bool = True) -> None:
        check_stepwise(plan.difference, plan.kernel)
        self._has_slopes = True
        self._steps_each = 2
        super().__init__(task, source, plan, by_channel)
        if len(task.tails) == 1 and self._network.is_before_dense_head(task.tails[0]):
            self._steps_each = 1
        self._cells = [] if self._is_affine else [_cells_of(tail) for tail in task.tails]
        self._scores_of_round: list[_Scores] = []
        self._last_record: tuple[Hashable, Record] | None = None
        if "no slopes" in task.memo:
            self._has_slopes = False
        elif not self._is_affine:
            self._has_slopes = self._network.has_slopes(self._first_add_up)
        if plan.distinct is not None:
            self.reference = source.described(self.evaluations_of(plan.distinct))

    @property
    def image_by_image(self) -> bool:
        """The image's own row serves all its samples of a batch."""
        return True

    @property
    def slopes(self) -> str:
        """What the samples are made of."""
        return "steps" if self._has_slopes or self._is_affine else "derivatives"

    def evaluations_of(self, samples: int) -> int:
        """One for each reference, which takes one or two of the samples."""
        return max(1, samples // self._steps_each) if self._has_slopes else samples

    def weighted_gradients(self, runs: Sequence[Run]) -> list[Tensor]:
        """The sum of slope times step at each layer."""
        if self._is_affine or not self._has_slopes:
            return super().weighted_gradients(runs)
        own = torch.cat([run.images for run in runs])
        numbers = torch.cat([torch.full_like(run.images, run.evaluation) for run in runs])
        seen, _ = self._seen(runs, own)
        try:
            steps = self._all_steps(own, numbers, seen)
        except Exception as error:  # derivatives show any error of the network itself
            raise NoSlopes from error
        if not all(step.adds_up for step in steps):
            raise NoSlopes
        return [self._noted(layer, step, own, numbers, seen) for layer, step in enumerate(steps)]

    def _first_add_up(self) -> bool:
        """Whether slopes times steps add up for two references of one image: true of the network, not of the image."""
        own = torch.zeros(1, dtype=torch.long, device="cpu")
        first = [Run(number, own) for number in range(min(2, self.at_once, self.plan.samples))]
        rows, numbers = own.repeat(len(first)), torch.arange(len(first), device="cpu")
        with self._network.trial():
            seen, _ = self._seen(first, rows)
        try:
            return all(step.adds_up for step in self._all_steps(rows, numbers, seen))
        except Exception:  # an operation that cannot be taken apart
            return False
        finally:
            self._last_record = None

    def give_up(self) -> None:
        """Take derivatives from now on, in this call and later ones."""
        self.task.memo["no slopes"] = True
        self._network.overrule_slopes()

    def _all_steps(self, own: Tensor, numbers: Tensor, seen: list[AtReference]) -> list[_Steps]:
        hidden = [reference.hidden for reference in seen if reference.hidden is not None]
        if self._network.head is not None and len(hidden) == len(own):
            return [self._by_image(own, partial(self._steps_of_head, self._network.head, torch.stack(hidden)))]
        return [
            self._by_image(own, partial(self._steps, layer, numbers, seen)) for layer in range(len(self.task.tails))
        ]

    def _by_image(self, own: Tensor, steps_of: Callable[[int, Tensor], _Steps]) -> _Steps:
        """The steps of each image by themselves: they share its record."""
        images = torch.unique(own).tolist()
        rows = [(own == image).nonzero()[:, 0] for image in images]
        found = [steps_of(image, some) for image, some in zip(images, rows, strict=True)]
        order = torch.cat(rows).argsort()
        weighted, scores = (torch.cat([getattr(one, name) for one in found]) for name in ("weighted", "scores"))
        return _Steps(
            weighted[order.to(weighted.device)], scores[order.to(scores.device)], all(one.adds_up for one in found)
        )

    def _steps_of_head(self, head: DenseHead, hidden: Tensor, image: int, rows: Tensor) -> _Steps:
        own = torch.full_like(rows, image)
        here, there = head.hidden[image], hidden[rows.to(hidden.device)]
        upper = self._record(("head", image), partial(head.record, head.hidden[image, None]), image)
        scores, slopes, _ = head.slopes(there, own, upper, self._score(own), recorded=False)
        self.task.meter.tails += len(rows)
        return _Steps(slopes, scores, self._adds_up(image, scores, (slopes * (here - there)).sum(1)))

    def _steps(self, layer: int, numbers: Tensor, seen: list[AtReference], image: int, rows: Tensor) -> _Steps:
        """From the image down: each run's record serves the step below it."""
        tail, own = self.task.tails[layer], torch.full_like(rows, image)
        here = tail.activations[image, None]
        there = torch.stack([seen[row].activations[layer] for row in rows.tolist()]).to(here)
        upper = self._record((layer, image), partial(tail.record, here), image)
        above, weighted = here, wide_enough(torch.zeros_like(there))
        for lower in (*self._between(layer, here, there, numbers[rows]), there):
            scores, slopes, upper = tail.slopes(lower, own, upper, self._score(own), recorded=lower is not there)
            self.task.meter.tails += len(rows)
            weighted += wide_enough(slopes) * wide_enough(above - lower)
            above = lower
        return _Steps(weighted, scores, self._adds_up(image, scores, weighted.flatten(1).sum(1)))

    def _record(self, key: Hashable, of: Callable[[Tensor, Score], tuple[Tensor, Record]], image: int) -> Record:
        """What the image's own run recorded; the last is kept, for the image's next samples."""
        if self._last_record is None or self._last_record[0] != key:
            own = torch.tensor([image], device="cpu")
            self._last_record = None
            self._last_record = key, of(own, self._score(own))[1]
            self.task.meter.tails += 1
        return self._last_record[1]

    def _between(self, layer: int, here: Tensor, there: Tensor, numbers: Tensor) -> list[Tensor]:
        """Where the steps meet, if there are two; nowhere if the cells cannot be told apart."""
        cells = self._cells[layer]
        if cells is None or self._steps_each == 1:
            return []
        halves = cells.numbers_in(self._halves(numbers, cells.count + 1))
        return [torch.where(halves, here, there)]

    def _adds_up(self, image: int, scores: Tensor, totals: Tensor) -> bool:
        """Whether scores and what the steps add up to give the image's score; not so if an operation lacks a rule."""
        truth = self.task.scores[image].to(scores)
        if not bool(truth.isfinite()):
            return True
        rises = truth - scores
        off = (rises - totals.to(scores)).abs().max()
        rounding = self._rounding(scores.dtype) * torch.maximum(scores.abs().max(), truth.abs())
        return bool(off <= _MISSED * rises.abs().max() + rounding)

    def _rounding(self, dtype: torch.dtype) -> float:
        """Of the least precise numbers on the way."""
        activations = self.task.tails[0].activations
        device = activations.device.type
        autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return max(_ROUNDING.get(one, _COARSE) for one in (dtype, activations.dtype, torch.half if autocast else dtype))

    def _score(self, own: Tensor) -> Score:
        return lambda output: self.task.scores_of(output, own)

    def _halves(self, numbers: Tensor, count: int) -> Tensor:
        """(B, count) the cells of the first step, drawn for each two samples."""
        found = []
        for sample in (numbers // self.plan.per_sample).tolist():
            order = torch.randperm(count, generator=generator(self.plan.seed, "half", sample // 2), device="cpu")
            found.append((order < count // 2) ^ bool(sample % 2))
        return torch.stack(found)

    def _noted(self, layer: int, steps: _Steps, own: Tensor, numbers: Tensor, seen: list[AtReference]) -> Tensor:
        self._scores_of_round.append(_Scores(layer, own, numbers, in_double(steps.scores)))
        head = self._network.head
        if head is not None and steps.weighted.ndim == 2:
            return self._of_hidden(head, own, numbers, seen, steps.weighted)
        maps = self.task.tails[layer].as_maps(steps.weighted)
        self._note_samples(layer, own, numbers, maps, steps.weighted.flatten(1).sum(1))
        return maps

    def settle(self, counts: Tensor) -> None:
        """Add up what the samples that count have found; the references' scores came with them."""
        for layer, own, numbers, scores in self._scores_of_round:
            kept = numbers < counts[own]
            self._scores[layer].add(own[kept], scores[kept.to(scores.device)])
        self._scores_of_round.clear()
        super().settle(counts)


class _Steps(NamedTuple):
    """The steps of B samples at a layer.

    Attributes:
        weighted: (B, …) slope times step, added up over the steps; before a dense head the slopes (B, H).
        scores: (B,) of the references.
        adds_up: whether the slopes explain the rise of the scores.
    """

    weighted: Tensor
    scores: Tensor
    adds_up: bool


class _Scores(NamedTuple):
    """Of which image and evaluation each reference is, and its score."""

    layer: int
    own: Tensor
    numbers: Tensor
    scores: Tensor


def _cells_of(tail: Replay) -> Cells | None:
    """None where the cells cannot be told apart in what the layer outputs."""
    try:
        return Cells(tail)
    except Exception:  # a reshape of the user's that takes no numbers but the layer's own
        return None
