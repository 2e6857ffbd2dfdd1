"""A handful of images being explained: the model seen at their layers, their targets, and the passes made so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from egcam.attribution.explanation import Completeness
from egcam.models.capture import ForwardPass, GradientPass, Probe
from egcam.models.layers import LayerPoint
from egcam.models.replay import Replay
from egcam.models.session import Session
from egcam.models.targets import Targets

Progress = Callable[[int, int], None]
Item = TypeVar("Item")


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """`items` in runs of at most `size`.

    >>> chunks([1, 2, 3], 2)
    [[1, 2], [3]]
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


class Meter:
    """Counts what one call runs and says how far it is: loops within loops, each of a share of what is around it.

    Args:
        report: called with the runs made and the runs expected.

    Attributes:
        passes: forward passes of one image each.
        tails: runs of what follows a layer, for one image each.

    Example:
        >>> meter = Meter(lambda made, expected: print(made, "of", expected))
        >>> for image in meter.each("ab"):
        ...     for mask in meter.each(range(2)):
        ...         meter.add(5)
        5 of 20
        10 of 20
        15 of 20
        20 of 20
    """

    def __init__(self, report: Progress | None = None) -> None:
        self.passes = self.tails = 0
        self._report = report
        self._reported = 0.0
        self._start, self._end = 0.0, 1.0

    def add(self, passes: int) -> None:
        """Say that this many passes were made."""
        self.passes += passes

    def each(self, items: Sequence[Item], start: float = 0.0, end: float = 1.0) -> Iterator[Item]:
        """The items of a loop, which is all that is around it, or the part from `start` to `end`."""
        whole = self._start, self._end
        length = whole[1] - whole[0]
        for number, item in enumerate(items):
            places = (start + (end - start) * (number + done) / len(items) for done in (0, 1))
            self._start, self._end = (whole[0] + length * place for place in places)
            yield item
            if self._report is not None and self._end > self._reported:
                self._reported, runs = self._end, self.passes + self.tails
                self._report(runs, round(runs / self._end))
        self._start, self._end = whole


@dataclass(frozen=True)
class Maps:
    """Maps before the ReLU.

    Attributes:
        maps: one (n, h, w) per layer.
        errors: their standard errors, where they were sampled.
        reference: what the references were.
        completeness: both sides of the completeness equation, for estimators that have one.
        inexact: why derivatives had to stand in for slopes, for methods that take slopes.
    """

    maps: list[Tensor]
    errors: list[Tensor] | None = None
    reference: str | None = None
    completeness: Completeness | None = None
    inexact: str | None = None


