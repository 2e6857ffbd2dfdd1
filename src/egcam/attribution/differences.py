"""One explanation minus another: why this rather than that, or what training has changed."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from egcam.attribution.checksums import checksums_of_images
from egcam.attribution.explanation import Completeness, Explanation
from egcam.errors import InputError

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
