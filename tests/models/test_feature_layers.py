"""The layers between a network's blocks, and the choice among them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import egcam
from egcam.errors import LayerError
from egcam.evaluation.layers import best_layer, candidate_layers
from egcam.metrics import InsertionDeletion
from egcam.models.layers import inner_layer, last_spatial_layer
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
def test_before_a_linear_head_it_is_the_last_layer_of_the_second_coarsest_resolution(name: str) -> None:
    model = torchvision.models.get_model(name).eval()
    images = torch.rand(1, 3, 64, 64)
    found = {layer.name: layer for layer in candidate_layers(model, images)}
    inner = inner_layer(model, dry_run(model, images))
    assert inner == INNER[name][0]
    assert found[inner].size == (4, 4)
    last = list(found.values())[-1]
    assert last.size == (2, 2)
    assert 0 < last.tail < found[inner].tail < 1


def usual_layers(model: nn.Module, images: torch.Tensor) -> tuple[str, str]:
    """That of SlopeCAM, and that of other methods."""
    trace = dry_run(model, images)
    return inner_layer(model, trace), last_spatial_layer(trace)


@pytest.mark.parametrize(("name", "last"), [("vgg16", "features.30"), ("alexnet", "features.12")])
def test_before_a_head_of_several_layers_it_is_the_last_layer(name: str, last: str) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name).eval()
        images = torch.rand(1, 3, 224, 224)
    assert usual_layers(model, images) == (last, last)


def test_of_squeezenet_it_is_the_last_but_one_layer() -> None:
    """A convolution and an activation function follow features.12, but they score each place by itself."""
    model, images = torchvision.models.squeezenet1_1().eval(), torch.rand(1, 3, 224, 224)
    assert usual_layers(model, images) == ("features.11", "features.12")


@pytest.mark.parametrize(("sides", "found"), [((3, 1, 3), "5"), ((3, 1, 1), "1"), ((1, 1, 1), "5")])
def test_before_maps_of_scores_places_must_still_meet(sides: tuple[int, int, int], found: str) -> None:
    """The sides of the last three convolutions' kernels; without any larger than 1, places never meet again."""
    first, second, head = sides
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(4, 4, first, padding=first // 2), nn.ReLU(), nn.Conv2d(4, 4, second), nn.ReLU(),
        nn.Conv2d(4, 5, head, padding=head // 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).eval()  # fmt: skip
    assert usual_layers(model, torch.rand(1, 3, 16, 16)) == (found, "5")


def test_it_never_has_the_resolution_of_the_image() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5))
    assert usual_layers(model, torch.rand(1, 2, 8, 8)) == ("2", "2")


def test_without_a_finer_layer_it_is_the_last_layer() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    assert usual_layers(model, torch.rand(1, 2, 8, 8)) == ("3", "3")


def test_of_a_transformer_with_one_resolution_it_is_the_first_block() -> None:
    torch.manual_seed(0)
    images = torch.rand(1, 3, 32, 32)
    model = torchvision.models.VisionTransformer(32, 8, 3, 2, 16, 32, num_classes=5).eval()
    nn.init.normal_(model.heads.head.weight)
    first, last = "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_2.ln_1"
    assert usual_layers(model, images) == (first, last)
    assert egcam.SlopeCAM(model, reference="black", samples=4)(images).layer == first
    timm = pytest.importorskip("timm")
    plain = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=3, num_classes=5)
    assert usual_layers(plain.eval(), images) == ("blocks.0", "blocks.2.norm1")
    # Of one whose grid grows coarser the rule is that of convolutional networks.
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=2, embed_dim=12, num_classes=5)
    assert usual_layers(swin.eval(), torch.rand(1, 3, 64, 64)) == ("layers.2", "norm")


class Skip(nn.Module):
    """Something to go around."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return (seen + self.inner(seen)).relu()


class Encoder(nn.Module):
    """Most of a network in one module that is no chain, as Hugging Face's are."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1), Skip(4)) for _ in range(3)])

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            seen = stage(seen)
        return seen


def test_stages_inside_most_of_the_network_are_layers_between_blocks() -> None:
    torch.manual_seed(0)
    parts = [nn.Conv2d(2, 4, 3, 2, 1), Encoder(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    model, images = nn.Sequential(*parts), torch.rand(1, 2, 64, 64)
    sizes = {layer.name: layer.size for layer in candidate_layers(model, images)}
    strided = {f"1.stages.{number}.0": (16 >> number,) * 2 for number in range(3)}
    whole = {"1.stages.0": (16, 16), "1.stages.1": (8, 8), "1": (4, 4)}
    assert sizes == {"0": (32, 32), **strided, **whole}
    assert usual_layers(model, images) == ("1.stages.1", "1")


class DependsOnData(nn.Module):
    """Takes another way for bright images, which a network of meta tensors cannot know."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Tanh())
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh())
        self.fc = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = self.pool(self.first(images))
        if float(seen.detach().mean()) > 1e9:
            raise AssertionError("never")
        return self.fc(self.second(seen).mean((2, 3)))


def test_it_is_found_by_a_real_pass_where_a_dry_one_does_not_work() -> None:
    torch.manual_seed(0)
    model, images = DependsOnData(), torch.rand(2, 1, 8, 8)
    assert usual_layers(model, images) == ("first.1", "second")
    found = egcam.SlopeCAM(model, reference="black", signed=True)(images, target=1)
    assert found.layer == "first.1"
    assert found.maps.shape == (2, 4, 4)
    assert egcam.GradCAM(model, signed=True)(images, target=1).layer == "second"


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
        expected = InsertionDeletion(22)(model, images, explanation)
        torch.testing.assert_close(one.scores, expected)
        assert one.mean == pytest.approx(float(expected.mean()))
    assert found[0].mean >= found[1].mean
    with pytest.raises(LayerError, match="'nowhere' is not one of the layers"):
        best_layer(model, images, layers=["nowhere"])


def test_layers_can_be_asked_for_by_a_word() -> None:
    model, images = torchvision.models.resnet18().eval(), torch.rand(1, 3, 64, 64)
    words = ("last", "inner", None)
    assert [egcam.GradCAM(model, word, signed=True)(images).layer for word in words] == ["layer4", "layer3", "layer4"]
    cams = [egcam.SlopeCAM(model, word, samples=2, signed=True) for word in words]
    assert [cam(images).layer for cam in cams] == ["layer4", "layer3", "layer3"]


def test_a_module_of_that_name_comes_first() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(3, 2, 3)
            self.after = nn.Conv2d(2, 2, 3)
            self.head = nn.Linear(2, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.after(self.last(images)).mean((2, 3)))

    assert egcam.GradCAM(Named(), "last", signed=True)(torch.rand(1, 3, 8, 8)).layer == "last"
