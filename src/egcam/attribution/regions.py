"""Where heat maps are hot: masks, connected regions and the boxes around them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from egcam.errors import InputError, require
from egcam.imageops import size_of

Box: TypeAlias = tuple[int, int, int, int]


def at_or_above(heatmaps: Tensor, threshold: float, axes: int) -> Tensor:
    """(…, *size) bool: where a heat map has `threshold` times its maximum or more; nowhere unless that is positive.

    Args:
        heatmaps: (…, *size).
        threshold: above 0, at most 1.
        axes: of how many axes `size` is.

    Example:
        >>> import torch
        >>> at_or_above(torch.tensor([[0.1, 0.5, 1.0], [0.0, 0.0, 0.0]]), 0.5, axes=1).tolist()
        [[False, True, True], [False, False, False]]
    """
    if not 0 < threshold <= 1:
        raise InputError(f"the threshold is a share of the map's maximum, above 0 and at most 1, not {threshold!r}")
    most = heatmaps.amax(tuple(range(-axes, 0)), keepdim=True)
    return (heatmaps >= threshold * most) & (most > 0)


def pieces_of(mask: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.bool_]]:
    """(H, W) each: the connected regions of a mask, those of most pixels first; pixels that share an edge connect."""
    # A row's runs of True pixels are its pieces: a region is made of runs that touch in neighbouring rows.
    rows = [_runs(row) for row in mask]
    numbers = [list(range(first, first + len(runs))) for first, runs in zip(_firsts(rows), rows, strict=True)]
    parents = [number for of_row in numbers for number in of_row]
    for (above, above_numbers), (below, below_numbers) in pairwise(zip(rows, numbers, strict=True)):
        for upper, upper_number in zip(above, above_numbers, strict=True):
            for lower, lower_number in zip(below, below_numbers, strict=True):
                if upper[0] < lower[1] and lower[0] < upper[1]:
                    parents[_root(parents, lower_number)] = _root(parents, upper_number)
    pieces: dict[int, npt.NDArray[np.bool_]] = {}
    for row, (runs, row_numbers) in enumerate(zip(rows, numbers, strict=True)):
        for (left, right), number in zip(runs, row_numbers, strict=True):
            pieces.setdefault(_root(parents, number), np.zeros(mask.shape, bool))[row, left:right] = True
    return sorted(pieces.values(), key=lambda piece: -int(piece.sum()))


def boxes_around(mask: npt.NDArray[np.bool_]) -> list[Box]:
    """(left, top, right, bottom) of the connected regions of a mask (H, W), those of most pixels first.

    Right and bottom are the first column and row beyond the region.

    Example:
        >>> boxes_around(np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0]], dtype=bool))
        [(1, 1, 3, 3), (0, 0, 1, 1)]
    """
    boxes = []
    for piece in pieces_of(mask):
        rows, columns = (np.flatnonzero(piece.any(axis)).tolist() for axis in (1, 0))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    return boxes


def _runs(row: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """[start, stop) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]]))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _firsts(rows: list[list[tuple[int, int]]]) -> list[int]:
    """The number of each row's first run, when all runs are counted through."""
    return [0, *np.cumsum([len(runs) for runs in rows]).tolist()][:-1]


def _root(parents: list[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number


def superpixels(images: Tensor, wanted: int) -> Tensor:
    """(N, H, W) SLIC superpixels, numbered from 0, of each image stretched to [0, 1].

    Stretched so that the segments do not depend on how the model wants its images normalised.
    """
    if images.ndim == 3:
        raise InputError("superpixels are made of images and volumes: for signals pass segments=…, one number a sample")
    require("skimage", "study", "dividing an image into superpixels (or pass segments=…)")
    from skimage.segmentation import slic

    found = []
    for image in images.detach().cpu().double():
        low, high = image.min(), image.max()
        stretched = ((image - low) / (high - low if high > low else 1.0)).movedim(0, -1).numpy()
        labels = slic(stretched, n_segments=wanted, start_label=0, channel_axis=-1)
        found.append(torch.from_numpy(labels).long())
    return torch.stack(found).to(images.device)


def as_segments(segments: Any, images: Tensor) -> Tensor:
    """(N, H, W) the user's own segments, one set for all images or one per image."""
    labels = torch.as_tensor(segments, device=images.device)
    if labels.ndim == images.ndim - 2:
        labels = labels.expand(len(images), *labels.shape)
    if labels.shape != (len(images), *size_of(images)):
        raise InputError(f"segments must be (N, H, W) or (H, W) like the images, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or bool((labels < 0).any()):
        raise InputError("segments must be whole numbers from 0")
    return labels.long()
