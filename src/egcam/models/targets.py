"""What to explain: a class, one class against another, or any number that a callable reads; one score per image."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, TypeGuard

import torch
from torch import Tensor

from egcam.errors import EgcamError, TargetError
from egcam.imageops import Size
from egcam.models.class_scores import (
    TENSOR_KEYS,
    Score,
    by_class,
    check_score,
    class_index,
    class_score,
    class_scores,
    label_index,
    out_of_range,
    scores_of_classes,
)
from egcam.models.nested import mapped, mapped_tensors

Places: TypeAlias = Literal["boxes", "map"]

NO_CLASS: Any = object()
"""Says of a target that it is not the score of a class."""


@dataclass(frozen=True)
class Setting:
    """What a target can know of the images it is used with."""

    score: Score = "logit"  # which number of a class is explained
    classes: Sequence[str] | None = None
    size: Size | None = None  # (height, width); (length,) of signals, (depth, height, width) of volumes
    run: Callable[[Tensor], Any] | None = None  # the output for one image (C, H, W), without gradients


class ImageTarget(ABC):
    """The number explained for one image, read from that image's part of the model's output.

    Subclass it, or pass any callable in a list, one for each image: both get one image's part.
    """

    @abstractmethod
    def __call__(self, output: Any) -> Tensor:
        """The number, as a tensor of one element, read from what the model returned of one image.

        That is its row of tensors (N, …), also inside tuples, dictionaries and dataclasses; of a list with one entry
        for each image, its entry.
        """

    @property
    def description(self) -> str:
        """What is explained, in a few words."""
        return "callable target"

    @property
    def reads_embedding(self) -> bool:
        """Whether what it reads is an embedding, so that the output's numbers are no classes."""
        return False

    @property
    def places(self) -> Places | None:
        """Of what single places of the image it speaks, if of any: the boxes of a detector, the map of a segmenter."""
        return None

    @property
    def why_zero(self) -> str | None:
        """What a score of exactly 0 means, if it means something."""
        return None

    def as_class(self, score: str) -> Any:
        """The class whose `score` it reads, by index or name; NO_CLASS where it reads anything else."""
        return NO_CLASS

    def settled(self, setting: Setting) -> Self:
        """The same target for these images; called once before it is used."""
        return self

    def of_row(self, output: Any, count: int, row: int) -> Tensor:
        """The number of row `row` in the model's output for `count` images."""
        return self(image_part(output, count, row))


@dataclass(frozen=True, eq=False)
class InSetting(ImageTarget):
    """A target with some of the fields `classes`, `score` and `size`, which the explainer and its images fill in."""

    def settled(self, setting: Setting) -> Self:
        """With the class names and score of the explainer, unless it has its own, and the images' size."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        filled = {
            "classes": setting.classes if values.get("classes") is None else values["classes"],
            "score": values.get("score") or setting.score,
            "size": setting.size or values.get("size"),
        }
        return dataclasses.replace(self, **{name: value for name, value in filled.items() if name in values})


class ForeignTarget(ImageTarget):
    """Someone else's callable for one image's output.

    pytorch-grad-cam's target objects expect a tensor where the model returns a dictionary around it: they get it.
    """

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function = function

    def __call__(self, output: Any) -> Tensor:
        """The number."""
        number = self.function(_tensor_of(output) if is_pytorch_grad_cams(self.function) else output)
        if not isinstance(number, Tensor) or number.numel() != 1:
            got = tuple(number.shape) if isinstance(number, Tensor) else type(number).__name__
            raise TargetError(
                f"{_name(self.function)} returned {got} for one image; a target in a list gets one image's part of the "
                "output and returns one number"
            )
        return number.reshape(())

    @property
    def description(self) -> str:
        """The name of its class; functions have none worth showing."""
        return _name(self.function) if is_pytorch_grad_cams(self.function) else "callable target"


def is_pytorch_grad_cams(function: object) -> bool:
    """Whether it is one of pytorch-grad-cam's targets, all of which are for one image's output."""
    return type(function).__module__.partition(".")[0] == "pytorch_grad_cam"


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _tensor_of(output: Any) -> Any:
    if isinstance(output, Mapping) and "boxes" not in output:
        return next((output[key] for key in TENSOR_KEYS if isinstance(output.get(key), Tensor)), output)
    return output


def image_part(output: Any, count: int, row: int) -> Any:
    """The part of a model's output that belongs to one of `count` images."""
    if is_by_image(output, count):
        return output[row]
    if isinstance(output, Tensor) and (output.ndim == 0 or len(output) != count):
        raise TargetError(
            f"the model returned {tuple(output.shape)} for {count} image(s): which part belongs to which image cannot "
            "be determined. Pass a callable target for the whole output"
        )

    def part(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[row] if value.ndim > 0 and len(value) == count else value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value) if entry.init}
            return dataclasses.replace(value, **{name: mapped(inner, part) for name, inner in fields.items()})
        return value

    return mapped(output, part)


