"""Walls: a network that cannot see part of the image, so that no heat may lie there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egcam.errors import InputError, is_whole
from egcam.models.class_scores import class_scores
from egcam.models.inputs import check_images
from egcam.models.layer_output import Reshape
from egcam.models.place_check import Axis
from egcam.models.restore import untouched
from egcam.truth.cut import CellsInFront, Front, Tail, axis_of_layer
from egcam.truth.trial import Trial


class Walled(nn.Module):
    """A network behind a wall: what one of its layers says in its lowest rows is zeroed before the rest sees it.

    Args:
        model: any classifier; it is not changed.
        layer: the layer, by name.
        rows: how many rows of the layer's map are hidden.
        axis: "channels-first" if the layer outputs (N, K, h, w), "channels-last" if (N, h, w, K); None is the first,
            and refused where it looks like the second.

    Explain it at "cells", the layer in front of the wall.
    """

    def __init__(self, model: nn.Module, layer: str, rows: int, axis: Axis | None = None) -> None:
        super().__init__()
        self.front, self.cells, self.tail = Front(model, layer, axis), CellsInFront(), Tail(model, layer, axis)
        self.rows = rows

    def forward(self, images: Tensor) -> Tensor:
        """(N, classes)."""
        cells: Tensor = self.cells(self.front(images))
        height = cells.shape[2]
        if not is_whole(self.rows) or not 0 < self.rows < height:
            raise InputError(f"{self.rows} hidden rows of a map of {height}: some must be hidden and some seen")
        is_seen = torch.arange(height, device=cells.device) < height - self.rows
        return class_scores(self.tail(images, torch.where(is_seen[:, None], cells, 0)), len(images))


def dead_heat(maps: Tensor, rows: int) -> Tensor:
    """(N,) |map in the hidden rows| / |map|, Euclidean norms of what is shown, max(a, 0); NaN of a map without heat.

    Example:
        >>> dead_heat(torch.tensor([[[4.0, 0.0], [3.0, -5.0]]]), rows=1)
        tensor([0.6000])
    """
    heat = maps.clamp(min=0)
    hidden = heat[:, max(0, heat.shape[1] - rows) :]
    dead, whole = (part.square().sum((1, 2)).sqrt() for part in (hidden, heat))
    return dead / whole


def walls_trial(
    model: nn.Module,
    images: Tensor,
    layer: str,
    rows: int,
    references: Tensor | None = None,
    reshape: Reshape | None = None,
) -> Trial:
    """The test of Taimeskhanov, Sicre and Garreau (2024), "CAM-Based Methods Can See through Walls", for any network.

        score = |map in the rows that the head cannot see|_2 / |map|_2,   0 is right

    at the layer's own size. Maps weighted place by place are 0 there, for the gradient is; maps weighted channel by
    channel put heat wherever a channel that matters elsewhere is active. The classes explained are those predicted from
    behind the wall.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        layer: by name; it outputs (N, K, h, w) or (N, h, w, K).
        rows: how many of its h rows are hidden, from below.
        references: for methods that take some; the images themselves unless given.
        reshape: "channels-first" or "channels-last", where that cannot be told.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
        >>> trial = walls_trial(net, torch.rand(2, 1, 6, 6), "1", rows=2)
        >>> trial.scores("hires-cam").nan_to_num().tolist()
        [0.0, 0.0]
    """
    images = check_images(images, model)
    walled = Walled(model, layer, rows, axis_of_layer(model, layer, images, reshape))
    with untouched(walled, images.device), torch.no_grad():
        targets = walled(images).argmax(1)
        height = walled.front(images[:1]).shape[2]
    truth = torch.ones_like(images[:, 0])
    truth[:, images.shape[2] - round(images.shape[2] * rows / height) :] = 0

    def score(maps: Tensor) -> Tensor:
        if maps.shape[1] != height:
            raise InputError("a wall stands behind the layer, so only maps made at the layer can be scored")
        return dead_heat(maps, rows)

    others = images if references is None else references
    return Trial("walls", "lower", walled, "cells", images, targets, truth, others, score)
