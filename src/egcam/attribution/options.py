"""The options every explainer takes, written down once."""

from __future__ import annotations

from numbers import Integral
from typing import TypedDict, TypeGuard

from egcam.errors import EgcamError, MethodError
from egcam.models.class_names import Classes
from egcam.models.class_scores import Score
from egcam.models.layer_output import Reshape


class Common(TypedDict, total=False):
    """See `egcam.attribution.explainer.Explainer`."""

    score: Score
    classes: Classes | None
    signed: bool
    batch_size: int | None
    memory: int | None
    reshape: Reshape | None
    dimensions: int | None


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a number the user gave is a whole one, of Python's or NumPy's kind.

    >>> is_whole(3), is_whole(2.5)
    (True, False)
    """
    return isinstance(value, Integral)


def check_count(value: object, name: str, error: type[EgcamError] = MethodError) -> None:
    """Refuse anything but a whole number of at least 1."""
    if not is_whole(value) or value < 1:
        raise error(f"{name} must be a whole number of at least 1, not {value!r}")
