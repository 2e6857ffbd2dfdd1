"""A real photograph and the embedded network: the cat's map lies on the cat, for every method.

The photograph is squeezed into the network's square as a whole, since the usual centre cut shows nothing but cat.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import Tensor

import egcam
from egcam.models import zoo
from support.small_models import METHODS, PEERS

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("one_thread")]

# Drawn by hand on the photograph of 451 x 300 pixels: the face from the left eye to the right, brow to chin.
LEFT, TOP, RIGHT, BOTTOM = 125, 75, 345, 265
PHOTO = (451, 300)
EGYPTIAN_CAT = 285

FEW = {"samples": 6, "reference": "blurred"}
OPTIONS: dict[str, dict[str, object]] = {
    "ss-cam": {"samples": 1},
    "is-cam": {"samples": 1},
    "slope-cam": FEW,
    "expected-grad-cam": FEW,
    "expected-gradients": FEW,
    "smooth-grad": {"samples": 6},
    "smooth-grad-cam++": {"samples": 6},
    "integrated-grad-cam": {"samples": 6},
    "integrated-gradients": {"samples": 6},
}
# How much denser than elsewhere the heat must lie in the box. Maps of single pixels scatter over the photograph.
LEAST = {
    "input-gradient": 1.1,
    "smooth-grad": 1.2,
    "integrated-gradients": 1.1,
    "expected-gradients": 1.2,
    "score-cam": 1.2,
    "full-grad": 1.2,
}
# What the score does when parts are covered: with few windows or masks that says little of where the cat is.
COVERING = {"occlusion", "rise", "lime", "kernel-shap", "superpixel-shapley"}
# Score-CAM takes hundreds of passes, so it gets a smaller photograph.
SIDE = {"score-cam": 160}


@pytest.fixture(scope="module")
def cat() -> tuple[zoo.Classifier, Image.Image]:
    data = pytest.importorskip("skimage.data")
    classifier = zoo.load("efficientnet-lite0", device="cpu")
    return classifier, Image.fromarray(data.chelsea())


def seen(cat: tuple[zoo.Classifier, Image.Image], side: int = 224) -> Tensor:
    """The whole photograph as the network's input."""
    classifier, photo = cat
    return replace(classifier.preprocessing, resize=None, size=(side, side))(photo)[None]


def box(size: tuple[int, int]) -> Tensor:
    """1 inside the hand-drawn box, 0 outside, at the network's resolution."""
    height, width = size
    inside = torch.zeros(height, width)
    rows = slice(round(TOP / PHOTO[1] * height), round(BOTTOM / PHOTO[1] * height))
    columns = slice(round(LEFT / PHOTO[0] * width), round(RIGHT / PHOTO[0] * width))
    inside[rows, columns] = 1
    return inside


def concentration(heatmap: Tensor) -> float:
    """The share of the heat inside the box over the box's share of the area: 1 for a map that says nothing."""
    inside = box((heatmap.shape[0], heatmap.shape[1]))
    return float((heatmap * inside).sum() / heatmap.sum() / inside.mean())


def test_the_network_sees_a_cat(cat: tuple[zoo.Classifier, Image.Image]) -> None:
    with torch.no_grad():
        probability = cat[0].model(seen(cat)).softmax(1)[0]
    assert int(probability.argmax()) == EGYPTIAN_CAT
    assert float(probability[[281, 282, EGYPTIAN_CAT]].sum()) > 0.9


def test_a_flat_map_has_concentration_one() -> None:
    assert concentration(torch.ones(224, 224)) == pytest.approx(1)
    assert concentration(box((224, 224))) == pytest.approx(1 / 0.309, rel=0.01)


@pytest.mark.parametrize("method", [name for name in (*METHODS, *PEERS) if name not in COVERING])
def test_the_cats_map_lies_on_the_cat(cat: tuple[zoo.Classifier, Image.Image], method: str) -> None:
    classifier, _ = cat
    options = {"classes": classifier.classes, "batch_size": 8, **OPTIONS.get(method, {})}
    found = egcam.explain(classifier.model, seen(cat, SIDE.get(method, 224)), method, "Egyptian cat", **options)
    assert found.targets is not None
    assert found.targets.tolist() == [EGYPTIAN_CAT]
    assert concentration(found.heatmaps[0]) > LEAST.get(method, 1.4)
