"""Paired tables, whole-set metrics from kept maps, and the tidy frame."""

from __future__ import annotations

import json
from math import isnan

import numpy as np
import pytest
import torch
from torch import nn

import egcam
from egcam.metrics.faithfulness import Sufficiency, sufficiency_of
from egcam.metrics.registry import MetricError
from egcam.studies.manifest import Manifest, ModelRecord
from egcam.studies.records import Outcome, Unit
from egcam.studies.results import Results, ResultsError
from egcam.studies.specs import MetricSpec
from egcam.studies.store import Store
from support.results_in_memory import METHODS, METRICS, InMemory, keys, made, study


def value(model, method, metric, image):
    return 100 * METHODS.index(method) + 10 * METRICS.index(metric) + image


def test_tables_hold_the_scores_in_the_order_of_images():
    results = Results.of(made(study(), 4, value))
    table = results.table("net")
    assert table.values("layer-cam", "deletion").tolist() == [110, 111, 112, 113]
    summary = table.summary("grad-cam", resamples=10).set_index(["metric", "method"])
    assert summary.loc[("sparseness", "slope-cam"), "mean"] == 221.5
    assert summary.loc[("sparseness", "slope-cam"), "difference"] == 200
    assert results.complete
    assert not results.failures


def test_an_image_some_method_has_not_finished_is_in_no_mean():
    results = Results.of(made(study(), 4, value, without=[Unit("net", "layer-cam", 1)]))
    table = results.table("net")
    assert results.images("net") == (0, 2, 3)
    for method in METHODS:
        first = value("net", method, "insertion", 0)
        assert table.values(method, "insertion").tolist() == [first, first + 2, first + 3]
    assert not results.complete


def test_failed_units_are_done_without_a_score():
    source = made(study(), 3, value, broken={Unit("net", "grad-cam", 2): "the worker died"})
    results = Results.of(source)
    assert results.complete
    assert results.images("net") == (0, 1, 2)
    assert results.failures == [(Unit("net", "grad-cam", 2), "the worker died")]
    values = results.table("net").values("grad-cam", "insertion")
    assert values[:2].tolist() == [0, 1]
    assert isnan(values[2])
    assert set(results.table("net").causes["cause"]) == {"the worker died"}


def test_models_are_paired_each_by_itself():
    source = made(study(models=("a", "b")), 3, value, without=[Unit("b", "grad-cam", 0)])
    results = Results.of(source)
    assert (results.images("a"), results.images("b")) == ((0, 1, 2), (1, 2))
    assert list(results.tables) == ["a", "b"]


def test_unknown_and_empty_models():
    results = Results.of(made(study(), 2, value, without=[Unit("net", "grad-cam", image) for image in (0, 1)]))
    with pytest.raises(ResultsError, match=r"no image is done by all 3 methods on net yet: 4 of 6 units"):
        results.table("net")
    with pytest.raises(ResultsError, match=r"did you mean 'net'"):
        results.table("nett")
    assert results.tables == {}


def test_a_plugins_metric_that_is_not_loaded_is_named_with_the_way_to_load_it():
    mine = study(metrics=("sparseness", "of-my-own"), plugins=("somewhere/mine.py", "other.py"))
    with pytest.raises(ResultsError, match=r"egcam --plugin mine\.py --plugin other\.py study .* 'of-my-own'"):
        _ = Results.of(made(mine, 2, lambda *_: 1.0)).metrics
    without = study(metrics=("sparsenes",))
    with pytest.raises(MetricError, match="did you mean 'sparseness'"):
        _ = Results.of(made(without, 2, lambda *_: 1.0)).metrics


def test_the_frame_has_every_score_with_its_image():
    source = made(study(), 2, value, without=[Unit("net", "grad-cam", 1)])
    frame = Results.of(source).frame
    assert list(frame.columns) == [
        "model", "image", "name", "method", "metric", "value", "seconds", "cause", "target", "prediction",
    ]  # fmt: skip
    # Also of the image that grad-cam has not finished.
    assert len(frame) == 5 * 3
    row = frame[(frame.image == 1) & (frame.method == "layer-cam") & (frame.metric == "deletion")].iloc[0]
    assert (row.value, row["name"], row.target, row.prediction, row.seconds) == (111, "1.png", 3, 4, 0.1)


# Metrics of the whole set


