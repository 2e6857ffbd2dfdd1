"""`egcam detect` and `egcam segment`, with networks whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from typer.testing import CliRunner

import egcam
from egcam.cli import app
from egcam.drawing.marks import mark_color, with_box, with_outline

OWN = '''
import torch
from torch import nn

from egcam.models.classifier import Classifier
from egcam.models.preprocessing import Preprocessing


class RedAndBlue(nn.Module):
    """One map of redness and one of blueness, four times smaller than the image."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.AvgPool2d(4))
        with torch.no_grad():
            self.backbone[0].weight.copy_(torch.tensor([[1.0, -1, -1], [-1, -1, 1]])[:, :, None, None])
            self.backbone[0].bias.zero_()


class Detector(RedAndBlue):
    """The left half is a red thing as far as it is red, the right half a blue one."""

    classes = ["nothing", "red thing", "blue thing"]

    def forward(self, images):
        maps = self.backbone(torch.stack(images))
        (height, width), half = images[0].shape[1:], maps.shape[3] // 2
        scores = torch.stack([maps[:, 0, :, :half].mean((1, 2)), maps[:, 1, :, half:].mean((1, 2))], 1)
        boxes = torch.tensor([[0.0, 0, width / 2, height], [width / 2, 0, width, height]])
        return [{"boxes": boxes, "labels": torch.tensor([1, 2]), "scores": row} for row in scores]


class Segmenter(RedAndBlue):
    def forward(self, images):
        maps = self.backbone(images)
        return {"out": torch.cat([torch.full_like(maps[:, :1], 0.2), maps], 1)}


def detector():
    return Detector()


def segmenter():
    seen = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    return Classifier(Segmenter(), "colours", ["background", "red", "blue"], seen)


class Heads(RedAndBlue):
    def forward(self, images):
        return [{"boxes": torch.zeros(0, 4)} for image in images]


def heads():
    return Heads()
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a picture, 80 wide and 40 high: a red square on the left, a blue one on the right, on black."""
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[8:32, 8:32, 0] = 255
    pixels[16:24, 48:72, 2] = 255
    Image.fromarray(pixels).save(tmp_path / "squares.png")
    Image.new("RGB", (48, 64)).save(tmp_path / "black.png")
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answered(*arguments: str, code: int = 0) -> Any:
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    assert answer.exit_code == code, answer.output
    return json.loads(answer.stdout)


def test_each_detected_object_has_its_map(place: Path) -> None:
    found = answered(
        "detect", "squares.png", "--model", "own.py:detector", "--threshold", "0.1", "--method", "hires-cam"
    )
    (image,) = found["images"]
    assert [(one["name"], one["label"], one["box"]) for one in image["objects"]] == [
        ("red thing", 1, [0.0, 0.0, 0.5, 1.0]),
        ("blue thing", 2, [0.5, 0.0, 1.0, 1.0]),
    ]
    assert [one["score"] for one in image["objects"]] == pytest.approx([24 * 24 / 1600, 8 * 24 / 1600], abs=1e-5)
    folder = Path(image["folder"])
    explanation = egcam.Explanation.load(folder)
    assert explanation.maps.shape == (2, 10, 20)
    inside = torch.zeros(2, 10, 20)
    inside[0, 2:8, 2:8] = inside[1, 4:6, 12:18] = 1
    assert torch.equal((explanation.maps > 0).float(), inside), "the map is where the colour is"
    picture = np.asarray(Image.open(image["picture"]).convert("RGB"))
    for number in range(2):
        ink = tuple(int(mark_color(number)[place : place + 2], 16) for place in (1, 3, 5))
        assert (picture == ink).all(2).sum() > 200, "its box is drawn, twice"


def test_the_threshold_and_the_number_of_objects(place: Path) -> None:
    options = ("squares.png", "--model", "own.py:detector", "--method", "grad-cam", "--threshold")
    assert [len(answered("detect", *options, least)["images"][0]["objects"]) for least in ("0.3", "0.2")] == [1, 1]
    assert len(answered("detect", *options, "0.1", "--most", "1")["images"][0]["objects"]) == 1
    answer = CliRunner().invoke(app, ["detect", *options, "0.9"])
    assert answer.exit_code == 0
    assert "no object is found with a score of at least 0.9" in answer.output
    assert (place / "egcam-out" / "squares-detection-grad-cam" / "objects.png").stat().st_size > 500


def test_each_segmented_class_has_its_map(place: Path) -> None:
    found = answered("segment", "squares.png", "black.png", "--model", "own.py:segmenter", "--method", "hires-cam")
    squares, black = found["images"]
    pixels = torch.from_numpy(np.asarray(Image.open("squares.png")) / 255).permute(2, 0, 1)[None]
    redness, blueness = (functional.avg_pool2d(pixels[:, place, None], 4) for place in (0, 2))
    scores = torch.cat([torch.full_like(redness, 0.2), redness, blueness], 1)
    likeliest = functional.interpolate(scores, size=(40, 80), mode="bilinear", align_corners=False)[0].argmax(0)
    assert [(one["name"], one["area"]) for one in squares["objects"]] == [
        (name, pytest.approx(float((likeliest == label).double().mean()), abs=1e-6))
        for label, name in ((1, "red"), (2, "blue"))
    ]
    assert black["objects"] == []
    maps = egcam.Explanation.load(Path(squares["folder"])).maps
    assert bool((maps[0, :, 10:] == 0).all())
    assert bool((maps[1, :, :10] == 0).all())
    assert float(maps.amax((1, 2)).min()) > 0
    one = answered("segment", "squares.png", "--class", "blue", "--model", "own.py:segmenter", "--samples", "2")
    assert [each["name"] for each in one["images"][0]["objects"]] == ["blue"]


def test_wrong_use_is_named(place: Path) -> None:
    cases = [
        (("segment", "squares.png", "--class", "rd", "--model", "own.py:segmenter"), "'red'"),
        (("detect", "squares.png", "--model", "own.py:segmenter"), "a detector takes a list of images"),
        (("detect", "squares.png", "--model", "own.py:heads"), "does not answer as a detector"),
        (("detect", "squares.png", "--model", "fasterrcnn_resnet51_fpn", "--weights", "random"), "fasterrcnn_resnet50"),
        (("detect", "squares.png", "--model", "own.py:detector", "--method", "grad-kam"), "grad-cam"),
    ]
    for arguments, said in cases:
        assert said in answered(*arguments, code=2)["error"]
    assert answered("detect", "gone.png", "--model", "own.py:detector", code=1)["failed"][0]["file"] == "gone.png"


def test_marks_are_where_they_should_be() -> None:
    bare = Image.new("RGB", (320, 200), "#808080")
    boxed = np.asarray(with_box(bare, (100, 60, 200, 160), "#ff0000"))
    red = (boxed == (255, 0, 0)).all(2)
    assert red[60, 150]
    assert red[110, 100]
    assert red[110, 200]
    assert not red[110, 150]
    mask = np.zeros((100, 160), bool)
    mask[30:80, 50:100] = True
    lined = np.asarray(with_outline(bare, mask, "#ff0000", "a label"))
    for inside in (lined[64:156, 120:180], lined[80:140, 104:196]):  # an enlarged mask has round corners
        assert (inside == 128).all(), "the inside is left bare"
    assert (lined[110, 98:103] == (255, 0, 0)).all(1).any()
    assert (lined[:50] == (255, 0, 0)).all(2).any(), "the plate of the label is above"
