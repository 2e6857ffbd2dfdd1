"""Corrections for many comparisons and the reliability of metrics, against numbers worked out by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from egcam.evaluation.stats import holm, sign_flip_p, split_half_reliability


def test_holm_by_hand() -> None:
    assert holm(np.array([0.04, 0.01, 0.02, 0.5])).tolist() == pytest.approx([0.08, 0.04, 0.06, 0.5])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    grid = holm(np.array([[0.01, np.nan], [0.02, 0.03]]))
    assert grid[0, 0] == pytest.approx(0.03)
    assert np.isnan(grid[0, 1])
    assert holm(np.array([np.nan])).tolist() != [1.0]


def test_sign_flips_against_all_of_them() -> None:
    differences = np.array([[0.4, -0.1], [0.3, 0.2], [-0.1, 0.05], [0.5, -0.3], [0.2, 0.1], [np.nan, 0.2]])
    for column in range(2):
        values = differences[:, column][np.isfinite(differences[:, column])]
        flipped = [abs(np.dot(signs, values)) for signs in product([-1, 1], repeat=len(values))]
        exact = np.mean(np.array(flipped) >= abs(values.sum()) - 1e-12)
        found = sign_flip_p(differences, resamples=20_000)[column]
        assert found == pytest.approx(exact, abs=0.01)
    assert np.isnan(sign_flip_p(np.full((3, 1), np.nan)))[0]


def test_split_half_by_formula_and_extremes() -> None:
    rng = np.random.default_rng(1)
    methods = np.array([0.0, 0.2, 0.4, 0.9])
    assert split_half_reliability(np.tile(methods, (10, 1))) == pytest.approx(1.0)
    assert split_half_reliability(np.ones((10, 4))) == 0.0
    weak, strong = (split_half_reliability(size * methods + rng.normal(size=(60, 4))) for size in (0.3, 5))
    assert weak < strong
    assert strong > 0.95
    assert np.isnan(split_half_reliability(np.ones((3, 4))))
    assert np.isnan(split_half_reliability(np.ones((9, 2))))