@pytest.fixture
def network():
    """A network that names an image's strongest colour, and images of all three; no map of it is zero."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.ReLU(), nn.AvgPool2d(4),
        nn.Conv2d(6, 6, 3, padding=1, groups=3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for weight in net.parameters():
            weight.abs_()
        net[-1].weight.copy_(torch.eye(3).repeat_interleave(2, 1) + 0.05)
    images = torch.rand(12, 3, 16, 16)
    images[torch.arange(12), torch.arange(12) * 5 % 3] *= 1.5
    assert len(net(images).argmax(1).unique()) > 1
    return net, images


def explained(network, methods, metrics, threshold):
    """A source with the maps and predictions of a network, without its sufficiency."""
    net, images = network
    options = {"threshold": threshold}
    specs = tuple(MetricSpec(name, options if name == "sufficiency" else {}) for name in metrics)
    of = study(methods, specs)
    source = InMemory(of, [], len(methods) * len(images), models={"net": ModelRecord("", 0, "", (16, 16))})
    predictions = net(images).argmax(1)
    for method in methods:
        maps = egcam.explain(net, images, method=method, layer="4").maps
        source.all_maps["net", method] = dict(enumerate(maps.numpy()))
        source.done += [
            Outcome(Unit("net", method, image), str(image), int(predictions[image]), int(predictions[image]), 0.1, ())
            for image in range(len(images))
        ]
    source.done.sort(key=lambda one: (one.unit.image, methods.index(one.unit.method)))
    return source


@pytest.mark.parametrize("threshold", [0.3, 0.6])
def test_sufficiency_from_kept_maps_is_what_evaluate_gives(network, threshold):
    methods = ["grad-cam", "layer-cam", "hires-cam"]
    source = explained(network, methods, ["sufficiency"], threshold)
    table = Results.of(source).table("net")
    expected = egcam.evaluate(
        *network, methods, ["sufficiency"], layer="4", metric_options={"sufficiency": {"threshold": threshold}}
    )
    for method in methods:
        values = expected.values(method, "sufficiency")
        assert 0 < values.mean() < 1
        assert table.values(method, "sufficiency").tolist() == values.tolist()


def test_sufficiency_is_over_the_images_all_methods_have(network):
    net, images = network
    source = explained(network, ["grad-cam", "layer-cam"], ["sufficiency"], 0.3)
    source.done = [one for one in source.done if one.unit != Unit("net", "grad-cam", 5)]
    kept = [image for image in range(12) if image != 5]
    expected = egcam.evaluate(
        net, images[kept], ["layer-cam"], ["sufficiency"], layer="4", metric_options={"sufficiency": {"threshold": 0.3}}
    )
    found = Results.of(source)
    assert found.table("net").values("layer-cam", "sufficiency").tolist() == (
        expected.values("layer-cam", "sufficiency").tolist()
    )
    frame = found.frame
    assert set(frame[frame.method == "layer-cam"].image) == set(kept)


def test_sufficiency_without_maps_says_so(network):
    source = explained(network, ["grad-cam", "layer-cam"], ["sufficiency"], 0.3)
    del source.all_maps["net", "grad-cam"][4]
    source.all_maps["net", "layer-cam"] = {}
    table = Results.of(source).table("net")
    assert np.isnan(table.values("layer-cam", "sufficiency")).all()
    assert np.isnan(table.values("grad-cam", "sufficiency")).nonzero()[0].tolist() == [4]
    assert table.causes["cause"].str.contains("map was not kept").all()


def test_sufficiency_of_equals_sufficiency(network):
    net, images = network
    maps = torch.rand(12, 16, 16)
    maps[2] = float("nan")
    with egcam.metrics.causes_collected() as there:
        expected = Sufficiency(0.9)(net, images, maps)
    with egcam.metrics.causes_collected() as here:
        found = sufficiency_of(maps, net(images).argmax(1), 0.9)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
    assert here == there
    assert 2 in here
    with pytest.raises(egcam.EgcamError, match="12 map"):
        sufficiency_of(maps, torch.zeros(3))


# The real store


def stored(folder, source, sizes=(8, 8)):
    """The same results, written to a store in a folder."""
    of = source.of
    models = {model.label: ModelRecord("0" * 64, 10, "layer4", sizes) for model in of.models}
    manifest = Manifest(of.model_dump(), source.manifest.data, models, source.units, **keys(of))
    store = Store(folder)
    store.begin(manifest)
    with store.lock():
        store.write(source.full())
    return store


def test_results_from_a_folder_are_those_from_memory(tmp_path, network):
    source = explained(network, ["grad-cam", "layer-cam"], ["sufficiency"], 0.6)
    stored(tmp_path / "results", source, (16, 16))
    here, there = Results.of(source), Results.of(str(tmp_path / "results"))
    assert there.study == here.study
    for method in ("grad-cam", "layer-cam"):
        values = here.table("net").values(method, "sufficiency").tolist()
        assert there.table("net").values(method, "sufficiency").tolist() == values
    assert json.loads(there.frame.to_json()) == json.loads(here.frame.to_json())
