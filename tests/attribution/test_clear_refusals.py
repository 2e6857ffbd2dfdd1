"""What cannot be done right is refused in a sentence, and what can is done within its budget."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import egcam
from egcam.errors import NonFiniteMapWarning
from egcam.imageops import fused


class _Net(nn.Module):
    def __init__(self, classes: int = 5, factor: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(6, classes)
        self.factor = factor
        self.batches = set()

    def forward(self, x):
        self.batches.add(len(x))
        return self.head(self.middle(x).mean((2, 3))) * self.factor

    def middle(self, x):
        return self.second(self.first(x))


class _Recomputing(_Net):
    def middle(self, x):
        return checkpoint(self.second, self.first(x), use_reentrant=True)


@pytest.fixture
def images():
    torch.manual_seed(3)
    return torch.rand(2, 3, 16, 16)


@pytest.mark.parametrize("seed", [1.5, None, "1"])
def test_a_seed_is_a_whole_number(seed, images):
    with pytest.raises(egcam.EgcamError, match=f"a seed is a whole number, not {seed!r}"):
        egcam.explain(_Net(), images, samples=4, seed=seed)


def test_a_seed_of_numpy_is_a_seed(images):
    model = _Net()
    maps = [egcam.explain(model, images, samples=4, seed=seed).maps for seed in (3, np.int64(3))]
    assert torch.equal(*maps)


def test_signed_is_true_or_false(images):
    with pytest.raises(egcam.EgcamError, match="signed is True or False, not 'no'"):
        egcam.explain(_Net(), images, signed="no")


def test_a_thousand_outputs_are_not_taken_for_imagenets_classes(images):
    model = _Net(classes=1000)
    with pytest.raises(egcam.EgcamError, match=r"names are unknown.*classes=egcam\.zoo\.imagenet_classes\(\)"):
        egcam.GradCAM(model, signed=True)(images, "golden retriever")
    told = egcam.GradCAM(model, signed=True, classes=egcam.zoo.imagenet_classes())
    assert [told(images, target).label(1) for target in ("golden retriever", 207)] == ["golden retriever"] * 2
    assert egcam.GradCAM(model, signed=True)(images, 207).label(1) == "class 207"


def test_the_finest_of_several_maps_has_the_most_places_along_every_axis():
    tall, wide = torch.full((1, 5, 3), 2.0), torch.full((1, 4, 10), 4.0)
    assert torch.equal(fused([tall, wide]), torch.ones(1, 5, 10))


@pytest.mark.parametrize(
    ("layer", "why"),
    [("second", "switches gradients off around it"), ("first", "recomputes activations with torch.utils.checkpoint")],
)
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_reentrant_checkpoints_are_named(layer, why, images):
    with pytest.raises(egcam.EgcamError, match=f"no gradient at '{layer}': the network {why}.*use_reentrant=False"):
        egcam.explain(_Recomputing(), images, method="grad-cam", layer=layer)


class _Guarded(_Net):
    def forward(self, x):
        assert len(x) == 7, "Guard failed: x.size()[0] == 7"
        return super().forward(x)


def test_an_exported_network_of_one_shape_is_named(images):
    with pytest.raises(
        egcam.EgcamError, match=r"exported for inputs of one shape \(Guard failed: x.size\(\)\[0\] == 7"
    ):
        egcam.explain(_Guarded(), images, method="grad-cam")


@pytest.mark.parametrize("method", ["slope-cam", "grad-cam", "ablation-cam"])
def test_outputs_that_are_not_numbers_are_warned_of(method, images):
    with pytest.warns(NonFiniteMapWarning, match="image 0, 1 holds NaN"):
        egcam.explain(_Net(factor=float("nan")), images, target=1, method=method)


@pytest.mark.filterwarnings("ignore:.*is zero everywhere")
@pytest.mark.parametrize(("budget", "most"), [(1, 1), (2**30, 4)])
def test_few_samples_keep_the_memory_budget(budget, most, images, monkeypatch):
    monkeypatch.setattr(egcam.Explainer, "cpu_memory", budget)
    model = _Net()
    for _ in range(2):  # where the layer's cells lie is found out once
        model.batches.clear()
        egcam.explain(model, images[:1], target=1, method="smooth-grad-cam++", samples=4, layer="second")
    assert max(model.batches) == most


def test_class_names_that_are_unknown_can_be_given_to_the_model(images):
    model = _Net()
    maps = egcam.explain(model, images, target=1, method="grad-cam", signed=True)
    with pytest.raises(egcam.EgcamError, match=r"or set model\.classes to them"):
        egcam.metrics.Deletion()(model, images, maps, target="b")
    model.classes = list("abcde")
    by_name, by_index = (egcam.metrics.Deletion()(model, images, maps, target=target) for target in ("b", 1))
    assert torch.equal(by_name, by_index)
