"""Cases whose score can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from egcam import metrics
from metrics.conftest import measured


class Linear(nn.Module):
    """Logit 0 is <w, x>, logit 1 is 0: every effect of a pixel is known."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, images):
        score = (images * self.weight).flatten(1).sum(1)
        return torch.stack([score, torch.zeros_like(score)], 1)


@pytest.fixture
def linear():
    source = torch.Generator().manual_seed(3)
    weight = torch.randn(1, 8, 8, generator=source, dtype=torch.float64)
    images = torch.rand(2, 1, 8, 8, generator=source, dtype=torch.float64) + 0.1
    return Linear(weight), images, (weight * images)[:, 0], weight.expand(2, 1, 8, 8)[:, 0]


def test_a_linear_model_is_explained_perfectly_by_its_own_terms(linear):
    model, images, terms, weight = linear
    faithful = metrics.FaithfulnessEstimate(step=1, baseline=0.0)(model, images, terms, 0)
    assert torch.allclose(faithful, torch.ones(2, dtype=torch.float64))
    assert torch.allclose(
        metrics.FaithfulnessEstimate(step=1, baseline=0.0)(model, images, -terms, 0),
        -torch.ones(2, dtype=torch.float64),
    )
    assert torch.allclose(
        metrics.SensitivityN(baseline=0.0)(model, images, terms, 0), torch.ones(2, dtype=torch.float64)
    )
    # <w, I> is exactly the drop, whatever replaces the patch.
    for baseline in ("black", "mean", 0.3):
        for scale in ("raw", "best"):
            exact = metrics.Infidelity(scale=scale, baseline=baseline)(model, images, weight, 0)
            assert exact.abs().max() < 1e-20
    assert (metrics.Infidelity(scale="best")(model, images, 3 * weight, 0) < 1e-20).all()
    assert (metrics.Infidelity(scale="raw")(model, images, 3 * weight, 0) > 1e-3).all()


def test_infidelity_of_a_zero_map_is_the_mean_squared_drop(linear):
    model, images, _, weight = linear
    for scale in ("best", "unit-sum", "raw"):
        ours = metrics.Infidelity(scale=scale, patch=4, baseline="darkest")(
            model, images, torch.zeros(2, 8, 8).double(), 0
        )
        change = (images - images.amin((1, 2, 3), keepdim=True))[:, 0] * weight
        drops = change.unfold(1, 4, 4).unfold(2, 4, 4).sum((3, 4)).flatten(1)
        assert torch.allclose(ours, drops.square().mean(1))
        assert torch.allclose(
            metrics.Infidelity(patch=4, baseline="darkest").patch_drops(metrics.Case(model, images, target=0)), drops
        )
        assert torch.allclose(
            metrics.Infidelity(patch=4, baseline="darkest", cumulative=True).patch_drops(
                metrics.Case(model, images, target=0)
            ),
            drops.cumsum(1),
        )


def test_the_best_order_of_a_linear_model_beats_every_other(linear):
    model, images, terms, _ = linear
    source = torch.Generator().manual_seed(0)
    best_out = metrics.Deletion(step=4)(model, images, terms, 0)
    best_in = metrics.Insertion(step=4, baseline="zero")(model, images, terms, 0)
    for _ in range(5):
        other = torch.rand(2, 8, 8, generator=source, dtype=torch.float64)
        assert (metrics.Deletion(step=4)(model, images, other, 0) > best_out).all()
        assert (metrics.Insertion(step=4, baseline="zero")(model, images, other, 0) < best_in).all()


def test_reversed_order_swaps_insertion_and_deletion(linear):
    """Deleting most relevant first leaves at share t what inserting least relevant first has at 1 - t."""
    model, images, terms, _ = linear
    deleted = metrics.Deletion(step=4).curve(metrics.Case(model, images, terms, 0))
    inserted = metrics.Insertion(step=4, baseline="zero").curve(metrics.Case(model, images, -terms, 0))
    assert torch.allclose(deleted.scores.flip(1), inserted.scores)
    assert torch.allclose(deleted.area(), inserted.area())


def test_monotone_model_and_relevance():
    model = Linear(torch.ones(1, 6, 6, dtype=torch.float64))
    images = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert metrics.Monotonicity()(model, images, images[:, 0], 0).item() == 1.0
    assert metrics.Monotonicity(strict=True)(model, images, images[:, 0], 0).item() == 1.0
    falling = Linear(-torch.ones(1, 6, 6, dtype=torch.float64))
    assert metrics.Monotonicity(step=1)(falling, images, images[:, 0], 0).item() <= 1 / 36


