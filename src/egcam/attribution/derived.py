"""What is made of explanations: some of their images, one minus another, a table, checksums of the images."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from operator import index as as_index
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor

from egcam.attribution.explanation import Completeness, Explanation
from egcam.errors import InputError, require
from egcam.imageops import in_double
from egcam.models.session import CHECKSUM_DIGITS, bytes_of

if TYPE_CHECKING:
    import pandas as pd

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


_ALIKE = ("method", "layer", "size")
_OPTIONS_ALIKE = ("score", "signed")


def difference_of(this: Explanation, that: Explanation) -> Explanation:
    """The raw maps of `this` minus those of `that`; see `Explanation.difference`."""
    _check_comparable(this, that)
    same_predictions = (
        this.predictions is not None
        and that.predictions is not None
        and torch.equal(this.predictions, that.predictions)
    )
    return replace(
        this,
        maps=this.maps - that.maps,
        targets=None,
        scores=this.scores - that.scores,
        predictions=this.predictions if same_predictions else None,
        reference=this.reference if this.reference == that.reference else f"{this.reference} and {that.reference}",
        # Both may have drawn the same samples, so their errors need not be independent: this bound holds in any case.
        error=None if this.error is None or that.error is None else this.error + that.error,
        passes=this.passes + that.passes,
        tails=this.tails + that.tails,
        completeness=_completeness(this.completeness, that.completeness),
        options={**this.options, "signed": True, "difference": True},
        outputs=None,
        described=tuple(_described(this.label(index), that.label(index)) for index in range(len(this))),
        weights_checksum=this.weights_checksum if this.weights_checksum == that.weights_checksum else None,
    )


def _check_comparable(this: Explanation, that: Explanation) -> None:
    pairs = [(name, getattr(this, name), getattr(that, name)) for name in _ALIKE]
    pairs += [(name, this.options.get(name), that.options.get(name)) for name in _OPTIONS_ALIKE]
    pairs.append(("shape of the maps", tuple(this.maps.shape), tuple(that.maps.shape)))
    for name, one, other in pairs:
        if one != other:
            raise InputError(
                f"the two explanations differ in {name}, {one!r} and {other!r}: raw maps compare only where the same "
                "images are explained by the same method at the same layer, with the same score and signed"
            )
    mine, theirs = checksums_of_images(this), checksums_of_images(that)
    if mine is not None and theirs is not None and mine != theirs:
        raise InputError("the two explanations are of different images: explain the same ones twice")


def _described(this: str, that: str) -> str:
    return f"{this}, the first minus the second" if this == that else f"{this} rather than {that}"


def _completeness(this: Completeness | None, that: Completeness | None) -> Completeness | None:
    if this is None or that is None:
        return None
    return Completeness(
        this.total - that.total,
        this.expected - that.expected,
        this.around - that.around,
        this.exact & that.exact,
        _minus(this.attributions, that.attributions),
    )


def _minus(this: Tensor | None, that: Tensor | None) -> Tensor | None:
    return None if this is None or that is None else this - that


_AXES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}


def frame_of(explanation: Explanation) -> pd.DataFrame:
    """One row for each image; see `Explanation.to_frame`."""
    require("pandas", "study", "explanation.to_frame()")
    import pandas as pd

    count, sides = len(explanation), explanation.completeness
    columns: dict[str, Any] = {
        "image": range(explanation.start, explanation.start + count),
        "target": _whole(explanation.targets, count),
        "label": [explanation.label(number) for number in range(count)],
        "score": _numbers(explanation.scores, count),
        "prediction": _whole(explanation.predictions, count),
        "method": explanation.method,
        "layer": explanation.layer,
        "reference": explanation.reference,
        **hottest_points(explanation),
        "total": _numbers(None if sides is None else sides.total, count),
        "expected": _numbers(None if sides is None else sides.expected, count),
        "around": _numbers(None if sides is None else sides.around, count),
        "passes": explanation.passes / count,
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(count))


def hottest_points(explanation: Explanation) -> dict[str, Any]:
    """By axis, x first, where each heat map is highest; missing where it is nowhere above zero."""
    axes = len(explanation.size)
    heat = explanation.heatmaps.detach().float().cpu().reshape(-1, *explanation.size).flatten(1)
    places = torch.unravel_index(heat.argmax(1), explanation.size)
    nowhere = ~(heat.amax(1) > 0)
    found = {name: _whole(place, len(heat), nowhere) for name, place in zip(_AXES[axes], places, strict=True)}
    return dict(reversed(found.items()))


def _whole(values: Tensor | None, count: int, missing: Tensor | None = None) -> Any:
    """Whole numbers, which pandas would turn into floats where one is missing."""
    import pandas as pd

    numbers: list[int | None] = [None] * count if values is None else values.reshape(-1).tolist()
    if missing is not None:
        numbers = [None if gone else number for number, gone in zip(numbers, missing.tolist(), strict=True)]
    return pd.array(numbers, dtype="Int64")


def _numbers(values: Tensor | None, count: int) -> list[float]:
    return [float("nan")] * count if values is None else in_double(values).reshape(-1).tolist()


def checksums_of_images(explanation: Explanation) -> tuple[str, ...] | None:
    """For each image, the first digits of a sha256 of its tensor as the model got it; None if it is not known."""
    if explanation.images is None:
        return explanation.image_checksums
    images = explanation.images.detach()
    batch = images[None] if explanation.is_single else images
    return tuple(_checksum(image) for image in batch)


def _checksum(tensor: Tensor) -> str:
    kind = f"{tuple(tensor.shape)} {tensor.dtype};"
    return sha256(kind.encode() + bytes_of(tensor)).hexdigest()[:CHECKSUM_DIGITS]
