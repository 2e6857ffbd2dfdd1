"""What each target reads from one image's output, worked out by hand."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import ModelError, TargetError
from egcam.models.targets import image_part
from egcam.targets import Box, Class, Contrast, Head, Mask, Pixel, Similarity

LOGITS = torch.tensor([0.5, 2.0, -1.0])
NAMES = ["dog", "cat", "bird"]


# -- classes --------------------------------------------------------------------------------------


def test_a_class_and_its_scores() -> None:
    assert Class(1)(LOGITS) == 2.0
    assert Class("cat", classes=NAMES)({"features": torch.zeros(3, 2, 2), "logits": LOGITS}) == 2.0
    assert torch.isclose(Class(1, "probability")(LOGITS), LOGITS.softmax(0)[1])
    assert torch.isclose(Class(1, score="sigmoid")(LOGITS), LOGITS.sigmoid()[1])
    assert Class(0, classes=["benign", "malignant"])(torch.tensor([3.0])) == -3.0


def test_one_class_against_another() -> None:
    assert Contrast(1, "bird", classes=NAMES)(LOGITS) == 3.0
    with pytest.raises(TargetError, match="against itself"):
        Contrast(1, 1)


@pytest.mark.parametrize("wrong", [1.5, True, None, [1]])
def test_what_is_no_class(wrong: Any) -> None:
    with pytest.raises(TargetError, match="index or name"):
        Class(wrong)


# -- boxes ----------------------------------------------------------------------------------------

FOUND = {
    "boxes": torch.tensor([[0.0, 0, 10, 10], [2, 0, 12, 10], [0, 0, 10, 9], [50, 50, 60, 60]]),
    "labels": torch.tensor([1, 1, 2, 1]),
    "scores": torch.tensor([0.4, 0.9, 0.8, 0.7]),
}


def test_the_box_that_overlaps_most_of_its_label_counts() -> None:
    assert Box((0, 0, 10, 10), 1)(FOUND) == 0.4, "not the surer one beside it"
    assert Box((0, 0, 10, 10), 2)(FOUND) == 0.8
    assert Box((3, 0, 13, 10), 1)(FOUND) == 0.9
    assert Box((0, 0, 10, 9.1))(FOUND) == 0.8, "any label"
    assert Box(FOUND["boxes"][3], FOUND["labels"][3])(FOUND) == 0.7


@pytest.mark.parametrize("target", [Box((20, 20, 30, 30)), Box((50, 50, 60, 60), 2), Box((0, 0, 7, 7), 1, iou=0.6)])
def test_without_a_match_score_and_gradient_are_zero(target: Box) -> None:
    scores = FOUND["scores"].clone().requires_grad_()
    for part in (slice(None), slice(0, 0)):
        found = {"boxes": FOUND["boxes"][part], "labels": FOUND["labels"][part], "scores": scores[part]}
        score = target(found)
        assert score == 0
        assert torch.equal(torch.autograd.grad(score, scores)[0], torch.zeros(4))


def test_a_sure_box_whose_score_is_infinite_does_not_make_the_missing_one_nan() -> None:
    assert Box((20, 20, 30, 30))({**FOUND, "scores": torch.full((4,), torch.inf)}) == 0


def test_the_queries_of_detr() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    boxes = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.5, 0.5], [0.52, 0.5, 0.5, 0.5]])
    output = {"pred_logits": logits, "pred_boxes": boxes}
    middle = (10, 5, 30, 15)  # of an image 20 high and 40 wide
    target = Box(middle, 1, classes=["dog", "cat"], size=(20, 40))
    assert torch.isclose(target(output), logits[0].softmax(0)[1]), "the third query says there is nothing"
    assert torch.isclose(target({"logits": logits, "pred_boxes": boxes}), logits[0].softmax(0)[1])
    any_label = Box((0, 0, 20, 10), classes=["dog", "cat"], size=(20, 40))
    assert torch.isclose(any_label(output), logits[1].softmax(0)[0])
    sigmoids = Box(middle, "cat", classes=NAMES, size=(20, 40))
    assert torch.isclose(sigmoids(output), logits[0].sigmoid()[1]), "three names, three logits: none is 'no object'"
    with pytest.raises(TargetError, match="size="):
        Box(middle, 1)(output)
    with pytest.raises(TargetError, match="out of range"):
        Box(middle, 2, classes=["dog", "cat"], size=(20, 40))(output)
    for names in (None, list("abcde")):
        with pytest.raises(TargetError, match='2 names if the last logit is "no object", as of DETR, or 3'):
            Box(middle, 1, classes=names, size=(20, 40))(output)


def test_the_tensors_of_yolo() -> None:
    rows = torch.tensor([[10.0, 10, 8, 8, 0.9, 0.2, 0.6], [10, 11, 8, 8, 0.8, 0.9, 0.1], [40, 40, 8, 8, 0.5, 0.5, 0.5]])
    box = (6, 6, 14, 14)
    assert torch.isclose(Box(box, 1, layout="yolov5")(rows), torch.tensor(0.9 * 0.6))
    assert torch.isclose(Box(box, 0, layout="yolov5")(rows), torch.tensor(0.8 * 0.9)), "the other is far less sure"
    without = torch.cat([rows[:, :4], rows[:, 5:]], 1).T
    assert torch.isclose(Box(box, 1, layout="yolov8")(without), torch.tensor(0.6))
    assert torch.isclose(Box(box, layout="yolov8")(without), torch.tensor(0.6)), "its likeliest class"
    assert torch.isclose(Box(box, "b", classes=["a", "b"])(rows), torch.tensor(0.54)), "told by the number of names"
    assert Box((0, 0, 3, 3), layout="yolov5")(rows) == 0
    table = torch.tensor([[6.0, 6, 14, 14, 0.7, 3], [6, 6, 14, 13, 0.9, 1]])
    assert torch.isclose(Box(box, 1, layout="xyxy")(table), torch.tensor(0.9))
    with pytest.raises(TargetError, match=r"layout='yolov5'.*'yolov8'.*'xyxy'"):
        Box(box, 1)(rows)
    with pytest.raises(TargetError, match="no class"):
        Box(box, 1, layout="yolov5")(rows[:, :5])
    assert torch.isclose(Box(box, 3).of_row([table, table[:1]], 2, 0), torch.tensor(0.7))
    assert Box(box, 1).of_row([table, table[:1]], 2, 1) == 0


def test_keypoints_angles_and_masks_are_no_classes() -> None:
    """Rows after the classes, which the number of class names tells apart; else what is no score gives them away."""
    classes = torch.tensor([[0.2, 0.6], [0.1, 0.3]])
    boxes = torch.tensor([[10.0, 10, 8, 8], [40, 40, 8, 8]]).T
    keypoints = torch.tensor([[49.9, 20.0], [0.5, 0.9]])
    box, names = (6, 6, 14, 14), ["sitting", "standing"]
    pose = torch.cat([boxes, classes.T, keypoints])
    assert Box(box, layout="yolov8", classes=names)(pose) == torch.tensor(0.6)
    assert Box(box, 0, layout="yolov8", classes=names)(pose) == torch.tensor(0.2)
    with pytest.raises(TargetError, match=r"from 0\.1 to 49\.9.*classes= with one name for each class"):
        Box(box, layout="yolov8")(pose)
    turned = torch.cat([boxes, classes.T, torch.tensor([[-0.7, 0.77]])])
    with pytest.raises(TargetError, match=r"from -0\.7 to 0\.77"):
        Box(box, layout="yolov8")(turned)
    older = torch.cat([boxes, torch.tensor([[0.5, 0.5]]), classes.T, keypoints]).T
    assert torch.isclose(Box(box, layout="yolov5", classes=names)(older), torch.tensor(0.3))
    with pytest.raises(TargetError, match="fewer classes than there are names, 5"):
        Box(box, layout="yolov8", classes=list("abcde"))(pose)
    masks = ((pose[None], torch.rand(1, 32, 4, 4)), {"feats": [torch.rand(1, 3, 2, 2)]})
    assert Box(box, layout="yolov8", classes=names).of_row(masks, 1, 0) == torch.tensor(0.6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"box": (5, 5, 5, 9)}, "left < right"),
        ({"box": (1, 2, 3)}, "left < right"),
        ({"box": (0, 0, 1, 1), "iou": 0}, "above 0"),
        ({"box": (0, 0, 1, 1), "layout": "yolo5"}, "yolov5"),
        ({"box": (0, 0, 1, 1), "label": 0.5}, "index or name"),
    ],
)
def test_boxes_that_are_none(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TargetError, match=said):
        Box(**options)


def test_outputs_without_boxes_are_refused() -> None:
    with pytest.raises(TargetError, match="no boxes can be read"):
        Box((0, 0, 1, 1))({"logits": torch.rand(3)})


# -- segmentations --------------------------------------------------------------------------------

SCORES = torch.rand(3, 4, 6, generator=torch.Generator().manual_seed(0))


def enlarged(scores: Tensor) -> Tensor:
    return functional.interpolate(scores[None], size=(8, 12), mode="bilinear", align_corners=False)[0]


@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: {"out": s, "aux": s + 1}, lambda s: {"loss": None, "logits": s}]
)
def test_a_mask_and_a_pixel(wrap: Any) -> None:
    mask = torch.zeros(8, 12, dtype=torch.bool)
    mask[2:5, 3:9] = True
    assert torch.isclose(Mask(1)(wrap(SCORES)), SCORES[1].mean())
    assert torch.isclose(Mask(1, mask)(wrap(SCORES)), enlarged(SCORES)[1][mask].mean())
    assert torch.isclose(
        Mask("bird", mask.numpy(), "probability", NAMES)(wrap(SCORES)), enlarged(SCORES).softmax(0)[2][mask].mean()
    )
    small = mask[::2, ::2]
    assert torch.isclose(Mask(1, small)(wrap(SCORES)), SCORES[1][small].mean())
    assert torch.isclose(Pixel(2, 3, 7, size=(8, 12))(wrap(SCORES)), enlarged(SCORES)[2, 3, 7])
    assert torch.isclose(Pixel(2, row=3, column=1)(wrap(SCORES)), SCORES[2, 3, 1])


def test_one_output_of_two_classes() -> None:
    one = SCORES[:1]
    assert torch.isclose(Mask(0, classes=["ground", "road"])(one), -one.mean())
    assert torch.isclose(Mask("road", score="probability", classes=["ground", "road"])(one), one.sigmoid().mean())


def test_masks_that_do_not_fit() -> None:
    with pytest.raises(TargetError, match="empty"):
        Mask(1, torch.zeros(4, 6))
    with pytest.raises(TargetError, match="list of targets"):
        Mask(1, torch.ones(2, 4, 6), size=(4, 6))(SCORES)
    with pytest.raises(TargetError, match=r"\(5, 5\).*\(8, 12\).*\(4, 6\)"):
        Mask(1, torch.ones(5, 5), size=(8, 12))(SCORES)
    with pytest.raises(TargetError, match="no pixel"):
        Pixel(1, 9, 0)(SCORES)
    with pytest.raises(TargetError, match="Head"):
        Mask(1)({"a": SCORES, "b": SCORES})


# -- similarities and heads -----------------------------------------------------------------------


def test_similarities() -> None:
    embedding, other = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
    assert torch.isclose(Similarity(other)(embedding), torch.tensor(0.8))
    assert Similarity(other[None], by="dot")({"image_embeds": embedding, "logits": torch.zeros(7)}) == 8.0
    assert torch.isclose(Similarity("up", encode=lambda text: other[None])(embedding), torch.tensor(0.8))
    for wrong, said in (("up", "encode="), (torch.zeros(2, 5), "embedding"), (torch.tensor([1, 2]), "embedding")):
        with pytest.raises(TargetError, match=said):
            Similarity(wrong)
    with pytest.raises(TargetError, match=r"2 numbers .* 3"):
        Similarity(torch.ones(3))(embedding)
    with pytest.raises(TargetError, match="cosine"):
        Similarity(other, by="cosin")


def test_heads() -> None:
    Pair = namedtuple("Pair", "colour shape")
    colour, shape = torch.tensor([1.0, 5.0]), torch.tensor([[[2.0, 4.0]]])

    @dataclass
    class Both:
        colour: Tensor
        shape: Tensor

    for output in ({"colour": colour, "shape": shape}, Pair(colour, shape), Both(colour, shape)):
        assert Head("colour", 1)(output) == 5.0
        assert Head("shape", Mask(0))(output) == 3.0
    assert Head(1, Mask(0))((colour, shape)) == 3.0
    assert Head(0, lambda part: part.sum())((colour, shape)) == 6.0
    for output in ({"colour": colour}, (colour,), colour, Both(colour, shape)):
        with pytest.raises(TargetError, match="no head 'form'"):
            Head("form", 0)(output)


# -- one image's part -----------------------------------------------------------------------------


def test_the_part_of_one_image() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(image_part(rows, 2, 1), rows[1])
    nested = image_part({"a": [rows, rows + 1], "b": (rows, None), "anchors": torch.ones(7)}, 2, 0)
    assert torch.equal(nested["a"][1], rows[0] + 1)
    assert torch.equal(nested["b"][0], rows[0])
    assert torch.equal(nested["anchors"], torch.ones(7))
    by_image = [{"scores": torch.ones(2)}, {"scores": torch.zeros(2)}]
    assert image_part(by_image, 2, 1) is by_image[1]
    with pytest.raises(TargetError, match="which part belongs to which image"):
        image_part(rows, 3, 0)
    with pytest.raises((TargetError, ModelError)):
        Class(0)(torch.zeros(3, 4, 4))
