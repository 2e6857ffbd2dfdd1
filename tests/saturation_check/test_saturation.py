"""The saturation study against numbers worked out by hand, and against a slow way of measuring the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from egcam.errors import InputError, LayerError, TargetError
from egcam.models.class_scores import class_scores
from egcam.saturation_check import curves
from egcam.saturation_check.measure import normalised_black, saturation, scales
from egcam.saturation_check.result import Saturation
from egcam.saturation_check.verdict import AGREEMENT_FROM, SATURATED_FROM, SIZE_FROM, Verdict
from support.small_models import Kept, pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")


class Headed(nn.Module):
    """The identity as the layer, and any function of its (N, pixels) values as the first of two logits."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        score = self.head(self.layer(images).flatten(1))
        return torch.stack([score, torch.zeros_like(score)], 1)


def ones(count: int = 1, pixels: int = 4) -> Tensor:
    return torch.ones(count, 1, 1, pixels, dtype=torch.float64)


# -- networks whose answer is known --------------------------------------------------------------


def test_a_saturating_head_reaches_ninety_percent_where_the_formula_says() -> None:
    # y(a) = tanh(5 a): black 0, image tanh 5; 90 % of the way at a = artanh(0.9 tanh 5) / 5.
    steep = 5.0
    model = Headed(lambda values: torch.tanh(steep * values.mean(1)))
    found = saturation(model, ones(), "layer", steps=801, target=0, batch_size=256)
    expected = math.atanh(0.9 * math.tanh(steep)) / steep
    assert float(found.reach(0.9)) == pytest.approx(expected, abs=1e-5)
    assert float(found.saturated_share) == pytest.approx(1 - expected, abs=1e-5)
    # |dy/dA| = 5 (1 - tanh²) / sqrt(4 pixels), whose mean over the path is tanh(5) / sqrt(4 pixels).
    a = found.alphas.double()
    lengths = steep * (1 - torch.tanh(steep * a) ** 2) / 2
    torch.testing.assert_close(found.gradient[0], lengths)
    size = steep * (1 - math.tanh(steep) ** 2) / math.tanh(steep)
    assert float(found.gradient_size) == pytest.approx(size, rel=1e-4)
    assert float(found.agreement) == pytest.approx(1)
    # 5 (1 - tanh² 5) is about 0.0009: the gradient has vanished.
    assert found.verdict.trust == "no"


def test_a_plateau_between_grid_points_is_met_exactly() -> None:
    model = Headed(lambda values: (4 * values.mean(1)).clamp(max=1))
    found = saturation(model, ones(), "layer", steps=5, target=0)
    # The curve is 0, 1, 1, 1, 1 on the grid: 0.9 is met at 0.225, and what lies above it is 0.775 of the path.
    assert float(found.reach(0.9)) == pytest.approx(0.225)
    assert float(found.reach(0.5)) == pytest.approx(0.125)
    assert float(found.saturated_share) == pytest.approx(0.775)


