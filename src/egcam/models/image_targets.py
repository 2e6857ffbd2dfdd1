"""Targets that read one image's part of an output: what they are, and how an output is parted by image."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from torch import Tensor

from egcam.errors import TargetError
from egcam.imageops import Size
from egcam.models.nested import mapped

Places: TypeAlias = Literal["boxes", "map"]
Score: TypeAlias = Literal["logit", "probability", "sigmoid"]

NO_CLASS: Any = object()
"""Says of a target that it is not the score of a class."""

TENSOR_KEYS = (
    "logits",
    "logits_per_image",
    "logit",
    "out",
    "output",
    "outputs",
    "scores",
    "pred",
    "preds",
    "prediction",
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a target can know of the images it is used with.

    Attributes:
        score: which number of a class is explained: "logit", "probability" or "sigmoid".
        classes: the class names, if known.
        size: (height, width) of the images; (length,) of signals, (depth, height, width) of volumes.
        run: the model's output for one image (C, H, W), without a batch dimension and without gradients.
    """

    score: Score = "logit"
    classes: Sequence[str] | None = None
    size: Size | None = None
    run: Callable[[Tensor], Any] | None = None


class ImageTarget(ABC):
    """The number explained for one image, read from that image's part of the model's output.

    Subclass it, or pass any callable in a list, one for each image: both get one image's part.
    """

    @abstractmethod
    def __call__(self, output: Any) -> Tensor:
        """The number, as a tensor of one element.

        Args:
            output: what the model returned, of one image: rows of tensors (N, …), also inside tuples, dictionaries and
                dataclasses; of a list with one entry for each image, that entry.
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


@dataclasses.dataclass(frozen=True, eq=False)
class InSetting(ImageTarget):
    """A target with some of the fields `classes`, `score` and `size`, which the explainer and its images fill in."""

    def settled(self, setting: Setting) -> Self:
        """With the class names and score of the explainer, unless it has its own, and the images' size."""
        own = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        known = {
            "classes": setting.classes if own.get("classes") is None else own["classes"],
            "score": own.get("score") or setting.score,
            "size": setting.size or own.get("size"),
        }
        return dataclasses.replace(self, **{name: value for name, value in known.items() if name in own})


class ForeignTarget(ImageTarget):
    """Someone else's callable for one image's output.

    pytorch-grad-cam's target objects expect a tensor where the model returns a dictionary around it: they get it.

    Args:
        function: from one image's part of the output to a number.
    """

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function = function

    def __call__(self, output: Any) -> Tensor:
        """The number."""
        found = self.function(_tensor_of(output) if is_pytorch_grad_cams(self.function) else output)
        if not isinstance(found, Tensor) or found.numel() != 1:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise TargetError(
                f"{_name(self.function)} returned {got} for one image; a target in a list gets one image's part of the "
                "output and returns one number"
            )
        return found.reshape(())

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
    """The part of a model's output that belongs to one of `count` images.

    Example:
        >>> import torch
        >>> image_part({"logits": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "loss": None}, 2, 1)
        {'logits': tensor([3., 4.]), 'loss': None}
        >>> image_part([{"scores": torch.ones(5)}, {"scores": torch.zeros(0)}], 2, 1)
        {'scores': tensor([])}
    """
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
