"""CAM's weights are those that make the logits from the averaged activations, or it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

import egcam
from support.small_models import pictures, seeded

pytestmark = pytest.mark.usefixtures("one_thread")


class Headed(nn.Module):
    """Features, then whatever makes logits of them; heads that nobody uses are registered last."""

    def __init__(self, logits: Callable[[Headed, Tensor], Tensor]) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.first = nn.Linear(8, 8)
        self.convolved = nn.Conv2d(8, 4, 1)
        self.head = nn.Linear(8, 4)
        self.norm = nn.LayerNorm(8)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
        self.unused = nn.Linear(8, 4)
        self.unused_convolution = nn.Conv2d(8, 4, 1)
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self, self.features(images))


def headed(logits: Callable[[Any, Tensor], Tensor]) -> Headed:
    network = seeded(lambda: Headed(logits)).eval()
    assert isinstance(network, Headed)
    return network


def weighted(weight: Tensor, target: int, activations: Tensor) -> Tensor:
    return torch.einsum("k,nkhw->nhw", weight.flatten(1)[target], activations)


@pytest.mark.parametrize(
    ("logits", "head"),
    [
        (lambda net, maps: net.head(maps.mean((2, 3))), "head"),
        (lambda net, maps: net.head(maps.flatten(2).mean(2)), "head"),
        (lambda net, maps: net.convolved(maps.mean((2, 3), keepdim=True)), "convolved"),
        (lambda net, maps: net.convolved(maps).mean((2, 3)), "convolved"),
        (lambda net, maps: net.unused(maps.mean((2, 3))), "unused"),
    ],
    ids=["head", "flattened", "convolution after pooling", "convolution before pooling", "last"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_weights_are_those_that_make_the_logits(logits, head, dtype):
    model = headed(logits).to(dtype)
    images = pictures(3, dtype=dtype)
    found = egcam.CAM(model, "features", signed=True)(images, 2)
    weight, activations = model.get_submodule(head).weight, model.features(images)
    truth = weighted(weight.detach().to(found.maps.dtype), 2, activations.detach().to(found.maps.dtype))
    assert torch.allclose(found.maps, truth, rtol=1e-5, atol=1e-6)


def test_a_head_without_bias():
    model = headed(lambda net, maps: net.head(maps.mean((2, 3))))
    model.head.bias = None
    found = egcam.CAM(model, "features", signed=True)(pictures(), 1)
    assert torch.allclose(found.maps, weighted(model.head.weight, 1, model.features(pictures())), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "logits",
    [
        lambda net, maps: net.head(maps.amax((2, 3))),
        lambda net, maps: net.head(net.first(maps.mean((2, 3)))),
        lambda net, maps: net.head(net.first(maps.mean((2, 3))).relu()),
        lambda net, maps: net.head(net.norm(maps.mean((2, 3)))),
        lambda net, maps: net.head(net.block(maps).mean((2, 3))),
        lambda net, maps: net.head(maps[:, :, 2, 2]),
        lambda net, maps: net.head(maps.mean((2, 3))) * 2,
        lambda net, maps: net.head(maps.mean((2, 3))).softmax(1),
        lambda net, maps: net.head(maps.mean((2, 3))) + net.unused(maps.mean((2, 3))),
    ],
    ids=["max", "two linear", "perceptron", "norm", "block", "one token", "scaled", "softmax", "two heads"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_other_networks_are_refused(logits, dtype):
    model, images = headed(logits).to(dtype), pictures(dtype=dtype)
    with pytest.raises(egcam.errors.ModelError, match=r"average pooling and one linear layer.*'features'.*'grad-cam'"):
        egcam.CAM(model, "features")(images, 1)


@pytest.mark.parametrize("build", [models.resnet18, models.efficientnet_b0, models.mobilenet_v2])
def test_networks_that_end_in_pooling_and_one_linear_layer(build):
    model = seeded(lambda: build(num_classes=6)).eval()
    images = pictures(2, side=64)
    found = egcam.explain(model, images, "cam", target=3, signed=True)
    seen: list[Tensor] = []
    watch = model.get_submodule(found.layer).register_forward_hook(lambda _, __, output: seen.append(output))
    logits = model(images)
    watch.remove()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    assert torch.allclose(found.maps, weighted(linear.weight, 3, seen[0]), rtol=1e-4, atol=1e-5)
    # The map's mean is the logit without its bias: what makes it an explanation.
    assert torch.allclose(found.maps.mean((1, 2)) + linear.bias[3], logits[:, 3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [models.vgg11, models.mobilenet_v3_small, models.convnext_tiny])
def test_networks_that_end_otherwise(build):
    model = seeded(lambda: build(num_classes=6)).eval()
    with pytest.raises(egcam.errors.ModelError, match="'grad-cam'"):
        egcam.explain(model, pictures(1, side=64), "cam", target=3)


def test_tokens_are_refused_where_the_class_token_makes_the_logits():
    size = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16}
    model = seeded(lambda: models.VisionTransformer(**size, num_classes=6)).eval()
    nn.init.normal_(model.heads.head.weight)
    with pytest.raises(egcam.errors.ModelError, match=r"'encoder\.ln'.*'grad-cam'"):
        egcam.CAM(model, "encoder.ln", reshape="tokens")(pictures(side=32), 1)
