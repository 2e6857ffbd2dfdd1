"""What egcam raises and warns. Every error is a `ValueError` whose text says what is wrong and what would be right."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import TypeGuard


class EgcamError(ValueError):
    """The root of all errors egcam raises on purpose."""


class InputError(EgcamError):
    """Images, extra inputs or masks that cannot be explained."""


class LayerError(EgcamError):
    """A layer that does not exist, does not run, runs several times or has no spatial output."""


class TargetError(EgcamError):
    """A class, class name or target callable that does not fit the model's output."""


class ModelError(EgcamError):
    """A model that cannot be looked into: compiled away, scripted, quantised, or with an unknown output."""


class MethodError(EgcamError):
    """An unknown method or an option the method does not take."""


class SamplingError(EgcamError):
    """A reference, path or kernel that cannot be used."""


class MissingExtraError(EgcamError, ImportError):
    """An optional dependency is needed and is not installed."""


class ZeroMapWarning(UserWarning):
    """A map is zero everywhere; the text names the likely cause."""


class NonFiniteMapWarning(UserWarning):
    """A map holds NaN or infinite values."""


class InputWarning(UserWarning):
    """Images that seem not to be what the model was trained with: 0 to 255, or channels last."""


class IncompleteMapWarning(UserWarning):
    """A map that should share out the whole score leaves a part of it out."""


class SameForNextClassWarning(UserWarning):
    """A map points at the same places whatever the class."""


class FailedEvaluationWarning(UserWarning):
    """In `egcam.evaluate` a method or metric raised an error; its scores are NaN there, and the rest went on."""


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn, pointing at the line outside of egcam that led here: Python shows a warning once for each such line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "egcam":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def near_misses(word: str, known: Iterable[str], most: int = 3) -> str:
    """A sentence with the known names closest to `word`, or the first few of them when none is close.

    >>> near_misses("layer5", ["layer3", "layer4", "fc"])
    "did you mean 'layer4' or 'layer3'?"
    """
    names = list(known)
    close = get_close_matches(word, names, n=most, cutoff=0.5)
    if not close:
        lowered = {name.lower(): name for name in names}
        close = [lowered[match] for match in get_close_matches(word.lower(), lowered, n=most, cutoff=0.5)]
    if not close and word:
        close = [name for name in names if word.lower() in name.lower()][:most]
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    if not names:
        return "there are none"
    shown = ", ".join(repr(name) for name in names[:most])
    return f"known are {shown}, … ({len(names)} in all)" if len(names) > most else f"known are {shown}"


def check_known(word: object, known: Collection[str], what: str, error: type[EgcamError] = InputError) -> None:
    """Refuse a word that is none of the known ones; `what` is what it should name.

    >>> check_known("linaer", ["linear", "latent"], "path", SamplingError)
    Traceback (most recent call last):
    egcam.errors.SamplingError: unknown path 'linaer'; did you mean 'linear' or 'latent'?
    """
    if word not in known:
        raise error(f"unknown {what} {word!r}; {near_misses(str(word), known)}")


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


def require(module: str, extra: str, purpose: str) -> None:
    """Raise `MissingExtraError` with the install line when `module` is not installed."""
    from importlib.util import find_spec

    if find_spec(module.split(".")[0]) is None:
        raise MissingExtraError(f"{purpose} needs the package '{module}': pip install 'egcam[{extra}]'")


__all__ = sorted(name for name, thing in vars().items() if isinstance(thing, type) and thing.__module__ == __name__)
