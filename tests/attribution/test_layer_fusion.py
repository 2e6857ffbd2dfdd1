"""Several layers: each map upsampled to the finest, divided by its maximum, then averaged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import egcam
from support.forms import along_images
from support.small_models import AT_LAYER, explainer, pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")
LAYERS = ["relu1", "relu2"]


def fused(maps: list[Tensor]) -> Tensor:
    """The stated rule, written out."""
    height = max(one.shape[1] for one in maps)
    width = max(one.shape[2] for one in maps)
    total = torch.zeros(len(maps[0]), height, width, dtype=maps[0].dtype)
    for one in maps:
        large = functional.interpolate(one[:, None], size=(height, width), mode="bilinear", align_corners=False)[:, 0]
        for image in range(len(large)):
            largest = large[image].abs().max()
            total[image] += large[image] / largest if largest > 0 else large[image]
    return total / len(maps)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("method", [name for name in AT_LAYER if name != "cam"])
def test_the_map_of_several_layers(method, signed):
    model, images = small_net().double(), pictures(3, dtype=torch.float64)
    how = {"signed": signed, "reference": "noise"}
    single = [explainer(method, model, layer=layer, **how)(images, 1).maps for layer in LAYERS]
    found = explainer(method, model, layer=LAYERS, **how)(images, 1)
    assert found.layer == "relu1 + relu2"
    assert found.maps.shape == (3, 12, 12)
    assert torch.allclose(found.maps, fused(single), rtol=1e-9, atol=1e-12)
    assert found.maps.abs().max() <= 1


@pytest.mark.parametrize("layers", [["relu2", "relu1"], ["conv2", "relu2"], ["conv1", "bn1", "relu1", "bn2"]])
def test_any_number_of_layers_in_any_order(layers):
    model, images = small_net().double(), pictures(dtype=torch.float64)
    single = [egcam.LayerCAM(model, layer)(images, 1).maps for layer in layers]
    found = egcam.LayerCAM(model, layers)(images, 1)
    assert torch.allclose(found.maps, fused(single), rtol=1e-9, atol=1e-12)
    modules = [getattr(model, layer) for layer in layers]
    assert torch.equal(egcam.LayerCAM(model, modules)(images, 1).maps, found.maps)


def test_a_list_of_one_layer_is_that_layer():
    model, images = small_net(), pictures()
    assert torch.equal(
        egcam.GradCAM(model, ["relu2"], signed=True)(images, 1).maps,
        egcam.GradCAM(model, "relu2", signed=True)(images, 1).maps,
    )


def test_layers_cost_one_pass_together():
    assert egcam.GradCAM(small_net(), LAYERS)(pictures(2), 1).passes == 2


def test_a_layer_that_is_zero_adds_nothing():
    model, images = small_net(), pictures()
    with torch.no_grad():
        model.bn1.bias.fill_(-100.0)
    alone = egcam.LayerCAM(model, "relu2")(images, 1).maps
    found = egcam.LayerCAM(model, LAYERS)(images, 1).maps
    assert torch.allclose(found, fused([torch.zeros(2, 12, 12), alone]))


def test_the_error_of_several_layers_bounds_the_scatter_over_seeds():
    model, images = small_net().double(), pictures(1, dtype=torch.float64)
    runs = [
        along_images(model, LAYERS, reference="noise", samples=16, seed=seed, signed=True)(images, 1)
        for seed in range(12)
    ]
    scatter = torch.stack([run.maps for run in runs]).std(0)
    error = torch.stack([run.error for run in runs]).mean(0)
    assert error.shape == (1, 12, 12)
    assert error.mean() >= 0.7 * scatter.mean()
    assert error.mean() <= 5 * scatter.mean()