def test_a_linear_network_is_never_saturated() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(4 * 36, 3)).double()
    images = torch.rand(3, 3, 8, 8, dtype=torch.float64)
    found = saturation(model, images, "0", steps=7)
    start, end = found.logit[:, :1], found.logit[:, -1:]
    torch.testing.assert_close(found.logit, start + found.alphas.double() * (end - start), atol=1e-7, rtol=0)
    torch.testing.assert_close(found.reach(0.9), torch.full((3,), 0.9, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.saturated_share, torch.full((3,), 0.1, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.gradient_size, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found.agreement, torch.ones(3, dtype=torch.float64))
    # The gradient of a linear head is its row of weights.
    rows = model[2].weight[found.targets].norm(dim=1)
    torch.testing.assert_close(found.gradient, rows.detach()[:, None].expand(3, 7))
    assert found.verdict.trust == "yes"
    assert not found.verdict.is_saturated


def test_a_rectified_layer_without_bias_only_grows_so_its_cosine_is_one() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = saturation(model, torch.rand(2, 3, 8, 8), "1", steps=6)
    assert found.cosine[:, 0].tolist() == [0, 0]
    torch.testing.assert_close(found.cosine[:, 1:], torch.ones(2, 5))


def test_a_gradient_that_turns_on_the_way_is_told_from_one_that_stays() -> None:
    # One pixel raises the score in the first half of the path, the other in the second: y = a throughout.
    model = Headed(lambda values: values[:, 0].clamp(max=0.5) + (values[:, 1] - 0.5).clamp(min=0))
    found = saturation(model, ones(pixels=2), "layer", steps=4, target=0)
    torch.testing.assert_close(found.logit[0], found.alphas.double(), atol=1e-7, rtol=0)
    # g(1) = (0, 1) and the mean gradient is (1/2, 1/2).
    assert float(found.agreement) == pytest.approx(1 / math.sqrt(2))
    assert float(found.gradient_size) == pytest.approx(1)
    assert found.verdict.trust == "with care"


def test_zero_embeddings_are_equal() -> None:
    model = Headed(lambda values: values.sum(1))
    model.layer = nn.ReLU()
    found = saturation(model, -ones(), "layer", steps=3, target=0, black=0.0)
    assert found.cosine.tolist() == [[1, 1, 1]]
    assert found.verdict.trust == "unclear"
    assert math.isnan(float(found.reach()))
    assert "no path" in found.verdict.text


def test_one_output_is_scored_by_its_sigmoid() -> None:
    class One(Headed):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images)[:, :1]

    found = saturation(One(lambda values: values.sum(1)), ones(), "layer", steps=3)
    torch.testing.assert_close(found.probability, found.logit.sigmoid())
    assert found.logit.tolist() == [[0, 2, 4]]


# -- against the slow way ------------------------------------------------------------------------


def slowly(model: nn.Module, images: Tensor, layer: nn.Module, alphas: Tensor, black: Tensor) -> dict[str, Tensor]:
    """Everything, one image and one step at a time, by the whole backward pass."""
    kept: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, __, output: kept.append(output))

    def look(image: Tensor, label: int) -> tuple[Tensor, Tensor, float, float]:
        kept.clear()
        logits = model(image[None].requires_grad_())[0]
        embedding = kept[0]
        (gradient,) = torch.autograd.grad(logits[label], embedding)
        flat, logits = embedding.detach().flatten(), logits.detach()
        return flat, gradient.flatten(), float(logits[label]), float(logits.softmax(0)[label])

    rows: dict[str, list[Any]] = {name: [] for name in ("cosine", "logit", "probability", "gradient", "agreement")}
    for image in images:
        label = int(model(image[None]).argmax())
        seen = [look(black + float(a) * (image - black), label) for a in alphas]
        full = seen[-1][0]
        rows["cosine"].append([float(nn.functional.cosine_similarity(one[0], full, dim=0)) for one in seen])
        rows["logit"].append([one[2] for one in seen])
        rows["probability"].append([one[3] for one in seen])
        rows["gradient"].append([float(one[1].norm()) for one in seen])
        mean = torch.trapezoid(torch.stack([one[1] for one in seen]), alphas.double(), dim=0)
        rows["agreement"].append(float(nn.functional.cosine_similarity(seen[-1][1], mean, dim=0)))
    handle.remove()
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in rows.items()}


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("spacing", ["even", "uniform"])
def test_measured_as_the_slow_way_measures(batch_size: int | None, spacing: Any) -> None:
    model = small_net(inplace=False).double().eval()
    images = pictures(5, dtype=torch.float64)
    black = (-2.0, -1.5, -1.8)
    layer = model.conv2
    found = saturation(model, images, "conv2", 6, spacing=spacing, seed=3, black=black, batch_size=batch_size)
    expected = slowly(model, images, layer, found.alphas, torch.tensor(black, dtype=torch.float64)[:, None, None])
    for name, values in expected.items():
        torch.testing.assert_close(getattr(found, name), values, atol=1e-6, rtol=1e-6, msg=name)
    assert found.layer == "conv2"
    assert found.spacing == spacing


def test_the_full_image_is_a_plain_forward_pass() -> None:
    model = small_net()
    images = pictures(3)
    with torch.no_grad():
        logits = model(images)
    found = saturation(model, images, steps=4, black=-2.0)
    assert torch.equal(found.targets, logits.argmax(1))
    assert torch.equal(found.logit[:, -1], logits.amax(1))
    assert torch.equal(found.probability[:, -1], logits.softmax(1).amax(1))
    torch.testing.assert_close(found.cosine[:, -1], torch.ones(3))


def test_the_passes_are_one_per_image_and_step_and_black_once_per_label() -> None:
    model = small_net()
    images = pictures(6)
    ran: list[int] = []
    handle = model.register_forward_pre_hook(lambda _, args: ran.append(len(args[0])))
    reports: list[tuple[int, int]] = []
    found = saturation(
        model,
        images,
        "conv2",
        5,
        [1, 1, 0, 1, 0, 1],
        black=0.0,
        progress=lambda done, total: reports.append((done, total)),
    )
    handle.remove()
    assert sum(ran) == found.passes + 1 == 6 * 4 + 2 + 1, "and a dry run of one image"
    assert max(ran) <= 8
    assert reports[-1] == (found.passes, found.passes)
    assert len(reports) >= 3


