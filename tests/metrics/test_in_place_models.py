"""Models that normalise their input in place: the same scores as without, and the user's images stay as they are."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam import metrics
from egcam.evaluation.evaluate import evaluate
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier
from egcam.saturation_check.measure import saturation
from metrics.conftest import measured

NAMES = [name for name in metrics.names() if "model" in metrics.metric(name).needs and name != "running-time"]
SIZE, COUNT = 8, 3
# Every permutation runs the tail once for each cell; what the model does to its input is the same in all of them.
FEW = {"shapley-agreement": {"samples": 2, "permutations": 2}}


class Normalising(nn.Module):
    """A classifier that normalises what it is given, in place or not; `with_view` refuses the channels-last layout."""

    def __init__(self, in_place: bool, channels: int, with_view: bool = False) -> None:
        super().__init__()
        self.in_place, self.with_view = in_place, with_view
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv = nn.Conv2d(channels, 4, 3, padding=1)
            self.head = nn.Linear(4 * SIZE**2, 4)

    def forward(self, images: Tensor) -> Tensor:
        seen = images.sub_(0.4).div_(0.2) if self.in_place else (images - 0.4) / 0.2
        hidden = self.conv(seen).tanh()
        return self.head(hidden.view(len(hidden), -1) if self.with_view else hidden.flatten(1))


def bright(model: nn.Module):
    """A callable explainer that runs the model on just what it is given."""

    def explain(images: Tensor, target: object) -> Tensor:
        maps = images.mean(1) + 2
        model(images)
        return maps

    return explain


def pictures(channels: int) -> Tensor:
    return torch.rand(COUNT, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def score(name: str, model: nn.Module, images: Tensor, **options: object) -> Tensor:
    one = metrics.metric(name)
    given = bright if name.endswith("model-randomization") else bright(model)
    maps = torch.rand(COUNT, SIZE, SIZE, generator=torch.Generator().manual_seed(2))
    last = given if "explainer" in one.needs else maps
    quarters = torch.arange(SIZE)[:, None] // 4 * 2 + torch.arange(SIZE) // 4
    more = {"segments": quarters} if name == "irof" else FEW.get(name, {})
    return measured(one, model, images, last, **more, **options)


@pytest.mark.parametrize("with_view", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_metrics(name, channels, with_view):
    images = pictures(channels)
    for target in (None, 1, torch.tensor([2, 0, 1])):
        plain = score(name, Normalising(False, channels, with_view), images, target=target, batch_size=2)
        found = score(name, Normalising(True, channels, with_view), images, target=target, batch_size=2)
        assert torch.equal(images, pictures(channels))
        torch.testing.assert_close(found, plain, rtol=0, atol=0)


def test_running_time_leaves_the_images():
    images = pictures(3)
    model = Normalising(True, 3)
    metrics.RunningTime(repeats=2)(model, images, bright(model))
    assert torch.equal(images, pictures(3))


def test_evaluate():
    names = [name for name in NAMES if name != "irof" and not name.endswith("model-randomization")]
    tables = []
    for in_place in (False, True):
        images, model = pictures(3), Normalising(in_place, 3)
        methods = {"own": bright(model), "grad-cam": "grad-cam"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = {"method_options": {"grad-cam": {"signed": True}}, "metric_options": FEW}
            table = evaluate(model, images, methods, names, batch_size=2, **given)
        tables.append([(row.method, row.metric, row.value, row.cause) for row in table.rows])
        assert torch.equal(images, pictures(3))
    assert repr(tables[0]) == repr(tables[1])


def test_saturation_and_predictions():
    found = []
    for in_place in (False, True):
        images, model = pictures(3), Normalising(in_place, 3)
        curves = saturation(model, images, "conv", steps=4)
        classifier = Classifier(model, "small", list("abcd"), Preprocessing((SIZE, SIZE), SIZE))
        chances = torch.tensor([one.probability for one in classifier.predict(images[:1])])
        found.append([curves.probability[:, -1], curves.logit, chances])
        assert torch.equal(images, pictures(3))
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, rtol=0, atol=0)
    expected = Normalising(False, 3).eval()(pictures(3)).softmax(1).amax(1)
    torch.testing.assert_close(found[1][0], expected.detach())


def test_explanations_of_an_in_place_model_are_scored_like_any_other():
    images = pictures(3)
    plain, other = (egcam.explain(Normalising(kind, 3), images, "grad-cam", 1, signed=True) for kind in (False, True))
    assert torch.equal(plain.maps, other.maps)
    assert torch.equal(
        metrics.Deletion()(Normalising(False, 3), images, plain.heatmaps, 1),
        metrics.Deletion()(Normalising(True, 3), images, other.heatmaps, 1),
    )
