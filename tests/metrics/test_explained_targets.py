"""An explanation knows its classes: a metric that is told no target scores those, not the predictions."""

from __future__ import annotations

import warnings

import pytest
import torch

import egcam
from egcam import metrics
from egcam.errors import TargetError
from egcam.metrics.registry import records
from metrics.conftest import measured
from metrics.test_invariances import OPTIONS, explain

OF_MAPS = [one.name for one in records() if one.needs == ("model", "heatmaps") and one.name != "sufficiency"]
OF_BOTH = [one.name for one in records() if one.reuses_maps]


def explained(scene, target):
    return egcam.explain(scene.model, scene.images, "grad-cam", target, layer="4", signed=True)


def other_classes(scene) -> torch.Tensor:
    """For each image a class that is not the predicted one."""
    with torch.no_grad():
        return (scene.model(scene.images).argmax(1) + torch.tensor([1, 2, 3])) % 4


def score(name, scene, explanation, **target):
    one = metrics.metric(name)
    if name in OF_BOTH:
        return measured(one, scene.model, scene.images, explain, heatmaps=explanation, **target)
    return measured(one, scene.model, scene.images, explanation, **OPTIONS.get(name, {}), **target)


def without_classes(name, explanation):
    """The heat maps alone; in a layer's space the map counts as it was made, so that needs all of it."""
    in_layer = ("shapley-agreement", "layer-insertion", "layer-deletion")
    return explanation if name in in_layer else explanation.heatmaps


@pytest.mark.parametrize("name", [*OF_MAPS, *OF_BOTH])
def test_the_explained_classes_are_scored(name, scene, tmp_path):
    explanation = explained(scene, other_classes(scene))
    expected = score(name, scene, without_classes(name, explanation), target=explanation.targets)
    torch.testing.assert_close(score(name, scene, explanation), expected, rtol=0, atol=0)
    loaded = egcam.Explanation.load(explanation.save(tmp_path))
    torch.testing.assert_close(score(name, scene, loaded), expected, rtol=0, atol=0)


def test_the_score_is_that_of_the_explained_class(scene):
    explanation = explained(scene, other_classes(scene))
    with torch.no_grad():
        chances = scene.model(scene.images).softmax(1).gather(1, other_classes(scene)[:, None])[:, 0]
    curve = metrics.Deletion().curve(metrics.Case(scene.model, scene.images, explanation))
    torch.testing.assert_close(curve.scores[:, 0], chances)
    inserted, deleted = metrics.InsertionDeletion().curves(metrics.Case(scene.model, scene.images, explanation))
    torch.testing.assert_close(inserted.scores[:, -1], chances)
    torch.testing.assert_close(deleted.scores[:, 0], chances)


@pytest.mark.parametrize("name", [*OF_MAPS, *OF_BOTH])
def test_a_target_that_is_given_counts(name, scene):
    explanation = explained(scene, other_classes(scene))
    expected = score(name, scene, without_classes(name, explanation), target=scene.target)
    torch.testing.assert_close(score(name, scene, explanation, target=scene.target), expected, rtol=0, atol=0)


def test_maps_alone_are_scored_for_the_prediction(scene):
    explanation = explained(scene, other_classes(scene))
    with torch.no_grad():
        predicted = scene.model(scene.images).argmax(1)
    found = metrics.Deletion()(scene.model, scene.images, explanation.heatmaps)
    assert torch.equal(found, metrics.Deletion()(scene.model, scene.images, explanation.heatmaps, predicted))


@pytest.mark.parametrize("name", [*OF_MAPS, *OF_BOTH])
def test_a_callable_target_has_to_be_given_again(name, scene):
    def third(output):
        return output[:, 2]

    explanation = explained(scene, third)
    with pytest.raises(TargetError, match=r"explained a callable target.*pass target="):
        score(name, scene, explanation)
    if name in OF_MAPS:
        assert score(name, scene, explanation, target=third).isfinite().all()


def test_what_needs_no_target_takes_explanations_of_callables(scene):
    explanation = explained(scene, lambda output: output[:, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = metrics.Sufficiency()(scene.model, scene.images, explanation)
        assert torch.equal(found, metrics.Sufficiency()(scene.model, scene.images, explanation.heatmaps))
        metrics.Sparseness()(explanation)
    assert torch.equal(
        metrics.Infidelity().of(metrics.Case(scene.model, scene.images, target=2).explained(explanation)),
        metrics.Infidelity()(scene.model, scene.images, explanation.heatmaps, 2),
    )