@pytest.mark.parametrize("train", [False, True])
def test_the_model_comes_back_untouched(train: bool) -> None:
    model = small_net(train=train)
    images = pictures()
    kept = Kept(model, images)
    saturation(model, images, steps=3, black=-1.0)
    kept.check()
    with torch.inference_mode():
        saturation(model, images, steps=3, black=-1.0)
    kept.check()
    with pytest.raises(TargetError):
        saturation(model, images, steps=3, black=-1.0, target=99)
    kept.check()


def test_labels_by_name_and_for_each_image() -> None:
    model = small_net()
    names = ["ant", "bee", "cat", "dog", "elk"]
    found = saturation(model, pictures(2), "conv2", 3, ["dog", 1], black=0.0, classes=names)
    assert found.targets.tolist() == [3, 1]
    with torch.no_grad():
        logits = class_scores(model(pictures(2)), 2)
    torch.testing.assert_close(found.logit[:, -1], logits[[0, 1], [3, 1]])


# -- the values of a -----------------------------------------------------------------------------


def test_the_even_grid_has_equal_steps_and_both_ends() -> None:
    assert scales(5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert len(scales()) == 25


def test_the_uniform_grid_is_drawn_sorted_seeded_and_has_the_ends_added() -> None:
    drawn = scales(400, "uniform", seed=7)
    assert len(drawn) == 402
    assert drawn[0] == 0
    assert drawn[-1] == 1
    assert bool((drawn.diff() >= 0).all())
    assert len(set(drawn.tolist())) > 390
    # Even in the large: the sorted draws lie within a Kolmogorov-Smirnov bound (1 in 1,000) of the straight line.
    steps = torch.arange(1, 401) / 400
    assert float((drawn[1:-1] - steps).abs().max()) < 1.95 / math.sqrt(400)
    state = torch.get_rng_state()
    assert torch.equal(drawn, scales(400, "uniform", seed=7))
    assert not torch.equal(drawn, scales(400, "uniform", seed=8))
    assert torch.equal(state, torch.get_rng_state())


def test_black_is_what_the_normalisation_makes_of_it() -> None:
    assert normalised_black((0.5, 0.25), (0.5, 0.5)) == (-1.0, -0.5)
    seen: list[Tensor] = []
    model = Headed(lambda values: values.sum(1))
    model.layer.register_forward_hook(lambda _, args, __: seen.append(args[0].detach()))
    images = torch.tensor([3.0, -1.0]).view(1, 2, 1, 1).expand(1, 2, 1, 3)
    saturation(model, images, "layer", 3, 0, black=(-1.0, -0.5))
    points = torch.cat(seen)
    # In order: the image, a dry run, black, and half-way.
    torch.testing.assert_close(points[0], images[0])
    torch.testing.assert_close(points[2], torch.tensor([-1.0, -0.5]).view(2, 1, 1).expand(2, 1, 3))
    torch.testing.assert_close(points[3], torch.tensor([1.0, -0.75]).view(2, 1, 1).expand(2, 1, 3))


# -- reading curves ------------------------------------------------------------------------------

QUARTERS = torch.tensor([0, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 1, 1, 1], 0.225),
        ([0, 1, 0.8, 1, 1], 0.625),  # falls back, so it counts from the second time
        ([-4, -3, -2, -1, 0], 0.9),  # from a negative start
        ([2, 1, 0, 0, 0], 0.45),  # downwards
        ([0, 3, 2, 1.5, 1], 0.075),  # above the end, and never below 90 % of it again
        ([-1, -10, -10, -10, -2], 0.025),  # downwards and beyond: 90 % of the way to -2 is -1.9
    ],
)
def test_reach(values: list[float], expected: float) -> None:
    found = curves.reach(QUARTERS, torch.tensor([values], dtype=torch.float64), 0.9)
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 1, 1, 1], 0.775),
        ([0, 0.25, 0.5, 0.75, 1], 0.1),
        ([0, 2, 2, 2, 1], 0.25 * (0.2 / 2 + 0.1 / 1)),  # through the band on the way up, into it at the end
        ([4, 4, 2, 2, 2], 0.25 * 0.1 + 0.5),
    ],
)
def test_share_within(values: list[float], expected: float) -> None:
    found = curves.share_within(QUARTERS, torch.tensor([values], dtype=torch.float64), 0.1)
    assert float(found) == pytest.approx(expected)


