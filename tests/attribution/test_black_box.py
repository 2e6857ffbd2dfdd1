"""Functions as models, and the Shapley values of superpixels."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import InputWarning, LayerError, MethodError, ModelError
from support.networks import pictures, seeded, smooth_everywhere

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = {"rtol": 0.0, "atol": 1e-6}
FEW = {"occlusion": {"window": 4}, "rise": {"samples": 12}, "lime": {"samples": 30, "alpha": 1e-6}}
FEW |= {"kernel-shap": {"samples": 30, "cells": 2}, "superpixel-shapley": {"segments": 4}}


def network() -> nn.Module:
    return seeded(smooth_everywhere).float()


def as_function(model: nn.Module, calls: list[int] | None = None) -> Any:
    """What another runtime would be: arrays in, arrays out."""

    def function(images: np.ndarray) -> list[np.ndarray]:
        assert images.dtype == np.float32
        if calls is not None:
            calls.append(len(images))
        with torch.no_grad():
            return [model(torch.from_numpy(images)).numpy()]

    return function


@pytest.mark.parametrize("method", FEW)
def test_a_function_has_the_maps_of_the_network_it_runs(method: str) -> None:
    if method in ("lime", "kernel-shap"):
        pytest.importorskip("captum")
    model, images = network(), pictures(2).float()
    box = egcam.black_box(as_function(model), classes=["cat", "dog", "bird"])
    plain = egcam.explain(model, images, method, [2, 1], signed=True, **FEW[method])
    found = egcam.explain(box, images, method, ["bird", "dog"], signed=True, **FEW[method])
    torch.testing.assert_close(found.maps, plain.maps, **EXACT)
    torch.testing.assert_close(found.scores, plain.scores, **EXACT)
    assert float(found.maps.abs().max()) > 0


def test_methods_that_look_inside_refuse_and_name_those_that_do_not() -> None:
    box = egcam.black_box(as_function(network()))
    able = "occlusion, rise, lime, kernel-shap, superpixel-shapley"
    for method in egcam.methods():
        if method not in FEW:
            with pytest.raises(ModelError, match="a black box has none; ") as refusal:
                egcam.explain(box, pictures(1).float(), method)
            assert set(str(refusal.value).split("none; ")[1].split(" ask")[0].split(", ")) == set(able.split(", "))
    with pytest.raises(LayerError, match="a black box has no layers"):
        egcam.explain(box, pictures(1).float(), "random", layer="features")


def test_controls_metrics_and_evaluate_work_on_a_function() -> None:
    model, images = network(), pictures(2).float()
    methods, metrics = ["occlusion", "random", "centre"], ["deletion", "sensitivity-n", "irof"]
    pytest.importorskip("skimage")
    box = egcam.evaluate(egcam.black_box(as_function(model)), images, methods, metrics, target=[0, 2])
    plain = egcam.evaluate(model, images, ["occlusion"], metrics, target=[0, 2])
    for metric in metrics:
        np.testing.assert_allclose(box.values("occlusion", metric), plain.values("occlusion", metric), atol=1e-5)
        assert np.isfinite(box.values("random", metric)).all()
    assert egcam.explain(egcam.black_box(as_function(model)), images, "centre").maps.shape == images[:, 0].shape


def test_a_fixed_batch_is_filled_up_and_channels_may_come_last() -> None:
    model, images, calls = network(), pictures(3).float(), []
    box = egcam.black_box(as_function(model, calls), batch=2)
    with torch.no_grad():
        torch.testing.assert_close(box(images), model(images), **EXACT)
    assert calls == [2, 2]
    last = egcam.black_box(lambda pixels: pixels[:, :, :, 0].sum((1, 2)), channels_last=True)
    torch.testing.assert_close(last(images), images[:, 0].sum((1, 2))[:, None])


def test_probabilities_are_explained_as_such() -> None:
    model, images = network(), pictures(2).float()
    chances = nn.Sequential(model, nn.Softmax(1))
    box = egcam.black_box(as_function(chances), returns="probabilities")
    found = egcam.explain(box, images, "occlusion", 1, window=4, signed=True)
    plain = egcam.explain(model, images, "occlusion", 1, window=4, signed=True, score="probability")
    torch.testing.assert_close(found.maps, plain.maps, **EXACT)
    assert found.options["score"] == "probability"
    with pytest.raises(ModelError, match="no probabilities"):
        egcam.black_box(as_function(model), returns="probabilities")(images)
    with pytest.warns(InputWarning, match="say returns='probabilities'"):
        egcam.black_box(as_function(chances))(images)


def test_several_outputs_go_to_a_target_that_reads_them() -> None:
    model, images = network(), pictures(2).float()

    def two(pixels: np.ndarray) -> list[np.ndarray]:
        scores = as_function(model)(pixels)[0]
        return [scores, scores * 2]

    found = egcam.explain(egcam.black_box(two), images, "occlusion", lambda out: out[1][:, 0], window=4)
    with torch.no_grad():
        torch.testing.assert_close(found.scores, 2 * model(images)[:, 0], **EXACT)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (nn.ReLU(), "a module is explained as it is"),
        (lambda pixels: pixels.sum(), r"shape \(\) for 2 image"),
        (lambda pixels: pixels[:1].sum((2, 3)), r"shape \(1, 3\) for 2 image.*batch=1"),
        (lambda _: "cat", "a str, which is no array"),
    ],
)
def test_wrong_functions(function: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        egcam.black_box(function)(torch.rand(2, 3, 4, 4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exported_network_in_onnx_runtime(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    model, images = network().eval(), pictures(2).float()
    file = str(tmp_path / "network.onnx")
    torch.onnx.export(model, (images[:1],), file, input_names=["images"], dynamo=False)  # for one image at a time
    session = runtime.InferenceSession(file)
    box = egcam.black_box(lambda pixels: session.run(None, {"images": pixels}), batch=1)
    for method in ("occlusion", "superpixel-shapley"):
        found = egcam.explain(box, images, method, [2, 1], signed=True, **FEW[method])
        plain = egcam.explain(model, images, method, [2, 1], signed=True, **FEW[method])
        torch.testing.assert_close(found.maps, plain.maps, rtol=1e-4, atol=1e-5)


# -- Shapley values of superpixels -----------------------------------------------------------------


def game_of(model: nn.Module, image: Tensor, labels: Tensor, target: int) -> Any:
    def score(shown: set[int]) -> float:
        mask = torch.isin(labels, torch.tensor(sorted(shown), dtype=labels.dtype))
        with torch.no_grad():
            return float(model((image * mask)[None])[0, target])

    return score


def test_few_superpixels_have_their_exact_shapley_values() -> None:
    """The mean over all orders of what each adds when it is shown next."""
    model, images = smooth_everywhere(), pictures(2)
    height, width = images.shape[2:]
    labels = torch.arange(height)[:, None] * 2 // height * 2 + torch.arange(width) * 2 // width
    found = egcam.explain(model, images, "superpixel-shapley", [0, 2], segments=labels * 7, signed=True)
    for row, target in enumerate([0, 2]):
        score, orders = game_of(model, images[row], labels, target), list(permutations(range(4)))
        values = torch.zeros(4, dtype=torch.float64)
        for order in orders:
            for place, part in enumerate(order):
                values[part] += score(set(order[: place + 1])) - score(set(order[:place]))
        truth = values / len(orders)
        parts = torch.stack([found.maps[row][labels == part].sum() for part in range(4)])
        torch.testing.assert_close(parts, truth, rtol=0, atol=1e-10)
    assert found.passes == 2 * 16
    assert not found.error.any()
    torch.testing.assert_close(found.completeness.gap, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-10)
    alone = egcam.explain(model, images[1], "superpixel-shapley", 2, segments=labels, signed=True)
    torch.testing.assert_close(alone.maps, found.maps[1], rtol=0, atol=1e-12)


def test_many_superpixels_are_sampled_with_their_error() -> None:
    model, images = smooth_everywhere(), pictures(1)
    height, width = images.shape[2:]
    labels = torch.arange(height)[:, None] * 4 // height * 2 + torch.arange(width) * 2 // width
    options: dict[str, Any] = {"segments": labels, "signed": True}
    exact = egcam.explain(model, images, "superpixel-shapley", 1, **options)
    away = []
    for seed in range(20):
        found = egcam.explain(model, images, "superpixel-shapley", 1, samples=100, seed=seed, **options)
        assert found.passes == 1 + 1 + 7 * 14
        torch.testing.assert_close(found.completeness.gap, torch.zeros(1, dtype=torch.float64), rtol=0, atol=1e-10)
        away.append(((found.maps - exact.maps) / found.error)[0, ::2, ::2])
    spread = torch.stack(away).square().mean().sqrt()
    assert 0.7 < float(spread) < 2.2, "with seven pairs, Student's t has a deviation of 1.2"
    more = egcam.explain(model, images, "superpixel-shapley", 1, samples=240, **options)
    assert float(more.error.mean()) < float(found.error.mean())
    with pytest.raises(MethodError, match="8 superpixels need at least 30 samples"):
        egcam.explain(model, images, "superpixel-shapley", 1, samples=20, **options)


def test_superpixels_of_the_image_itself_are_no_more_than_asked_for() -> None:
    pytest.importorskip("skimage")
    picture = nn.functional.interpolate(torch.rand(1, 3, 5, 5), 40, mode="bicubic")
    box = egcam.black_box(lambda pixels: pixels.mean((1, 2, 3)))
    found = egcam.explain(box, picture, "superpixel-shapley", 0, reference=egcam.references.constant(0.0), signed=True)
    values = found.maps.unique()
    assert 2 < len(values) <= 10
    assert found.passes <= 1024
    # The mean of all pixels is additive: each superpixel is worth its part of it.
    for value in values:
        torch.testing.assert_close(value * 3 * 1600, picture[0].sum(0)[found.maps[0] == value].mean(), **EXACT)
