"""An object that a detector found: the score of its box, searched for in every sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from egcam.errors import TargetError, check_known
from egcam.imageops import Size
from egcam.models.class_scores import label_index
from egcam.models.nested import tensors_in
from egcam.models.targets import InSetting, Places, as_label, image_part, is_by_image, named

Layout: TypeAlias = Literal["yolov5", "yolov8", "xyxy"]


@dataclass(frozen=True)
class Found:
    """What a detector found in one image.

    Attributes:
        boxes: (n, 4) as (left, top, right, bottom).
        scores: (n,) of the label that is looked for; of any label, of the likeliest.
        fits: (n,) whether it is of that label at all.
        finished: whether duplicates were taken out; else many boxes stand for one object.
    """

    boxes: Tensor
    scores: Tensor
    fits: Tensor
    finished: bool


@dataclass(frozen=True, eq=False)
class Box(InSetting):
    """An object of a detector: the score of the found box that overlaps most with it.

    The detector's boxes change from sample to sample, so each sample is searched: of the boxes of the label with
    IoU >= `iou`, the one with the highest IoU. If there is none, the score and its gradient are 0. Raw predictions
    (DETR's queries, YOLO's anchors) contain many boxes for one object; of those, only boxes with at least half the
    highest score count.

    Outputs it can read, for one image:

    - torchvision's detectors: a dictionary of boxes, scores and labels;
    - DETR and relatives: pred_logits and pred_boxes (Hugging Face: logits and pred_boxes), the boxes as centre and size
      in shares of the image. With one class name fewer than logits the last logit is "no object", and the scores are a
      softmax (DETR, YOLOS); with as many they are sigmoids (RT-DETR, Deformable DETR). Hugging Face's configuration
      says it;
    - YOLO's tensors, which `layout` describes; lists with one (n, 6) per image. The class names say which rows are
      classes: those of pose, oriented boxes and masks have others after them.

    Args:
        box: (left, top, right, bottom) in pixels of the image.
        label: the class, by index or name; None is any, the likeliest one.
        iou: how much a box has to overlap, as intersection over union.
        layout: what a tensor holds. "yolov5": (anchors, 5 + classes), each centre x, centre y, width, height,
            objectness and classes; "yolov8": (4 + classes, anchors) without objectness; "xyxy": (n, 6), each left, top,
            right, bottom, score and class.
        classes: the class names; by default the explainer's.
        size: (height, width) of the image, if used without an explainer.

    Example:
        >>> found = {"boxes": torch.tensor([[0.0, 0.0, 4.0, 4.0], [1.0, 0.0, 5.0, 4.0]]),
        ...          "labels": torch.tensor([1, 2]), "scores": torch.tensor([0.9, 0.8])}
        >>> Box((0, 0, 4, 4), label=2)(found), Box((6, 6, 9, 9))(found)
        (tensor(0.8000), tensor(0.))
    """

    box: tuple[float, float, float, float]
    label: int | str | None = None
    iou: float = 0.5
    layout: Layout | None = None
    classes: Sequence[str] | None = None
    size: Size | None = None

    def __post_init__(self) -> None:
        corners = torch.as_tensor(self.box, dtype=torch.float64, device="cpu").flatten().tolist()
        if len(corners) != 4 or not (corners[0] < corners[2] and corners[1] < corners[3]):
            raise TargetError(f"a box is (left, top, right, bottom) with left < right and top < bottom, not {self.box}")
        object.__setattr__(self, "box", tuple(corners))
        object.__setattr__(self, "label", None if self.label is None else as_label(self.label))
        if not 0 < self.iou <= 1:
            raise TargetError(f"iou is above 0 and at most 1, not {self.iou}")
        if self.layout is not None:
            check_known(self.layout, get_args(Layout), "layout", TargetError)

    def __call__(self, output: Any) -> Tensor:
        """The score of the matching box in one image's output, or 0."""
        boxes = self._found(output)
        place = self.match(boxes)
        # An empty sum is 0 whatever the scores are, and still has a gradient: 0.
        return boxes.scores[:0].sum() if place is None else boxes.scores[place]

    def of_row(self, output: Any, count: int, row: int) -> Tensor:
        """The same of a batch; a list of tensors has one for each image."""
        if isinstance(output, list) and len(output) == count and all(map(_is_table, output)):
            return replace(self, layout=self.layout or "xyxy")(output[row])
        if not is_by_image(output, count) and isinstance(output, tuple | list) and not hasattr(output, "_fields"):
            output = _only_tensor(output)
        return self(image_part(output, count, row))

    def match(self, boxes: Found) -> int | None:
        """Which of the found boxes it is."""
        with torch.no_grad():
            overlap = overlaps(boxes.boxes.detach(), boxes.boxes.new_tensor(self.box))
            possible = boxes.fits & (overlap >= self.iou)
            if not boxes.finished and bool(possible.any()):
                possible &= boxes.scores >= boxes.scores[possible].max() / 2
            if not bool(possible.any()):
                return None
            return int(overlap.masked_fill(~possible, -1).argmax())

    @property
    def description(self) -> str:
        """The class, and the box."""
        corners = ", ".join(f"{corner:.0f}" for corner in self.box)
        return f"{'object' if self.label is None else named(self.label, self.classes)} in ({corners})"

    @property
    def places(self) -> Places:
        """Boxes."""
        return "boxes"

    @property
    def why_zero(self) -> str:
        """No box matched."""
        return (
            f"no box that the model finds matches {self.description} (IoU of at least {self.iou:g}"
            f"{'' if self.label is None else ' and its label'}), so its score is 0"
        )

    def _found(self, output: Any) -> Found:
        if isinstance(output, Mapping):
            if all(key in output for key in ("boxes", "scores", "labels")):
                return self._listed(output["boxes"], output["scores"], output["labels"])
            logits = next((output[key] for key in ("pred_logits", "logits") if key in output), None)
            if logits is not None and "pred_boxes" in output:
                return self._queries(logits, output["pred_boxes"])
        if isinstance(output, Tensor) and output.ndim == 2:
            return self._table(output)
        parts = list(output) if isinstance(output, Mapping) else [tuple(tensor.shape) for tensor in tensors_in(output)]
        raise TargetError(
            f"no boxes can be read from the model's output (of one image it is a {type(output).__name__} with {parts})"
            ": it must hold boxes, scores and labels, or pred_logits and pred_boxes, or be a tensor whose layout= is "
            "given. Pass a callable target that reads it"
        )

    def _listed(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> Found:
        """Finished detections with one label each."""
        if self.label is None:
            fits = torch.ones_like(labels, dtype=torch.bool)
        else:
            label = self.label
            if isinstance(label, str):
                label = label_index(label, self.classes, len(self.classes or ()))
            fits = labels == label
        return Found(boxes, scores, fits, finished=True)

    def _queries(self, logits: Tensor, boxes: Tensor) -> Found:
        """DETR's queries."""
        if self.size is None or len(self.size) != 2:
            raise TargetError("DETR's boxes are in shares of the image: pass its size=(height, width)")
        count, names = logits.shape[1], -1 if self.classes is None else len(self.classes)
        if names not in (count - 1, count):
            what = "its class names are unknown" if names < 0 else f"there are {names} class names"
            raise TargetError(
                f"the model returned {count} logits for each box and {what}: pass classes= with "
                f'{count - 1} names if the last logit is "no object", as of DETR, or {count} if all are classes, as of '
                "RT-DETR and Deformable DETR"
            )
        chances = logits.sigmoid() if names == count else logits.softmax(1)[:, :-1]
        height, width = self.size
        return self._raw(_corners(boxes) * boxes.new_tensor([width, height, width, height]), chances)

    def _table(self, table: Tensor) -> Found:
        """A YOLO-like tensor."""
        layout = self.layout or self._layout_of(table)
        if layout == "xyxy":
            if table.shape[1] != 6:
                raise TargetError(f"layout='xyxy' has 6 columns, and the model's output is {tuple(table.shape)}")
            return self._listed(table[:, :4], table[:, 4], table[:, 5].round().long())
        rows, first = (table, 5) if layout == "yolov5" else (table.T, 4)
        count = rows.shape[1] - first if self.classes is None else len(self.classes)
        if not 0 < count <= rows.shape[1] - first:
            names = "no class" if self.classes is None else f"fewer classes than there are names, {len(self.classes)}"
            raise TargetError(f"layout={layout!r} does not fit a tensor of {tuple(table.shape)}: it has {names}")
        chances = rows[:, first : first + count]
        low, high = (float(chances.detach().amin()), float(chances.detach().amax())) if chances.numel() else (0, 1)
        if not (low >= 0 and high <= 1):
            raise TargetError(
                f"not all of the {count} numbers after each box are scores of classes, from 0 to 1: they reach from "
                f"{low:.3g} to {high:.3g}. Keypoints, angles and masks come after the classes: pass classes= with one "
                "name for each class"
            )
        return self._raw(_corners(rows[:, :4]), rows[:, 4:5] * chances if layout == "yolov5" else chances)

    def _layout_of(self, table: Tensor) -> Layout:
        """What the number of classes tells; nothing else does."""
        count = -1 if self.classes is None else len(self.classes)
        possible: list[Layout] = ["yolov5"] if table.shape[1] == 5 + count else []
        possible += ["yolov8"] if table.shape[0] == 4 + count else []
        possible += ["xyxy"] if table.shape[1] == 6 else []
        if count > 0 and len(possible) == 1:
            return possible[0]
        raise TargetError(
            f"the model returned {tuple(table.shape)} for an image, and what its rows and columns hold is unclear: "
            "pass layout='yolov5' for (anchors, 5 + classes) with objectness, 'yolov8' for (4 + classes, anchors), or "
            "'xyxy' for (n, 6) with corners, score and class"
        )

    def _raw(self, boxes: Tensor, chances: Tensor) -> Found:
        """Predictions with a chance for each class."""
        if self.label is None:
            scores = chances.amax(1)
        else:
            scores = chances[:, label_index(self.label, self.classes, chances.shape[1])]
        return Found(boxes, scores, torch.ones_like(scores, dtype=torch.bool), finished=False)


def overlaps(boxes: Tensor, box: Tensor) -> Tensor:
    """(n,) intersection over union of (n, 4) boxes with one, all as (left, top, right, bottom).

    >>> overlaps(torch.tensor([[0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]]), torch.tensor([1.0, 0.0, 3.0, 2.0]))
    tensor([0.3333, 0.0000])
    """
    inside = (torch.minimum(boxes[:, 2:], box[2:]) - torch.maximum(boxes[:, :2], box[:2])).clamp(min=0).prod(1)
    area, other = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1), (box[2:] - box[:2]).prod()
    return inside / (area + other - inside)


def _corners(boxes: Tensor) -> Tensor:
    """(n, 4) boxes as (left, top, right, bottom), from centre and size."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return torch.cat([centre - half, centre + half], 1)


def _is_table(value: Any) -> bool:
    """Whether it is an image's detections, one in each row, as they come after duplicates were taken out."""
    return isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == 6


def _only_tensor(output: Any) -> Any:
    """The predictions (N, ., .) of a network that also returns its feature maps, and the prototypes of its masks."""
    output = output[0] if output and isinstance(output[0], tuple | list) else output
    tensors = [value for value in output if isinstance(value, Tensor) and value.ndim == 3]
    return tensors[0] if len(tensors) == 1 else output