def test_a_curve_without_a_rise_has_no_reach() -> None:
    flat = torch.tensor([[3.0, 3.0, 3.0], [0.0, 1.0, 2.0]])
    halves = torch.tensor([0, 0.5, 1])
    assert curves.reach(halves, flat).isnan().tolist() == [True, False]
    assert curves.share_within(halves, flat).isnan().tolist() == [True, False]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.integers(0, 1000), st.floats(0.05, 0.95))
def test_reading_agrees_with_a_fine_look(values: list[float], seed: int, share: float) -> None:
    if abs(values[-1] - values[0]) < 0.1:
        values[-1] = values[0] + 1
    inner = np.sort(np.random.default_rng(seed).uniform(0, 1, len(values) - 2))
    alphas = np.concatenate([[0], inner, [1]])
    fine = np.linspace(0, 1, 20001)
    t = (np.interp(fine, alphas, values) - values[0]) / (values[-1] - values[0])
    below = np.nonzero(t < share)[0]
    points, curve = torch.from_numpy(alphas), torch.tensor([values], dtype=torch.float64)
    assert float(curves.reach(points, curve, share)) == pytest.approx(fine[below[-1]], abs=1e-3)
    within = np.mean(np.abs(t - 1) <= 1 - share)
    assert float(curves.share_within(points, curve, 1 - share)) == pytest.approx(within, abs=2e-3)


# -- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saturated", "size", "agreement", "trust"),
    [
        (0.7, 1.0, 1.0, "yes"),
        (0.1, 1.0, 1.0, "yes"),
        (SATURATED_FROM, SIZE_FROM - 0.01, 1.0, "no"),
        (SATURATED_FROM, 1.0, AGREEMENT_FROM - 0.01, "no"),
        (SATURATED_FROM - 0.01, 1.0, AGREEMENT_FROM - 0.01, "with care"),
        (SATURATED_FROM, SIZE_FROM, AGREEMENT_FROM, "yes"),
        (float("nan"), 1.0, 1.0, "unclear"),
        (0.7, float("nan"), 1.0, "unclear"),
    ],
)
def test_the_verdict_follows_from_its_numbers(saturated: float, size: float, agreement: float, trust: str) -> None:
    assert Verdict(3, 0.3, saturated, 0.2, 0.5, size, agreement).trust == trust


def test_the_verdict_says_its_numbers() -> None:
    text = Verdict(25, 0.27, 0.67, 0.32, 0.54, 0.97, math.cos(math.radians(35)), "layer3").text
    for part in ("is saturated", "a = 0.27", "67%", "at layer3 is 0.97 times", "35°", "cannot be trusted"):
        assert part in text


def test_the_verdict_is_of_the_means() -> None:
    def measured(logit: list[list[float]]) -> Saturation:
        values = torch.tensor(logit)
        same = torch.ones_like(values)
        return Saturation(QUARTERS, same, values, values, same, same[:, 0], same[:, 0].long(), "4", "even", 8)

    verdict = measured([[0, 1, 1, 1, 1], [0, 0.25, 0.5, 0.75, 1], [2, 2, 2, 2, 2]]).verdict
    # The third image has no rise, so no numbers of its own.
    assert verdict.reach == pytest.approx((0.225 + 0.9) / 2)
    assert verdict.saturated == pytest.approx((0.775 + 0.1) / 2)
    assert verdict.images == 3


# -- wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 1}, InputError, "at least 2"),
        ({"steps": 2.5}, InputError, "whole number"),
        ({"spacing": "evn"}, InputError, "did you mean 'even'"),
        ({"layer": "conv3"}, LayerError, "did you mean 'conv"),
        ({"layer": ["conv1", "conv2"]}, LayerError, "one layer"),
        ({"target": lambda output: output[:, 0]}, TargetError, "not a callable"),
        ({"target": 7}, TargetError, "out of range"),
        ({"black": None}, InputError, "pass black=(0 - mean) / std"),
        ({"black": (0.0, 1.0)}, InputError, "3 channels"),
        ({"black": float("nan")}, InputError, "NaN"),
        ({"batch_size": 0}, InputError, "batch_size"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        saturation(small_net(), pictures(), **{"black": 0.0, **options})
    assert message in str(caught.value)


def test_wrong_shares_and_quantities() -> None:
    found = saturation(small_net(), pictures(), steps=3, black=0.0)
    with pytest.raises(InputError, match="share"):
        found.reach(0)
    with pytest.raises(InputError, match="tolerance"):
        found.share_within(1.0)
    with pytest.raises(InputError, match="did you mean 'logit'"):
        found.curve("logits")  # type: ignore[arg-type]
