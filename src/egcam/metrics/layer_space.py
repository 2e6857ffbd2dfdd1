"""Insertion and deletion in a layer's own space: cells are swapped for those of other images, no pixel is removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from egcam.attribution.cell_swaps import CellSwaps, play_with_cells
from egcam.attribution.explainer import Common
from egcam.attribution.references import Normalisation, Reference, as_reference
from egcam.errors import InputError
from egcam.imageops import area_mean
from egcam.metrics.case import Case, within_run
from egcam.metrics.inputs import check_positive
from egcam.metrics.perturb import Curve, relevance_ranks
from egcam.metrics.registry import ModelMetric, register
from egcam.models.class_scores import Score
from egcam.models.layer_output import Reshape
from egcam.models.targets import of_images


def usable_rows(case: Case, metric: str) -> Tensor:
    """The numbers of the images that can be run with cells of others; a model with further inputs is refused."""
    if case.extra.for_call():
        raise InputError(
            f"{metric} runs other images as well, for which there are no further inputs of the model; wrap the "
            "model in one that takes images only"
        )
    usable = case.images.flatten(1).isfinite().all(1)
    case.undefined(~usable, "the image holds NaN or infinite pixels")
    return usable.nonzero()[:, 0]


def played_with_others(
    case: Case,
    rows: Tensor,
    layer: str | None,
    reference: Any,
    samples: int,
    score: Score,
    reshape: Reshape | None,
    play: Callable[[CellSwaps, range], Tensor],
) -> Tensor:
    """What `play` finds of the images at some rows, one after the other.

    It gets the numbers of the references that each is played with: the first `samples` of the images given, else as
    many photographs, or what else goes by a name, normalised like the images.
    """
    images = case.images[rows]
    if shared := not (reference is None or isinstance(reference, str | Reference)):
        others = reference
    else:
        source = as_reference(reference, default="photographs").for_images(images)
        samples = samples if source.varies else 1
        others = _drawn(source, images, samples, case.normalisation)

    def with_own(swaps: CellSwaps) -> Tensor:
        first = 0 if shared else samples * swaps.row
        return play(swaps, range(first, min(first + samples, swaps.references)))

    common: Common = {
        "score": score,
        "classes": case.names,
        "batch_size": case.batch_size,
        "reshape": reshape,
        "dimensions": images.ndim - 2,
    }
    return play_with_cells(case.model, images, layer, others, with_own, of_images(case.asked, rows), **common)


def one_layer(layer: str | None) -> str | None:
    """The layer's name; that of several is refused."""
    if layer is not None and " + " in layer:
        raise InputError(f"the maps are of several layers, {layer}, and cells are of one: set layer")
    return layer


def reshape_of(case: Case, layer: str | None, said: Reshape | None) -> Reshape | None:
    """How a layer's output becomes maps: as said, else as the case's maps were made, if they are of that layer."""
    made = case.at_layer
    return made.reshape if said is None and layer == made.layer else said


def on_cells(case: Case, rows: Tensor, size: Sequence[int]) -> Tensor:
    """(n, *size) the maps at some rows as a layer's cells have them.

    A map of that size counts as it was made, one of another size is averaged over each cell: a coarser one after it was
    enlarged.
    """
    made = case.at_layer.maps
    is_coarser = any(ours < cells for ours, cells in zip(made.shape[1:], size, strict=True))
    return area_mean((case.maps if is_coarser else made)[rows], size)


def _drawn(source: Reference, images: Tensor, samples: int, normalisation: Normalisation | None) -> Tensor:
    """(N samples, C, H, W) that many for each image, image by image."""
    own = range(len(images))
    draw = source.normalised(normalisation).bind(images, own, 0)
    return torch.stack([draw(own, sample).images for sample in range(samples)], 1).flatten(0, 1)


@dataclass(frozen=True)
class LayerCurveMetric(ModelMetric):
    """What the two have in common.

    Conventions: a map of the layer's size counts as it was made, another is averaged over each cell; ties in reading
    order.

    Attributes:
        layer: by name; None is found as for any method, or is that of a map that was made with a `reshape`.
        reference: (M, C, H, W) images, preprocessed as the model expects, or a name, as for a method; None is
            the photographs that come with the package.
        samples: how many references are used for an image.
        steps: of the curve.
        score: "probability", "logit" or "sigmoid".
        reshape: how the layer's output becomes maps; None is as it did when the map was made.
    """

    layer: str | None = None
    reference: Any = None
    samples: int = 4
    steps: int = 16
    score: Score = "probability"
    reshape: Any = None

    _inserts: ClassVar[bool]

    @within_run
    def curve(self, case: Case) -> Curve:
        """The score while cells are swapped, the most relevant first."""
        check_positive("samples", self.samples)
        check_positive("steps", self.steps)
        rows = usable_rows(case, self.name)
        scores = torch.full((len(case.images), self.steps + 1), torch.nan).to(case.maps)
        if len(rows):
            made = case.at_layer
            # A layer that had to be made a map in a special way is the one to play with: no other may have one.
            is_own = self.layer is None and made.reshape is not None
            layer = one_layer(made.layer) if is_own else self.layer

            @cache
            def maps(size: tuple[int, ...]) -> Tensor:
                return on_cells(case, rows, size)

            def play(swaps: CellSwaps, own: range) -> Tensor:
                return self._swapped(swaps, maps(swaps.size)[swaps.row], own)

            how = (layer, self.reference, self.samples, self.score, reshape_of(case, layer, self.reshape))
            scores[rows] = played_with_others(case, rows, *how, play).to(scores)
        fractions = torch.arange(self.steps + 1).to(scores) / self.steps
        return Curve(fractions.expand_as(scores), scores)

    def _swapped(self, swaps: CellSwaps, relevance: Tensor, references: range) -> Tensor:
        """(steps + 1,) the mean over references."""
        cells = prod(swaps.size)
        place = relevance_ranks(relevance[None]).flatten().cpu()
        counts = torch.tensor([round(step * cells / self.steps) for step in range(self.steps + 1)])
        chosen = place < counts[:, None]
        kept = chosen if self._inserts else ~chosen
        return torch.stack([swaps.scores(number, kept) for number in references]).mean(0)

    def scores(self, case: Case) -> Tensor:
        return self.curve(case).area()


@register(
    "layer-insertion",
    group="faithfulness",
    better="higher",
    label="L-Ins",
    meaning="Cells of a layer are taken from the image, the most important first, all others from other images; the "
    "mean class score.",
)
@dataclass(frozen=True)
class LayerInsertion(LayerCurveMetric):
    """Area under the score while a layer's cells come from other images to the image; higher is better.

        score = area over s of  mean over references of p_y( A in the top share s of the cells, A' elsewhere )

    Every cell always comes from a real image, so nothing is blacked out or blurred, and only what follows the layer is
    run.
    """

    _inserts: ClassVar[bool] = True


@register(
    "layer-deletion",
    group="faithfulness",
    better="lower",
    label="L-Del",
    meaning="Cells of a layer are taken from other images, the most important first; the mean class score.",
)
@dataclass(frozen=True)
class LayerDeletion(LayerCurveMetric):
    """Area under the score while a layer's cells go from the image to other images; lower is better.

        score = area over s of  mean over references of p_y( A' in the top share s of the cells, A elsewhere )

    The reverse of `LayerInsertion`.
    """

    _inserts: ClassVar[bool] = False
