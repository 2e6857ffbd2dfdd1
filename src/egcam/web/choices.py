"""From what a browser sent to what egcam takes: every value is checked, wherever it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from egcam.attribution.references import MADE_BY_NAME
from egcam.attribution.registry import methods as known_methods
from egcam.errors import LayerError, MethodError, SamplingError, TargetError, near_misses
from egcam.models.class_scores import class_index
from egcam.web.limits import Limits
from egcam.web.shared_model import USUAL as USUAL
from egcam.web.shared_model import SharedModel

# Of what is typed where a class is chosen; no class has a longer name.
_LONGEST_TYPED = 160


@dataclass(frozen=True)
class Choices:
    """What to explain and how."""

    target: int  # the class
    layer: str  # by name, or `USUAL`
    methods: tuple[str, ...]  # by name, each once
    samples: int  # of averaging methods; 0 is each method's own number, as in `egcam explain`
    reference: str = USUAL  # what the image is compared with, by name

    def options(self, shared: SharedModel) -> dict[str, Any]:
        """The options of `egcam.photos.comparison.explain_one`; the same choices always give the same maps."""
        reference = None if self.reference == USUAL else self.reference
        return {"layer": self.named_layer, "samples": self.samples or None, "reference": reference, "seed": 0}

    @property
    def named_layer(self) -> str | None:
        """None where each method takes its own."""
        return None if self.layer == USUAL else self.layer


def checked(
    shared: SharedModel,
    limits: Limits,
    target: object,
    layer: object,
    methods: object,
    samples: object,
    reference: object,
) -> Choices:
    """The choices, if the network and the page have what they name; else an error that says what they have."""
    return Choices(
        _checked_target(target, len(shared.classes)),
        _checked_layer(layer, [USUAL, *(choice.name for choice in shared.layers)]),
        _checked_methods(methods),
        _checked_samples(samples, limits.samples),
        _checked_reference(reference),
    )


def named_class(shared: SharedModel, typed: object) -> int:
    """The class that was chosen, or whose name or number was typed; else an error that says what comes near it."""
    if isinstance(typed, str) and _whole(typed) is None:
        return class_index(typed[:_LONGEST_TYPED], shared.classes, len(shared.classes))
    return _checked_target(typed, len(shared.classes))


def _checked_target(target: object, count: int) -> int:
    index = _whole(target)
    if index is None:
        raise TargetError("no class is chosen: choose one of the top classes, or search for another")
    if not 0 <= index < count:
        raise TargetError(f"there is no class {index}: the network has {count} classes, 0 to {count - 1}")
    return index


def _checked_layer(layer: object, known: Sequence[str]) -> str:
    if not isinstance(layer, str) or layer not in known:
        raise LayerError(f"this page has no layer {_told(layer)}; {near_misses(str(layer)[:80], known)}")
    return layer


def _checked_methods(methods: object) -> tuple[str, ...]:
    listed = [methods] if isinstance(methods, str) else methods
    if not isinstance(listed, list | tuple) or not listed:
        raise MethodError("no method is chosen: tick at least one")
    known = known_methods()
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise MethodError(f"there is no method {_told(name)}; {near_misses(str(name)[:80], known)}")
    return tuple(dict.fromkeys(listed))


def _checked_samples(samples: object, most: int) -> int:
    count = _whole(samples)
    if count is None or not 0 <= count <= most:
        raise SamplingError(
            f"samples is a whole number from 1 to {most}, or 0 for the method's own, not {_told(samples)}"
        )
    return count


def _checked_reference(reference: object) -> str:
    known = list(MADE_BY_NAME)
    if not isinstance(reference, str) or reference not in known:
        raise SamplingError(f"there is no reference {_told(reference)}; {near_misses(str(reference)[:80], known)}")
    return reference


def _whole(value: object) -> int | None:
    """A whole number, as JSON may write it: 7, 7.0 or "7"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value) if isinstance(value, str) or float(value).is_integer() else None
    except (ValueError, OverflowError):
        return None


def _told(value: object) -> str:
    """A value in an error, never longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
