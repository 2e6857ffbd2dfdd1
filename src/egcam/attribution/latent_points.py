"""Points on the path from references to the images, in the layer's own space: z = A' + a (A - A')."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from egcam.attribution.adding_up import AddingUp
from egcam.attribution.averaging import Evaluations, Run
from egcam.attribution.explanation import Completeness
from egcam.attribution.kernels import Kernel
from egcam.attribution.moments import wide_enough
from egcam.attribution.path_points import Difference, DrawnReferences, PathPlan
from egcam.attribution.reference_activations import AtReference, fingerprint
from egcam.attribution.references import Drawn, Reference
from egcam.attribution.task import Task, chunks
from egcam.errors import EgcamError, SamplingError
from egcam.imageops import in_double
from egcam.models.dense_head import DenseHead, can_be_skipped, linear_on_all_of, takes_all_of
from egcam.models.replay import Replay
from egcam.models.targets import class_scores

_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}  # of a score, between a whole pass and a run of the tail

GradientsAt: TypeAlias = Callable[[Tensor, Tensor, Callable[[Any], Tensor]], tuple[Tensor, Tensor]]


def check_latent(difference: Difference, kernel: Kernel | None) -> None:
    """Refuse what belongs to a path of images."""
    if difference == "input":
        raise SamplingError(
            "difference='input' is f(x - x'), which belongs to a path of images; with path='latent' use 'latent' or "
            "'none'"
        )
    if kernel is not None and kernel.normaliser:
        raise SamplingError(
            "a kernel's normaliser is the layer's response to noise in the image; with path='latent' the noise is at "
            "the layer itself, so leave normaliser=False"
        )


class LatentPoints(Evaluations):
    """The gradient of what follows the layer, between the activations of references and of the images."""

    def __init__(self, task: Task, source: Reference, plan: PathPlan, by_channel: bool = True) -> None:
        super().__init__(task)
        if plan.exact_sum and by_channel:
            raise SamplingError(
                "exact_sum=True corrects the sum over the channels, so it needs weighting='summed' and negative=1"
            )
        self.plan = plan
        self.references = DrawnReferences(task, source, plan)
        self.reference = source.described(plan.distinct)
        self._network = _SeenReferences(task)
        self._sums = [AddingUp(len(task.images)) for _ in task.tails]
        self._scores = [_ReferenceScores(len(task.images)) for _ in task.tails]
        self._samples_of_round: list[_Samples] = []
        self._references_of_round: list[_Seen] = []
        self._nothing_goes_around: list[bool | None] = [None for _ in task.tails]
        self._is_affine = plan.kernel is None and all(self._network.has_affine_tail(tail) for tail in task.tails)
        single = len(task.tails) == 1 and not by_channel and plan.difference != "none"
        if single and not self._is_affine and plan.kernel is None and self.at_once > 1:
            self._network.find_dense_head(task.tails[0])

    @property
    def at_once(self) -> int:
        """More than passes: what follows the layer is often a small part of the network."""
        return self.task.tails_at_once

    @property
    def same_everywhere(self) -> bool:
        """Where what follows the layer is affine, its gradient is the same at all points."""
        return self._is_affine

    def weighted_gradients(self, runs: Sequence[Run]) -> list[Tensor]:
        """d * g at each layer."""
        own = torch.cat([run.images for run in runs])
        numbers = torch.cat([torch.full_like(run.images, run.evaluation) for run in runs])
        if self._is_affine:
            return self._of_affine_tails(own, numbers)
        seen, shares = self._seen(runs, own)
        self._note_references(own, numbers, seen)
        if self._network.head is not None and all(reference.hidden is not None for reference in seen):
            return [self._through_dense_head(self._network.head, own, numbers, seen, shares)]
        found = []
        for layer, tail in enumerate(self.task.tails):
            here = tail.activations[own.to(tail.activations.device)]
            there = torch.stack([reference.activations[layer] for reference in seen])
            away = here - there
            points = _between(here, away, shares)
            if self.plan.kernel is not None:
                points = points + self._noise(here, runs)
            gradients = self._gradients(layer, tail.gradients, points, there, own, seen)
            found.append(self._times_difference(layer, own, numbers, gradients, wide_enough(away)))
        return found

    def _seen(self, runs: Sequence[Run], own: Tensor) -> tuple[list[AtReference], list[float]]:
        """The reference of each row, as the network sees it, and its share a of the way."""
        drawn: list[Drawn] = []
        shares: list[float] = []
        for run in runs:
            references, at = self.references.draw(run.images, run.evaluation // self.plan.per_sample)
            drawn.append(references)
            shares += at
        return self._network.at(drawn, own), shares

    def _through_dense_head(
        self, head: DenseHead, own: Tensor, numbers: Tensor, seen: list[AtReference], shares: Sequence[float]
    ) -> Tensor:
        """(B, 1, …) the sum over the channels of d * g; see `DenseHead`."""
        rows = own.to(head.hidden.device)
        there = torch.stack([_known(reference.hidden) for reference in seen])
        points = _between(head.hidden[rows], head.hidden[rows] - there, shares)
        gradients = self._gradients(0, head.gradients, points, there, own, seen)
        return self._of_hidden(head, own, numbers, seen, gradients)

    def _of_hidden(
        self, head: DenseHead, own: Tensor, numbers: Tensor, seen: list[AtReference], slopes: Tensor
    ) -> Tensor:
        """(B, 1, …) what the places add to the score, from the slopes (B, H) of the hidden numbers."""
        weighted = torch.stack(
            [
                slope @ (head.contributions[row] - _known(reference.contributions))
                for slope, row, reference in zip(slopes, own.tolist(), seen, strict=True)
            ]
        )
        maps = weighted.reshape(len(own), 1, *self.task.tails[0].activations.shape[2:])
        self._note_samples(0, own, numbers, maps, weighted.sum(1))
        return maps

    def _of_affine_tails(self, own: Tensor, numbers: Tensor) -> list[Tensor]:
        """One gradient and the mean of all samples' differences: what any number of points would give."""
        seen: list[AtReference] = []
        if self.plan.difference == "none":
            means = [wide_enough(torch.zeros_like(tail.activations)) for tail in self.task.tails]
        else:
            count = self.evaluations_of(self.plan.samples)
            drawn = [self.references.draw(own, sample)[0] for sample in range(count)]
            means, seen = self._network.means(drawn, own, self.at_once)
            self._note_references(own.repeat(count), numbers.repeat(count), seen)
        found = []
        for layer, (tail, mean) in enumerate(zip(self.task.tails, means, strict=True)):
            first = [reference.activations[layer] for reference in seen[: len(own)]]
            there = torch.stack(first) if first else tail.activations
            gradients = self._gradients(layer, tail.gradients, tail.activations, there, own, seen)
            away = wide_enough(tail.activations) - mean
            found.append(self._times_difference(layer, own, numbers, gradients, away))
        return found

    def _gradients(
        self, layer: int, gradients_at: GradientsAt, points: Tensor, there: Tensor, own: Tensor, seen: list[AtReference]
    ) -> Tensor:
        """g at the points; the first time with a reference as a further row, to see whether anything goes around.

        The row is run by itself where rows must be, one at a time.
        """
        count = len(points)
        row = self._telling_row(layer, points, there, own, seen)
        one = own[:0] if row is None else own[row : row + 1]
        further = there[:0].to(points) if row is None else there[row : row + 1].to(points)
        alone = self.at_once == 1
        if len(one) and not alone:
            points, own = torch.cat([points, further]), torch.cat([own, one])
        scores, gradients = gradients_at(points, own, lambda output: self.task.scores_of(output, own))
        self.task.meter.tails += len(points)
        if row is not None:
            if alone:
                by_itself, _ = gradients_at(further, one, lambda output: self.task.scores_of(output, one))
                scores = torch.cat([scores, by_itself])
                self.task.meter.tails += 1
            self._nothing_goes_around[layer] = self._reproduces(scores, one, seen[row])
        return wide_enough(gradients[:count])

    def _telling_row(
        self, layer: int, points: Tensor, there: Tensor, own: Tensor, seen: list[AtReference]
    ) -> int | None:
        """The row whose reference is furthest from the image, if what goes around the layer is yet to be found out.

        A reference that equals the image tells nothing.
        """
        if not self._is_added_up or self._nothing_goes_around[layer] is not None:
            return None
        far = (points - there).flatten(1).float().norm(dim=1)
        row = int(far.argmax())
        known = bool(far[row] > 0) and self._known_scores(own[row : row + 1], seen[row : row + 1]) is not None
        return row if known else None

    def _reproduces(self, scores: Tensor, one: Tensor, reference: AtReference) -> bool:
        """Whether the last of the scores, that of the reference's activations alone, is the reference's own."""
        assert self.task.scores is not None
        truth = _known(self._known_scores(one, [reference]))[0].to(scores)
        apart = (self.task.scores[one.to(self.task.scores.device)][0].to(scores) - truth).abs()
        rounding = _ROUNDING.get(scores.dtype, 1e-2) * torch.maximum(truth.abs(), scores.abs().max())
        # Not torch.isclose, which takes no tolerance that is NaN.
        return bool((scores[-1] - truth).abs() <= 1e-2 * apart + rounding)

    def _times_difference(self, layer: int, own: Tensor, numbers: Tensor, gradients: Tensor, away: Tensor) -> Tensor:
        tail = self.task.tails[layer]
        if self.plan.difference == "none":
            return tail.as_maps(gradients)
        weighted = gradients * away
        maps = tail.as_maps(weighted)
        self._note_samples(layer, own, numbers, maps, weighted.flatten(1).sum(1))
        return maps

    def _noise(self, here: Tensor, runs: Sequence[Run]) -> Tensor:
        assert self.plan.kernel is not None
        rows = torch.split(here, [len(run.images) for run in runs])
        return torch.cat(
            [
                self.plan.kernel.latent_noise(some, run.evaluation, self.plan.seed)
                for some, run in zip(rows, runs, strict=True)
            ]
        )

    # -- completeness ----------------------------------------------------------------------------

    @property
    def _is_added_up(self) -> bool:
        """Of several layers, whose maps are fused, the sums matter only if the maps are corrected by them."""
        return self.plan.difference != "none" and (len(self.task.tails) == 1 or self.plan.exact_sum)

    def completed(self, maps: list[Tensor]) -> tuple[list[Tensor], Completeness | None]:
        """The maps, with `exact_sum` made to add up; of a single one, both sides of the completeness equation.

        They are its total, and y(x) - E[y(x')] over the references that were drawn.
        """
        if not self._is_added_up:
            return maps, None
        found = [self._completed(layer, of_layer) for layer, of_layer in enumerate(maps)]
        return [of_layer for of_layer, _ in found], found[0][1] if len(found) == 1 else None

    def _completed(self, layer: int, maps: Tensor) -> tuple[Tensor, Completeness]:
        assert self.task.scores is not None
        expected = in_double(self.task.scores) - self._scores[layer].means()
        if not self.plan.exact_sum:
            return maps, Completeness(self._sums[layer].means(), expected)
        corrected, total, correction = self._sums[layer].corrected(maps, expected)
        return corrected, Completeness(total, expected, correction=correction)

    def _note_samples(self, layer: int, own: Tensor, numbers: Tensor, maps: Tensor, totals: Tensor) -> None:
        if self._is_added_up:
            cells = maps.sum(1) if self.plan.exact_sum else totals.new_zeros(len(totals), 0)
            self._samples_of_round.append(_Samples(layer, own, numbers, in_double(cells), in_double(totals)))

    def _note_references(self, own: Tensor, numbers: Tensor, seen: list[AtReference]) -> None:
        if self._is_added_up:
            self._references_of_round.append(_Seen(own, numbers, seen))

    def settle(self, counts: Tensor) -> None:
        """Add up what the evaluations that count have found."""
        for layer, own, numbers, cells, totals in self._samples_of_round:
            kept = numbers < counts[own]
            self._sums[layer].add(own[kept], cells[kept], totals[kept])
        for own, numbers, seen in self._references_of_round:
            kept = numbers < counts[own]
            rows = kept.nonzero()[:, 0].tolist()
            for layer, scores in enumerate(self._scores if rows else []):
                scores.add(own[kept], self._reference_scores(layer, own[kept], [seen[row] for row in rows]))
        self._samples_of_round.clear()
        self._references_of_round.clear()

    def _reference_scores(self, layer: int, own: Tensor, seen: list[AtReference]) -> Tensor:
        """(B,) the explained number when the layer outputs A' and everything around it is as for the image.

        That is y(x') unless something goes around the layer.
        """
        known = self._known_scores(own, seen) if self._nothing_goes_around[layer] else None
        return self._scores_by_tail(layer, own, seen) if known is None else known

    def _known_scores(self, own: Tensor, seen: list[AtReference]) -> Tensor | None:
        rows = [reference.class_scores for reference in seen if reference.class_scores is not None]
        if self.task.indices is None or len(rows) != len(seen):
            return None
        return self.task.scores_of(torch.stack(rows), own)

    def _scores_by_tail(self, layer: int, own: Tensor, seen: list[AtReference]) -> Tensor:
        there = torch.stack([reference.activations[layer] for reference in seen])
        self.task.meter.tails += len(there)
        return self.task.scores_of(self.task.tails[layer].run(there, own), own)


