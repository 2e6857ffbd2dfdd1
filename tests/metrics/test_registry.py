"""A metric of one's own: registered once, known everywhere; what cannot be registered is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass

import pytest
import torch

from egcam import metrics
from egcam.evaluation.evaluate import evaluate
from egcam.metrics.registry import MetricError
from metrics.conftest import Counting, measured

ABOUT = {"group": "robustness", "better": "lower", "label": "Dim", "meaning": "What a darker image loses."}


@dataclass(frozen=True)
class Dimmed(metrics.ModelMetric):
    """The class score lost when the image is made darker; lower is better."""

    light: float = 0.5

    def scores(self, case):
        scorer = case.scorer("probability")
        everyone = torch.arange(len(case.images))
        case.undefined(scorer.clean < 0.05, "the class has no chance to begin with")
        return scorer.clean - scorer.altered(everyone, lambda part: self.light * case.images[part])


@pytest.fixture
def dimmed() -> Iterator[type[metrics.Metric]]:
    yield metrics.register("dimmed-light", **ABOUT)(Dimmed)
    metrics.unregister("dimmed-light")


def by_hand(scene, light):
    with torch.no_grad():
        before, after = (scene.model(images).softmax(1) for images in (scene.images, light * scene.images))
    chosen = scene.target[:, None]
    return (before - after).gather(1, chosen)[:, 0], before.gather(1, chosen)[:, 0]


def test_it_is_called_and_a_column_of_the_table(scene, dimmed):
    expected, chances = by_hand(scene, 0.25)
    expected = torch.where(chances < 0.05, math.nan, expected)
    assert expected.isfinite().any()
    with metrics.causes_collected():
        found = measured(dimmed, scene.model, scene.images, scene.maps, scene.target, light=0.25)
    torch.testing.assert_close(found, expected, equal_nan=True)
    counting = Counting(scene.model)
    table = evaluate(
        counting,
        scene.images,
        {"m": lambda images, target: images.mean(1)},
        ["dimmed-light", "sparseness"],
        scene.target,
        metric_options={"dimmed_light": {"light": 0.25}},
    )
    torch.testing.assert_close(torch.from_numpy(table.values("m", "dimmed-light")), expected, equal_nan=True)
    assert counting.seen == 3 * 2
    assert "Dim ↓" in table.to_markdown()


def test_what_is_known_of_it(dimmed):
    found = metrics.metric("Dimmed_Light")
    assert (found.title, found.arrow, found.higher_is_better, found.paper) == ("Dimmed light", "↓", False, False)
    assert found.needs == ("model", "heatmaps")
    assert found.options() == ("light",)
    with pytest.raises(MetricError, match=r"dimmed-light has no option 'lihgt'; did you mean 'light'"):
        metrics.make("dimmed-light", lihgt=1)


def test_what_cannot_be_registered_is_refused(dimmed):
    class Plain(metrics.Metric):
        def scores(self, case):
            return case.maps.sum((1, 2))

    for name, about, kind in (
        ("dimmed-light", ABOUT, Dimmed),
        ("deletion", ABOUT, Dimmed),
        ("Dimmed_Two", ABOUT, Dimmed),
        ("dimmed-two", ABOUT | {"better": "more"}, Dimmed),
        ("dimmed-two", ABOUT | {"group": "robustnes"}, Dimmed),
        ("dimmed-two", ABOUT, Plain),
        ("dimmed-two", ABOUT, lambda case: case.maps),
    ):
        with pytest.raises(MetricError):
            metrics.register(name, **about)(kind)
    assert "dimmed-two" not in metrics.names()


@pytest.mark.parametrize("name", metrics.names())
def test_every_metric_is_a_frozen_record_that_says_what_it_is(name):
    kind = metrics.metric(name)
    assert kind.meaning.endswith(".")
    assert len(kind.title) >= len(kind.label) or kind.label in ("s/img", "Ins-Del")
    assert set(kind.paper_options) <= {field.name for field in fields(kind)}
    assert (kind.__doc__ or "").splitlines()[0].endswith(f"{kind.direction} is better.")
    said = "".join(base.__doc__ or "" for base in kind.__mro__ if is_dataclass(base))
    for field in fields(kind):
        assert f"    {field.name}: " in said, field.name
        with pytest.raises(FrozenInstanceError):
            setattr(kind(), field.name, None)


def test_the_papers_protocol_is_other_options(scene):
    paper = metrics.make("pixel-flipping", "paper", step=12)
    assert paper == metrics.PixelFlipping(step=12, baseline="darkest", quantus=True)
    curve = paper.curve(metrics.Case(scene.model, scene.images, scene.maps))
    expected = torch.trapezoid(curve.scores[:, 1:], dx=1.0)
    torch.testing.assert_close(paper(scene.model, scene.images, scene.maps), expected)
