"""A class in some places of a segmentation: in a mask, everywhere, or at one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egcam.errors import TargetError
from egcam.imageops import Size, interpolated
from egcam.models.class_scores import TENSOR_KEYS, Score, check_score, class_count, class_score, label_index
from egcam.models.nested import named_or_only
from egcam.models.targets import InSetting, Places, as_label, named


@dataclass(frozen=True, eq=False)
class Mask(InSetting):
    """A class of a segmentation inside a mask: the mean of its score over the mask's pixels.

    The output may be (classes, h, w), also as "out" or "logits" of a dictionary; of volumes (classes, d, h, w), of
    signals (classes, l). One that is smaller than the mask is enlarged to it, linearly along every axis (corners not
    aligned), as segmentations are read.

    Args:
        label: the class, by index or name.
        mask: (H, W), (D, H, W) or (L,), true or 1 inside, of the image's or of the output's size; None is the whole
            image.
        score: "logit", "probability" (softmax over classes) or "sigmoid"; None is the explainer's.
        classes: the class names; by default the explainer's.
        size: (height, width) of the image, of a volume (depth, height, width), if used without an explainer.

    Example:
        >>> scores = torch.tensor([[[0.0, 0.0]], [[1.0, 5.0]]])  # 2 classes, 1 x 2 pixels
        >>> Mask(1)(scores), Mask(1, torch.tensor([[False, True]]))(scores)
        (tensor(3.), tensor(5.))
    """

    label: int | str
    mask: Tensor | None = None
    score: Score | None = None
    classes: Sequence[str] | None = None
    size: Size | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", as_label(self.label))
        check_score(self.score)
        if self.mask is not None:
            object.__setattr__(self, "mask", _as_mask(self.mask))

    def __call__(self, output: Any) -> Tensor:
        """The mean score of the class over the mask, in one image's output."""
        if self.mask is None:
            return class_map(output, self, None, 2 if self.size is None else len(self.size)).mean()
        size = tuple(self.mask.shape)
        if self.size is not None and len(size) != len(self.size):
            raise TargetError(
                f"the mask is {size}, but the image is {self.size}: pass a mask of the image's size; for one each "
                "image, pass a list of targets"
            )
        map_size = tuple(segmentation_in(output, len(size)).shape[1:])
        if self.size is not None and size not in (self.size, map_size):
            raise TargetError(
                f"the mask is {size}, but the image is {self.size} and the model's output {map_size}: pass a mask of "
                "one of these sizes"
            )
        scores = class_map(output, self, size, len(size))
        return scores[self.mask.to(scores.device)].mean()

    @property
    def places(self) -> Places:
        """A map."""
        return "map"

    @property
    def description(self) -> str:
        """The class, and where."""
        what = "pixels" if self.mask is None or self.mask.ndim == 2 else "places"
        where = "everywhere" if self.mask is None else f"in {int(self.mask.count_nonzero())} {what}"
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
    size: Size | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", as_label(self.label))
        check_score(self.score)

    def __call__(self, output: Any) -> Tensor:
        """The class's score at the pixel, in one image's output."""
        if self.size is not None and len(self.size) != 2:
            raise TargetError(f"a pixel is one of an image, and this is of size {self.size}: use Mask(label, mask)")
        scores = class_map(output, self, self.size, 2)
        height, width = scores.shape
        if not (0 <= self.row < height and 0 <= self.column < width):
            raise TargetError(
                f"there is no pixel in row {self.row}, column {self.column} of {height} rows and {width} columns"
            )
        return scores[self.row, self.column]

    @property
    def places(self) -> Places:
        """A map."""
        return "map"

    @property
    def description(self) -> str:
        """The class, and where."""
        return f"{named(self.label, self.classes)} at row {self.row}, column {self.column}"


def class_map(output: Any, target: Mask | Pixel, size: Size | None, axes: int) -> Tensor:
    """(H, W) the class's score at each pixel of an image of this size; None is the output's own size."""
    maps = segmentation_in(output, axes)
    if size is not None and tuple(maps.shape[1:]) != size:
        maps = interpolated(maps[None], size)[0]
    outputs = maps.flatten(1).T
    count = class_count(outputs.shape[1], target.classes)
    index = torch.full((len(outputs),), label_index(target.label, target.classes, count), device=maps.device)
    return class_score(outputs, index, target.score or "logit", target.classes).reshape(maps.shape[1:])


def segmentation_in(output: Any, axes: int = 2) -> Tensor:
    """(classes, h, w) the class scores in one image's output: by their name, else the only map there is."""
    what = "the segmentation (classes, height, width)" if axes == 2 else f"the segmentation (classes and {axes} axes)"
    return named_or_only(
        output, TENSOR_KEYS, lambda tensor: tensor.is_floating_point() and tensor.ndim == axes + 1, what, "Mask"
    )


def _as_mask(mask: Any) -> Tensor:
    """(H, W) booleans with at least one true; (D, H, W) or (L,) likewise."""
    tensor = torch.as_tensor(mask)
    tensor = tensor[0] if tensor.ndim == 3 and len(tensor) == 1 else tensor
    if not 1 <= tensor.ndim <= 3:
        raise TargetError(
            f"a mask is (height, width), of a volume (depth, height, width), not {tuple(tensor.shape)}; for one each "
            "image, pass a list of targets"
        )
    tensor = tensor > 0.5 if tensor.is_floating_point() else tensor.bool()
    if not bool(tensor.any()):
        raise TargetError("the mask is empty: there is no pixel to explain")
    return tensor