@dataclass
class Task:
    """Some of the images of one call, explained together.

    Attributes:
        probe: the model at the explained layers.
        images: (n, C, H, W).
        rows: (n,) the numbers of these images in the call; extra inputs are looked up by them.
        targets: what is explained for these images.
        batch_size: the most images in one pass.
        meter: counts the passes.
        memo: for what estimators keep between the tasks of one call.
        session: what is known of the model.
        tails_at_once: the most rows in one run of what follows a layer.
        memory: bytes that a pass may take.
        kept_memory: bytes that a graph may take that is kept.
        limit: the most rows of anything in one run, if the user said so.
        class_weights: from (n, outputs) and (n,) classes to (n, classes) weights: the sum of so weighted class scores
            is explained.
        scores: (n,) what is explained, from the first pass on.
        activations: at each layer, from the first pass on.
    """

    probe: Probe
    images: Tensor
    rows: Tensor
    targets: Targets
    batch_size: int
    meter: Meter
    memo: dict[str, Any]
    session: Session = field(default_factory=Session)
    tails_at_once: int = 1
    memory: int = 0
    kept_memory: int = 0
    limit: int | None = None
    class_weights: Callable[[Tensor, Tensor], Tensor] | None = None
    scores: Tensor = field(init=False)
    activations: list[Tensor] = field(default_factory=list)
    indices: Tensor | None = None
    predictions: Tensor | None = None
    outputs: Tensor | None = None
    tails: list[Replay] = field(default_factory=list)
    _weights: Tensor | None = None

    def first_pass(self) -> ForwardPass:
        """The pass over the images themselves: settles the targets and keeps activations and scores."""
        seen = self.probe.forward(self.images, self.rows)
        self.meter.passes += len(self.images)
        with torch.no_grad():
            self.scores = self.settle(seen.output)
        self.activations = seen.activations
        return seen

    def has_scores(self) -> bool:
        """Whether any score is to be explained; where no detection matches a box, the first pass shows it."""
        if not self.targets.by_image or not any(map(self.targets.why_zero, range(len(self.images)))):
            return True
        self.first_pass()
        return bool(self.scores.any())

    def first_gradients(self, before_backward: Callable[[Tensor], None] | None = None) -> GradientPass:
        """The same pass with gradients; `before_backward` gets the (n,) scores with the graph behind them."""

        def score(output: Any) -> Tensor:
            scores = self.settle(output)
            if before_backward is not None:
                before_backward(scores)
            return scores

        seen = self.probe.gradients(self.images, self.rows, score)
        self.meter.passes += len(self.images)
        self.scores = seen.scores
        self.activations = seen.activations
        return seen

    def first_pass_with_tails(self) -> None:
        """The same pass for each layer, after which what follows the layers can be run by itself."""
        self.tails = [
            Replay(self.probe.at(point), self.images, self.rows, self.meter.add) for point in self.probe.points
        ]
        with torch.no_grad():
            self.scores = self.settle(self.tails[0].output)
        self.activations = [tail.as_maps(tail.activations) for tail in self.tails]

    def note_first(self, output: Any, activations: Tensor, point: LayerPoint) -> None:
        """What a pass over the images showed that was made elsewhere: the output, and what a layer returned."""
        with torch.no_grad():
            self.scores = self.settle(output)
        self.activations.append(self.probe.as_maps(point, activations, self.images))

    @contextmanager
    def showing(self, images: Tensor) -> Iterator[None]:
        """Inside the block, altered copies take the place of the images; what is explained stays what it was.

        The classes are those of the images themselves, so their pass must have been made. Everything that pass showed
        is there again afterwards.
        """
        before = dict(vars(self))
        self.images, self.memo, self.class_weights = images, {}, None
        if self.indices is not None:
            self.targets = self.targets.settled(self.indices)
        try:
            yield
        finally:
            vars(self).update(before)

    def settle(self, output: Any) -> Tensor:
        """(n,) what is explained, given the output for the images themselves."""
        count = len(self.images)
        with torch.no_grad():
            self.indices, self.predictions, self.outputs = self.targets.read(output)
            if self.class_weights is not None and self.outputs is not None and self.indices is not None:
                self._weights = self.class_weights(self.outputs, self.indices)
        return self.scores_of(output, torch.arange(count, device="cpu"))

    @property
    def autocast(self) -> torch.dtype | None:
        """In which dtype the user's autocast runs operations, if one is on."""
        device = self.images.device.type
        on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if on else None

    def gradients(self, points: Tensor, own: Tensor) -> GradientPass:
        """A pass with gradients at `points`, row b being a variant of this task's image `own[b]`."""
        seen = self.probe.gradients(points, self.rows[own], lambda output: self.scores_of(output, own), fast=True)
        self.meter.passes += len(points)
        return seen

    def features(self, points: Tensor, own: Tensor) -> list[Tensor]:
        """The layers' activations at `points`; the pass ends at the last layer."""
        found = self.probe.features(points, self.rows[own])
        if any(point.module is not None for point in self.probe.points):
            self.meter.passes += len(points)
        return found

    def scores_at(self, points: Tensor, own: Tensor) -> Tensor:
        """(B,) the explained number at `points`, without gradients."""
        with torch.no_grad():
            scores = self.scores_of(self.probe.forward(points, self.rows[own], fast=True).output, own)
        self.meter.passes += len(points)
        return scores

    def scores_of(self, output: Any, own: Tensor) -> Tensor:
        """(B,) the explained number in an output whose row b belongs to image `own[b]`."""
        if self._weights is not None:
            outputs = self.targets.all_scores(output, len(own))
            return (self._weights[own.to(outputs.device)].to(outputs) * outputs).sum(1)
        indices = None if self.indices is None else self.indices[own.to(self.indices.device)]
        return self.targets.scores(output, indices, len(own), own)
