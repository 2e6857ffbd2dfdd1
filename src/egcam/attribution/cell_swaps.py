"""Scores with each cell of a layer taken from the image or from a reference.

Only what follows the layer is run. What bypasses the layer keeps the image's values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.task import Maps, Task
from egcam.errors import InputError, LayerError
from egcam.imageops import in_double
from egcam.models.cells import Cells
from egcam.models.dimensions import dimensions_of
from egcam.models.inputs import check_images, is_listed, plain_model
from egcam.models.layers import Layer
from egcam.models.replay import Replay
from egcam.models.targets import Target


class CellSwaps:
    """One image at a layer, whose cells can be swapped for those of references.

    Attributes:
        row: the image's number in the call.
        size: (h, w) of the layer's map.
        references: how many there are.
        full: the score of the image itself.
    """

    def __init__(self, task: Task, tail: Replay, cells: Cells, image: int, at_references: Tensor) -> None:
        self._task, self._tail, self._cells, self._image, self._at_references = task, tail, cells, image, at_references
        self.row = int(task.rows[image])
        self.size = cells.size
        self.references = len(at_references)
        self.full = float(task.scores[image])

    def scores(self, reference: int, kept: Tensor) -> Tensor:
        """(B,) float64 the scores with the image's activations in the cells that are kept, (B, h w) booleans."""
        found = []
        for some in torch.split(kept, self._task.tails_at_once):
            own = torch.full((len(some),), self._image, device="cpu")
            here = self._tail.activations[self._image]
            output = self._tail.run(self._cells.mixed(here, self._at_references[reference], some), own)
            found.append(in_double(self._task.scores_of(output, own)))
            self._task.meter.tails += len(some)
        return torch.cat(found)


Play = Callable[[CellSwaps], Tensor]


def play_with_cells(
    model: nn.Module,
    images: Tensor,
    layer: Layer,
    references: Tensor,
    play: Play,
    target: Target = None,
    **common: Unpack[Common],
) -> Tensor:
    """(N, …) what `play` returns for each image.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        layer: the layer; None is found.
        references: (M, C, H, W) images whose activations take the place of the image's.
        play: from an image's swaps to a tensor, of the same shape for all images.
        target: as in `egcam.explain`.
        common: as of `egcam.Explainer`.
    """
    common["signed"] = True
    if not is_listed(images):
        common["dimensions"] = dimensions_of(plain_model(model), images, common.get("dimensions"))
    game = _Game(model, layer, references, play, **common)
    game(images, target)
    return torch.stack(game.played)


class _Game(Explainer):
    """An explainer, used only to find layer, targets and batches and to restore the model."""

    name = "cell-swaps"

    def __init__(
        self, model: nn.Module, layer: Layer, references: Tensor, play: Play, **common: Unpack[Common]
    ) -> None:
        super().__init__(model, layer, **common)
        self.references = check_images(references, self.model, self.dimensions or 2)
        self.play = play
        self.played: list[Tensor] = []

    def _explain(self, task: Task) -> Maps:
        if len(task.probe.points) != 1:
            raise LayerError("cells are of one layer; pass one layer, not several")
        task.first_pass_with_tails()
        if "at references" not in task.memo:
            task.memo["at references"] = self._at_references(task)
        (tail,) = task.tails
        cells = Cells(tail)
        for image in range(len(task.images)):
            self.played.append(self.play(CellSwaps(task, tail, cells, image, task.memo["at references"])))
        return Maps([torch.ones(len(task.images), *cells.size, device="cpu")])

    def _at_references(self, task: Task) -> Tensor:
        """(M, …) what the layer outputs for the references."""
        own, theirs = tuple(task.images.shape[1:]), tuple(self.references.shape[1:])
        if own != theirs:
            raise InputError(f"references are {theirs} and images {own}; pass references of the images' size")
        found: list[Tensor] = []
        parts: Sequence[Tensor] = torch.split(self.references.to(task.images), task.batch_size)
        for some in parts:
            found += task.probe.forward(some, torch.zeros(len(some), dtype=torch.long, device="cpu")).raw
            task.meter.add(len(some))
        return torch.cat(found)
