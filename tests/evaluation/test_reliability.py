"""How reliable metrics are, against the analysis of variance by hand and the truth it estimates."""

from __future__ import annotations

import numpy as np
import pytest

from egcam.evaluation.stats import reliability


def test_by_formula_and_at_its_ends() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(7, 6)) + np.arange(6)
    between = 7 * scores.mean(0).var(ddof=1)
    rest = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    expected = 1 - 3 / 5 * ((rest**2).sum() / (6 * 5)) / between
    assert reliability(scores) == pytest.approx(expected)
    # An image that one method has no score for counts for none; images may be easy or hard.
    more = np.concatenate([scores + rng.normal(size=(7, 1)), [[np.nan, 9.0, 9.0, 9.0, 9.0, 9.0]]])
    assert reliability(more) == pytest.approx(expected)
    assert reliability(np.tile(np.arange(5.0), (10, 1))) == pytest.approx(1.0)
    assert reliability(np.full((10, 5), 0.1)) == 0.0
    assert reliability(np.tile(rng.normal(size=(10, 1)), (1, 5))) == 0.0
    assert np.isnan(reliability(np.ones((3, 5))))
    assert np.isnan(reliability(np.ones((9, 4))))


@pytest.mark.parametrize("methods", [8, 12])
def test_it_is_the_correlation_with_other_images_on_average(methods: int) -> None:
    """.44 of the variance of the means is no noise; halving the images at random says .26 to .37."""
    rng = np.random.default_rng(methods)
    found, true = [], []
    for _ in range(600):
        effects = np.sqrt(0.44 / 0.56 / 24) * rng.normal(size=methods)
        first, second = (effects + rng.normal(size=(24, methods)) for _ in range(2))
        found.append(reliability(first))
        true.append(np.corrcoef(first.mean(0), second.mean(0))[0, 1])
    assert np.mean(found) == pytest.approx(0.44, abs=0.05)
    assert np.mean(found) == pytest.approx(np.mean(true), abs=0.05)
