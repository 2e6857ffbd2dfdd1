"""Which part of a photograph a model sees, and heat maps that are drawn there."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import egcam
from egcam.models.classifier import Classifier
from egcam.models.crops import Crop
from egcam.models.preprocessing import Preprocessing

transforms = pytest.importorskip("torchvision.transforms")

USUAL = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


def left_half() -> nn.Module:
    """The score is the brightness of the left half of what the network sees, which Grad-CAM shows exactly."""
    net = nn.Sequential(nn.Conv2d(3, 1, 1, bias=False), nn.Flatten(), nn.Linear(16, 2, bias=False))
    with torch.no_grad():
        net[0].weight.fill_(1 / 3)
        net[2].weight.copy_((torch.arange(16) % 4 < 2).float().repeat(2, 1))
    return net.eval()


@pytest.mark.parametrize(
    ("transform", "size", "box"),
    [
        # The shorter side, 480, becomes 256 and the longer 341, of which 58 (59 in torchvision's rounding: 58.5) go.
        (USUAL, (640, 480), (108.9, 30, 529.3, 450)),
        (transforms.Compose([transforms.Resize((96, 96)), transforms.ToTensor()]), (640, 480), (0, 0, 640, 480)),
        (transforms.Compose([transforms.CenterCrop(700), transforms.ToTensor()]), (640, 480), (-30, -110, 670, 590)),
        (lambda picture: picture.crop((10, 20, 110, 120)), (640, 480), (10, 20, 110, 120)),
        (lambda picture: np.asarray(picture.resize((40, 30)))[None, 5:, 10:], (80, 60), (20, 10, 80, 60)),
        (Preprocessing((224, 224), 256), (32, 24), (5.44, 1.5, 26.46, 22.5)),
    ],
)
def test_a_crop_is_measured(transform, size, box):
    found = egcam.crop(transform, Image.new("RGB", size))
    assert found.size == size
    assert found.box == pytest.approx(box, abs=max(size) / 800)


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (transforms.RandomResizedCrop(64), "another result each time"),
        (transforms.RandomHorizontalFlip(1.0), "mirrors, turns or distorts"),
        (lambda picture: picture.rotate(8), "mirrors, turns or distorts"),
        (lambda picture: torch.zeros(3, 8, 8), "the same for a black and a white picture"),
        (lambda picture: torch.rand(2, 2, 3, 8, 8), r"one image, \(C, H, W\)"),
        (lambda picture: picture.crop((0, 0, 1, 1)), "fewer than four pixels"),
    ],
)
def test_transforms_that_leave_no_box_are_refused(transform, said):
    with pytest.raises(egcam.EgcamError, match=said):
        egcam.crop(transform, Image.new("RGB", (100, 80)))


def test_a_map_lies_where_the_model_looked():
    photograph = Image.new("RGB", (80, 40), "grey")
    image = transforms.Compose([transforms.CenterCrop(4), transforms.ToTensor()])
    seen = transforms.Compose([transforms.Resize(4), image])
    found = egcam.explain(left_half(), seen(photograph)[None], "hires-cam", target=0, layer="0")
    (drawn,) = found.overlay(photograph, crop=egcam.crop(seen, photograph))
    changed = np.abs(np.asarray(drawn).astype(int) - 128).sum(-1) > 30
    # The centre is columns 20 to 60, and its left half is hot; the border between hot and cold is 10 pixels wide.
    assert drawn.size == (80, 40)
    assert not changed[:, :19].any()
    assert changed[:, 22:34].all()
    assert not changed[:, 46:].any()


def test_a_classifier_knows_where_it_looked():
    photograph = Image.new("RGB", (80, 40), "grey")
    classifier = Classifier(left_half(), preprocessing=Preprocessing((4, 4), 4, mean=(0.0,) * 3, std=(1.0,) * 3))
    found = classifier.explain(photograph, "hires-cam", target=0)
    assert found.crop == Crop((20.0, 0.0, 60.0, 40.0), (80, 40))
    over_photograph, over_part = found.overlay(photograph)[0], found.overlay(classifier.crop(photograph))[0]
    # Both show the same heat, one of them with what lies around it.
    inside = np.asarray(over_photograph.crop((20, 0, 60, 40)).resize(over_part.size)).astype(int)
    assert np.abs(inside - np.asarray(over_part).astype(int)).max() <= 40
    assert np.abs(inside - np.asarray(over_part).astype(int)).mean() < 6
    assert np.asarray(over_photograph)[:, :18].min() == np.asarray(over_photograph)[:, 48:].max() == 128
    # A copy of the photograph in another resolution will do; another photograph will not.
    assert found.overlay(photograph.resize((160, 80)))[0].size == (160, 80)
    with pytest.raises(egcam.EgcamError, match="80 x 40: pass that photograph"):
        found.overlay(Image.new("RGB", (30, 70)))


def test_a_squeezed_photograph_is_covered_whole():
    classifier = Classifier(left_half(), preprocessing=Preprocessing((4, 4), None))
    (drawn,) = classifier.explain(Image.new("RGB", (80, 40), "white"), "hires-cam", target=0).overlay(
        Image.new("RGB", (80, 40), "white")
    )
    assert np.asarray(drawn)[:, :20].max() < 255


@pytest.mark.parametrize("side", [224, 100, 256, 500])
def test_a_square_photograph_and_the_part_of_it_are_told_apart(side):
    """Both have the proportions of the input, so their sizes tell them apart, which are never the same."""
    photograph = Image.new("RGB", (side, side))
    preprocessing = Preprocessing((224, 224), 256)
    view = preprocessing.view(photograph)
    assert view.size != photograph.size
    found = egcam.Explanation(
        torch.ones(1, 4, 4), (224, 224), None, torch.zeros(1), None, "0", "cam", crop=preprocessing.crop(photograph)
    )
    shown = [np.asarray(found.overlay(picture)[0]).max(2) > 0 for picture in (photograph, view)]
    assert shown[0].mean() == pytest.approx((224 / 256) ** 2, abs=0.02)
    assert shown[1].all()


def test_a_picture_of_other_proportions_is_refused_with_the_remedy():
    found = egcam.explain(left_half(), torch.rand(1, 3, 4, 4), "hires-cam", target=0, layer="0")
    with pytest.raises(egcam.EgcamError, match=r"other proportions.*crop=egcam\.crop\(transform, picture\)"):
        found.overlay(Image.new("RGB", (640, 480)))
    with pytest.raises(egcam.EgcamError, match="other proportions"):
        found.overlay(torch.rand(1, 3, 48, 64))
    with pytest.raises(egcam.EgcamError, match="2 crops for 1 images"):
        found.overlay(Image.new("RGB", (8, 8)), crop=[Crop((0, 0, 8, 8), (8, 8))] * 2)
    # 640 x 427 made 224 pixels wide is 149.45 high: a pixel is rounded off.
    flat = egcam.Explanation(torch.ones(1, 2, 2), (149, 224), None, torch.zeros(1), None, "0", "cam")
    assert flat.overlay(Image.new("RGB", (640, 427)))[0].size == (640, 427)


def test_the_crop_is_saved(tmp_path):
    classifier = Classifier(left_half(), preprocessing=Preprocessing((4, 4), 4))
    photograph = Image.new("RGB", (80, 40), "grey")
    found = classifier.explain(photograph, "hires-cam", target=0)
    found.save(tmp_path / "one")
    again = egcam.Explanation.load(tmp_path / "one")
    assert again.crop == found.crop
    pairs = zip(again.overlay(photograph), found.overlay(photograph), strict=True)
    assert all(one.tobytes() == other.tobytes() for one, other in pairs)
    file = tmp_path / "one" / "explanation.json"
    file.write_text(file.read_text().replace("60.0", "10.0"))
    with pytest.raises(egcam.EgcamError, match="crop cannot be"):
        egcam.Explanation.load(tmp_path / "one")
