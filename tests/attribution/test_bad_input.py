"""A wrong call says what is wrong and what would be right, and changes nothing."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam import references
from egcam.attribution import registry
from support.small_models import (
    AT_LAYER,
    CLASSES,
    HEAD_FREE,
    METHODS,
    Kept,
    SmallNet,
    WithOutput,
    covering,
    explainer,
    pictures,
    seeded,
    small_net,
)

pytestmark = pytest.mark.usefixtures("one_thread")
every_method = pytest.mark.parametrize("method", METHODS)


def _name(value: object) -> str:
    """A parameter in a test's name: the same in every process, so without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def of_images(words: str, method: str) -> str:
    """What is said of two images, by a method that takes them one by one."""
    return words.replace("(2,", "(1,") if registry.method(method).factory.image_by_image else words


def refused(model: nn.Module, images: Any, *said: str, kind: type[Exception] = egcam.EgcamError, **how: Any) -> None:
    """`egcam.explain` raises `kind`, its text holds all of `said`, and the model is as before."""
    kept = Kept(model, images if isinstance(images, Tensor) and not images.is_meta else None)
    with pytest.raises(kind) as caught:
        egcam.explain(model, images, **how)
    assert isinstance(caught.value, egcam.EgcamError)
    for words in said:
        assert words in str(caught.value)
    kept.check()


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"method": "grad-kam"}, ["no method 'grad-kam'", "did you mean", "'grad-cam'"]),
        ({"method": "GradCAM"}, ["no method 'GradCAM'", "'grad-cam'"]),
        ({"method": "scorecam"}, ["'score-cam'"]),
        ({"method": "zzz"}, ["no method 'zzz'", "known are", "in all"]),
        ({"method": ""}, ["no method ''", "known are"]),
        ({"method": "grad-cam", "samples": 3}, ["'grad-cam' takes no option 'samples'", "one of slope-cam"]),
        ({"method": "smooth-grad", "layer": "relu2"}, ["'smooth-grad' takes no option 'layer'", "has no layer"]),
        ({"sampels": 3}, ["'slope-cam' takes no option 'sampels'", "did you mean 'samples'"]),
        ({"refrence": "black"}, ["did you mean 'reference'"]),
        ({"path": "linear"}, ["'slope-cam' takes no option 'path'", "one of expected-grad-cam"]),
        ({"method": "expected-grad-cam", "path": "lineer"}, ["unknown path 'lineer'", "did you mean 'linear'"]),
        ({"method": "expected-grad-cam", "path": 3}, ["'linear'", "callable", "int"]),
        ({"method": "expected-grad-cam", "kernel": "gausian"}, ["'gausian'", "did you mean 'gaussian'"]),
        ({"method": "expected-grad-cam", "kernel": 3}, ["kernel", "3", "gaussian"]),
        (
            {"method": "expected-grad-cam", "difference": "latant"},
            ["unknown difference 'latant'", "did you mean 'latent'"],
        ),
        ({"reference": "blured"}, ["unknown reference 'blured'", "did you mean 'blurred'"]),
        ({"score": "logits"}, ["unknown score 'logits'", "did you mean 'logit'"]),
        ({"reshape": "token"}, ["unknown reshape 'token'", "'tokens'"]),
    ],
    ids=_name,
)
def test_unknown_names(how, said):
    refused(small_net(), pictures(), *said, **how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"samples": 0}, ["samples", "at least 1", "0"]),
        ({"samples": -3}, ["samples", "at least 1", "-3"]),
        ({"samples": 2.5}, ["samples", "whole number", "2.5"]),
        ({"method": "integrated-grad-cam", "samples": 0}, ["samples", "at least 1", "0"]),
        ({"method": "integrated-gradients", "samples": 0}, ["samples", "at least 1", "0"]),
        ({"method": "smooth-grad", "samples": 0}, ["samples", "at least 1"]),
        ({"method": "expected-grad-cam", "tolerance": -0.1}, ["tolerance", "positive", "-0.1"]),
        ({"method": "expected-grad-cam", "tolerance": 0}, ["tolerance", "positive"]),
        ({"method": "expected-grad-cam", "tolerance": float("nan")}, ["tolerance", "positive"]),
        ({"batch_size": 0}, ["batch_size", "at least 1", "0"]),
        ({"batch_size": -1}, ["batch_size", "at least 1", "-1"]),
        ({"batch_size": 2.5}, ["batch_size", "whole number", "2.5"]),
        ({"memory": 0}, ["memory", "at least 1"]),
        ({"method": "expected-grad-cam", "weighting": "pooled"}, ["'pooled'", "elementwise", "mean"]),
        ({"method": "expected-grad-cam", "weighting": "summed"}, ["'summed'", "elementwise", "mean"]),
    ],
    ids=_name,
)
def test_numbers_and_switches(how, said):
    refused(small_net(), pictures(), *said, **how)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: egcam.Kernel("unifrom"), "did you mean 'uniform'"),
        (lambda: egcam.Kernel(scale=-1), "must not be negative"),
        (lambda: egcam.Kernel(draws=0), "at least one draw"),
        (lambda: egcam.RandomSubset(patch=0), "patch"),
        (lambda: egcam.GradCAM(small_net(), gradient="expected"), "egcam.Expected()"),
        (lambda: egcam.GradientCAM(small_net(), weighting=3), "Weighting"),
        (lambda: egcam.attribution.registry.register("grad-cam", egcam.GradCAM), "registered already"),
        (lambda: references.blurred(-1.0).draw(pictures(), [0, 1], 0, 0).images, "positive"),
        (lambda: references.black([0.1, 0.2], [1.0, 1.0]).draw(pictures(), [0, 1], 0, 0).images, "2 channel values"),
    ],
)
def test_parts_that_cannot_be(make, said):
    with pytest.raises(egcam.EgcamError, match=said.replace("(", r"\(").replace(")", r"\)")):
        make()


