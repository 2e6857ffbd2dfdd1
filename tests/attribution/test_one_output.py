"""Networks with a single output: a number, or the logit z of the second of two classes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import egcam
from egcam import metrics
from egcam.cli import app
from egcam.models.zoo import load
from support.small_models import METHODS, covering, explainer, pictures, seeded

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ["benign", "malignant"]


def binary(shape: str = "column", seed: int = 2) -> nn.Module:
    """One output, of both signs for `pictures(4)`."""
    last: list[nn.Module] = [nn.Flatten(0)] if shape == "flat" else []

    def build() -> nn.Module:
        head = nn.Linear(8, 1)
        with torch.no_grad():
            head.weight.mul_(8)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head, *last)

    model = seeded(build, seed).double().eval()
    with torch.no_grad():
        model[4].bias -= model(_images()).mean()
    return model


def _images() -> Tensor:
    return pictures(4, dtype=torch.float64)


def logit(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(_images()).reshape(-1)


def maps(method: str, target: Any, **how: Any) -> Tensor:
    return explainer(method, binary(), signed=True, **how)(_images(), target).maps


HEAD_FREE = [name for name in METHODS if name not in ("cam", "finer-cam")]


@pytest.mark.parametrize("score", ["probability", "sigmoid"])
@pytest.mark.parametrize("method", HEAD_FREE)
def test_the_probability_of_one_output_is_its_sigmoid(method, score):
    found = explainer(method, binary(), signed=True, score=score)(_images())
    assert torch.allclose(found.scores, logit(binary()).sigmoid())
    assert torch.allclose(found.maps, maps(method, lambda output: output[:, 0].sigmoid()), rtol=1e-9, atol=1e-15)
    assert found.maps.abs().max() > 0


@pytest.mark.parametrize(("method", "target"), covering(HEAD_FREE, [1, "malignant", "Malignant"]))
def test_the_positive_class_is_the_output(method, target):
    found = explainer(method, binary(), signed=True, classes=NAMES)(_images(), target)
    assert found.targets.tolist() == [1] * 4
    assert found.label() == "malignant"
    assert torch.allclose(found.scores, logit(binary()))
    assert torch.allclose(found.maps, maps(method, lambda output: output[:, 0]), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("method", "target"), covering(HEAD_FREE, [0, "benign"]))
def test_the_negative_class_is_its_negation(method, target):
    found = explainer(method, binary(), signed=True, classes=NAMES)(_images(), target)
    assert found.targets.tolist() == [0] * 4
    assert found.label() == "benign"
    assert torch.allclose(found.scores, -logit(binary()))
    assert torch.allclose(found.maps, maps(method, lambda output: -output[:, 0]), rtol=1e-9, atol=1e-15)
    chance = explainer(method, binary(), signed=True, classes=NAMES, score="probability")(_images(), target)
    assert torch.allclose(chance.scores, 1 - logit(binary()).sigmoid())
    by_hand = maps(method, lambda output: 1 - output[:, 0].sigmoid())
    assert torch.allclose(chance.maps, by_hand, rtol=1e-6, atol=1e-12)


def test_cam_of_either_class():
    model = binary()
    weight, activations = model[4].weight[0], model[:2](_images())
    for target, sign in ((1, 1.0), (0, -1.0)):
        found = egcam.CAM(model, "1", signed=True, classes=NAMES)(_images(), target)
        assert torch.allclose(found.maps, sign * torch.einsum("k,nkhw->nhw", weight, activations))
    assert torch.equal(egcam.CAM(model, "1", signed=True)(_images()).maps, found.maps.neg())


@pytest.mark.parametrize("shape", ["column", "flat"])
@pytest.mark.parametrize("method", METHODS)
def test_the_prediction_goes_by_the_sign(method, shape):
    z = logit(binary())
    assert (z > 0).any()
    assert (z < 0).any()
    found = explainer(method, binary(shape), signed=True, classes=NAMES)(_images())
    assert found.predictions.tolist() == (z > 0).long().tolist()
    assert torch.equal(found.targets, found.predictions)
    assert torch.allclose(found.scores, z.abs())
    assert [found.label(number) for number in range(4)] == [NAMES[int(value > 0)] for value in z]


def test_one_target_for_each_image():
    found = egcam.GradCAM(binary(), signed=True, classes=NAMES)(_images(), ["benign", 1, None, 0])
    z = logit(binary())
    assert found.targets.tolist() == [0, 1, int(z[2] > 0), 0]
    assert torch.allclose(found.scores, torch.stack([-z[0], z[1], z[2].abs(), -z[3]]))


def test_names_the_model_carries():
    model = binary()
    model.classes = NAMES
    for wrapped in (model, nn.DataParallel(model)):
        found = egcam.GradCAM(wrapped, signed=True)(_images(), "benign")
        assert torch.allclose(found.scores, -logit(model))


def test_without_names_one_output_is_the_output():
    found = egcam.GradCAM(binary(), signed=True)(_images())
    assert found.targets.tolist() == found.predictions.tolist() == [0] * 4
    assert torch.allclose(found.scores, logit(binary()))
    assert found.label() == "class 0"
    named = egcam.GradCAM(binary(), signed=True, classes=["age"])(_images(), "age")
    assert torch.equal(named.maps, found.maps)
    assert named.label() == "age"


@pytest.mark.parametrize("count", [3, 5])
def test_other_numbers_of_names_are_refused(count):
    names = [f"name{number}" for number in range(count)]
    for target in (None, 0):
        with pytest.raises(egcam.errors.TargetError, match=f"{count} class names.*1 output.*negative class, then"):
            egcam.GradCAM(binary(), classes=names)(_images(), target)


def test_class_one_without_names_says_what_to_write():
    with pytest.raises(egcam.errors.TargetError, match=r"one output, class 0.*classes=\[negative, positive\]"):
        egcam.GradCAM(binary())(_images(), 1)


# -- metrics ---------------------------------------------------------------------------------------


def _two_outputs(model: nn.Module) -> nn.Module:
    """The same network with the logits 0 and z, whose softmax is the sigmoid of z."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            z = self.model(images)
            return torch.cat([torch.zeros_like(z), z], 1)

    return Two().eval()


