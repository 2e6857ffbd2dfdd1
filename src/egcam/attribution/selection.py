"""Some images of an explanation: one of them, or a run of them."""

from __future__ import annotations

from dataclasses import replace
from operator import index as as_index
from typing import SupportsIndex

from torch import Tensor

from egcam.attribution.explanation import Explanation
from egcam.errors import InputError

_PER_IMAGE = ("maps", "targets", "scores", "predictions", "error", "images", "outputs")


def selected(explanation: Explanation, which: SupportsIndex | slice) -> Explanation:
    """One image without a batch dimension, or with a slice a batch; see `Explanation.__getitem__`."""
    count = len(explanation)
    rows = _rows(which, count)

    def taken(tensor: Tensor) -> Tensor:
        batch = tensor[None] if explanation.is_single else tensor
        return batch[rows.start : rows.stop] if isinstance(which, slice) else batch[rows.start]

    tensors = {name: getattr(explanation, name) for name in _PER_IMAGE}
    sides = explanation.completeness
    described, checksums = explanation.described, explanation.image_checksums
    return replace(
        explanation,
        **{name: None if tensor is None else taken(tensor) for name, tensor in tensors.items()},  # type: ignore[arg-type]
        completeness=None if sides is None else sides.each(taken),
        described=None if described is None else described[rows.start : rows.stop],
        image_checksums=None if checksums is None else checksums[rows.start : rows.stop],
        passes=round(explanation.passes * len(rows) / count),
        tails=round(explanation.tails * len(rows) / count),
        start=explanation.start + rows.start,
    )


def _rows(which: SupportsIndex | slice, count: int) -> range:
    if isinstance(which, slice):
        rows = range(count)[which]
        if rows.step != 1:
            raise InputError("a slice must have a step of 1, as explanation[2:5]; take others singly, explanation[7]")
        if not rows:
            raise InputError(f"explanation[{which.start}:{which.stop}] holds no image: there are {count}")
        return rows
    number = as_index(which)
    if not -count <= number < count:
        # What Python expects of a sequence: an EgcamError would not end a loop by index.
        raise IndexError(f"there is no image {number}: {count} are explained")
    return range(number % count, number % count + 1)