# -- layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("relu3", ["no layer 'relu3'", "did you mean", "'relu2'"]),
        ("Conv2", ["no layer 'Conv2'", "'conv2'"]),
        ("", ["no layer ''"]),
        ("relu2:0", ["number of the call", "'relu2:2'"]),
        ("relu2:x", ["number of the call"]),
        ("fc", ["'fc' outputs (1, 5)", "no map with height and width", "layer=None"]),
        ("pool", ["'pool' outputs (1, 6, 1, 1)", "no map with height and width"]),
        ("relu2:2", ["'relu2:2'", "runs only 1 time"]),
        (small_net(seed=3).relu2, ["ReLU", "not part of this model", "'conv2'"]),
        ([], ["list of layers is empty"]),
        (["relu1", "relu1"], ["'relu1' is listed twice"]),
        (["relu1", "relu9"], ["no layer 'relu9'"]),
        (3, ["dotted name", "int"]),
        ([None], ["dotted name", "NoneType"]),
    ],
    ids=_name,
)
@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "ablation-cam", "score-cam"])
def test_layers_that_cannot_be(method, layer, said):
    refused(small_net(train=True), pictures(), *said, kind=egcam.errors.LayerError, method=method, layer=layer)


class _Unused(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Conv2d(3, 4, 3)


@pytest.mark.parametrize("method", AT_LAYER)
def test_a_layer_that_never_runs(method):
    refused(seeded(_Unused), pictures(), "'spare' never runs", "calls", method=method, layer="spare")


class _TwoCalls(nn.Module):
    """One ReLU that runs twice, or two that run once each."""

    def __init__(self, shared: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3)
        self.relu = nn.ReLU(inplace=True)
        self.other = self.relu if shared else nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.other(self.conv2(self.relu(self.conv1(images)))).mean((2, 3)))


@pytest.mark.parametrize("method", AT_LAYER)
def test_a_layer_that_runs_twice(method):
    refused(
        seeded(_TwoCalls).train(), pictures(), "'relu' runs more than once", "'relu:1'", method=method, layer="relu"
    )


