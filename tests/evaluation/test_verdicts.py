"""Verdicts hold for whatever differences are like: the test by hand, and how often whole tables err."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, nan

import numpy as np
import pytest
from scipy import stats

from egcam.errors import MethodError
from egcam.evaluation.controls import not_ahead
from egcam.evaluation.signs import heads, holm, medians, sign_p
from egcam.evaluation.stats import beyond, intervals, is_rough, skewness, summarised
from egcam.evaluation.table import Table
from egcam.metrics.registry import records

METRICS = tuple([one.name for one in records() if not one.many_ties][:9])
RIVALS = tuple(f"rival {number}" for number in range(9))


def table(differences: np.ndarray, metrics: tuple[str, ...] = METRICS) -> Table:
    """From (N, rivals, metrics) differences to a baseline that has 0 everywhere."""
    images, rivals, _ = differences.shape
    methods = ("baseline", *RIVALS[:rivals])
    values = np.concatenate([np.zeros((images, 1, len(metrics))), differences], 1).transpose(1, 2, 0)
    nothing = np.full(values.shape, None)
    return Table(values, methods, metrics, tuple(range(images)), np.zeros(values.shape), nothing)


# The test


def test_p_values_by_hand() -> None:
    differences = np.array([[1.0, 1.0, 0.0, 2.0], [2.0, 5.0, 0.0, nan], [3.0, 3.0, 0.0, nan], [4.0, 9.0, 0.0, nan],
                            [5.0, 0.0, 0.0, nan], [60.0, -1.0, 0.0, nan], [7.0, 2.0, 0.0, nan]])  # fmt: skip
    # 7 of 7; 5 of 7 above 0, 1 below and 1 on it; none; 1 of 1.
    five_or_more = (comb(7, 5) + comb(7, 6) + 1) / 2**7
    assert sign_p(differences).tolist() == pytest.approx([2 / 2**7, 2 * five_or_more, 1.0, 1.0])
    # The tie left out: 5 of 6.
    assert sign_p(differences, True).tolist() == pytest.approx([2 / 2**7, 2 * 7 / 2**6, 1.0, 1.0])
    assert sign_p(-differences).tolist() == pytest.approx(sign_p(differences).tolist())
    mixed = sign_p(differences, np.array([False, True, False, False]))
    assert mixed.tolist() == pytest.approx([2 / 2**7, 2 * 7 / 2**6, 1.0, 1.0])
    assert np.isnan(sign_p(np.full((3, 1), nan)))[0]


@pytest.mark.parametrize("coins", [1, 12, 80, 5000])
def test_heads_are_binomial(coins: int) -> None:
    np.testing.assert_allclose(heads(coins), stats.binom.sf(np.arange(-1, coins), coins, 0.5), rtol=1e-9, atol=1e-300)


def test_intervals_of_medians_by_hand() -> None:
    values = np.array([3.0, -1.0, 8.0, 2.0, 7.0, 1.0, 30.0, 4.0, 5.0])
    columns = np.stack([values, np.where(values > 20, nan, values), np.where(values < 5, values, nan)], 1)
    middle, low, high = medians(columns)
    # Of 9, 2 P(heads >= 8) = 0.039: second and eighth. Of 8, 2 P(8) = 0.008 and 2 P(7 or 8) = 0.070: first and last.
    assert middle.tolist() == [4.0, 3.5, 2.0]
    assert low.tolist() == pytest.approx([1.0, -1.0, nan], nan_ok=True)
    assert high.tolist() == pytest.approx([8.0, 8.0, nan], nan_ok=True)


def test_an_interval_leaves_out_0_where_p_is_small() -> None:
    rng = np.random.default_rng(0)
    for images in (5, 6, 9, 20, 33):
        columns = rng.normal(0.4, 1, (images, 200)).round(1)
        _, low, high = medians(columns)
        np.testing.assert_array_equal((low > 0) | (high < 0), sign_p(columns) <= 0.05)


def test_holm_by_hand() -> None:
    assert holm(np.array([0.04, 0.01, 0.02, 0.5])).tolist() == pytest.approx([0.08, 0.04, 0.06, 0.5])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    grid = holm(np.array([[0.01, np.nan], [0.02, 0.03]]))
    assert grid[0].tolist() == pytest.approx([0.03, nan], nan_ok=True)
    assert np.isnan(holm(np.array([np.nan]))).all()
    # Weights 2, 1, 1: p / w is .01, .01, .03; then .01 * 4, .01 * 2 raised to that, .03 * 1 raised to that.
    assert holm(np.array([0.02, 0.01, 0.03]), np.array([2.0, 1.0, 1.0])).tolist() == pytest.approx([0.04, 0.04, 0.04])
    assert holm(np.array([0.02, 0.3, 0.01]), np.array([2.0, 1.0, 1.0])).tolist() == pytest.approx([0.04, 0.3, 0.04])


def test_a_primary_metric_has_one_half_of_the_five_per_cent() -> None:
    """Ten images that are all better by the first of three metrics: p = 2 / 1024 of each of three rivals."""
    signs = np.ones((10, 3, 3))
    signs[:5, :, 1:] = -1
    metrics = ("insertion", "deletion", "sparseness")
    of = table(signs, metrics)
    # All nine are one family; the three by the primary metric have a half of 5 %, as one of six; the six others, too.
    for primary, factor in ((None, 9), ("insertion", 2 * 3), ("deletion", 2 * 6)):
        found = summarised(of, "baseline", primary=primary)
        p_values = [found.line("insertion", rival).p for rival in RIVALS[:3]]
        assert p_values == pytest.approx([factor * 2 / 1024] * 3), primary
        assert {found.line("deletion", rival).p for rival in RIVALS[:3]} == {1.0}
    # What is shown by the primary metric passes its half on: the others then share all of it.
    signs[:, :, 2] = 1
    found = summarised(table(signs, metrics), "baseline", primary="insertion")
    assert found.line("sparseness", RIVALS[0]).p == pytest.approx(6 * 2 / 1024)
    signs[0, :, 2] = -1
    found = summarised(table(signs, metrics), "baseline", primary="insertion")
    assert found.line("sparseness", RIVALS[0]).p == pytest.approx(6 * 2 * 11 / 1024)


# Whole tables


SKEWED: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "t2": lambda rng, shape: rng.standard_t(2, shape),
    "lognormal": lambda rng, shape: rng.lognormal(size=shape) - 1,
    "two points": lambda rng, shape: 10.0 * (rng.random(shape) < 0.1),
}


@pytest.mark.parametrize("images", [12, 20, 50])
@pytest.mark.parametrize("kind", SKEWED)
def test_a_table_without_differences_seldom_has_a_verdict(kind: str, images: int) -> None:
    """81 comparisons of median 0. Turned signs erred in all tables of fifty lognormal differences."""
    rng = np.random.default_rng(images)
    tables = 60
    wrong = {None: 0, METRICS[0]: 0}
    for _ in range(tables):
        made = table(SKEWED[kind](rng, (images, 9, 9)))
        for primary in wrong:
            lines = summarised(made, "baseline", resamples=2, primary=primary).lines
            wrong[primary] += any(line.verdict in ("ahead", "behind") for line in lines)
    # At most .05 is promised; eight of 60 are three standard errors more.
    assert all(count <= 8 for count in wrong.values()), wrong


def test_hits_and_misses_are_compared_by_images_on_which_methods_differ() -> None:
    """Twelve of a hundred images better and none worse: the median difference is 0, and the shares of hits differ."""
    differences = np.zeros((100, 1, 1))
    differences[:12] = 1.0
    hit = summarised(table(differences, ("pointing-game",)), "baseline").line("pointing-game", RIVALS[0])
    assert (hit.verdict, hit.difference, hit.p) == ("ahead", 0.12, pytest.approx(2 / 2**12))
    assert 0 < hit.difference_low < 0.12 < hit.difference_high
    plain = summarised(table(differences, ("insertion",)), "baseline").line("insertion", RIVALS[0])
    assert (plain.verdict, plain.difference, plain.p) == ("no difference shown", 0.0, 1.0)
    assert {one.name for one in records() if one.many_ties} == {
        "pointing-game", "top-k-intersection", "relevance-rank-accuracy",
        "increase-in-confidence", "average-drop", "average-gain",
    }  # fmt: skip


def test_an_outlier_does_not_decide() -> None:
    """Better on nineteen of twenty images, and far worse on one: the mean is worse, the verdict is ahead."""
    differences = np.linspace(0.1, 0.3, 20)[:, None, None].copy()
    differences[7] = -100.0
    line = summarised(table(differences, ("insertion",)), "baseline").line("insertion", RIVALS[0])
    assert line.mean < 0
    assert (line.verdict, line.p) == ("ahead", pytest.approx(2 * 21 / 2**20))
    assert line.difference == pytest.approx(np.median(differences))
    behind = summarised(table(differences, ("deletion",)), "baseline").line("deletion", RIVALS[0])
    assert behind.verdict == "behind"


def test_five_images_are_too_few() -> None:
    differences = 1 + np.arange(6.0)[:, None, None]
    five, six = (
        summarised(table(differences[:count], ("insertion",)), "baseline").line("insertion", RIVALS[0])
        for count in (5, 6)
    )
    assert (five.verdict, six.verdict) == ("too few images", "ahead")
    assert np.isnan(five.difference_low)
    assert (six.difference_low, six.difference_high) == (1.0, 6.0)


def test_controls_are_beaten_by_signs_and_by_several_methods_seldom() -> None:
    """Lognormal differences to the control, of median 0: where signs are turned, most tables have a method ahead."""
    rng = np.random.default_rng(0)
    beaten = 0
    for _ in range(200):
        scores = {name: rng.lognormal(size=30) - 1 for name in RIVALS}
        beaten += len(not_ahead({**scores, "random": np.zeros(30)}, True)) < len(RIVALS)
    assert beaten <= 14


# Intervals of means


@pytest.mark.parametrize("images", [8, 10, 20, 50])
def test_intervals_of_means_are_as_wide_as_students(images: int) -> None:
    t = stats.t.ppf(0.975, images - 1)
    assert beyond(images) == pytest.approx(stats.norm.sf(np.sqrt(images / (images - 1)) * t), rel=5e-3)
    low, high = intervals(np.random.default_rng(images).standard_normal((images, 3000)))
    assert 0.93 <= ((low <= 0) & (high >= 0)).mean() <= 0.965


@pytest.mark.parametrize("images", [10, 20, 50])
def test_intervals_that_are_too_narrow_are_said_to_be(images: int) -> None:
    rng = np.random.default_rng(images)
    plain, skewed = rng.standard_normal((200, images, 10)), rng.lognormal(size=(200, images, 10))
    assert np.mean([is_rough(one) for one in plain]) < 0.02
    assert np.mean([is_rough(one) for one in skewed]) > 0.95
    assert is_rough(plain[0, :5])
    assert not is_rough(np.full((9, 2), nan))
    np.testing.assert_allclose(skewness(skewed[0]), stats.skew(skewed[0]))
    made = summarised(table(np.log(skewed[0])[:, :9, None], ("insertion",)), "baseline")
    assert not any(line.rough for line in made.lines)
    made = summarised(table(skewed[0][:, :9, None], ("insertion",)), "baseline")
    assert all(line.rough for line in made.lines)


def test_a_baseline_must_be_a_method() -> None:
    with pytest.raises(MethodError, match="did you mean"):
        table(np.ones((6, 1, 1)), ("insertion",)).summary("baselin")
