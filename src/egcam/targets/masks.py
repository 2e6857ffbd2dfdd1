"""A class in some places of a segmentation: in a mask, everywhere, or at one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import TargetError
from egcam.models.class_targets import as_label, label_index, named
from egcam.models.image_targets import TENSOR_KEYS, InSetting, Score
from egcam.models.nested import named_or_only
from egcam.models.targets import check_score, class_count, class_score


@dataclass(frozen=True, eq=False)
class Mask(InSetting):
    """A class of a segmentation inside a mask: the mean of its score over the mask's pixels.

    The output may be (classes, h, w), also as "out" or "logits" of a dictionary. One that is smaller than the mask is
    enlarged to it, bilinearly (corners not aligned), as segmentations are read.

    Args:
        label: the class, by index or name.
        mask: (H, W), true or 1 inside, of the image's or of the output's size; None is the whole image.
        score: "logit", "probability" (softmax over classes) or "sigmoid"; None is the explainer's.
        classes: the class names; by default the explainer's.
        size: (height, width) of the image, if used without an explainer.

    Example:
        >>> scores = torch.tensor([[[0.0, 0.0]], [[1.0, 5.0]]])  # 2 classes, 1 x 2 pixels
        >>> Mask(1)(scores), Mask(1, torch.tensor([[False, True]]))(scores)
        (tensor(3.), tensor(5.))
    """

    label: int | str
    mask: Tensor | None = None
    score: Score | None = None
    classes: Sequence[str] | None = None
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", as_label(self.label))
        check_score(self.score)
        if self.mask is not None:
            object.__setattr__(self, "mask", _as_mask(self.mask))

    def __call__(self, output: Any) -> Tensor:
        """The mean score of the class over the mask, in one image's output."""
        if self.mask is None:
            return _class_map(output, self, None).mean()
        own, size = tuple(segmentation_in(output).shape[-2:]), (self.mask.shape[0], self.mask.shape[1])
        if self.size is not None and size not in (self.size, own):
            raise TargetError(
                f"the mask is {size}, but the image is {self.size} and the model's output {own}: pass a mask of one of "
                "these sizes"
            )
        scores = _class_map(output, self, size)
        return scores[self.mask.to(scores.device)].mean()

    @property
    def description(self) -> str:
        """The class, and where."""
        where = "everywhere" if self.mask is None else f"in {int(self.mask.sum())} pixels"
        return f"{named(self.label, self.classes)} {where}"


@dataclass(frozen=True, eq=False)
class Pixel(InSetting):
    """A class of a segmentation at one pixel of the image.

    An output that is smaller than the image is enlarged to it, as for `Mask`.

    Args:
        label: the class, by index or name.
        row: of the pixel, from the top of the image; on its own, without an image, of the output.
        column: of the pixel, from the left.
        score: as for `Mask`.
        classes: the class names; by default the explainer's.
        size: (height, width) of the image, if used without an explainer.

    Example:
        >>> Pixel(1, row=0, column=1)(torch.tensor([[[0.0, 0.0]], [[1.0, 5.0]]]))
        tensor(5.)
    """

    label: int | str
    row: int
    column: int
    score: Score | None = None
    classes: Sequence[str] | None = None
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", as_label(self.label))
        check_score(self.score)

    def __call__(self, output: Any) -> Tensor:
        """The class's score at the pixel, in one image's output."""
        scores = _class_map(output, self, self.size)
        height, width = scores.shape
        if not (0 <= self.row < height and 0 <= self.column < width):
            raise TargetError(
                f"there is no pixel in row {self.row}, column {self.column} of {height} rows and {width} columns"
            )
        return scores[self.row, self.column]

    @property
    def description(self) -> str:
        """The class, and where."""
        return f"{named(self.label, self.classes)} at row {self.row}, column {self.column}"


def _class_map(output: Any, target: Mask | Pixel, size: tuple[int, int] | None) -> Tensor:
    """(H, W) the class's score at each pixel of an image of this size; None is the output's own size."""
    maps = segmentation_in(output)
    if size is not None and tuple(maps.shape[-2:]) != size:
        maps = functional.interpolate(maps[None], size=size, mode="bilinear", align_corners=False)[0]
    outputs = maps.flatten(1).T
    count = class_count(outputs.shape[1], target.classes)
    index = torch.full((len(outputs),), label_index(target.label, target.classes, count), device=maps.device)
    return class_score(outputs, index, target.score or "logit", target.classes).reshape(maps.shape[-2:])


def segmentation_in(output: Any) -> Tensor:
    """(classes, h, w) the class scores in one image's output: by their name, else the only map there is."""
    return named_or_only(output, TENSOR_KEYS, _is_map, "the segmentation (classes, height, width)", "Mask")


def _is_map(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim == 3


def _as_mask(mask: Any) -> Tensor:
    """(H, W) booleans with at least one true."""
    made = torch.as_tensor(mask)
    made = made[0] if made.ndim == 3 and len(made) == 1 else made
    if made.ndim != 2:
        raise TargetError(
            f"a mask is (height, width), not {tuple(made.shape)}; for one each image, pass a list of targets"
        )
    made = made > 0.5 if made.is_floating_point() else made != 0
    if not bool(made.any()):
        raise TargetError("the mask is empty: there is no pixel to explain")
    return made