@pytest.mark.parametrize(
    ("method", "call", "layer"),
    [
        *((method, "relu:1", "relu") for method in AT_LAYER if method != "cam"),
        *((method, "relu:2", "other") for method in AT_LAYER),
    ],
)
def test_a_call_of_a_layer_that_runs_twice(method, call, layer):
    images = pictures()
    found = explainer(method, seeded(_TwoCalls), layer=call, signed=True)(images, 1)
    expected = explainer(method, seeded(lambda: _TwoCalls(shared=False)), layer=layer, signed=True)(images, 1)
    assert found.layer == call
    assert torch.allclose(found.maps, expected.maps, rtol=1e-5, atol=1e-7)
    assert found.maps.abs().max() > 0


class _Cut(SmallNet):
    """The score does not depend on the features through anything differentiable."""

    def features(self, images: Tensor) -> Tensor:
        return super().features(images).detach()


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "integrated-grad-cam", "input-gradient"])
def test_a_layer_the_score_does_not_depend_on(method):
    layer = {} if method == "input-gradient" else {"layer": "relu1"}
    refused(seeded(_Cut), pictures(), "does not depend on", "between the image and the score", method=method, **layer)


def test_a_network_without_feature_maps():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    refused(model, pictures(), "no layer to explain was found", "reshape", method="grad-cam")
    assert egcam.explain(model, pictures(), "input-gradient").maps.shape == (2, 12, 12)


# -- images ----------------------------------------------------------------------------------------


def _with(value: float) -> Tensor:
    images = pictures(3)
    images[1, 0, 0, 0] = value
    return images


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(0, 3, 12, 12), ["batch is empty"]),
        (torch.zeros(2, 3, 0, 12), ["no pixels", "(2, 3, 0, 12)"]),
        (_with(float("nan")), ["image 1", "NaN", "1 of 3"]),
        (_with(float("inf")), ["image 1", "infinite"]),
        (torch.zeros(2, 3, 12, 12, dtype=torch.uint8), ["torch.uint8", "float"]),
        (torch.zeros(2, 3, 12, 12, dtype=torch.long), ["torch.int64", "float"]),
        (torch.zeros(12, 12), ["(N, C, H, W)", "(12, 12)"]),
        (torch.zeros(1, 2, 3, 12, 12), ["(N, C, H, W)", "(1, 2, 3, 12, 12)"]),
        (pictures().double(), ["torch.float32", "torch.float64", "images.to(torch.float32)"]),
        (np.zeros((2, 3, 12, 12), np.float32), ["float tensor", "ndarray"]),
        ([Image.new("RGB", (12, 12))], ["float tensor", "list", "PIL"]),
        (Image.new("RGB", (12, 12)), ["float tensor", "Image", "PIL"]),
        (None, ["float tensor", "NoneType"]),
        ({"image": pictures()}, ["not as a dictionary", "keywords={…}", "a small module around it"]),
        ("cat.jpg", ["float tensor", "str", "egcam explain"]),
    ],
    ids=lambda value: str(getattr(value, "shape", type(value).__name__)) if not isinstance(value, list) else "said",
)
@pytest.mark.parametrize("method", ["slope-cam", "score-cam", "input-gradient"])
def test_images_that_cannot_be_explained(method, images, said):
    refused(small_net(train=True), images, *said, kind=egcam.errors.InputError, method=method)


def test_images_on_another_device_than_the_model():
    with pytest.raises(egcam.errors.InputError, match=r"model is on the device 'meta'.*load_state_dict"):
        egcam.explain(small_net().to("meta"), pictures())
    refused(small_net(), pictures().to("meta"), "images are on the device 'meta'", "no numbers", "real ones")


@every_method
def test_an_image_without_batch_dimension_is_returned_the_same_way(method):
    model, images = small_net(), pictures(2)
    cam = explainer(method, model, signed=True)
    alone, batch = cam(images[0], 1), cam(images[:1], 1)
    assert alone.is_single
    assert not batch.is_single
    assert torch.equal(alone.maps, batch.maps[0])
    assert torch.equal(alone.heatmaps, batch.heatmaps[0])
    for name in ("targets", "scores", "predictions"):
        assert getattr(alone, name).shape == ()
        assert torch.equal(getattr(alone, name), getattr(batch, name)[0])
    assert (alone.error is None) == (batch.error is None)
    if alone.error is not None:
        assert torch.equal(alone.error, batch.error[0])


