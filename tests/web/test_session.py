"""What one visitor gets is what egcam computes, whatever other visitors do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import egcam
from egcam.errors import LayerError
from egcam.metrics import Insertion, Sparseness
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier
from egcam.web.choices import Choices
from egcam.web.session import METRICS, explain, measure, open_photo, saturate
from egcam.web.shared_model import SharedModel, share
from support.tiny_page import CLASSES, picture, tiny_classifier

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def shared() -> SharedModel:
    return share(tiny_classifier())


def _silent(share: float) -> None:
    pass


def _choices(target: int = 0, layer: str = "4", samples: int = 6, reference: str = "usual") -> Choices:
    return Choices(target, layer, ("grad-cam",), samples, reference)


def test_the_layers_that_can_be_chosen_are_the_networks_own(shared: SharedModel) -> None:
    found = {choice.name: choice.shape for choice in shared.layers}
    assert found == {
        "0": (6, 32, 32),
        "1": (6, 32, 32),
        "2": (6, 16, 16),
        "3": (8, 16, 16),
        "4": (8, 16, 16),
    }
    assert shared.layer == "usual"
    assert shared.classes == ("cat", "dog", "bird")


def test_a_block_is_one_layer_and_a_span_of_the_whole_network_is_none() -> None:
    torchvision = pytest.importorskip("torchvision.models")
    seen = Preprocessing((64, 64), 64)
    resnet = Classifier(torchvision.resnet18(weights=None).eval(), "r", None, seen)
    names = [choice.name for choice in share(resnet).layers]
    assert names[-4:] == ["layer1", "layer2", "layer3", "layer4"]
    vgg = Classifier(torchvision.vgg11(weights=None).eval(), "v", None, seen)
    assert [choice.name for choice in share(vgg).layers] == [f"features.{number}" for number in range(21)]


def test_a_layer_given_on_the_command_line_can_be_inside_a_block_but_must_exist() -> None:
    assert share(tiny_classifier(), "3").layer == "3"
    with pytest.raises(LayerError, match="'33'"):
        share(tiny_classifier(), "33")


def test_the_top_classes_are_the_softmax_of_the_logits(shared: SharedModel) -> None:
    image = picture(1)
    photo = open_photo(shared, image, "one")
    with torch.inference_mode():
        chances = shared.classifier.model(shared.classifier.preprocess(image)[None])[0].softmax(0)
    assert [one.index for one in photo.predictions] == chances.argsort(descending=True).tolist()
    assert [one.probability for one in photo.predictions] == pytest.approx(
        chances.sort(descending=True).values.tolist()
    )
    assert photo.prediction(2).name == "bird"
    assert photo.seen.size == (40, 40)


def test_of_a_large_photograph_only_a_small_picture_is_kept(shared: SharedModel) -> None:
    image = picture(1, (3000, 2000))
    before = image.tobytes()
    photo = open_photo(shared, image, "large")
    assert photo.seen.size == (640, 640)
    assert image.tobytes() == before
    assert_close(photo.images[0], shared.classifier.preprocess(image))


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "integrated-grad-cam", "score-cam", "smooth-grad"])
@pytest.mark.parametrize("target", [0, 2])
def test_the_map_is_that_of_explain(shared: SharedModel, method: str, target: int) -> None:
    photo = open_photo(shared, picture(2), "two")
    found = explain(shared, photo, _choices(target, "3"), method, _silent).explanation
    options = {"layer": "3", "samples": 6, "seed": 0, "classes": CLASSES}
    if method == "integrated-grad-cam":
        options["reference"] = egcam.references.black((0.5,) * 3, (0.5,) * 3)
    taken = {name: value for name, value in options.items() if name in egcam.attribution.registry.takes(method)}
    right = egcam.explain(shared.classifier.model, photo.images, method, target, **taken)
    assert_close(found.maps, right.maps, rtol=0, atol=0)
    assert found.targets is not None
    assert found.targets.tolist() == [target]


def test_unless_one_is_chosen_each_method_has_its_own_layer() -> None:
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Sigmoid(), nn.MaxPool2d(2))
    net = nn.Sequential(*first, nn.Conv2d(6, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 8 * 8, 3))
    nn.init.uniform_(net[-1].weight)
    shared = share(replace(tiny_classifier(), model=net.eval()))
    photo = open_photo(shared, picture(2), "two")
    layers = {
        method: explain(shared, photo, _choices(layer="usual"), method, _silent).explanation.layer
        for method in ("grad-cam", "slope-cam")
    }
    assert layers == {"grad-cam": "4", "slope-cam": "1"}
    assert saturate(shared, photo, _choices(layer="usual"), _silent).layer == "1"


def test_class_reference_and_samples_matter(shared: SharedModel) -> None:
    photo = open_photo(shared, picture(3), "three")
    base = _choices(layer="1")
    usual = explain(shared, photo, base, "slope-cam", _silent).explanation.maps
    for change in ({"target": 1}, {"layer": "2"}, {"reference": "white"}, {"samples": 3}):
        other = replace(base, **change)
        changed = explain(shared, photo, other, "slope-cam", _silent).explanation.maps
        assert changed.shape != usual.shape or not torch.allclose(changed, usual)


def test_visitors_at_once_get_their_own_maps(shared: SharedModel) -> None:
    photos = [open_photo(shared, picture(seed), str(seed)) for seed in range(6)]
    wanted = [(photo, target) for photo in photos for target in range(3)]

    def one(case: tuple[object, int]) -> np.ndarray:
        photo, target = case
        return explain(shared, photo, _choices(target), "slope-cam", _silent).explanation.maps.numpy()

    alone = [one(case) for case in wanted]
    assert len({values.tobytes() for values in alone}) == len(wanted)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, wanted * 2))
    for number, values in enumerate(together):
        np.testing.assert_array_equal(values, alone[number % len(wanted)])


def test_the_network_is_used_by_one_at_a_time(shared: SharedModel) -> None:
    inside, most = 0, 0
    counting = threading.Lock()

    def enter(*_: object) -> None:
        nonlocal inside, most
        with counting:
            inside += 1
            most = max(most, inside)

    def leave(*_: object) -> None:
        nonlocal inside
        with counting:
            inside -= 1

    model = shared.classifier.model
    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: open_photo(shared, picture(seed), "x"), range(12)))
    assert most == 1


def test_metrics_are_those_of_the_library(shared: SharedModel) -> None:
    photo = open_photo(shared, picture(4), "four")
    rows = measure(shared, photo, _choices(1), "grad-cam", _silent)
    assert tuple(row.metric for row in rows) == METRICS
    maps = explain(shared, photo, _choices(1), "grad-cam", _silent).explanation.heatmaps
    by_name = {row.metric: row.value for row in rows}
    assert by_name["sparseness"] == pytest.approx(float(Sparseness()(maps)), rel=1e-4)
    step = round(32 * 32 / 16)
    right = float(Insertion(step)(shared.classifier.model, photo.images, maps, 1))
    assert by_name["insertion"] == pytest.approx(right, rel=1e-4)


def test_saturation_is_that_of_the_library(shared: SharedModel) -> None:
    photo = open_photo(shared, picture(5), "five")
    heard: list[float] = []
    found = saturate(shared, photo, _choices(1), heard.append)
    right = egcam.saturation(shared.classifier.model, photo.images, "4", 15, 1, black=-1.0)
    assert_close(found.logit, right.logit)
    assert found.verdict == right.verdict
    assert heard
    assert heard == sorted(heard)
