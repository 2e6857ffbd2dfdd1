"""Unit networks: weights set by hand, one mechanism each, and evidence that is known to the last cell.

After the unit tests of Lee et al. (2025), "XAI-Units", and the signed scores of Brandt et al. (2023), "Precise
Benchmarking of Explainable AI Attribution Methods".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb
from typing import Literal

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.rng import generator
from egcam.truth.trial import Trial

Sign = Literal["positive", "negative"]
SIDE = 8
_PART = 2
_DISTRACTOR = (2, "upper")


@dataclass(frozen=True)
class Unit:
    """One mechanism."""

    name: str
    parts: tuple[tuple[int, str], ...]  # what an image shows, each in a channel and, "upper" or "lower", in a half
    score: Callable[[Tensor], Tensor]  # y from the sums (N, 2, 2) over the parts' area: channel, then upper and lower


def _channels(sums: Tensor) -> Tensor:
    return sums.sum(2)


UNITS: tuple[Unit, ...] = (
    # y = min(1, a), and a = 3: the gradient is 0, and the three parts share the credit.
    Unit("saturation", ((0, "upper"), (0, "lower"), (0, "lower")), lambda s: 1 - (1 - _channels(s)[:, 0]).relu()),
    # y = a - b = 0: two that cancel each other are both evidence.
    Unit("cancellation", ((0, "upper"), (1, "lower")), lambda s: _channels(s)[:, 0] - _channels(s)[:, 1]),
    # y = max(0, a + b - 1): either alone does nothing.
    Unit("and", ((0, "upper"), (1, "lower")), lambda s: (_channels(s).sum(1) - 1).relu()),
    # y = min(1, a + b): either alone is enough.
    Unit("or", ((0, "upper"), (1, "lower")), lambda s: 1 - (1 - _channels(s).sum(1)).relu()),
    # y = max(0, a - 2 b) = 0: b is silent evidence against.
    Unit("suppressor", ((0, "upper"), (1, "lower")), lambda s: (_channels(s)[:, 0] - 2 * _channels(s)[:, 1]).relu()),
    # y = a above - a below: one channel is evidence for the class in one place and against it in another.
    Unit("shared channel", ((0, "upper"), (0, "lower")), lambda s: s[:, 0, 0] - s[:, 0, 1]),
)


class UnitNetwork(nn.Module):
    """y of a unit, and 0 as a second class. Images are (N, 3, 8, 8); the layer "cells" puts them out as they are.

    The third channel has no say.
    """

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.cells = nn.Identity()
        self.unit = unit

    def forward(self, images: Tensor) -> Tensor:
        """(N, 2)."""
        cells: Tensor = self.cells(images)
        halves = torch.stack([half.sum((2, 3)) for half in torch.split(cells[:, :2], SIDE // 2, 2)], 2)
        y = self.unit.score(halves / _PART**2)
        return torch.stack([y, torch.zeros_like(y)], 1)


def unit_images(unit: Unit, count: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(N, 3, 8, 8) images with the unit's parts at random places, and (N, 8, 8) the truth.

    A further part, in the third channel, is a distractor: the network does not look at it.

    The truth of a cell is the Shapley value of the part it belongs to, worked out over all subsets of the parts that
    the image could show, divided by the part's area.

    Example:
        >>> images, truth = unit_images(UNITS[4], count=1)
        >>> sorted(truth.unique().tolist()), float(truth.sum())
        ([-0.125, 0.0, 0.125], 0.0)
    """
    images, truths = torch.zeros(count, 3, SIDE, SIDE), torch.zeros(count, SIDE, SIDE)
    values = [*_shapley_of_parts(unit), 0.0]
    for number in range(count):
        for (channel, rows, columns), value in zip(_places(unit, number, seed), values, strict=True):
            images[number, channel, rows, columns] = 1
            truths[number, rows, columns] = value / _PART**2
    return images, truths