def test_a_loader_of_other_things():
    cam = egcam.GradCAM(small_net())
    with pytest.raises(egcam.EgcamError, match=r"dict.*images or \(images, labels\)"):
        next(cam.stream([{"image": pictures()}]))


# -- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (5, ["target 5 is out of range", "5 classes, 0 to 4"]),
        (-1, ["target -1 is out of range", "0 to 4"]),
        ([0, 9], ["target 9 is out of range"]),
        ([0], ["1 targets for 2 image(s)", "one per image"]),
        ([0, 1, 2], ["3 targets for 2 image(s)"]),
        ([], ["0 targets for 2 image(s)"]),
        (torch.tensor([1, 2, 3]), ["3 targets for 2 image(s)"]),
        (torch.tensor([1.0, 2.0]), ["integer tensor", "torch.float32"]),
        (torch.tensor([True, False]), ["integer tensor", "torch.bool"]),
        (torch.zeros(2, 1, dtype=torch.long), ["class index", "[0]"]),
        (np.array([0.5, 1.5]), ["class index", "0.5"]),
        (np.array([True, False]), ["class index", "True"]),
        (True, ["class index", "bool"]),
        (1.0, ["class index", "float"]),
        ([1, 2.5], ["class index", "2.5"]),
        ([True, 0], ["class index", "True"]),
        ({"class": 1}, ["class index", "dict"]),
        ("tabby", ["'tabby' is a class name", "classes=", "5 names"]),
        (lambda output: output, ["callable returned (2, 5)", "(2,)"]),
        (lambda output: output.sum(), ["callable returned ()", "(2,)"]),
        (lambda output: 3.0, ["callable returned float", "(2,)"]),
    ],
    ids=_name,
)
@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "score-cam", "ablation-cam"])
def test_targets_that_cannot_be(method, target, said):
    said = [of_images(words, method) for words in said]
    refused(small_net(train=True), pictures(), *said, kind=egcam.errors.TargetError, method=method, target=target)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tabyb", ["no class is called 'tabyb'", "did you mean 'tabby'"]),
        ("crane", ["2 classes are called 'crane'", "[1, 2]"]),
        ("qqqq", ["no class is called 'qqqq'", "known are"]),
        (["tabby", "dgo"], ["no class is called 'dgo'", "did you mean 'dog'"]),
    ],
)
def test_class_names_that_cannot_be(target, said):
    classes = ["tabby", "crane", "crane", "dog", "goldfish"]
    refused(small_net(), pictures(), *said, kind=egcam.errors.TargetError, target=target, classes=classes)


@pytest.mark.parametrize("count", [4, 6])
def test_class_names_of_another_number_than_the_outputs(count):
    names = [f"name{number}" for number in range(count)]
    for target in ("name3", 3, None):
        refused(small_net(), pictures(), f"{count} class names", "5 outputs", target=target, classes=names)
    model = small_net()
    model.classes = names
    refused(model, pictures(), f"{count} class names", "5 outputs", target=3)


def test_cam_needs_a_class_and_a_pooled_linear_head():
    refused(small_net(), pictures(), "callable target has none", method="cam", target=lambda output: output[:, 0])
    refused(small_net(), pictures(), "4 channels", "6 features", "'grad-cam'", method="cam", layer="relu1")
    deep = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Tanh())
    refused(deep, pictures(), "ends in a linear layer", "'grad-cam'", method="cam", layer="1")


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, pictures())])
def test_scripted_models(make):
    whole = make(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)))
    for model in (whole, nn.Sequential(whole, nn.Linear(3, 3))):
        with pytest.raises(egcam.errors.ModelError, match=r"TorchScript.*original nn\.Module"):
            egcam.explain(model, pictures())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_models():
    quantization = pytest.importorskip("torch.ao.quantization", reason="this torch has no eager quantisation")
    try:
        model = quantization.quantize_dynamic(small_net(), {nn.Linear}, dtype=torch.qint8)
    except (RuntimeError, AttributeError) as problem:
        pytest.skip(f"this torch cannot quantise: {problem}")
    with pytest.raises(egcam.errors.ModelError, match=r"fc is quantised.*float model"):
        egcam.explain(model, pictures())


