"""The steps from references to one image at a layer, and the slope of what follows it along each.

Resolve (what may be kept, what goes around the layer), run (the image, recorded; the references' graph backwards),
reduce (slope times step).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egcam.attribution.explanation import Completeness
from egcam.attribution.references import Drawn, Reference
from egcam.attribution.task import Task
from egcam.errors import EgcamError
from egcam.imageops import in_double, wide_enough
from egcam.models.capture import Probe
from egcam.models.layers import LayerPoint
from egcam.models.nested import mapped_tensors, tensors_in
from egcam.models.replay import Replay, check_rows
from egcam.models.slope_rules import gauss_legendre
from egcam.models.slopes import Overwritten, Record, Recording, SlopeGraph, Unlike, opaque_modules

_MISSED = 1e-2  # of the rise of the score, that slopes may miss
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the scores
_COARSE = 2e-2  # the same in 16 bits
_SWAPPED = {torch.float64: 1e-6, torch.float32: 1e-3}  # of an output, between two ways to it
_MOST_AT_ONCE = 64
_NODES = 4  # for each reference, where slopes are not to be had


@dataclass(frozen=True)
class Steps:
    """What n references show of one image at one layer.

    Attributes:
        maps: (n, h, w) slope times step, added up over the channels.
        totals: (n,) the same added up over all that the layer returns, tokens that belong to no cell among it.
        score: () y(x).
        lower: (n,) the score when the layer returns A'_s and all else is as for the image.
        references: (n,) y(x'_s).
        rounding: how much of a score may be lost on the way to it.
        inexact: why derivatives had to stand in for slopes; None where they did not.
    """

    maps: Tensor
    totals: Tensor
    score: Tensor
    lower: Tensor
    references: Tensor
    rounding: float
    inexact: str | None = None

    @property
    def add_up(self) -> bool:
        """Whether each total is the rise of the score, but for rounding."""
        if not bool(self.score.isfinite()):
            return True
        rises = self.score - self.lower
        rounding = self.rounding * torch.maximum(self.lower.abs().max(), self.score.abs())
        return bool((rises - self.totals).abs().max() <= _MISSED * rises.abs().max() + rounding)

    @property
    def completeness(self) -> Completeness:
        """Both sides of the sum."""
        score, lower, references = (in_double(scores).mean() for scores in (self.score, self.lower, self.references))
        return Completeness(
            total=in_double(self.totals).mean()[None],
            expected=(score - references)[None],
            around=(lower - references)[None],
            exact=torch.tensor([self.inexact is None]),
        )


@dataclass(frozen=True)
class _Run:
    """Some references run together: the graph, what the layer returned (n, …), where it begins, and the output."""

    graph: SlopeGraph
    leaf: Tensor
    output: Any
    lasts: bool = False


@dataclass(frozen=True)
class _Ends:
    """References at a layer: what it returned for them (n, …), the network's output, and the runs that are kept."""

    activations: Tensor
    output: Any
    runs: tuple[_Run, ...] = ()


def drawn_for(task: Task, source: Reference, samples: int, seed: int) -> list[Drawn]:
    """The references of the task's only image, drawn one by one: as many as asked for, or as there are."""
    bound = source.bind(task.images, task.rows.tolist(), seed)
    drawn: list[Drawn] = []
    for sample in range(samples if source.varies else 1):
        reference = bound([0], sample)
        if source.count is not None and reference.visits is not None and reference.visits[0].number:
            break  # all of a data set have had their turn
        drawn.append(reference)
    return drawn


def steps_at(task: Task, point: LayerPoint, drawn: Sequence[Drawn]) -> Steps:
    """The steps of the task's only image at a layer."""
    place = _Place(task, task.probe.at(point), drawn)
    place.goes_around()  # what goes wrong in plain passes is the model's own error
    try:
        return place.by_slopes()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # an operation that cannot be taken apart; an error of the model's comes up again
        if isinstance(error, EgcamError) and not isinstance(error, Unlike):
            raise  # what the user has to know, such as that a target is missing
        return place.by_derivatives(str(error).partition("\n")[0] or type(error).__name__)


class _Place:
    """One image at one layer."""

    def __init__(self, task: Task, probe: Probe, drawn: Sequence[Drawn]) -> None:
        self.task, self.probe, self.drawn = task, probe, drawn
        self.layer = probe.points[0].name
        images = task.images
        self.conditions: tuple[Hashable, ...] = (
            self.layer, tuple(images.shape[1:]), images.dtype, images.device, task.autocast, task.limit,
        )  # fmt: skip
        self.notes: dict[str, Any] = task.session.fact(("notes", self.layer), dict)
        keys = tuple(reference.keys[0] for reference in drawn)
        lasting = all(isinstance(key, tuple) and key[0] in ("pool", "always") for key in keys)
        self.key = None if probe.extra.args or probe.extra.kwargs or not lasting else keys

    # -- slopes ------------------------------------------------------------------------------------

    def by_slopes(self) -> Steps:
        """Slopes, from a record of the image alone or, where its rows cannot be told apart, of as many as are run."""
        try:
            if "rows" not in self.notes:
                try:
                    steps = self._by_slopes(by_row=False)
                    if steps.add_up:
                        return steps
                except Unlike:
                    pass
            steps = self._by_slopes(by_row=True)
        except Overwritten:
            self.notes["copies"] = True
            return self.by_slopes()
        if not steps.add_up:
            raise Unlike
        self.notes["rows"] = True
        return steps

    def _by_slopes(self, by_row: bool) -> Steps:
        ends, recording = self._ends(), Recording(self._first_graph()[1])
        if ends is None or ends.runs:
            seen = self.probe.recorded(self.task.images, self.task.rows, recording)
            self.task.meter.passes += 1
            output, here = seen.output, seen.raw[0]
            runs: Iterable[_Run] = self._run_images(lasts=False) if ends is None else ends.runs
        else:
            tail = self._tail(recording)
            output, here = tail.output, tail.activations
            runs = self._run_from_layer(tail, ends.activations)
        self.task.note_first(output, here, self.probe.points[0])
        parts = []
        for run in runs:
            record = self._recorded_rows(len(run.leaf)) if by_row else recording.record
            score, of_score = self._recorded_score(output, len(run.leaf))
            weighted, lower = self._slopes(run, record, of_score, here)
            parts.append(self._reduced(weighted, lower))
        maps, totals, lower = (torch.cat(column) for column in zip(*parts, strict=True))
        references = lower if ends is None or ends.runs else self._scores(ends.output, len(lower))
        return Steps(maps, totals, score[0], lower, references, self._rounding(here, score))

    def _slopes(self, run: _Run, record: Record, of_score: Record, here: Tensor) -> tuple[Tensor, Tensor]:
        """(n, …) slope times step, and (n,) the scores at the lower ends."""
        graph, leaves = SlopeGraph(), []

        def leaf_of(tensor: Tensor) -> Tensor:
            leaf = tensor.detach().clone().requires_grad_(tensor.is_floating_point())
            leaves.append((leaf, tensor))
            return graph.mark(leaf.clone())  # type: ignore[no-any-return]

        with torch.enable_grad():
            output = mapped_tensors(run.output, leaf_of)
            with graph:
                lower = self._scores(output, len(run.leaf))
        step = wide_enough(here) - wide_enough(run.leaf.detach())
        if not lower.requires_grad and not bool(lower.any()):
            return torch.zeros_like(step), lower  # a target that found nothing to read, as a box no detection matches
        moving = [(leaf, tensor) for leaf, tensor in leaves if leaf.requires_grad]
        of_output = graph.pull([lower], [torch.ones_like(lower)], [leaf for leaf, _ in moving], of_score)
        reached = [
            (tensor, slope)
            for (_, tensor), slope in zip(moving, of_output, strict=True)
            if slope is not None and tensor.requires_grad
        ]
        if not reached:
            raise Unlike
        outputs, slopes = zip(*reached, strict=True)
        (found,) = run.graph.pull(outputs, slopes, [run.leaf], record, keep=run.lasts)
        if found is None:
            raise Unlike
        return wide_enough(found) * step, lower.detach()

    def _recorded_score(self, output: Any, count: int) -> tuple[Tensor, Record]:
        """(n,) the image's score, and what its operations got, in as many rows as references: a target goes by row."""
        recording = Recording()
        output, count = _in_rows(output, count)
        copies = mapped_tensors(output, lambda tensor: recording.mark(tensor.detach().clone()))
        with torch.no_grad(), recording:
            return self._scores(copies, count), recording.record

    def _recorded_rows(self, count: int) -> Record:
        """The image recorded in as many rows as references are run."""
        recording = Recording(self._first_graph()[1])
        images = self.task.images.expand(count, *self.task.images.shape[1:])
        self.probe.recorded(images, self.task.rows.expand(count), recording)
        self.task.meter.passes += count
        return recording.record

    def _scores(self, output: Any, count: int) -> Tensor:
        return self.task.scores_of(output, torch.zeros(count, dtype=torch.long, device="cpu"))

    def _scores_of_rows(self, count: int) -> Callable[[Any], Tensor]:
        return lambda output: self._scores(output, count)

    def _rounding(self, *numbers: Tensor) -> float:
        """By the least precise numbers on the way."""
        dtypes = [tensor.dtype for tensor in numbers] + ([] if self.task.autocast is None else [self.task.autocast])
        return max(_ROUNDING.get(dtype, _COARSE) for dtype in dtypes)

    def _reduced(self, weighted: Tensor, lower: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        point = self.probe.points[0]
        images = self.task.images.expand(len(weighted), *self.task.images.shape[1:])
        return self.probe.as_maps(point, weighted, images).sum(1), weighted.flatten(1).sum(1), lower

    # -- references --------------------------------------------------------------------------------

    def _ends(self) -> _Ends | None:
        """The references at the layer, where something is kept of them or goes around it."""
        if self.goes_around():
            return self._kept("without graph", self._run_forward)
        if self.key is None:
            return None
        fits = len(self.drawn) * self._first_graph()[0] <= self.task.kept_memory
        return self._kept("with graph", self._run_and_keep) if fits else self._kept("without graph", self._run_forward)

    def _kept(self, kind: str, make: Any) -> _Ends:
        if self.key is None:
            return make()  # type: ignore[no-any-return]

        def sized() -> tuple[_Ends, int]:
            ends = make()
            tensors = [ends.activations, *tensors_in(ends.output)]
            of_graph = self._first_graph()[0] * len(self.drawn) if ends.runs else 0
            return ends, of_graph + sum(tensor.numel() * tensor.element_size() for tensor in tensors)

        return self.task.session.kept((kind, *self.conditions, self.key, "copies" in self.notes), sized)

    def _first_graph(self) -> tuple[int, set[str]]:
        """What the graph of the first reference shows: its bytes, and which modules have a backward of their own."""

        def measured() -> tuple[int, set[str]]:
            places: dict[int, int] = {}
            parameters = {tensor.untyped_storage().data_ptr() for tensor in self.probe.model.parameters()}

            def note(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in parameters:
                    places[storage.data_ptr()] = storage.nbytes()
                return tensor.detach()

            saving = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
            with saving, opaque_modules(self.probe.model) as opaque:
                self.probe.graph(self.drawn[0].images, self.task.rows, SlopeGraph(first=True))
            self.task.meter.passes += 1
            return sum(places.values()), opaque

        return self.task.session.fact(("first graph", *self.conditions), measured)

    def _rows_at_once(self) -> int:
        most = _MOST_AT_ONCE if self.task.limit is None else self.task.limit
        return max(1, min(most, self.task.memory // max(1, 2 * self._first_graph()[0])))

    def goes_around(self) -> bool:
        """Whether something reaches the output on a way around the layer."""
        return self.task.session.kept(("goes around", *self.conditions), lambda: (self._try_swap(), 0))

    def _try_swap(self) -> bool:
        """Whether something reaches the output on a way around the layer, or through another of its runs.

        Two images change places at the layer alone: if all goes through it, so do their outputs.
        """
        images = torch.cat([self.task.images, self.drawn[0].images])
        at_once = 1 if self.task.limit == 1 else 2
        parts = [(some, self.task.rows.expand(len(some))) for some in torch.split(images, at_once)]
        seen = [self.probe.forward(*part) for part in parts]
        for (some, _), run in zip(parts, seen, strict=True):
            check_rows(self.layer, run.raw[0], len(some))
        other = torch.split(torch.cat([run.raw[0] for run in seen]).flip(0), at_once)
        swapped = _columns([self.probe.replaced(*part, raw) for part, raw in zip(parts, other, strict=True)])
        self.task.meter.passes += 4
        truth = _columns([run.output for run in seen])
        return not truth or len(swapped) != len(truth) or not all(map(_are_swapped, swapped, truth))

    def _run_forward(self) -> _Ends:
        """Up to the output, without a graph."""
        parts = []
        for some in torch.split(self._images(), self.task.batch_size):
            seen = self.probe.forward(some, self.task.rows.expand(len(some)), fast=True)
            self.task.meter.passes += len(some)
            parts.append((seen.raw[0], seen.output))
        return _Ends(torch.cat([raw for raw, _ in parts]), _joined([output for _, output in parts]))

    def _run_and_keep(self) -> _Ends:
        """Up to the output, with graphs that are kept."""
        runs = tuple(self._run_images(lasts=True))
        outputs = _joined([mapped_tensors(run.output, Tensor.detach) for run in runs])
        return _Ends(torch.cat([run.leaf.detach() for run in runs]), outputs, runs)

    def _run_images(self, lasts: bool) -> Iterator[_Run]:
        """Up to the output, with the graph from the layer on, as many together as fit."""
        for some in torch.split(self._images(), self._rows_at_once()):
            graph = SlopeGraph("copies" in self.notes, self._first_graph()[1])
            leaf, output = self.probe.graph(some, self.task.rows.expand(len(some)), graph)
            self.task.meter.passes += len(some)
            yield _Run(graph, leaf, output, lasts)

    def _run_from_layer(self, tail: Replay, activations: Tensor) -> Iterator[_Run]:
        """From the layer on, with all else as for the image."""
        for some in torch.split(activations, self._rows_at_once()):
            graph = SlopeGraph("copies" in self.notes, self._first_graph()[1])
            leaf, output = tail.graph(some, torch.zeros(len(some), dtype=torch.long, device="cpu"), graph)
            self.task.meter.tails += len(some)
            yield _Run(graph, leaf, output)

    def _images(self) -> Tensor:
        return torch.cat([reference.images for reference in self.drawn])

    def _tail(self, recording: Recording | None = None) -> Replay:
        proofs = self.notes.setdefault("proofs", {})
        return Replay(self.probe, self.task.images, self.task.rows, self.task.meter.add, recording, proofs)

    # -- derivatives -------------------------------------------------------------------------------

    def by_derivatives(self, reason: str) -> Steps:
        """What follows the layer taken as one operation: its derivative at nodes between the ends."""
        tail, ends = self._tail(), self._kept("without graph", self._run_forward)
        here, parts = tail.activations, []
        self.task.note_first(tail.output, here, self.probe.points[0])
        for some in torch.split(ends.activations, self._rows_at_once()):
            own, step = torch.zeros(len(some), dtype=torch.long, device="cpu"), here - some
            slope = wide_enough(torch.zeros_like(some))
            for share, weight in gauss_legendre(_NODES):
                _, gradient = tail.gradients(some + share * step, own, self._scores_of_rows(len(some)))
                slope += weight * wide_enough(gradient)
            self.task.meter.tails += (_NODES + 1) * len(some)
            parts.append(self._reduced(slope * wide_enough(step), self._scores(tail.run(some, own), len(some))))
        maps, totals, lower = (torch.cat(column) for column in zip(*parts, strict=True))
        references = self._scores(ends.output, len(lower))
        score = self._scores(tail.output, 1)
        return Steps(maps, totals, score[0], lower, references, self._rounding(here, score), reason)


def _in_rows(output: Any, count: int) -> tuple[Any, int]:
    """One image's output for so many images, where it has rows: not that of a detector, which lists what it finds."""
    if isinstance(output, list) or not all(tensor.ndim and len(tensor) == 1 for tensor in tensors_in(output)):
        return output, 1
    return mapped_tensors(output, lambda tensor: tensor.expand(count, *tensor.shape[1:])), count


def _columns(outputs: Sequence[Any]) -> list[Tensor]:
    """Each tensor of an output, with the rows of all outputs; none where they do not go together."""
    columns = zip(*(list(tensors_in(output)) for output in outputs), strict=False)
    if len(outputs) == 1:
        return [column[0] for column in columns]
    alike = [column for column in columns if column[0].ndim and len({part.shape for part in column}) == 1]
    everything = all(len(list(tensors_in(output))) == len(alike) for output in outputs)
    return [torch.cat(column) for column in alike] if everything else []


def _joined(outputs: Sequence[Any]) -> Any:
    """One output of several batches' outputs; what has no rows is the first one's."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], list):  # one part for each image
        return [part for output in outputs for part in output]
    columns = zip(*(list(tensors_in(output)) for output in outputs), strict=True)
    tensors = iter([torch.cat(column) if column[0].ndim else column[0] for column in columns])
    return mapped_tensors(outputs[0], lambda _: next(tensors))


def _are_swapped(after: Tensor, before: Tensor) -> bool:
    if after.shape != before.shape or after.ndim == 0 or len(before) != 2:
        return False
    if not after.is_floating_point():
        return torch.equal(after, before.flip(0))
    apart = (before[0] - before[1]).abs().max()
    rounding = _SWAPPED.get(after.dtype, 1e-2) * before.abs().max()
    return bool((after - before.flip(0)).abs().max() <= _MISSED * apart + rounding)