def _places(unit: Unit, number: int, seed: int) -> Iterator[tuple[int, slice, slice]]:
    """Where the parts lie: no two on the same columns."""
    chance = generator(seed, "unit", unit.name, number)
    columns = _PART * torch.randperm(SIDE // _PART, generator=chance)
    for (channel, half), left in zip((*unit.parts, _DISTRACTOR), columns.tolist(), strict=False):
        low = 0 if half == "upper" else SIDE // 2
        top = low + int(torch.randint(SIDE // 2 - _PART + 1, (), generator=chance))
        yield channel, slice(top, top + _PART), slice(left, left + _PART)


def _shapley_of_parts(unit: Unit) -> list[float]:
    """phi_p = sum over subsets S without p of (y(S + p) - y(S)) / (n binom(n - 1, |S|))."""
    parts = range(len(unit.parts))

    def value(subset: tuple[int, ...]) -> float:
        sums = torch.zeros(1, 2, 2)
        for part in subset:
            channel, half = unit.parts[part]
            sums[0, channel, int(half == "lower")] += 1
        return float(unit.score(sums))

    values = []
    for part in parts:
        others = [other for other in parts if other != part]
        subsets = [subset for size in range(len(others) + 1) for subset in combinations(others, size)]
        rises = [
            (value((*subset, part)) - value(subset)) / (len(parts) * comb(len(others), len(subset)))
            for subset in subsets
        ]
        values.append(sum(rises))
    return values


@dataclass(frozen=True)
class SignedScores:
    """Precision and recall of the evidence of one sign; each (N,)."""

    precision: Tensor
    recall: Tensor

    @property
    def f1(self) -> Tensor:
        """The harmonic mean; 0 where both are 0."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / torch.where(total > 0, total, 1.0)


def signed_scores(maps: Tensor, truth: Tensor, sign: Sign, least: float = 0.1) -> SignedScores:
    """How well maps find the evidence for, or against, cell by cell.

        found = { s a >= least max |a| },   true = { s t > 0 },   s = 1 or -1
        precision = |found and true| / |found|,   recall = |found and true| / |true|

    A map that finds nothing has precision and recall 0; both are NaN if there is nothing to find.

    Args:
        maps: (N, h, w) signed.
        truth: (N, h, w) signed.
        sign: of the evidence.
        least: what counts as heat, as a share of the map's largest absolute value.

    Example:
        >>> truth = torch.tensor([[[1.0, -1.0, 0.0, 0.0]]])
        >>> scores = signed_scores(torch.tensor([[[2.0, 0.0, 1.0, 0.0]]]), truth, "positive")
        >>> scores.precision, scores.recall
        (tensor([0.5000]), tensor([1.]))
    """
    factor = _factor(sign)
    ours, true = factor * maps.flatten(1), factor * truth.flatten(1) > 0
    heat = (ours >= least * ours.abs().amax(1, keepdim=True)) & (ours > 0)
    both, count = (heat & true).sum(1), heat.sum(1)
    defined = torch.where(true.any(1), 1.0, torch.nan)
    return SignedScores(defined * both / count.clamp(min=1), defined * both / true.sum(1).clamp(min=1))


def _factor(sign: Sign) -> int:
    if sign not in ("positive", "negative"):
        raise InputError(f"sign is 'positive' or 'negative', not {sign!r}")
    return 1 if sign == "positive" else -1


def unit_trials(sign: Sign, count: int = 4, seed: int = 0) -> list[Trial]:
    """All units with evidence of a sign, as trials; the score is F1, 1 is right.

    Example:
        >>> [trial.layer for trial in unit_trials("negative", count=1)]
        ['cells', 'cells', 'cells']
    """
    trials, factor, name = [], _factor(sign), f"unit{'+' if sign == 'positive' else '-'}"
    for unit in UNITS:
        images, truth = unit_images(unit, count, seed)
        if bool((factor * truth > 0).any()):
            network, targets, nothing = (
                UnitNetwork(unit).eval(),
                torch.zeros(count).long(),
                torch.zeros_like(images[:1]),
            )
            score = partial(_f1, truth=truth, sign=sign)
            trials.append(Trial(name, "higher", network, "cells", images, targets, truth, nothing, score))
    return trials


def _f1(maps: Tensor, truth: Tensor, sign: Sign) -> Tensor:
    return signed_scores(maps, truth, sign).f1
