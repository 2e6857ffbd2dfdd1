"""The Shapley values of superpixels: exact where all their combinations can be tried, else as exact as is paid for."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.averaging import check_samples
from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.explanation import Completeness
from egcam.attribution.references import ReferenceLike, as_reference
from egcam.attribution.regions import as_segments, superpixels
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import MethodError, check_count, require
from egcam.imageops import in_double, wide_enough
from egcam.rng import generator

Game = Callable[[Tensor], Tensor]
"""From (B, m) booleans, which superpixels are shown, to (B,) scores in float64."""


@register(
    "superpixel-shapley",
    label="Superpixel Shapley",
    summary="the Shapley value of each superpixel: exact if they are few, else sampled (extra: study); slow",
    group="input",
    slow=True,
    line=("green", "-", "^"),
    package="skimage",
)
class SuperpixelShapley(Explainer):
    """The Shapley value of each superpixel for the score, where those that are not shown are covered by the reference.

        phi_i = sum over S without i of  |S|! (m - |S| - 1)! / m!  (y(S + i) - y(S))

    With m superpixels there are 2^m combinations. If `samples` allows as many, all are tried and the values are
    exact. Otherwise phi is the mean, over random orders and their reverses, of what each superpixel adds when it is
    shown next; the error is the standard error over these pairs. Either way the values add up to y(x) - y(reference):
    each is spread evenly over the pixels of its superpixel, so that the signed map adds up.

    Args:
        model: the classifier, or a black box.
        segments: about how many superpixels (SLIC; equal pieces of a signal), or whole numbers (H, W), or (N, H, W),
            that say which superpixel each pixel is in.
        samples: the most combinations shown to the network for an image; 1,024 are all those of ten superpixels.
        reference: what covers: a name, an image, a function; see `egcam.Expected`'s reference.
        seed: of the orders.
        common: the options all explainers take.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> quarters = torch.arange(4).reshape(2, 2).kron(torch.ones(2, 2).long())
        >>> explanation = SuperpixelShapley(net, segments=quarters, signed=True)(torch.rand(1, 1, 4, 4), target=0)
        >>> explanation.passes, bool((explanation.completeness.gap.abs() < 1e-6).all())
        (16, True)
    """

    at_input = True
    by_scores = True
    cpu_memory = 256 * 2**20
    cause_of_zero = "covering any of the superpixels leaves the score as it is"

    def __init__(
        self,
        model: nn.Module,
        *,
        segments: Any = 10,
        samples: int = 1024,
        reference: ReferenceLike = "black",
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, None, **common)
        check_samples(samples)
        if isinstance(segments, int | float):
            check_count(segments, "segments")
            require("skimage", "study", "dividing images into superpixels (or pass segments=…)")
        self.segments, self.samples, self.seed = segments, samples, seed
        self.reference = as_reference(reference, default="black", seed=seed)

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        reference = self.reference.for_images(task.images)
        covers = reference.draw(task.images, task.rows.tolist(), 0, self.seed).images
        parts = self._parts(task)
        maps, errors, rises = [], [], []
        for row, labels in enumerate(task.meter.each(parts.unbind())):
            labels = torch.unique(labels, return_inverse=True)[1]  # numbered without gaps
            area = labels.flatten().bincount().double().cpu()
            values, error, rise = self._values(self._game(task, row, covers[row], labels), len(area), task, row)
            maps.append((values / area)[labels.cpu()])
            errors.append((error / area)[labels.cpu()])
            rises.append(rise)
        found = torch.stack(maps).to(wide_enough(task.images))
        total = found.flatten(1).sum(1)
        sides = Completeness(
            total, torch.stack(rises).to(total), torch.zeros_like(total), total.new_ones(len(total)) > 0
        )
        return Maps([found], [torch.stack(errors).to(found)], reference.description, sides)

    def _parts(self, task: Task) -> Tensor:
        """(n, H, W) the superpixel each pixel is in."""
        images = task.images
        if not isinstance(self.segments, int):
            labels = torch.as_tensor(self.segments, device="cpu")
            of_each = labels.ndim == images.ndim - 1 and len(labels) > int(task.rows.max())
            return as_segments(labels[task.rows] if of_each else labels, images)
        if images.ndim == 3:
            length = images.shape[2]
            pieces = torch.arange(length, device=images.device) * min(self.segments, length) // length
            return pieces.expand(len(images), length)
        return torch.stack([_at_most(image[None], self.segments) for image in images])

    def _game(self, task: Task, row: int, cover: Tensor, labels: Tensor) -> Game:
        image = task.images[row]

        def scores(shown: Tensor) -> Tensor:
            found = []
            for some in task.meter.each(torch.split(shown, task.batch_size)):
                points = torch.where(some.to(labels.device)[:, labels][:, None], image, cover)
                found.append(in_double(task.scores_at(points, torch.full((len(some),), row, device="cpu"))))
            return torch.cat(found)

        return scores

    def _values(self, game: Game, count: int, task: Task, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """(m,) Shapley values, (m,) standard errors, and the score's rise from the reference to the image."""
        full = in_double(task.scores[row])
        if 2**count <= self.samples:
            shown = (torch.arange(2**count, device="cpu")[:, None] >> torch.arange(count, device="cpu")) % 2 == 1
            scores = torch.cat([game(shown[:-1]), full[None]])
            return exact_values(scores, count), torch.zeros(count, dtype=torch.float64, device="cpu"), full - scores[0]
        pairs = (self.samples - 2) // (2 * (count - 1))
        if pairs < 2:
            raise MethodError(
                f"{count} superpixels need at least {4 * (count - 1) + 2} samples, two pairs of orders, and there are "
                f"{self.samples}; take more samples or fewer segments"
            )
        empty = game(torch.zeros(1, count, dtype=torch.bool, device="cpu"))[0]
        source = generator(self.seed, "superpixel orders", count)
        found = []
        for _ in task.meter.each(range(pairs)):
            order = torch.randperm(count, generator=source, device="cpu")
            both = [_added(game, turned, empty, full) for turned in task.meter.each((order, order.flip(0)))]
            found.append((both[0] + both[1]) / 2)
        sampled = torch.stack(found)
        return sampled.mean(0), sampled.std(0) / pairs**0.5, full - empty

    def _options(self) -> dict[str, Any]:
        given = self.segments if isinstance(self.segments, int) else "given"
        return {"segments": given, "samples": self.samples}


