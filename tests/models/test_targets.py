"""Which number is explained: by prediction, index, name or callable, as logit, probability or sigmoid."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.models.class_scores import class_index, imagenet_classes
from support.small_models import CLASSES, HEAD_FREE, METHODS, WithOutput, explainer, pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ["tabby, tabby cat", "Golden_Retriever", "crane", "Egyptian cat", "tench, Tinca tinca"]


def explained(target: Any, images: Tensor | None = None, **more: Any) -> egcam.Explanation:
    return egcam.GradCAM(small_net(), signed=True, **more)(pictures(3) if images is None else images, target)


@pytest.mark.parametrize("method", METHODS)
def test_the_prediction_by_default(method):
    model, images = small_net(), pictures(4)
    logits = model(images)
    explanation = explainer(method, model, signed=True)(images)
    assert torch.equal(explanation.predictions, logits.argmax(1))
    assert torch.equal(explanation.targets, explanation.predictions)
    assert torch.allclose(explanation.scores, logits.amax(1))
    told = explainer(method, model, signed=True)(images, logits.argmax(1))
    assert torch.equal(explanation.maps, told.maps)


@pytest.mark.parametrize(
    "target",
    [
        [3, 0, 2],
        (3, 0, 2),
        torch.tensor([3, 0, 2]),
        torch.tensor([3, 0, 2], dtype=torch.int32),
        torch.tensor([3, 0, 2], dtype=torch.uint8),
        np.array([3, 0, 2]),
        [np.int64(3), torch.tensor(0), 2],
        ["egyptian cat", "tabby", "crane"],
        [3, "tabby", np.int32(2)],
    ],
    ids=str,
)
def test_one_target_for_each_image(target):
    found = explained(target, classes=NAMES)
    assert found.targets.tolist() == [3, 0, 2]
    assert found.targets.dtype == torch.long
    logits = small_net()(pictures(3))
    assert torch.allclose(found.scores, logits[torch.arange(3), torch.tensor([3, 0, 2])])
    for number, one in enumerate((3, 0, 2)):
        alone = explained(one, pictures(3)[number])
        assert torch.allclose(found.maps[number], alone.maps, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("target", [2, np.int64(2), torch.tensor(2), np.array(2), "crane", "CRANE"], ids=repr)
def test_one_target_for_all_images(target):
    found = explained(target, classes=NAMES)
    assert found.targets.tolist() == [2, 2, 2]
    assert torch.equal(found.maps, explained([2, 2, 2]).maps)


def test_none_among_the_targets_is_that_images_prediction():
    predicted = small_net()(pictures(3)).argmax(1).tolist()
    assert explained([4, None, "crane"], classes=NAMES).targets.tolist() == [4, predicted[1], 2]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("tabby", 0),
        ("Tabby Cat", 0),
        ("tabby, tabby cat", 0),
        ("golden retriever", 1),
        ("GOLDEN_RETRIEVER", 1),
        ("  crane ", 2),
        ("tinca tinca", 4),
    ],
)
def test_class_names_by_any_synonym_and_spelling(name, index):
    assert explained(name, classes=NAMES).targets.tolist() == [index] * 3


def _with_classes(model: nn.Module) -> None:
    model.classes = NAMES


def _with_class_names(model: nn.Module) -> None:
    model.class_names = tuple(NAMES)


def _with_config(model: nn.Module) -> None:
    model.config = SimpleNamespace(id2label=dict(reversed(list(enumerate(NAMES)))))


def _with_text_keys(model: nn.Module) -> None:
    model.config = SimpleNamespace(id2label={str(index): name for index, name in enumerate(NAMES)})


def _with_numbered_names(model: nn.Module) -> None:
    model.names = dict(enumerate(NAMES))


@pytest.mark.parametrize(
    "give", [_with_classes, _with_class_names, _with_config, _with_text_keys, _with_numbered_names]
)
@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel])
def test_names_the_model_carries(give, wrap):
    model = small_net()
    give(model)
    found = egcam.GradCAM(wrap(model), signed=True)(pictures(), "crane")
    assert found.targets.tolist() == [2, 2]
    assert found.classes == tuple(NAMES)
    assert found.label(0) == "crane"


def test_names_given_beat_names_the_model_carries():
    model = small_net()
    model.classes = NAMES
    assert egcam.GradCAM(model, signed=True, classes=list("abcde"))(pictures(), "d").targets.tolist() == [3, 3]


@pytest.mark.parametrize(("name", "index"), [("golden retriever", 207), ("tench", 0), ("toilet tissue", 999)])
def test_imagenets_names(name, index):
    model = small_net(classes=1000)
    found = egcam.GradCAM(model, signed=True, classes=egcam.zoo.imagenet_classes())(pictures(), name)
    assert found.targets.tolist() == [index] * 2


def test_imagenet_names_that_are_wrong_or_meant_twice():
    assert len(imagenet_classes()) == 1000
    with pytest.raises(egcam.EgcamError, match="golden retriever"):
        class_index("goldn retriever", imagenet_classes(), 1000)
    with pytest.raises(egcam.EgcamError, match=r"2 classes are called 'cardigan'.*\[264, 474\]"):
        class_index("cardigan", imagenet_classes(), 1000)


# -- scores ----------------------------------------------------------------------------------------


# Guided Grad-CAM is zero where Grad-CAM is negative everywhere.
@pytest.mark.filterwarnings("ignore:guided-grad-cam:egcam.errors.ZeroMapWarning")
@pytest.mark.parametrize(
    ("method", "score", "function"),
    [(method, "probability", lambda y: y.softmax(1)) for method in METHODS]
    + [("grad-cam", "logit", lambda y: y), ("grad-cam", "sigmoid", torch.sigmoid)],
)
def test_scores(method, score, function):
    model, images = small_net(), pictures(3)
    targets = torch.tensor([1, 4, 2])
    found = explainer(method, model, score=score, signed=True)(images, targets)
    expected = function(model(images))[torch.arange(3), targets]
    assert torch.allclose(found.scores, expected)
    assert found.options["score"] == score


@pytest.mark.parametrize(
    ("method", "score", "function"),
    # Components of the activations ask for no score at all.
    [(name, "probability", lambda y: y.softmax(1)) for name in HEAD_FREE if name not in ("eigen-cam", "kpca-cam")]
    + [("grad-cam", "sigmoid", torch.sigmoid)],
)
def test_a_score_is_explained_in_every_pass(method, score, function):
    model, images = small_net(), pictures(3)
    found = explainer(method, model, score=score, signed=True)(images, 1)
    by_hand = explainer(method, model, signed=True)(images, lambda output: function(output)[:, 1])
    assert torch.allclose(found.maps, by_hand.maps, rtol=1e-4, atol=1e-8)
    assert not torch.allclose(found.maps, explainer(method, model, signed=True)(images, 1).maps, rtol=1e-3)


def test_the_gradient_of_a_probability_is_that_of_the_softmax():
    model, images = small_net().double(), pictures(dtype=torch.float64)
    logit, probability = (
        egcam.GradCAM(model, signed=True, score=score)(images, 1).maps for score in ("logit", "probability")
    )
    p = model(images).softmax(1)
    others = torch.stack([egcam.GradCAM(model, signed=True)(images, c).maps for c in range(CLASSES)])
    expected = p[:, 1, None, None] * (logit - torch.einsum("nc,cnhw->nhw", p, others))
    assert torch.allclose(probability, expected, rtol=1e-9, atol=1e-15)


# -- callables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", HEAD_FREE)
def test_a_callable_on_the_output(method):
    model, images = small_net(), pictures(3)
    found = explainer(method, model, signed=True)(images, lambda output: output[:, 3])
    expected = explainer(method, model, signed=True)(images, 3)
    assert torch.allclose(found.maps, expected.maps, rtol=1e-5, atol=1e-8)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.predictions, expected.predictions)
    assert found.targets is None


def test_a_difference_of_classes_is_the_difference_of_their_maps():
    difference = explained(lambda output: output[:, 3] - output[:, 1])
    assert torch.allclose(difference.maps, explained(3).maps - explained(1).maps, rtol=1e-4, atol=1e-7)


def test_callable_objects_and_modules_are_targets_too():
    class Third(nn.Module):
        def forward(self, output: Tensor) -> Tensor:
            return output[:, 3]

    assert torch.equal(explained(Third()).maps, explained(3).maps)


def test_networks_with_one_output():
    model = WithOutput(lambda logits, features: logits[:, 2]).eval()
    found = egcam.GradCAM(model, signed=True)(pictures(3))
    assert found.targets.tolist() == [0, 0, 0]
    assert torch.allclose(found.maps, explained(2).maps, rtol=1e-5, atol=1e-8)
