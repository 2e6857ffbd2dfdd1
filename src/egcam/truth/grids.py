"""Grids of images, of which one cell decides: by construction (DiFull, DiPart) or by the network's own doing (GridPG).

After Rao, Böhle and Schiele (2022), "Towards Better Understanding Attribution Methods".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from egcam.errors import InputError, TargetError, check_count
from egcam.metrics.localization import share_inside
from egcam.models.class_scores import class_scores
from egcam.models.layer_output import Reshape
from egcam.models.place_check import Axis
from egcam.models.restore import untouched
from egcam.rng import generator
from egcam.truth.cut import CellsInFront, Front, Tail, axis_of_layer
from egcam.truth.trial import Trial


@dataclass(frozen=True)
class Grids:
    """Images side by side, n by n."""

    images: Tensor  # (G, C, n H, n W)
    labels: Tensor  # (G, n n) the classes of the cells, row by row
    cells: Tensor  # (G,) the cell that is explained, from 0 to n n - 1
    masks: Tensor  # (G, n H, n W) 1 in that cell
    n: int  # cells along a side

    @property
    def explained(self) -> Tensor:
        """(G,) the classes of the explained cells."""
        return self.labels.gather(1, self.cells[:, None])[:, 0]


def make_grids(images: Tensor, labels: Tensor | Sequence[int], n: int = 2, count: int = 16, seed: int = 0) -> Grids:
    """Grids of n x n images of different classes, drawn at random; which cell is explained goes in turn."""
    labels = torch.as_tensor(labels)
    if images.ndim != 4:
        raise InputError(f"images have the shape (N, C, H, W), not {tuple(images.shape)}")
    for name, number in (("n", n), ("count", count)):
        check_count(number, name, InputError)
    if labels.shape != images.shape[:1]:
        raise InputError(f"labels of shape {tuple(labels.shape)} for {len(images)} images; pass one class for each")
    classes = torch.unique(labels)
    if len(classes) < n * n:
        raise InputError(f"a grid of {n} x {n} images of different classes needs {n * n} classes, not {len(classes)}")
    chance = generator(seed, "grids", n)
    members = []
    for _ in range(count):
        chosen = classes[torch.randperm(len(classes), generator=chance)[: n * n]]
        of_class = [(labels == label).nonzero()[:, 0] for label in chosen]
        members.append(torch.stack([rows[torch.randint(len(rows), (), generator=chance)] for rows in of_class]))
    places = torch.stack(members)
    cells = torch.arange(count) % (n * n)
    height, width = images.shape[-2:]
    masks = torch.zeros(count, n * n, 1, height, width).scatter_(
        1, cells[:, None, None, None, None].expand(count, 1, 1, height, width), 1.0
    )
    return Grids(
        stitched(images[places].flatten(0, 1), n), labels[places], cells, stitched(masks.flatten(0, 1), n)[:, 0], n
    )


def stitched(cells: Tensor, n: int) -> Tensor:
    """(N, C, n h, n w) from (N n n, C, h, w), row by row."""
    _, channels, height, width = cells.shape
    parts = cells.reshape(-1, n, n, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return parts.reshape(-1, channels, n * height, n * width)


def cut_up(grids: Tensor, n: int) -> Tensor:
    """(N n n, C, h, w) from (N, C, n h, n w): the reverse of `stitched`."""
    count, channels, height, width = grids.shape
    if height % n or width % n:
        raise InputError(f"a map of {height} x {width} cannot be cut into {n} x {n} equal cells; choose another layer")
    parts = grids.reshape(count, channels, n, height // n, n, width // n).permute(0, 2, 4, 1, 3, 5)
    return parts.reshape(count * n * n, channels, height // n, width // n)


class Disconnected(nn.Module):
    """A network on grids, with one head for each cell that is shown that cell alone.

    The output is (N, n n classes): the classes of the first cell's head, then those of the second, and so on. Explain
    it at "cells", the stitched map of the layer.

    Args:
        model: a classifier of single images; it is not changed.
        layer: the layer, by name.
        n: cells along a side.
        full: DiFull, whose cells are apart from the pixels on; else DiPart, whose cells are apart from the layer on.
        axis: "channels-first" if the layer outputs (N, K, h, w), "channels-last" if (N, h, w, K); None is the first,
            and refused where it looks like the second.
    """

    def __init__(self, model: nn.Module, layer: str, n: int, full: bool, axis: Axis | None = None) -> None:
        super().__init__()
        self.front, self.cells, self.tail = Front(model, layer, axis), CellsInFront(), Tail(model, layer, axis)
        self.n, self.full = n, full

    def forward(self, grids: Tensor) -> Tensor:
        """(N, n n classes)."""
        crops = cut_up(grids, self.n)
        maps = stitched(self.front(crops), self.n) if self.full else self.front(grids)
        cells = cut_up(self.cells(maps), self.n)
        return class_scores(self.tail(crops, cells), len(crops)).reshape(len(grids), -1)


def difull_trial(
    model: nn.Module, grids: Grids, layer: str, references: Tensor | None = None, reshape: Reshape | None = None
) -> Trial:
    """DiFull: every head is disconnected from all cells but its own, at every layer.

        score = positive heat in the explained cell / positive heat in all cells

    1 is right; a uniform map scores 1 / n^2. `reshape` is "channels-first" or "channels-last", where it cannot be told
    which the layer outputs; `references` are for methods that take some, the grids themselves unless given.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
        >>> grids = make_grids(torch.rand(4, 1, 4, 4), torch.arange(4), count=2)
        >>> trial = difull_trial(net, grids, "1")
        >>> set(trial.scores("hires-cam").tolist()) <= {0.0, 1.0}
        True
    """
    return _disconnected("difull", model, grids, layer, references, reshape)


def dipart_trial(
    model: nn.Module, grids: Grids, layer: str, references: Tensor | None = None, reshape: Reshape | None = None
) -> Trial:
    """DiPart: the layers up to the explained one see the whole grid, every head its own cell. The score is DiFull's.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
        >>> trial = dipart_trial(net, make_grids(torch.rand(4, 1, 4, 4), torch.arange(4), count=2), "1")
        >>> trial.score(trial.truth), trial.score(torch.ones(2, 8, 8))
        (tensor([1., 1.]), tensor([0.2500, 0.2500]))
    """
    return _disconnected("dipart", model, grids, layer, references, reshape)


def _disconnected(
    name: str, model: nn.Module, grids: Grids, layer: str, references: Tensor | None, reshape: Reshape | None
) -> Trial:
    axis = axis_of_layer(model, layer, cut_up(grids.images[:1], grids.n), reshape)
    network = Disconnected(model, layer, grids.n, name == "difull", axis)
    with untouched(network, grids.images.device), torch.no_grad():
        classes = network(grids.images[:1]).shape[1] // grids.n**2
    lowest, highest = int(grids.labels.min()), int(grids.labels.max())
    if lowest < 0 or highest >= classes:
        raise TargetError(f"labels are {lowest} to {highest}, and the network has the classes 0 to {classes - 1}")
    return _trial(name, network, "cells", grids, grids.cells * classes + grids.explained, references)


def gridpg_trial(
    model: nn.Module, grids: Grids, layer: str, references: Tensor | None = None, reshape: Reshape | None = None
) -> Trial:
    """The grid pointing game (Böhle et al., 2021): the unchanged network, which must take images of the grid's size.

    The score is DiFull's, for the class of one cell. Nothing keeps the network from looking at the other cells, so 1 is
    not always right; but a map that puts more on the cell that shows the class tells the classes apart better.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
        >>> grids = make_grids(torch.rand(4, 1, 4, 4), torch.arange(4), count=2)
        >>> trial = gridpg_trial(net, grids, "1")
        >>> bool((trial.targets == grids.explained).all()), trial.scores("centre").shape
        (True, torch.Size([2]))
    """
    with untouched(model, grids.images.device), torch.no_grad():
        try:
            model(grids.images[:1])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            size = tuple(grids.images.shape[2:])
            raise InputError(
                f"the network does not take images of the grid's size, {size}, as one with a dense head does not; use "
                f"difull_trial or dipart_trial. Torch says: {error}"
            ) from error
    return replace(_trial("gridpg", model, layer, grids, grids.explained, references), reshape=reshape)


def _trial(name: str, model: nn.Module, layer: str, grids: Grids, targets: Tensor, references: Tensor | None) -> Trial:
    others = grids.images if references is None else references
    score = partial(share_inside, masks=grids.masks)
    return Trial(name, "higher", model, layer, grids.images, targets, grids.masks, others, score)
