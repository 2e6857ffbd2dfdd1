"""One output, explained in comparison: what the map of an age, a rank or a risk adds up to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import egcam
from support.networks import pictures, smooth_everywhere

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = {"rtol": 0.0, "atol": 1e-10}


def with_outputs(count: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(smooth_everywhere(), nn.Linear(3, count).double())


def test_an_age_is_compared_with_the_mean_age_of_the_references() -> None:
    model, images, others = with_outputs(1), pictures(2), pictures(4, seed=9)
    why = egcam.explain(model, images, layer="0.features", reference=others, classes=["age"], signed=True)
    with torch.no_grad():
        ages, mean = model(images)[:, 0], model(others).mean()
    torch.testing.assert_close(why.scores, ages, **EXACT)
    torch.testing.assert_close(why.scores - why.completeness.expected, mean.expand(2), **EXACT)
    torch.testing.assert_close(why.maps.sum((1, 2)), ages - mean, **EXACT)
    assert why.label() == "age"


def test_a_rank_is_compared_with_another_image() -> None:
    model, (first, second) = with_outputs(1), pictures(2).split(1)
    why = egcam.explain(model, first, layer="0.features", reference=second, signed=True)
    back = egcam.explain(model, second, layer="0.features", reference=first, signed=True)
    with torch.no_grad():
        torch.testing.assert_close(why.maps.sum(), (model(first) - model(second)).sum(), **EXACT)
    torch.testing.assert_close(why.maps, -back.maps, **EXACT)  # and nothing is left of the other reference
    with torch.no_grad():
        second.mul_(0.5)  # the user's own images, written to between two calls
        again = egcam.explain(model, first, layer="0.features", reference=second, signed=True)
        torch.testing.assert_close(again.maps.sum(), (model(first) - model(second)).sum(), **EXACT)


def test_the_chance_to_survive_is_a_target() -> None:
    model, images, others = with_outputs(7), pictures(2), pictures(4, seed=9)

    def survival(hazards: Tensor) -> Tensor:
        return -softplus(hazards[:, :5]).sum(1)

    why = egcam.explain(model, images, target=survival, layer="0.features", reference=others, signed=True)
    with torch.no_grad():
        truth = survival(model(images)) - survival(model(others)).mean()
        stepwise = (1 - model(images)[:, :5].sigmoid()).log().sum(1)
    torch.testing.assert_close(why.maps.sum((1, 2)), truth, **EXACT)
    torch.testing.assert_close(why.scores, stepwise, **EXACT)
