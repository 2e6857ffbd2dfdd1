"""Other packages' objects as explainers, and the methods that other packages do the work of."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.attribution import registry
from egcam.errors import InputError, MethodError, MissingExtraError, TargetError
from egcam.studies.runner import run_study
from support.networks import perceptron_head, pictures, pooled_linear_head
from support.small_models import Kept, explainer, small_net
from support.small_models import pictures as colours
from support.tiny_study import InProcess, write_study

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

TARGETS = [2, 0, 1]
EXACT = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture
def attr() -> object:
    return pytest.importorskip("captum.attr")


@pytest.fixture
def zennit() -> object:
    pytest.importorskip("zennit")
    from zennit import attribution, canonizers, composites

    return type("zennit", (), {"attribution": attribution, "canonizers": canonizers, "composites": composites})


# -- any object ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_captum_at_the_input_and_at_a_layer(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    thing = attr.IntegratedGradients(network)
    found = egcam.foreign(thing, options={"n_steps": 10}, signed=True, batch_size=2)(images, TARGETS)
    truth = thing.attribute(images, target=TARGETS, n_steps=10).sum(1).detach()
    torch.testing.assert_close(found.maps, truth, **EXACT)
    assert (found.layer, found.method) == ("input", "IntegratedGradients")
    # One pass to see what is explained; captum's ten points, and one more to look at the output, for each image.
    assert found.passes >= 3 * (1 + 10)
    layer = egcam.foreign(attr.LayerGradCam(network, network.features))(images, TARGETS)
    torch.testing.assert_close(layer.maps, egcam.GradCAM(network, "features")(images, TARGETS).maps, **EXACT)
    assert layer.layer == "features"


def test_captum_is_given_each_images_further_input(attr: object) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron_head()

        def forward(self, images: Tensor, scale: Tensor) -> Tensor:
            return self.net(images) * scale[:, None]

    network, images, scale = Scaled(), pictures(3), torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    cam = egcam.foreign(attr.InputXGradient(network), signed=True, batch_size=2)
    plain = egcam.foreign(attr.InputXGradient(network.net), signed=True)(images, TARGETS).maps
    found = cam(images, TARGETS, inputs=(scale,)).maps
    torch.testing.assert_close(found, plain * scale[:, None, None], **EXACT)
    with pytest.raises(InputError, match="use inputs"):
        cam(images, TARGETS, keywords={"scale": scale})


def test_pytorch_grad_cam_leaves_gradients_and_mode(attr: object) -> None:
    peer = pytest.importorskip("pytorch_grad_cam")
    model, images = small_net(train=True, inplace=False), colours(2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    thing = peer.HiResCAM(model, [model.relu2])
    kept = Kept(model, images)
    found = egcam.foreign(thing)(images, [1, 2])
    kept.check()
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    truth = thing(images.clone(), [ClassifierOutputTarget(1), ClassifierOutputTarget(2)])
    np.testing.assert_allclose(found.maps.numpy(), truth, atol=1e-6)
    assert found.layer == "relu2"


def test_torchcam() -> None:
    methods = pytest.importorskip("torchcam.methods")
    network, images = perceptron_head(), pictures(3)
    thing = methods.GradCAM(network, "features", input_shape=(2, 6, 5))
    found = egcam.foreign(thing, options={"normalized": False})(images, TARGETS).maps
    thing.remove_hooks()
    truth = egcam.GradCAM(network, "features")(images, TARGETS).maps
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-8)


def test_a_composite_of_zennit_and_its_attributor(zennit: object) -> None:
    network, images = perceptron_head(), pictures(3)
    composite = zennit.composites.EpsilonPlus
    found = egcam.foreign(composite(), network, signed=True)(images, TARGETS).maps
    start = torch.eye(3, dtype=torch.float64)[TARGETS]
    truth = zennit.attribution.Gradient(network, composite())(images.clone(), start)[1].sum(1)
    torch.testing.assert_close(found, truth, **EXACT)
    attributor = zennit.attribution.Gradient(network, composite())
    torch.testing.assert_close(egcam.foreign(attributor, signed=True)(images, TARGETS).maps, truth, **EXACT)


def test_a_function_is_cut_at_zero_unless_signed() -> None:
    network, images = perceptron_head(), pictures(2)

    def red(images: Tensor, target: Tensor) -> Tensor:
        assert target.tolist() == [1, 1]
        return images[:, 0]

    assert torch.equal(egcam.foreign(red, network, signed=True)(images, 1).maps, images[:, 0])
    assert torch.equal(egcam.foreign(red, network)(images, 1).maps, images[:, 0].relu())
    assert egcam.foreign(red, network).method == "red"


def test_what_does_not_fit_is_refused(attr: object) -> None:
    network, images = perceptron_head(), pictures(2)
    with pytest.raises(MethodError, match=r"pass an object, not the class Saliency"):
        egcam.foreign(attr.Saliency, network)
    with pytest.raises(MethodError, match="does not say which model"):
        egcam.foreign(lambda images, target: images[:, 0])
    with pytest.raises(MethodError, match="neither an object of captum"):
        egcam.foreign(3, network)
    with pytest.raises(MethodError, match="score and reshape"):
        egcam.foreign(attr.Saliency(network), score="probability")
    with pytest.raises(TargetError, match="callable"):
        egcam.foreign(attr.Saliency(network))(images, lambda output: output[:, 0])
    with pytest.raises(InputError, match=r"returned \(2, 6\)"):
        egcam.foreign(lambda images, target: images[:, 0, :, 0], network)(images, 0)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_a_foreign_explainer_is_evaluated(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    table = egcam.evaluate(
        network,
        images,
        {"captum": egcam.foreign(attr.Saliency(network)), "egcam": "input-gradient"},
        ["deletion", "max-sensitivity"],
        metric_options={"deletion": {"step": 6}, "max-sensitivity": {"samples": 2}},
    )
    for metric in ("deletion", "max-sensitivity"):
        np.testing.assert_allclose(table.values("captum", metric), table.values("egcam", metric), rtol=1e-6)


PLUGIN = """
import egcam
from captum.attr import Saliency
if "captum-saliency" not in egcam.methods():
    egcam.register("captum-saliency", lambda model: egcam.foreign(Saliency(model), model))
