"""Targets that are read from class scores: a class, and one class against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egcam.errors import TargetError
from egcam.models.image_targets import NO_CLASS, InSetting
from egcam.models.nested import mapped_tensors
from egcam.models.targets import Score, by_class, check_score, class_index, class_score, class_scores, out_of_range


@dataclass(frozen=True)
class Class(InSetting):
    """A class of a classifier: `target=Class(3)` is `target=3`, for places that need a target object.

    Args:
        which: its index or name.
        score: "logit", "probability" or "sigmoid"; None is the explainer's `score`, and "logit" without one.
        classes: the class names; by default the explainer's.

    Example:
        >>> Class(1)(torch.tensor([0.5, 2.0])), Class("cat", classes=["dog", "cat"])(torch.tensor([0.5, 2.0]))
        (tensor(2.), tensor(2.))
    """

    which: int | str
    score: Score | None = None
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "which", as_label(self.which))
        check_score(self.score)

    def __call__(self, output: Any) -> Tensor:
        """The class's score in one image's output."""
        return _class_score(output, self.which, self.score or "logit", self.classes)

    @property
    def description(self) -> str:
        """The class."""
        return named(self.which, self.classes)

    def as_class(self, score: str) -> Any:
        """The class itself, unless another score of it is asked for here or other names are meant."""
        return self.which if self.score in (None, score) and self.classes is None else NO_CLASS


@dataclass(frozen=True)
class Contrast(InSetting):
    """One class against another: the logit of `a` minus the logit of `b`.

    Evidence that both share cancels out, so the map shows why it is `a` rather than `b`.

    Args:
        a: a class, by index or name.
        b: the class to subtract.
        classes: the class names; by default the explainer's.

    Example:
        >>> Contrast(1, 0)(torch.tensor([0.5, 2.0]))
        tensor(1.5000)
    """

    a: int | str
    b: int | str
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            object.__setattr__(self, name, as_label(getattr(self, name)))
        if self.a == self.b:
            raise TargetError(f"class {self.a!r} against itself is always 0; pass two classes")

    def __call__(self, output: Any) -> Tensor:
        """The difference of the two logits in one image's output."""
        first, second = (_class_score(output, one, "logit", self.classes) for one in (self.a, self.b))
        return first - second

    @property
    def description(self) -> str:
        """Both classes."""
        return f"{named(self.a, self.classes)} against {named(self.b, self.classes)}"


def as_label(value: Any) -> int | str:
    """A class by index or name, as Python's own number or text."""
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(plain, str) or (isinstance(plain, int) and not isinstance(plain, bool)):
        return plain
    raise TargetError(f"a class is given by its index or name, not by {value!r}")


def label_index(label: int | str, classes: Sequence[str] | None, count: int) -> int:
    """The index of a class among `count`."""
    index = class_index(label, classes, count) if isinstance(label, str) else label
    if not 0 <= index < count:
        raise out_of_range(index, count)
    return index


def named(label: int | str, classes: Sequence[str] | None) -> str:
    """A class in words: its first name if it is known.

    >>> named(1, ["dog", "tabby, tabby cat"]), named(1, None), named("dog", None)
    ('tabby', 'class 1', 'dog')
    """
    if isinstance(label, str):
        return label
    return f"class {label}" if classes is None or label >= len(classes) else classes[label].split(",")[0]


def _class_score(output: Any, label: int | str, score: Score, classes: Sequence[str] | None) -> Tensor:
    scores = class_scores(mapped_tensors(output, lambda tensor: tensor[None]), 1)
    index = label_index(label, classes, by_class(scores, classes).shape[1])
    return class_score(scores, torch.tensor([index], device=scores.device), score, classes)[0]