def test_a_constant_model_has_flat_curves():
    model = Linear(torch.zeros(1, 6, 6))
    images, maps = torch.rand(2, 1, 6, 6), torch.rand(2, 6, 6)
    half = torch.full((2,), 0.5)
    assert torch.allclose(metrics.Deletion()(model, images, maps, 0), half)
    assert torch.allclose(metrics.Insertion()(model, images, maps, 0), half)
    assert torch.allclose(metrics.PixelFlipping()(model, images, maps, 0), half)
    assert torch.allclose(metrics.PixelFlipping.made("paper", step=4)(model, images, maps, 0), 8 * half)
    assert torch.allclose(metrics.Road()(model, images, maps, 0), half)
    assert torch.equal(metrics.InsertionDeletion()(model, images, maps, 0), torch.zeros(2))
    assert torch.equal(metrics.FaithfulnessEstimate()(model, images, maps, 0), torch.zeros(2))
    segments = torch.arange(36).view(6, 6) // 9
    assert torch.allclose(metrics.Irof(segments=segments)(model, images, maps, 0), torch.zeros(2), atol=1e-6)
    # L - (L - 1): what Quantus's spacing makes of "nothing happened".
    assert torch.allclose(
        metrics.Irof.made("paper", segments=segments)(model, images, maps, 0), torch.ones(2), atol=1e-5
    )


def test_uniform_and_one_pixel_maps():
    uniform, pixel = torch.ones(1, 10, 10), torch.zeros(1, 10, 10)
    pixel[0, 3, 4] = 0.01
    assert metrics.Complexity()(uniform).item() == pytest.approx(math.log(100))
    assert metrics.Complexity()(pixel).item() == 0.0
    assert metrics.Sparseness()(uniform).item() == pytest.approx(0, abs=1e-6)
    assert metrics.Sparseness()(pixel).item() == pytest.approx(0.99)
    mask = torch.zeros(1, 10, 10, dtype=torch.bool)
    mask[0, :5, :4] = True  # a fifth of the image; the pixel is outside
    for name in ("attribution_localization", "relevance_mass_accuracy", "energy_pointing_game", "pointing_game"):
        assert measured(name, uniform, mask).item() == pytest.approx(0.2), name
        assert measured(name, pixel, mask).item() == 0.0, name
    assert metrics.RelevanceRankAccuracy()(uniform, mask).item() == pytest.approx(0.2)
    assert metrics.TopKIntersection(k=50)(uniform, mask).item() == pytest.approx(0.2)
    # One pixel outside, and 19 drawn from the 99 that tie at zero, 20 of which are inside.
    assert metrics.RelevanceRankAccuracy()(pixel, mask).item() == pytest.approx(19 * 20 / 99 / 20)
    assert metrics.PointingGame(tolerance=1)(pixel, mask).item() == 1.0


def test_a_map_equal_to_the_mask_is_perfect():
    mask = torch.zeros(2, 10, 10, dtype=torch.bool)
    mask[0, 2:7, 3:9] = True
    mask[1, 0, 0] = True
    for name in (
        "attribution_localization",
        "relevance_mass_accuracy",
        "relevance_rank_accuracy",
        "pointing_game",
        "energy_pointing_game",
    ):
        assert torch.equal(measured(name, mask.float(), mask), torch.ones(2)), name
    assert metrics.TopKIntersection(k=30)(mask.float(), mask)[0].item() == 1.0
    weighted = metrics.AttributionLocalization(weighted=True)(mask.float(), mask)
    assert torch.allclose(weighted, torch.tensor([100 / 30, 100.0]))


def test_mass_accuracy_is_localization_for_positive_maps():
    source = torch.Generator().manual_seed(1)
    maps, mask = torch.rand(5, 9, 9, generator=source), torch.rand(5, 9, 9, generator=source) > 0.6
    assert torch.allclose(
        metrics.RelevanceMassAccuracy()(maps, mask), metrics.AttributionLocalization()(maps, mask), atol=1e-7
    )
    assert torch.allclose(
        metrics.RelevanceMassAccuracy()(maps, mask), metrics.EnergyPointingGame()(maps, mask), atol=1e-7
    )