class _Quantisable(nn.Module):
    """As torchvision's networks that may be quantised later: additions are modules, and plain float code."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), nn.Linear(6, CLASSES)
        self.plus = pytest.importorskip("torch.ao.nn.quantized").FloatFunctional()

    def forward(self, images: Tensor) -> Tensor:
        found = self.body(images)
        return self.fc(self.plus.add(found, found).mean((2, 3)))


def test_models_that_may_be_quantised_later_are_float_models():
    model, images = seeded(_Quantisable), pictures()
    found = egcam.explain(model, images, "grad-cam", target=2, signed=True)
    expected = 2 / 100 * (model.fc.weight[2][:, None, None] * model.body(images)).sum(1)
    assert torch.allclose(found.maps, expected, rtol=1e-4, atol=1e-8)


class _Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images).relu().mul_(2).mean((2, 3)))


def test_models_that_overwrite_what_their_gradient_needs():
    refused(seeded(_Overwriting), pictures(), "in place", "without its final underscore", method="grad-cam")


class _BatchStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False), nn.Tanh())
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images).square().mean((2, 3)))


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "score-cam", "ablation-cam"])
def test_images_do_not_change_one_anothers_maps_where_statistics_are_those_of_the_batch(method):
    model, images = seeded(_BatchStatistics).eval(), pictures()
    together = explainer(method, model, signed=True)(images, 1)
    alone = explainer(method, model, signed=True)(images[1:], 1)
    assert torch.allclose(together.maps[1], alone.maps[0], rtol=1e-4, atol=1e-7)


class _TakesBatchesApart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh()), nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.fc(self.body(part).square().mean((2, 3))) for part in images.split(1)])


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "score-cam", "ablation-cam"])
def test_networks_that_take_a_batch_apart(method):
    model, images = seeded(_TakesBatchesApart), pictures()
    refused(model, images, "batch_size=1", method=method)
    found = egcam.explain(model, images, method, target=1, signed=True, batch_size=1)
    whole = nn.Sequential(model.body, _SquareMean(), model.fc)
    expected = egcam.explain(whole, images, method, target=1, signed=True, layer="0")
    assert torch.allclose(found.maps, expected.maps, rtol=1e-4, atol=1e-7)


class _SquareMean(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return maps.square().mean((2, 3))


def test_models_compiled_in_place():
    whole = small_net()
    whole.compile(backend="eager")
    part = small_net()
    part.conv1.compile(backend="eager")
    inside = small_net()
    inside.relu2 = torch.compile(inside.relu2, backend="eager")
    for model, name in ((whole, "the model"), (part, "conv1"), (inside, "relu2")):
        with pytest.raises(egcam.errors.ModelError, match=f"{name} is compiled in place.*before compiling"):
            egcam.explain(model, pictures())


@pytest.mark.parametrize("model", [None, "resnet50", SmallNet, lambda images: images])
def test_things_that_are_no_model(model):
    with pytest.raises(egcam.errors.ModelError, match=r"torch\.nn\.Module"):
        egcam.explain(model, pictures())


def test_models_whose_lazy_layers_never_ran():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    with pytest.raises(egcam.errors.ModelError, match=r"lazy layers.*run it once"):
        egcam.explain(model, pictures())
    assert isinstance(model[0], nn.LazyConv2d)
    model(pictures())
    assert egcam.explain(model, pictures(), "grad-cam", signed=True).maps.abs().max() > 0


def test_weights_made_inside_inference_mode():
    with torch.inference_mode():
        model = small_net()
    with pytest.raises(egcam.errors.ModelError, match=r"inference_mode.*outside"):
        egcam.explain(model, pictures())


# -- outputs ---------------------------------------------------------------------------------------

_Pair = namedtuple("_Pair", ["logits", "features"])
_Unnamed = namedtuple("_Unnamed", ["first", "maps"])
_Inception = namedtuple("_Inception", ["logits", "aux_logits"])


@dataclass
class _Result:
    loss: Tensor | None
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


@dataclass
class _ModelOutput(OrderedDict):
    """A dict and a dataclass in one, as Hugging Face's."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: Any = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            if getattr(self, entry.name) is not None:
                self[entry.name] = getattr(self, entry.name)