def is_by_image(output: Any, count: int) -> bool:
    """Whether an output is a list with something for each image, as detectors return, rather than tensors with rows."""
    return (
        isinstance(output, list | tuple)
        and not hasattr(output, "_fields")
        and len(output) == count
        and all(isinstance(item, Mapping) for item in output)
    )


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
        first, second = (_class_score(output, label, "logit", self.classes) for label in (self.a, self.b))
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


OneTarget: TypeAlias = int | str | None
TargetCallable: TypeAlias = Callable[[Any], Tensor]
Target: TypeAlias = OneTarget | Sequence[OneTarget | TargetCallable] | Tensor | TargetCallable


class Targets:
    """What is explained for each image of one call: resolved class indices, or numbers that callables read.

    Args:
        target: None (the prediction), a class index or name, one of `egcam.targets`, or one of those per image; or a
            callable that gets the model's output and returns one number per image. In a list, callables get one
            image's part of the output.
        count: the number N of images.
        score: "logit", or "probability" (softmax over classes; the sigmoid of a single output), or "sigmoid" (per
            class, for multi-label networks).
        classes: the class names, if known: one for each output, or [negative, positive] for a single one.
        setting: what else the targets can know of the images.

    Attributes:
        are_classes: whether classes are explained, rather than numbers that callables read.
        wanted: for each image a class, or None, its prediction.
    """

    def __init__(
        self,
        target: Target,
        count: int,
        score: Score = "logit",
        classes: Sequence[str] | None = None,
        setting: Setting | None = None,
    ) -> None:
        check_score(score)
        self.score = score
        self.classes = classes
        self.count = count
        self.function: TargetCallable | None = None
        self.by_image: list[ImageTarget] = []
        self.wanted: list[OneTarget] = []
        self.are_classes = True
        if _is_function(target) and not isinstance(target, ImageTarget) and not is_pytorch_grad_cams(target):
            self.function = target
            self.are_classes = False
            return
        listed = _one_per_image(target, count)
        plain = [_as_class(item, score) for item in listed]
        if all(item is not NO_CLASS for item in plain):
            self.wanted = plain
        else:
            settings = dataclasses.replace(setting or Setting(), score=score, classes=classes)
            self.by_image = _settled([_as_image_target(item) for item in listed], settings)
            self.are_classes = False

    @property
    def are_of_embeddings(self) -> bool:
        """Whether all that is read are embeddings, so that the output's numbers are no classes."""
        return bool(self.by_image) and all(item.reads_embedding for item in self.by_image)

    @property
    def places(self) -> Places | None:
        """Of what single places of an image the targets speak, if any does."""
        return next((item.places for item in self.by_image if item.places is not None), None)

    def why_zero(self, image: int) -> str | None:
        """What a score of exactly 0 means for an image, if it means something."""
        return self.by_image[image].why_zero if self.by_image else None

    def reader(self) -> Callable[[Any], Tensor] | None:
        """From the output for one image to the explained score; None if that is one of the class scores."""
        if self.function is not None:
            return self.function
        return (lambda output: self.by_image[0].of_row(output, 1, 0)) if self.by_image else None

    def part(self, start: int, stop: int) -> Targets:
        """The targets of images `start` to `stop`."""
        part = copy(self)
        part.count = stop - start
        part.by_image, part.wanted = self.by_image[start:stop], self.wanted[start:stop]
        return part

    def settled(self, indices: Tensor) -> Targets:
        """The same with these classes, whatever the output."""
        settled = copy(self)
        settled.wanted = list(indices.tolist())
        return settled

    def read(self, output: object) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of the output for the unperturbed images: the classes, (N,), the predictions, (N,), and (N, outputs).

        The classes are None with callable targets; the others where the output holds no readable class scores.
        """
        outputs = logits = None
        try:
            outputs = class_scores(output, self.count)
            logits = by_class(outputs, self.classes)
        except EgcamError:
            if self.are_classes:
                raise
        predictions = None if logits is None else logits.argmax(1)
        if logits is None or predictions is None or not self.are_classes:
            return None, predictions, outputs
        chosen = []
        for item in self.wanted:
            index = class_index(item, self.classes, logits.shape[1]) if isinstance(item, str) else item
            if index is not None and not 0 <= index < logits.shape[1]:
                raise out_of_range(index, logits.shape[1])
            chosen.append(-1 if index is None else index)
        indices = torch.tensor(chosen, device=logits.device)
        return torch.where(indices < 0, predictions, indices), predictions, outputs

    def scores(self, output: object, indices: Tensor | None, count: int, image_of_row: Tensor | None = None) -> Tensor:
        """(B,) the number explained for each of B rows, of classes `indices`; None with a callable target.

        Row b belongs to image `image_of_row[b]`, by default b.
        """
        if self.by_image:
            images = range(count) if image_of_row is None else image_of_row.tolist()
            numbers = [self.by_image[image].of_row(output, count, row).reshape(()) for row, image in enumerate(images)]
            return torch.stack(numbers)
        if self.function is not None:
            scores = self.function(output)
            if not isinstance(scores, Tensor) or scores.shape != (count,):
                got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise TargetError(
                    f"the target callable returned {got}; it must return one number per image, shape ({count},). One "
                    "for a single image's part of the output goes into a list: target=[function] * len(images)"
                )
            return scores
        assert indices is not None
        return class_score(class_scores(output, count), indices, self.score, self.classes)

    def all_scores(self, output: object, count: int) -> Tensor:
        """(N, classes) the number that would be explained of each class."""
        return scores_of_classes(class_scores(output, count), self.score, self.classes)


def _is_function(target: object) -> TypeGuard[TargetCallable]:
    return callable(target) and not isinstance(target, Tensor | str)


def _as_class(target: OneTarget | TargetCallable, score: Score) -> Any:
    """The class that a target stands for, or a mark that it stands for none."""
    if isinstance(target, ImageTarget):
        return target.as_class(score)
    return NO_CLASS if _is_function(target) else target


def _as_image_target(target: OneTarget | TargetCallable) -> ImageTarget:
    if isinstance(target, ImageTarget):
        return target
    if callable(target):
        return ForeignTarget(target)
    if target is None:
        raise TargetError(
            "None is the predicted class, which cannot stand in a list with targets that are no classes: name the "
            "class, e.g. egcam.targets.Class(3)"
        )
    from egcam.models.targets import Class  # which reads classes as this module does

    return Class(target)


def _settled(targets: list[ImageTarget], setting: Setting) -> list[ImageTarget]:
    """Each target settled, once for all images that share it."""
    by_object: dict[int, ImageTarget] = {}
    for target in targets:
        if id(target) not in by_object:
            by_object[id(target)] = target.settled(setting)
    return [by_object[id(target)] for target in targets]


def of_images(target: Target, images: slice | Sequence[int] | Tensor) -> Target:
    """The targets of some of the images: of one for each image those, else the same."""
    if isinstance(target, Tensor):
        return target[images] if target.ndim else target
    if not isinstance(target, list | tuple):
        return target
    if isinstance(images, slice):
        return list(target[images])
    return [target[int(image)] for image in images]


def _one_per_image(target: Any, count: int) -> list[OneTarget | TargetCallable]:
    if isinstance(target, Tensor) and (target.dtype == torch.bool or target.is_floating_point() or target.is_complex()):
        raise TargetError(f"targets are class indices: an integer tensor, not {target.dtype}")
    target = target if _is_function(target) else _plain_numbers(target)
    if target is None or isinstance(target, str) or _is_index(target) or _is_function(target):
        return [_one(target)] * count
    if not isinstance(target, Sequence):
        raise TargetError(
            "target must be None, a class index or name, one of egcam.targets, one of these per image, or a callable; "
            f"not {type(target).__name__}"
        )
    if len(target) != count:
        raise TargetError(f"{len(target)} targets for {count} image(s): pass one target, or one per image")
    return [_one(item) for item in target]


def _plain_numbers(value: Any) -> Any:
    """Tensors and NumPy's arrays and numbers as Python's own; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_index(value: object) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__len__") and not isinstance(value, bool)


def _one(value: Any) -> OneTarget | TargetCallable:
    if value is None or isinstance(value, str) or _is_function(value):
        return value
    plain = _plain_numbers(value)
    if _is_index(plain):
        return int(plain)
    raise TargetError(f"a target is a class index, a class name, a callable or None; not {value!r}")
