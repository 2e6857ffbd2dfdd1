"""The cells of a layer's map, swapped between an image and a reference."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from egcam.errors import LayerError
from egcam.models.replay import Replay


class Cells:
    """Which numbers of what a layer outputs belong to which cell of its (h, w) map.

    Args:
        tail: the network at the layer.

    Attributes:
        size: (h, w); (l,) at a signal's layer, (d, h, w) at a volume's.
    """

    def __init__(self, tail: Replay) -> None:
        one = tail.activations[:1]
        numbers = torch.arange(one.numel(), dtype=torch.float64, device="cpu").reshape(one.shape)
        # The layer's own numbering read as a map shows where each number goes, however the layer is laid out.
        places = tail.as_maps(numbers)
        self.size = tuple(places.shape[2:])
        flat = places.reshape(places.shape[1], -1).long()
        if not _is_rearrangement(tail, one, places):
            raise LayerError(
                f"the reshape of layer {tail.layer!r} does more than rearrange what the layer outputs, so its cells "
                "cannot be swapped in the layer; pass one that only selects and reorders"
            )
        cell = torch.full((one.numel(),), self.count, device="cpu")
        cell[flat] = torch.arange(self.count, device="cpu").expand_as(flat)
        self._cell = cell.reshape(one.shape[1:]).to(one.device)

    @property
    def count(self) -> int:
        """How many there are."""
        return prod(self.size)

    def numbers_in(self, chosen: Tensor) -> Tensor:
        """(B, …) which of the layer's numbers belong to the chosen cells.

        Args:
            chosen: (B, count + 1) booleans; the last is for what belongs to no cell, such as a class token.
        """
        return chosen.to(self._cell.device)[:, self._cell]

    def mixed(self, image: Tensor, reference: Tensor, kept: Tensor) -> Tensor:
        """(B, …) the image's activations in the cells that are kept, the reference's in all others.

        What belongs to no cell stays the image's.

        Args:
            image: (…) what the layer outputs for the image.
            reference: (…) the same for the reference.
            kept: (B, h * w) booleans.
        """
        outside = torch.ones(len(kept), 1, dtype=torch.bool, device=kept.device)
        return torch.where(self.numbers_in(torch.cat([kept, outside], 1)), image, reference.to(image))


def _is_rearrangement(tail: Replay, one: Tensor, places: Tensor) -> bool:
    flat = places.flatten()
    numbers = flat.round().long()
    if not torch.equal(numbers.double(), flat) or int(numbers.min()) < 0 or int(numbers.max()) >= one.numel():
        return False
    if len(torch.unique(numbers)) < len(numbers):
        return False
    picked = one.flatten()[numbers.to(one.device)].reshape(places.shape)
    return torch.equal(picked, tail.as_maps(one))