def test_showing_everything_or_nothing(linear):
    model, images, _, _ = linear
    everything = torch.ones(2, 8, 8)
    assert torch.equal(metrics.AverageDrop()(model, images, everything, 0), torch.zeros(2).double())
    assert torch.equal(metrics.IncreaseInConfidence()(model, images, everything, 0), torch.zeros(2).double())
    # Nothing shown is logit 0 against 0: probability one half.
    before = torch.stack(list(metrics.AverageDrop().confidence(metrics.Case(model, images, torch.zeros(2, 8, 8), 0))))
    assert torch.allclose(before[1], torch.full((2,), 0.5).double())
    drop = metrics.AverageDrop()(model, images, torch.zeros(2, 8, 8), 0)
    gain = metrics.AverageGain()(model, images, torch.zeros(2, 8, 8), 0)
    assert torch.allclose(drop, ((before[0] - 0.5) / before[0]).clamp(min=0))
    assert torch.allclose(gain, ((0.5 - before[0]) / (1 - before[0])).clamp(min=0))


def test_robustness_of_explainers_that_never_move(linear):
    model, images, _, _ = linear
    fixed = torch.rand(8, 8).double() + 0.1

    def still(x, target):
        return fixed.expand(len(x), -1, -1)

    for name in (
        "local_lipschitz",
        "max_sensitivity",
        "avg_sensitivity",
        "relative_input_stability",
        "relative_output_stability",
    ):
        noise = metrics.Noise("uniform", -1e-3, 1e-3)
        assert torch.equal(measured(name, model, images, still, 0, noise=noise), torch.zeros(2).double()), name


def test_lipschitz_of_the_identity():
    """An explainer that returns the image: its sensitivity is the size of the noise over the size of the image."""
    model = Linear(torch.ones(1, 8, 8, dtype=torch.float64))
    images = torch.rand(1, 1, 8, 8, dtype=torch.float64) + 1
    noise = metrics.Noise("uniform", -0.1, 0.1)
    draws = [noise.draw(0, number, images[0]).norm().item() for number in range(10)]
    most = metrics.MaxSensitivity(noise=noise)(model, images, lambda x, y: x[:, 0], 0)
    mean = metrics.AvgSensitivity(noise=noise)(model, images, lambda x, y: x[:, 0], 0)
    assert most.item() == pytest.approx(max(draws) / images.norm().item())
    assert mean.item() == pytest.approx(sum(draws) / 10 / images.norm().item())
    relative = metrics.RelativeInputStability(noise=noise)(model, images, lambda x, y: x[:, 0], 0)
    assert relative.item() == pytest.approx(1.0)


def test_sufficiency_by_hand():
    """Two pairs of like maps; in the first pair the predictions agree, in the second they do not."""
    maps = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]).view(4, 1, 2).double()
    images = torch.tensor([1.0, 2.0, 3.0, -4.0]).view(4, 1, 1, 1).expand(4, 1, 1, 2).double()
    model = Linear(torch.ones(1, 1, 2, dtype=torch.float64))
    assert metrics.Sufficiency(threshold=0.3)(model, images, maps).tolist() == [1.0, 1.0, 0.0, 0.0]
    # Everyone is everyone's neighbour: image 3 is alone with its prediction.
    shares = metrics.Sufficiency(threshold=1.0)(model, images, maps).tolist()
    assert shares == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0.0])


def test_running_time_counts_sleep():
    from time import sleep

    model = Linear(torch.ones(1, 2, 2))
    calls = []

    def slowly(x, target):
        calls.append(len(x))
        sleep(0.02)
        return x[:, 0]

    seconds = metrics.RunningTime(warmup=2, repeats=3)(model, torch.rand(2, 1, 2, 2), slowly, 0)
    assert calls == [1] * (2 + 2 * 3)
    assert ((seconds >= 0.02) & (seconds < 0.2)).all()


def test_filled_in_pixels_are_smooth():
    """A plane is its own neighbourhood mean, so removed pixels of one come back."""
    rows, columns = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    plane = (2 * rows + 3 * columns)[None, None].double()
    removed = torch.zeros(1, 20, 20, dtype=torch.bool)
    removed[0, 3:17, 2:18] = True
    broken = torch.where(removed[:, None], -99.0, plane)
    assert torch.allclose(metrics.fill_in(broken, removed), plane, atol=1e-6)
    single = metrics.fill_in(broken.float(), removed)
    assert torch.allclose(single.double(), plane, atol=0.2)


def test_areas_and_curves_agree(linear):
    model, images, terms, _ = linear
    assert torch.equal(
        metrics.Deletion()(model, images, terms, 0),
        metrics.Deletion().curve(metrics.Case(model, images, terms, 0)).area(),
    )
    inserted, deleted = metrics.InsertionDeletion().curves(metrics.Case(model, images, terms, 0))
    assert torch.equal(inserted.area() - deleted.area(), metrics.InsertionDeletion()(model, images, terms, 0))
    assert inserted.fractions[0, 0] == 0
    assert inserted.fractions[0, -1] == 1
