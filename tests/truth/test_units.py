"""Unit networks: hand-set weights, values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from egcam import truth
from egcam.truth.units import UNITS, Unit, _shapley_of_parts

BY_HAND = {
    "saturation": [1 / 3, 1 / 3, 1 / 3],
    "cancellation": [1, -1],
    "and": [1 / 2, 1 / 2],
    "or": [1 / 2, 1 / 2],
    "suppressor": [1 / 2, -1 / 2],
    "shared channel": [1, -1],
}
SCORE = {"saturation": 1, "cancellation": 0, "and": 1, "or": 1, "suppressor": 0, "shared channel": 0}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_values_by_hand_add_up_to_the_score(unit: Unit) -> None:
    assert _shapley_of_parts(unit) == pytest.approx(BY_HAND[unit.name])
    images, answer = truth.unit_images(unit, count=3, seed=2)
    scores = truth.UnitNetwork(unit)(images)[:, 0]
    torch.testing.assert_close(scores, torch.full((3,), float(SCORE[unit.name])))
    torch.testing.assert_close(answer.sum((1, 2)), scores, atol=1e-6, rtol=0)
    assert torch.equal(answer != 0, images[:, :2].sum(1) > 0)
    assert images[:, 2].sum((1, 2)).tolist() == [4, 4, 4]  # the distractor


def test_precision_and_recall_of_each_sign() -> None:
    answer = torch.tensor([[[1.0, 1.0, -1.0, 0.0]]])
    half = torch.tensor([[[2.0, 0.01, -1.0, -1.0]]])
    positive, negative = (truth.signed_scores(half, answer, sign) for sign in ("positive", "negative"))
    assert (float(positive.precision), float(positive.recall)) == (1.0, 0.5)
    assert (float(negative.precision), float(negative.recall)) == (0.5, 1.0)
    assert float(positive.f1) == float(negative.f1) == pytest.approx(2 / 3)
    nothing = truth.signed_scores(torch.zeros(1, 1, 4), answer, "positive")
    assert float(nothing.f1) == 0
    assert bool(truth.signed_scores(half, answer.abs(), "negative").f1.isnan())


def test_what_each_kind_of_method_can_find() -> None:
    def found(method: str, sign: str) -> dict[str, float]:
        trials = truth.unit_trials(sign, count=2)
        return {trial.model.unit.name: float(trial.scores(method).mean()) for trial in trials}

    hires = found("hires-cam", "positive")
    # The plain gradient is zero where the output does not move.
    assert [name for name in hires if hires[name] == 0] == ["saturation", "or", "suppressor"]
    assert hires["and"] == hires["cancellation"] == hires["shared channel"] == 1
    # Pooling the gradient loses what one channel says in different places.
    assert found("grad-cam", "positive")["shared channel"] == 0
    assert found("hires-cam", "negative") == {"cancellation": 1, "suppressor": 0, "shared channel": 1}
    # The average over a path sees past saturation.
    integrated = found("integrated-grad-cam", "positive")
    assert min(integrated[name] for name in ("saturation", "or", "and")) > 0.5
    perfect = truth.unit_trials("negative", count=2)
    assert all(trial.score(trial.truth).tolist() == [1, 1] for trial in perfect)