FORMS = {
    "tuple": lambda logits, features: (logits, features),
    "tuple, logits second": lambda logits, features: (features, logits),
    "tuple with no tensor": lambda logits, features: (None, logits, "text"),
    "namedtuple with further scores": lambda logits, features: _Inception(logits, logits[:, :3] * 2),
    "dataclass with an embedding": lambda logits, features: _Result(features.mean((2, 3)), logits, (features,)),
    "dict with an embedding": lambda logits, features: {"embedding": features.mean((2, 3)), "out": logits},
    "list": lambda logits, features: [features, logits],
    "dict": lambda logits, features: {"features": features, "logits": logits},
    "dict with other names": lambda logits, features: {"features": features, "out": logits, "aux": logits * 2},
    "dict with one candidate": lambda logits, features: {"a": features, "b": logits},
    "dataclass": lambda logits, features: _Result(None, logits, (features,)),
    "namedtuple": lambda logits, features: _Pair(logits, features),
    "namedtuple, unnamed": lambda logits, features: _Unnamed(logits, features),
    "model output": lambda logits, features: _ModelOutput(logits=logits, hidden_states=(features,)),
    "spatial scores": lambda logits, features: logits[:, :, None, None],
}


@pytest.mark.parametrize(("method", "form"), covering(METHODS, FORMS))
def test_structured_outputs(method, form):
    model, images = WithOutput(FORMS[form]).eval(), pictures()
    found = explainer(method, model, signed=True)(images, [1, 2])
    expected = explainer(method, small_net(), signed=True)(images, [1, 2])
    assert torch.allclose(found.maps, expected.maps, rtol=1e-5, atol=1e-7)
    assert torch.equal(found.predictions, expected.predictions)
    assert torch.allclose(found.scores, expected.scores)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda logits, features: {"a": logits, "b": 2 * logits}, ["unclear", "['a']: ", "['b']: ", "callable target"]),
        (lambda logits, features: {"a": features}, ["unclear", "callable target"]),
        (lambda logits, features: {}, ["unclear", "no tensor", "callable target"]),
        (lambda logits, features: _Unnamed(logits, 2 * logits), ["unclear", "first", "callable target"]),
        (lambda logits, features: {"a": features.mean((2, 3)), "b": logits}, ["unclear", "lambda out: out['b'][:, 3]"]),
        (
            lambda logits, features: (features.mean((2, 3)), logits),
            [
                "[0]: a float32 tensor of shape (2, 6)",
                "[1]: a float32 tensor of shape (2, 5)",
                "lambda out: out[1][:, 3]",
            ],
        ),
        (lambda logits, features: [logits, features.mean((2, 3))], ["unclear (list", "lambda out: out[0][:, 3]"]),
        (lambda logits, features: (features.mean((2, 3)), logits[:, :1]), ["unclear", "lambda out: out[1][:, 0]"]),
        (lambda logits, features: (features.mean((2, 3)), logits[:, 0]), ["unclear", "target=lambda out: out[1]"]),
        (lambda logits, features: (features, features), ["unclear", "lambda out: out[0][:, 3].mean((1, 2))"]),
        (lambda logits, features: _Unnamed(features.mean((2, 3)), logits), ["unclear", "lambda out: out.maps[:, 3]"]),
        (lambda logits, features: "yes", ["a str", "callable target"]),
        (lambda logits, features: features, ["(2, 6, 6, 6)", "(N, classes)", "callable target", "lambda"]),
        (lambda logits, features: logits.argmax(1), ["int64", "have no gradient", "the scores"]),
        (lambda logits, features: logits.T, ["(5, 2)", "lambda out: out[3]"]),
        (
            lambda logits, features: features.flatten(2),
            ["(2, 6, 36)", "egcam.targets.Box(", "layout=", "callable target"],
        ),
        (lambda logits, features: ((features.flatten(2), features), {"a": 1}), ["[0][0]: ", "egcam.targets.Box("]),
        (lambda logits, features: {"pred_boxes": features}, ["egcam.targets.Box((left, top, right, bottom), label);"]),
        (lambda logits, features: [{"boxes": logits}, {"boxes": logits}], ["egcam.targets.Box((left, top"]),
        (
            lambda logits, features: {"all": {"heads": [features.mean((2, 3))]}, "rest": logits},
            ["unclear", "['all']['heads'][0]: a float32 tensor of shape (2, 6)", "lambda out: out['rest'][:, 3]"],
        ),
        (lambda logits, features: logits.sum(), ["shape ()", "callable target"]),
    ],
)
@pytest.mark.parametrize("method", ["grad-cam", "ablation-cam"])
def test_outputs_without_clear_class_scores(method, form, said):
    model = WithOutput(form).eval()
    refused(model, pictures(), *said, kind=egcam.errors.ModelError, method=method, layer="net.relu2")


