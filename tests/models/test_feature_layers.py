"""The layers between a network's blocks, and the choice among them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import egcam
from egcam.errors import LayerError
from egcam.evaluation.layers import best_layer, candidate_layers
from egcam.metrics import insertion_deletion
from egcam.models.layers import inner_layer
from egcam.models.trace import dry_run

torchvision = pytest.importorskip("torchvision")

INNER = {
    "resnet18": ("layer3", "layer4"),
    "mobilenet_v2": ("features.13", "features.18"),
    "densenet121": ("features.transition3.conv", "features.norm5"),
    "efficientnet_b0": ("features.5", "features.8"),
    "convnext_tiny": ("features.6.0", "features.7"),
}


@pytest.mark.parametrize("name", INNER)
def test_inner_layer_is_the_last_of_the_second_coarsest_resolution(name: str) -> None:
    model = torchvision.models.get_model(name).eval()
    images = torch.rand(1, 3, 64, 64)
    found = {layer.name: layer for layer in candidate_layers(model, images)}
    inner = inner_layer(model, dry_run(model, images))
    assert inner == INNER[name][0]
    assert found[inner].size == (4, 4)
    last = list(found.values())[-1]
    assert last.size == (2, 2)
    assert 0 < last.tail < found[inner].tail < 1


def test_what_lies_inside_a_block_is_no_layer_between_blocks() -> None:
    model = torchvision.models.resnet18().eval()
    names = [layer.name for layer in candidate_layers(model, torch.rand(1, 3, 64, 64))]
    assert names == ["conv1", "bn1", "relu", "maxpool", "layer1.0", "layer1", "layer2.0", "layer2", "layer3.0",
                     "layer3", "layer4.0", "layer4"]  # fmt: skip


def test_the_tail_is_counted_in_multiplications() -> None:
    """A 3 x 3 convolution to 4 channels on 6 x 6, then 144 weights to 5 classes."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    first, second = candidate_layers(model, torch.rand(1, 2, 8, 8))
    convolution, linear = 4 * 2 * 9 * 36, 144 * 5
    assert first.tail == second.tail == pytest.approx(linear / (convolution + linear))


def test_best_layer_is_the_one_whose_maps_have_the_best_score() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(4), nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(96, 3)
    ).eval()  # fmt: skip
    images = torch.rand(3, 3, 16, 16)
    found = best_layer(model, images, "hires-cam", layers=["2", "4"], signed=True)
    for one in found:
        explanation = egcam.explain(model, images, "hires-cam", layer=one.layer.name, signed=True)
        expected = insertion_deletion(model, images, explanation, step=22)
        torch.testing.assert_close(one.scores, expected)
        assert one.mean == pytest.approx(float(expected.mean()))
    assert found[0].mean >= found[1].mean
    with pytest.raises(LayerError, match="'nowhere' is not one of the layers"):
        best_layer(model, images, layers=["nowhere"])