"""
STUDY = """
name = "foreign"
methods = ["input-gradient", "captum-saliency"]
metrics = ["deletion"]
[data]
kind = "folder"
path = "photos"
[[models]]
name = "model.py:make"
label = "a"
[run]
plugins = ["plugin.py"]
"""


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_a_study_names_a_foreign_method_through_a_plugin(attr: object, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    try:
        results = run_study(write_study(tmp_path, images=2, text=STUDY), tmp_path / "out", engine=InProcess())
    finally:
        registry.unregister("captum-saliency")
    table = results.tables["a"]
    own, theirs = (table.values(method, "deletion") for method in ("input-gradient", "captum-saliency"))
    assert np.isfinite(own).all()
    np.testing.assert_allclose(own, theirs, rtol=1e-5)


# -- methods that other packages do the work of ------------------------------------------------------

OPTIONS = {"lrp": {}, "lime": {"samples": 40, "cells": 2, "alpha": 1e-4}, "kernel-shap": {"samples": 40, "cells": 2}}
each = pytest.mark.parametrize("method", OPTIONS)


@each
def test_without_the_package_the_extra_is_named(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert method in egcam.methods()
    with pytest.raises(MissingExtraError, match=r"pip install 'egcam\[peers\]'"):
        registry.create(method, perceptron_head())


@each
def test_nothing_changes_and_a_batch_is_its_images(method: str) -> None:
    pytest.importorskip(registry.method(method).package)
    model, images = small_net(train=True), colours(2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    kept = Kept(model, images)
    cam = explainer(method, model, **{**OPTIONS[method], "signed": True})
    found = cam(images, [1, 3])
    kept.check()
    assert float(found.maps.abs().max()) > 0
    assert found.passes == 2 * (1 + OPTIONS[method].get("samples", 1))
    for row, target in enumerate((1, 3)):
        torch.testing.assert_close(cam(images[row], target).maps, found.maps[row], rtol=1e-4, atol=1e-7)
    with torch.inference_mode():
        assert torch.equal(cam(images, [1, 3]).maps, found.maps)
    assert not found.maps.requires_grad


def test_lrp_is_zennits_on_the_merged_network(zennit: object) -> None:
    model, images = small_net(inplace=False).double(), colours(3, dtype=torch.float64)
    canonizers = [zennit.canonizers.SequentialMergeBatchNorm()]
    start = torch.eye(5, dtype=torch.float64)[[4, 0, 2]]
    composite = zennit.composites.EpsilonPlusFlat(canonizers=canonizers)
    truth = zennit.attribution.Gradient(model, composite)(images.clone(), start)[1].sum(1)
    found = egcam.LRP(model, signed=True)(images, [4, 0, 2]).maps
    torch.testing.assert_close(found, truth, **EXACT)
    other = egcam.LRP(model, composite="epsilon_alpha2_beta1", signed=True)(images, [4, 0, 2]).maps
    assert not torch.allclose(other, found)
    with pytest.raises(MethodError, match="zennit has no composite 'epsilon'"):
        egcam.LRP(model, composite="epsilon")
    with pytest.raises(MethodError, match="explains logits"):
        egcam.LRP(model, score="probability")


class OfCells(nn.Module):
    """A score known cell by cell: the brightness of the four quarters, weighted, and the first two's product."""

    def forward(self, images: Tensor) -> Tensor:
        quarters = nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1)
        weights = quarters.new_tensor([1.0, 2.0, -3.0, 0.0])
        score = (quarters * weights).sum(1) + quarters[:, 0] * quarters[:, 1]
        return torch.stack([score, -score], 1)


