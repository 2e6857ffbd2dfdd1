"""Shapley values of a layer's cells: what each place of the layer contributes to the score, by definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.attribution.cell_swaps import CellSwaps, play_with_cells
from egcam.attribution.explainer import Common
from egcam.attribution.task import Progress
from egcam.errors import InputError, is_whole
from egcam.imageops import in_double
from egcam.metrics.case import Case
from egcam.metrics.inputs import check_positive
from egcam.metrics.layer_space import on_cells, one_layer, played_with_others, reshape_of, usable_rows
from egcam.metrics.registry import ModelMetric, register
from egcam.metrics.similarity import pearson, spearman
from egcam.models.class_scores import Score
from egcam.models.inputs import is_listed, stacked
from egcam.models.layers import Layer
from egcam.models.targets import Target
from egcam.rng import generator


def cell_shapley(
    model: nn.Module,
    images: Tensor,
    layer: Layer,
    references: Tensor,
    permutations: int = 64,
    target: Target = None,
    seed: int = 0,
    *,
    progress: Progress | None = None,
    **common: Unpack[Common],
) -> Tensor:
    """(N, h, w) Shapley values of the cells of a layer, signed, float64 on the CPU.

    The players are the cells of what the layer outputs. A cell that takes part holds the image's activations A, one
    that does not holds those of a reference, A', so that every cell is always a real one:

        phi_c = E over references A' and orders of the cells of  y(A' with c and all before it from A)
                                                              - y(A' with all before c from A)

    Drawn by permutations (Castro et al., 2009), each followed by its reverse, which cancels much of the variance
    (Mitchell et al., 2022), and the same for every image. Along a permutation the differences telescope, so for any
    number of permutations

        sum_c phi_c = y(A) - mean over references of y(A')

    but for rounding. Only what follows the layer is run, once for each cell and permutation. What goes around the layer
    stays as the image makes it, also in y(A').

    Args:
        model: the classifier.
        images: (N, C, H, W), preprocessed as the model expects.
        layer: the layer; None is found as for any method.
        references: (M, C, H, W) images whose activations fill the cells that do not take part; all weigh the same.
        permutations: how many for each image, spread evenly over the references; at least M.
        target: as in `egcam.explain`.
        seed: of the permutations.
        progress: called with (images done, images) after each image.
        common: score, classes, batch_size, memory, reshape: see `egcam.Explainer`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
        >>> x, others = torch.rand(1, 1, 4, 4).double(), torch.rand(5, 1, 4, 4).double()
        >>> values = cell_shapley(net, x, "1", others, permutations=10, target=2)
        >>> rise = net(x)[:, 2] - net(others)[:, 2].mean()
        >>> values.shape, torch.allclose(values.sum((1, 2)), rise)
        (torch.Size([1, 2, 2]), True)
    """
    if is_listed(references):
        references = stacked(references)
    if not isinstance(references, Tensor):
        raise InputError(f"references are images (M, C, H, W) that fill absent cells, not {type(references).__name__}")
    if not is_whole(permutations) or permutations < len(references):
        raise InputError(
            f"permutations is {permutations!r} and there are {len(references)} references; every reference needs at "
            "least one permutation, so ask for more permutations or pass fewer references"
        )
    done = 0

    def play(swaps: CellSwaps) -> Tensor:
        nonlocal done
        values = _shapley_values(swaps, range(swaps.references), permutations, seed)
        done += 1
        if progress is not None:
            progress(done, len(images))
        return values

    return play_with_cells(model, images, layer, references, play, target, **common)


def _shapley_values(swaps: CellSwaps, references: range, permutations: int, seed: int) -> Tensor:
    """(h, w) of one image, with some of the references."""
    count = prod(swaps.size)
    full = torch.tensor([swaps.full], dtype=torch.float64, device="cpu")
    grown = torch.ones(count, count, dtype=torch.bool, device="cpu").tril()[:-1]
    total = torch.zeros(count, dtype=torch.float64, device="cpu")
    for number, reference in enumerate(references):
        own = permutations // len(references) + (number < permutations % len(references))
        orders = list(_orders(own, count, seed, number))
        kept = [torch.zeros_like(grown).index_copy_(1, order, grown) for order in orders]
        scores = swaps.scores(reference, torch.cat([torch.zeros_like(grown[:1]), *kept]))
        for order, between in zip(orders, torch.split(scores[1:], len(grown)), strict=True):
            total[order] += torch.cat([scores[:1], between, full]).diff() / (len(orders) * len(references))
    return total.reshape(swaps.size)


def _orders(count: int, cells: int, seed: int, reference: int) -> Iterator[Tensor]:
    """Permutations of the cells: each drawn one is followed by its reverse."""
    for pair in range(0, count, 2):
        order = torch.randperm(cells, generator=generator(seed, "cells", reference, pair), device="cpu")
        yield order
        if pair + 1 < count:
            yield order.flip(0)


@register(
    "shapley-agreement",
    group="faithfulness",
    better="higher",
    label="Cells",
    title="Agreement with Shapley values",
    meaning="The correlation of the map with the Shapley values of its layer's cells, with other images' activations "
    "in absent cells.",
)
@dataclass(frozen=True)
class ShapleyAgreement(ModelMetric):
    """Correlation of the map with the Shapley values of its layer's cells; higher is better.

        score = corr over the cells of (a, phi)        phi: `egcam.truth.cell_shapley`

    Every cell always comes from a real image, and only what follows the layer is run, once for each cell and
    permutation. The values are found once for all maps of a layer.

    Conventions: the map counts as it was made, so take `signed=True` to have negative evidence judged too; one of
    another size than the layer's is averaged over each cell. Two layers have two truths: only maps made at the same
    layer are judged alike.

    Attributes:
        layer: by name; None is the one the map was made at or, if unknown, the one found as for any method.
        reference: (M, C, H, W) images, preprocessed as the model expects, or a name, as for a method; None is
            photographs.
        samples: how many references are used for an image.
        permutations: how many for each image, `samples` or more.
        measure: "pearson", "rank" or "cosine".
        score: "logit", "probability" or "sigmoid".
        seed: of the permutations.
        reshape: how the layer's output becomes maps; None is as it did when the map was made.
    """

    layer: str | None = None
    reference: Any = None
    samples: int = 8
    permutations: int = 32
    measure: Literal["pearson", "rank", "cosine"] = "pearson"
    score: Score = "logit"
    seed: int = 0
    reshape: Any = None

    def scores(self, case: Case) -> Tensor:
        if self.measure not in ("pearson", "rank", "cosine"):
            raise InputError(f"measure is 'pearson', 'rank' or 'cosine', not {self.measure!r}")
        if check_positive("permutations", self.permutations) < check_positive("samples", self.samples):
            raise InputError(f"{self.permutations} permutations are too few for {self.samples} references")
        rows = usable_rows(case, self.name)
        made, scores = case.at_layer, torch.full((len(case.images),), torch.nan).to(case.maps)
        if not len(rows):
            return scores
        layer = one_layer(self.layer or made.layer)
        values = self._values(case, rows, layer)
        maps = on_cells(case, rows, values.shape[1:])
        scores[rows] = getattr(cell_agreement(maps, values), self.measure).to(scores)
        return scores

    def _values(self, case: Case, rows: Tensor, layer: str | None) -> Tensor:
        """(n, h, w) the Shapley values of the images at some rows."""
        if len(rows) == len(case.images):
            reshape = reshape_of(case, layer, self.reshape)
            how = (self.reference, self.samples, self.permutations, self.score, self.seed)
            key = (self.name, layer, id(reshape) if callable(reshape) else reshape, *how)
            return case.once_for_any_map(key, lambda: self._found(case, rows, layer))
        return self._found(case, rows, layer)

    def _found(self, case: Case, rows: Tensor, layer: str | None) -> Tensor:
        def play(swaps: CellSwaps, own: range) -> Tensor:
            return _shapley_values(swaps, own, self.permutations, self.seed)

        reshape = reshape_of(case, layer, self.reshape)
        return played_with_others(case, rows, layer, self.reference, self.samples, self.score, reshape, play)


@dataclass(frozen=True)
class CellAgreement:
    """How well maps agree with the Shapley values of the cells, each (N,); NaN of a map that is not finite.

    Attributes:
        pearson: linear correlation over the cells; 0 of a constant map.
        rank: Spearman's rank correlation; 0 of a constant map.
        cosine: of the angle between the two, so that a constant added to the map counts; 0 of a zero map.
    """

    pearson: Tensor
    rank: Tensor
    cosine: Tensor


def cell_agreement(maps: Tensor, shapley: Tensor) -> CellAgreement:
    """How well maps at a layer agree with the Shapley values of its cells, image by image.

    Args:
        maps: (N, h, w) of the method, at the layer's own size. Take `signed=True` to judge negative evidence, too.
        shapley: (N, h, w) from `cell_shapley`.

    Example:
        >>> truth = torch.tensor([[[0.0, 1.0], [2.0, 4.0]]])
        >>> cell_agreement(2 * truth, truth).pearson, cell_agreement(truth**3, truth).rank
        (tensor([1.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    if maps.shape != shapley.shape or not 2 <= maps.ndim <= 4:
        raise InputError(
            f"maps of shape {tuple(maps.shape)} cannot be compared with Shapley values of shape "
            f"{tuple(shapley.shape)}; both are (N, h, w) at the same layer"
        )
    ours, true = in_double(maps).flatten(1), in_double(shapley).flatten(1)
    known = torch.where((ours + true).isfinite().all(1), 1.0, torch.nan)
    cosine = functional.cosine_similarity(ours, true, eps=0.0).nan_to_num()
    return CellAgreement(known * pearson(ours, true), known * spearman(ours, true), known * cosine)