@pytest.mark.parametrize(
    "form",
    [
        lambda logits, features: (features.mean((2, 3)), logits),
        lambda logits, features: {"a": features.mean((2, 3)), "b": logits},
        lambda logits, features: _Unnamed(features.mean((2, 3)), logits),
        lambda logits, features: [features.mean((2, 3)), logits],
        lambda logits, features: {"a": {"b": [features.mean((2, 3)), logits]}},
        lambda logits, features: logits.T,
        lambda logits, features: logits.flatten(),
    ],
)
def test_the_callable_that_the_refusal_shows_is_right(form):
    model, images = WithOutput(form).eval(), pictures()
    with pytest.raises(egcam.errors.ModelError) as caught:
        egcam.explain(model, images)
    shown = str(caught.value).rpartition("target=")[2]
    found = egcam.explain(model, images, "grad-cam", target=eval(shown), signed=True)
    expected = egcam.explain(small_net(), images, "grad-cam", target=3, signed=True)
    assert torch.allclose(found.maps, expected.maps, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("method", HEAD_FREE)
def test_a_callable_explains_any_output(method):
    images = pictures()
    expected = explainer(method, small_net(), signed=True)(images, 2)
    model = WithOutput(lambda logits, features: {"a": logits, "b": 2 * logits}).eval()
    found = explainer(method, model, signed=True)(images, lambda output: output["a"][:, 2])
    assert torch.allclose(found.maps, expected.maps, rtol=1e-5, atol=1e-7)
    assert torch.allclose(found.scores, expected.scores)
    assert found.targets is None
    assert found.predictions is None


class _Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, stride=2), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(6, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        return functional.interpolate(self.head(self.body(images)), size=images.shape[-2:])


@pytest.mark.parametrize("method", HEAD_FREE)
def test_segmentation_networks_take_the_callable_the_error_proposes(method):
    model, images = seeded(_Segments), pictures()
    refused(
        model, images, of_images("(2, 5, 12, 12)", method), "target=lambda out: out[:, 3].mean((1, 2))", method=method
    )
    found = explainer(method, model, signed=True)(images, lambda out: out[:, 3].mean((1, 2)))
    assert found.maps.abs().max() > 0
    assert torch.allclose(found.scores, model(images)[:, 3].mean((1, 2)))


# -- maps of zeros ---------------------------------------------------------------------------------


def _head(weight: float, bias: float = 0.0) -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        for layer, values in ((model[0], (1.0, bias)), (model[4], (weight, 0.0))):
            layer.weight.fill_(values[0])
            layer.bias.fill_(values[1])
    return model


class _Saturated(nn.Module):
    """y = min(mean of the features, 1): flat where the features are large."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _head(1.0)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).clamp(max=1.0)


@pytest.mark.parametrize(
    ("model", "layer", "cause"),
    [
        (_head(-1.0), "1", "every position is negative evidence; signed=True"),
        (_head(1.0, bias=-50.0), "1", "activations are all zero"),
        (_Saturated(), "net.1", "gradient is zero at the layer.*slope-cam"),
    ],
)
def test_zero_maps_warn_with_their_cause(model, layer, cause):
    images = torch.full((2, 1, 4, 4), 3.0)
    with pytest.warns(egcam.ZeroMapWarning, match=f"grad-cam: the map of image 0, 1 is zero everywhere: .*{cause}"):
        explanation = egcam.explain(model, images, "grad-cam", 0, layer=layer)
    assert not explanation.maps.any()
    assert not explanation.heatmaps.any()


def test_only_the_zero_maps_are_named_and_the_warning_points_at_the_caller():
    images = torch.stack([torch.full((1, 4, 4), value) for value in (1.0, -1.0, 2.0, -2.0)])
    with pytest.warns(egcam.ZeroMapWarning, match="image 1, 3 is zero everywhere") as caught:
        egcam.GradCAM(_head(1.0), "1")(images, 0)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_every_way_to_a_warning_points_at_the_line_that_led_to_it():
    images, zero = torch.full((1, 1, 4, 4), -1.0), torch.zeros(1, 4, 4)
    cam = egcam.GradCAM(_head(1.0), "1")
    calls = (
        lambda: cam(images, 0),
        lambda: egcam.explain(_head(1.0), images, "grad-cam", 0, layer="1"),
        lambda: list(cam.stream([images], 0)),
        lambda: egcam.evaluate(_head(1.0), images, ["grad-cam"], ["sparseness"], layer="1"),
        lambda: egcam.metrics.Sparseness()(zero / 0),
        lambda: egcam.metrics.Deletion()(_head(1.0), images, zero / 0),
        lambda: egcam.metrics.MaxSensitivity()(_head(1.0), images, lambda x, y: 0 * x[:, 0]),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        line = call.__code__.co_firstlineno
        assert [(one.filename, one.lineno) for one in caught] == [(__file__, line)]


def test_maps_that_are_not_zero_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        egcam.explain(_head(1.0), torch.ones(2, 1, 4, 4), "grad-cam", 0)
        egcam.explain(_head(-1.0), torch.ones(2, 1, 4, 4), "grad-cam", 0, signed=True)


def test_maps_that_are_not_finite_warn():
    model = _head(1.0)
    with torch.no_grad():
        model[4].weight.fill_(float("inf"))
    with pytest.warns(egcam.errors.NonFiniteMapWarning, match="image 0 holds NaN or infinite values"):
        egcam.explain(model, torch.ones(1, 1, 4, 4), "grad-cam", 0)


# -- references ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (pictures(3, side=10), ["(3, 10, 10)", "(3, 12, 12)", "resize"]),
        (torch.zeros(3, 1, 12, 12), ["(1, 12, 12)", "(3, 12, 12)"]),
        (torch.zeros(3, 3, 12, 12, dtype=torch.uint8), ["torch.uint8", "normalise"]),
        (torch.zeros(0, 3, 12, 12), ["empty"]),
        (torch.zeros(12, 12), ["(M, C, H, W)", "(12, 12)"]),
        (torch.full((2, 3, 12, 12), float("nan")), ["NaN"]),
        ([], ["empty"]),
        ([pictures(1)[0], pictures(1, side=10)[0]], ["different sizes"]),
        ([Image.new("RGB", (12, 12))], ["Image", "preprocessing"]),
        (3, ["cannot be read from a int"]),
        (lambda images: images[:, :1], ["gives (2, 1, 12, 12)", "(2, 3, 12, 12)"]),
        (lambda images: 3, ["gives int"]),
    ],
    ids=lambda value: None if isinstance(value, list) else _name(getattr(value, "shape", value)),
)
@pytest.mark.parametrize("method", ["slope-cam", "expected-gradients"])
def test_references_that_cannot_be(method, reference, said):
    said = [of_images(words, method) for words in said]
    refused(
        small_net(train=True),
        pictures(),
        *said,
        kind=egcam.errors.SamplingError,
        method=method,
        reference=reference,
        target=1,
    )


def test_a_reference_of_nothing_but_the_image_itself():
    refused(small_net(), pictures(1), "nothing but the explained image", reference=pictures(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_references_of_another_precision_are_converted(dtype):
    model, images, others = small_net(), pictures(), pictures(3, seed=4).to(dtype)
    found = egcam.explain(model, images, "expected-gradients", 1, reference=others, samples=4)
    same = egcam.explain(model, images, "expected-gradients", 1, reference=others.float(), samples=4)
    assert torch.equal(found.maps, same.maps)


def test_a_path_callable_of_another_shape():
    said = "path callable gave (2, 1, 12, 12)"
    refused(small_net(), pictures(), said, method="expected-grad-cam", path=lambda a, b, share: b[:, :1])