def exact_values(scores: Tensor, count: int) -> Tensor:
    """(m,) the Shapley values in a game whose scores, (2^m,), are all known: bit i of an index says whether i is in.

    >>> exact_values(torch.tensor([0.0, 1.0, 2.0, 5.0]), 2)
    tensor([2., 3.])
    """
    index = torch.arange(2**count, device="cpu")
    sizes = torch.stack([(index >> bit) % 2 for bit in range(count)]).sum(0)
    shares = [1 / (count * comb(count - 1, size)) for size in range(count)]
    weights = torch.tensor(shares, dtype=torch.float64, device="cpu").to(scores)
    values = []
    for bit in range(count):
        without = index[(index >> bit) % 2 == 0]
        values.append((weights[sizes[without]] * (scores[without + 2**bit] - scores[without])).sum())
    return torch.stack(values)


def _added(game: Game, order: Tensor, empty: Tensor, full: Tensor) -> Tensor:
    """(m,) what each superpixel adds when they are shown one after another."""
    shown = torch.ones(len(order), len(order), dtype=torch.bool, device="cpu").tril()[:-1][:, order.argsort()]
    steps = torch.cat([empty[None], game(shown), full[None]]).diff()
    return torch.empty_like(steps).index_copy_(0, order, steps)


def _at_most(image: Tensor, wanted: int) -> Tensor:
    """(H, W) SLIC's superpixels, which may be more than were asked for, and then are asked for again."""
    for asked in range(wanted, 0, -1):
        labels = superpixels(image, asked)[0]
        if int(labels.max()) < wanted:
            break
    return labels