def _between(here: Tensor, away: Tensor, shares: Sequence[float]) -> Tensor:
    """(B, …) the points on the way, written as the image minus a rest: a = 1 gives the image's to the last bit."""
    rest = away.new_tensor([1.0 - share for share in shares]).reshape(-1, *[1] * (away.ndim - 1))
    return here - rest * away


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


class _SeenReferences:
    """The references of a task as the network sees them; what was seen before is not looked at again.

    Attributes:
        head: what follows the layer, where that is a dense head; see `DenseHead`.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.head: DenseHead | None = None
        self._with_further_inputs = bool(task.probe.extra.args or task.probe.extra.kwargs)
        self._fingerprint = fingerprint(task.probe, task.images)
        self._of_this_call: dict[Hashable, AtReference] = task.memo.setdefault("references", {})

    def at(self, drawn: Sequence[Drawn], own: Tensor) -> list[AtReference]:
        """One for each image of each draw, in order."""
        keys = self._keys([key for one in drawn for key in one.keys], own)
        lasting = [key for key in keys if self._lasts(key)]
        kept = self.task.kept.get(self._fingerprint, lasting)
        known = {**self._of_this_call, **{key: self._with_head(reference) for key, reference in kept.items()}}
        rows = [row for row, key in enumerate(keys) if key not in known or key is None]
        first = {keys[row]: row for row in reversed(rows) if keys[row] is not None}
        rows = [row for row in rows if keys[row] is None or first[keys[row]] == row]
        # One by one if they are kept: the last bits depend on the batch, and a later map must not on an earlier one.
        alone = [row for row in rows if self._lasts(keys[row])]
        others = [row for row in rows if not self._lasts(keys[row])]
        fresh = {row: self._with_head(one) for row, one in self._pass(drawn, alone, own, 1).items()}
        fresh |= self._pass(drawn, others, own, self.task.batch_size)
        known.update({keys[row]: reference for row, reference in fresh.items() if keys[row] is not None})
        self._keep({key: known[key] for key in first})
        return [fresh[row] if key is None else known[key] for row, key in enumerate(keys)]

    def means(self, drawn: Sequence[Drawn], own: Tensor, at_once: int) -> tuple[list[Tensor], list[AtReference]]:
        """At each layer the mean of each image's references, (n, …); and the references, as `at` gives them."""
        per_turn = max(1, at_once // len(own))
        seen = [one for some in chunks(drawn, per_turn) for one in self.at(some, own.repeat(len(some)))]
        each = [
            self._mean(self._keys([one.keys[row] for one in drawn], own[[row] * len(drawn)]), seen[row :: len(own)])
            for row in range(len(own))
        ]
        return [torch.stack(layer) for layer in zip(*each, strict=True)], seen

    def _mean(self, keys: list[Hashable], seen: Sequence[AtReference]) -> list[Tensor]:
        """Of one image's references; kept where the next image is likely to have the same ones, in another order."""

        def mean() -> list[Tensor]:
            # In an order of their own, or the last bits would depend on whose turn it was first.
            ordered = [one for _, one in sorted(zip(keys, seen, strict=True), key=lambda pair: repr(pair[0]))]
            return [
                wide_enough(torch.stack(layer)).mean(0)
                for layer in zip(*(one.activations for one in ordered), strict=True)
            ]

        if all(map(self._lasts, keys)) and len(set(keys)) == len(keys):
            return self.task.kept.means(self._fingerprint, frozenset(keys), mean)
        return mean()

    def has_affine_tail(self, tail: Replay) -> bool:
        """Whether the explained logit, and so every class's, is an affine function of the layer's activations."""
        task = self.task
        if task.targets.score != "logit" or task.indices is None:
            return False
        trace = task.probe.trace(task.images[:1])
        if trace is not None and trace.bends_after(tail.layer):
            return False
        return task.kept.verdict(self._fingerprint, ("affine", tail.layer), lambda: self._try_affine(tail))

    def has_slopes(self, answer: Callable[[], bool]) -> bool:
        """Whether each operation behind the layer has a slope; asked once of a network, of a function each time."""
        if self.task.indices is None:
            return answer()
        return self.task.kept.verdict(self._fingerprint, ("slopes", self.task.targets.score), answer)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Forget what is seen: in a run it would be seen in other batches, and the last bits depend on these."""
        before = dict(self._of_this_call)
        try:
            yield
        finally:
            self._of_this_call.clear()
            self._of_this_call.update(before)

    def overrule_slopes(self) -> None:
        """One has turned out to have none."""
        self.task.kept.overrule(self._fingerprint, ("slopes", self.task.targets.score))

    def is_before_dense_head(self, tail: Replay) -> bool:
        """Whether what follows begins with a linear layer on all of the layer's activations."""
        linear = linear_on_all_of(self.task.probe.model, tail)
        if linear is None or tail.activations.ndim <= 2:
            return False
        question = ("dense head", tail.layer)
        return self.task.kept.verdict(self._fingerprint, question, lambda: takes_all_of(tail, linear))

    def find_dense_head(self, tail: Replay) -> None:
        """Take the head apart if it is dense and gets the layer's activations as they are."""
        device, one = tail.activations.device.type, tail.activations[:1]
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return
        linear = linear_on_all_of(self.task.probe.model, tail)
        if linear is None or not can_be_skipped(linear, tail) or not self.is_before_dense_head(tail):
            return
        if torch.equal(tail.as_maps(one), one):
            head = DenseHead(linear, tail)
            self.head = head if head.is_proven else None

    def _try_affine(self, tail: Replay) -> bool:
        self.task.meter.tails += 6
        return tail.is_affine(class_scores, self.task.tails_at_once)

    def _keys(self, keys: list[Hashable], own: Tensor) -> list[Hashable]:
        """With further inputs of the model, each image has its own f(x')."""
        if not self._with_further_inputs:
            return keys
        rows = self.task.rows[own].tolist()
        return [None if key is None else ("with inputs", key, row) for key, row in zip(keys, rows, strict=True)]

    def _lasts(self, key: Hashable) -> bool:
        return isinstance(key, tuple) and key[0] in ("pool", "always")

    def _keep(self, found: dict[Hashable, AtReference]) -> None:
        self.task.kept.keep(self._fingerprint, {key: value for key, value in found.items() if self._lasts(key)})
        self._of_this_call.update({key: value for key, value in found.items() if not self._lasts(key)})

    def _pass(self, drawn: Sequence[Drawn], rows: Sequence[int], own: Tensor, at_once: int) -> dict[int, AtReference]:
        """The network run on the references in these rows, in batches."""
        ends = torch.tensor([len(one.keys) for one in drawn], device="cpu").cumsum(0).tolist()
        found: dict[int, AtReference] = {}
        for some in chunks(rows, at_once):
            images = []
            for row in some:
                number = next(number for number, end in enumerate(ends) if row < end)
                start = ends[number] - len(drawn[number].keys)
                images.append(drawn[number].images[row - start])
            seen = self.task.probe.forward(torch.stack(images), self.task.rows[own[list(some)]], fast=True)
            self.task.meter.add(len(some))
            scores = _class_scores(seen.output, len(some))
            for number, row in enumerate(some):
                activations = tuple(layer[number].clone() for layer in seen.raw)
                known = None if scores is None else scores[number].clone()
                found[row] = AtReference(activations, known)
        return found

    def _with_head(self, reference: AtReference) -> AtReference:
        """With what a dense head makes of it: costs about as much as three samples, so only for what is kept."""
        if self.head is None or reference.hidden is not None:
            return reference
        contributions = self.head.contributions_of(reference.activations[0][None])
        hidden = self.head.hidden_of(contributions)
        return replace(reference, contributions=contributions[0], hidden=hidden[0])


def _class_scores(output: object, count: int) -> Tensor | None:
    try:
        return class_scores(output, count)
    except EgcamError:
        return None


class _Samples(NamedTuple):
    """At a layer: of which image and evaluation each sample is, its map (B, h, w) and its sum (B,)."""

    layer: int
    own: Tensor
    numbers: Tensor
    cells: Tensor
    totals: Tensor


class _Seen(NamedTuple):
    """Of which image and evaluation each reference is, and what the network makes of it."""

    own: Tensor
    numbers: Tensor
    references: list[AtReference]


class _ReferenceScores:
    """For each image: its references' scores, added up."""

    def __init__(self, images: int) -> None:
        self.scores, self.references = torch.zeros(2, images, dtype=torch.float64, device="cpu")

    def add(self, own: Tensor, scores: Tensor) -> None:
        self.scores.index_add_(0, own, in_double(scores))
        self.references += torch.bincount(own, minlength=len(self.references))

    def means(self) -> Tensor:
        return torch.div(self.scores, self.references)