@pytest.mark.parametrize("target", [0, 1, None])
@pytest.mark.parametrize("score", ["probability", "accuracy"])
def test_metrics_read_a_single_output_alike(score, target):
    model, heat = binary(), torch.rand(4, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.classes = NAMES
    found = metrics.Deletion(score=score)(model, _images(), heat, target)
    truth = metrics.Deletion(score=score)(_two_outputs(binary()), _images(), heat, target)
    assert torch.allclose(found, truth)
    assert score == "accuracy" or len(set(found.tolist())) == 4


def test_metrics_of_a_probability_without_names():
    heat = torch.rand(4, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = metrics.Deletion(score="probability")(binary(), _images(), heat)
    truth = metrics.Deletion()(binary(), _images(), heat, lambda output: output[:, 0].sigmoid())
    assert torch.allclose(found, truth)


def test_saturation_follows_either_class():
    model, images = binary(), pictures(4, dtype=torch.float64).sigmoid()
    plain = egcam.saturation(model, images, "1", steps=4)
    negative = egcam.saturation(model, images, "1", steps=4, target="benign", classes=NAMES)
    assert torch.allclose(negative.logit, -plain.logit)
    assert torch.allclose(negative.probability, 1 - plain.probability)


# -- the command -----------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    return Classifier(net, "small", None, Preprocessing((16, 16), 16))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.linear_gradient("L").resize((16, 16)).convert("RGB").save("one.png")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def _explained(*more: str) -> Result:
    given = ["explain", "one.png", "--model", "own.py:build", "--method", "grad-cam", "--signed", "--json", *more]
    return CliRunner().invoke(app, given, catch_exceptions=False)


def test_the_command_knows_both_classes(folder):
    (folder / "names.txt").write_text("benign\nmalignant\n")
    found = {}
    for name in NAMES:
        (found[name],) = json.loads(_explained("--classes", "names.txt", "--target", name).stdout)["images"]
        assert found[name]["target"]["name"] == name
        z = found[name]["score"]
        assert found[name]["target"]["probability"] == pytest.approx(1 / (1 + math.exp(-z)), abs=1e-4)
    assert found["benign"]["score"] == pytest.approx(-found["malignant"]["score"])
    surest = max(NAMES, key=lambda name: found[name]["score"])
    (alone,) = json.loads(_explained("--classes", "names.txt").stdout)["images"]
    assert alone["target"]["name"] == surest


def test_the_command_refuses_names_of_another_number(folder):
    (folder / "names.txt").write_text("a\nb\nc\n")
    result = _explained("--classes", "names.txt")
    assert result.exit_code != 0
    assert "3 class names" in result.stderr
    assert "1 output" in result.stderr


def test_a_loaded_network_carries_the_names_it_was_given(folder):
    classifier = load("own.py:build", device="cpu", classes=NAMES)
    images, heat = torch.rand(2, 3, 16, 16), torch.rand(2, 16, 16)
    negative = metrics.Deletion(score="logit")(classifier.model, images, heat, "benign")
    positive = metrics.Deletion(score="logit")(classifier.model, images, heat, "malignant")
    assert torch.allclose(negative, -positive)


@pytest.mark.parametrize("target", [0, 1])
def test_metrics_read_a_single_output_as_the_explanation_does(target):
    """The names were given to the explanation alone: class 0 is then the negative class, of logit -z."""
    network, images = binary(), _images()
    explanation = egcam.GradCAM(network, classes=["negative", "positive"], signed=True)(images, target)
    found = egcam.metrics.Deletion()(network, images, explanation)
    sign = 2 * target - 1
    as_told = egcam.metrics.Deletion(score="logit")(network, images, explanation, lambda z: (sign * z[:, 0]).sigmoid())
    torch.testing.assert_close(found, as_told)