def test_kernel_shap_is_the_shapley_value_of_each_cell(attr: object) -> None:
    """A product is shared in halves by its two players."""
    images = pictures(2, shape=(3, 8, 6)).abs()
    quarters = nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1)
    both = quarters[:, 0] * quarters[:, 1] / 2
    values = quarters * torch.tensor([1.0, 2.0, -3.0, 0.0])
    values[:, 0] += both
    values[:, 1] += both
    truth = values.reshape(2, 2, 2).repeat_interleave(4, 1).repeat_interleave(3, 2)
    found = egcam.KernelSHAP(OfCells(), cells=2, samples=400, signed=True)(images, 0)
    torch.testing.assert_close(found.maps, truth.to(found.maps), rtol=0, atol=0.06)
    # What the cells add up to is no matter of chance.
    total = found.maps[:, ::4, ::3].sum((1, 2))
    torch.testing.assert_close(total, values.sum(1).to(total), rtol=0, atol=1e-4)


def test_lime_finds_the_weights_of_a_linear_score(attr: object) -> None:
    class Linear(OfCells):
        def forward(self, images: Tensor) -> Tensor:
            quarters = nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1)
            return (quarters * quarters.new_tensor([1.0, 2.0, -3.0, 0.0]))[:, :3].sum(1, keepdim=True)

    images = torch.ones(1, 3, 8, 6, dtype=torch.float64)
    found = egcam.LIME(Linear(), cells=2, samples=200, alpha=1e-6, signed=True)(images).maps[0]
    truth = torch.tensor([[1.0, 2.0], [-3.0, 0.0]]).repeat_interleave(4, 0).repeat_interleave(3, 1)
    torch.testing.assert_close(found, truth.to(found), rtol=0, atol=1e-3)


def test_seeds_change_the_samples_and_nothing_else_does(attr: object) -> None:
    network, images = pooled_linear_head(), pictures(1)

    def found(seed: int) -> Tensor:
        return egcam.KernelSHAP(network, cells=3, samples=12, seed=seed, signed=True)(images, 0).maps

    first = found(1)
    torch.rand(3)
    assert torch.equal(found(1), first)
    assert not torch.equal(found(2), first)
