"""Every weighting worked out by hand on a 2x2 network; the comments show the arithmetic.

The layer passes its input on, and the class score is one linear layer, so the gradient is its weights:

    A1 = 1 2    A2 = 1 0    g1 = 1 0    g2 = -2  0     y = 1*1 + 3*4 - 2*1 - 2*2 = 7
         3 4         0 2         0 3          0 -2
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import egcam

pytestmark = pytest.mark.usefixtures("one_thread")

A1 = [[1.0, 2.0], [3.0, 4.0]]
A2 = [[1.0, 0.0], [0.0, 2.0]]
G1 = [[1.0, 0.0], [0.0, 3.0]]
G2 = [[-2.0, 0.0], [0.0, -2.0]]


def two_by_two(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Identity layer, then one linear score with the gradient `scale` * (g1, g2); the second class is zero."""
    layer = nn.Conv2d(2, 2, 1, bias=False)
    linear = nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2)[:, :, None, None])
        linear.weight.zero_()
        linear.weight[0] = scale * torch.tensor([G1, G2]).flatten()
    return nn.Sequential(layer, nn.Flatten(), linear).to(dtype).eval()


def image(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([[A1, A2]], dtype=dtype)


def explained(method: type[egcam.Explainer], signed: bool = False) -> egcam.Explanation:
    return method(two_by_two(), "0", signed=signed)(image(), target=0)


HAND = {
    # mean g1 = (1+3)/4 = 1, mean g2 = (-2-2)/4 = -1: A1 - A2
    egcam.GradCAM: [[0.0, 2.0], [3.0, 2.0]],
    # sum g1 A1 / sum A1 = (1 + 12)/10 = 1.3, sum g2 A2 / sum A2 = (-2 - 4)/3 = -2: 1.3 A1 - 2 A2
    egcam.XGradCAM: [[-0.7, 2.6], [3.9, 1.2]],
    # g1 A1 + g2 A2: 1*1 - 2*1 = -1, 0, 0, 3*4 - 2*2 = 8
    egcam.HiResCAM: [[-1.0, 0.0], [0.0, 8.0]],
    # relu(g2) = 0, so g1 A1: 1*1, 0, 0, 3*4
    egcam.LayerCAM: [[1.0, 0.0], [0.0, 12.0]],
    # sum A1 = 10: alpha = 1/(2 + 10*1) and 1/(2 + 10*3); w1 = 1/12 + 3/32 = 8/96 + 9/96 = 17/96; w2 = 0
    egcam.GradCAMPlusPlus: [[17 / 96, 34 / 96], [51 / 96, 68 / 96]],
    # y = 7; without A1 -6, without A2 13: w1 = (7 + 6)/7 = 13/7, w2 = (7 - 13)/7 = -6/7
    # 13 - 6 = 7, 26, 39, 52 - 12 = 40, all over 7
    egcam.AblationCAM: [[7 / 7, 26 / 7], [39 / 7, 40 / 7]],
}


@pytest.mark.parametrize(("method", "values"), HAND.items(), ids=lambda value: getattr(value, "name", ""))
def test_map_is_the_one_worked_out_by_hand(method: type[egcam.Explainer], values: list[list[float]]) -> None:
    signed = explained(method, signed=True)
    assert signed.maps[0].tolist() == [pytest.approx(row, abs=1e-14) for row in values]
    positive = [[max(value, 0.0) for value in row] for row in values]
    assert explained(method).maps[0].tolist() == [pytest.approx(row, abs=1e-14) for row in positive]


def test_score_cam_by_hand() -> None:
    # M1 = (A1 - 1)/3 = 0 1/3 2/3 1.  x M1: A1 becomes 0 2/3 2 4, A2 becomes 0 0 0 2;  y = 3*4 - 2*2 = 8
    # M2 = A2/2 = 1/2 0 0 1.          x M2: A1 becomes 1/2 0 0 4, A2 becomes 1/2 0 0 2; y = 1/2 + 12 - 1 - 4 = 7.5
    # softmax(8, 7.5): w1 = 1/(1 + exp(-1/2)), w2 = 1 - w1
    first = 1 / (1 + math.exp(-0.5))
    second = 1 - first
    values = [[first + second, 2 * first], [3 * first, 4 * first + 2 * second]]
    assert explained(egcam.ScoreCAM).maps[0].tolist() == [pytest.approx(row, abs=1e-14) for row in values]
    assert first == pytest.approx(0.6224593312)


def test_ablation_cam_with_a_score_of_zero_takes_the_plain_drop() -> None:
    # A2 becomes 1 0 0 5.5: y = 13 - 2 - 11 = 0; without A1 y_1 = -13, without A2 y_2 = 13: w = 13 and -13
    # 13 A1 - 13 A2: 0, 26, 39, 52 - 71.5 = -19.5
    balanced = image()
    balanced[0, 1, 1, 1] = 5.5
    found = egcam.AblationCAM(two_by_two(), "0", signed=True)(balanced, target=0)
    assert found.scores.tolist() == [0.0]
    assert found.maps[0].flatten().tolist() == pytest.approx([0, 26, 39, -19.5])


@pytest.mark.parametrize("shift", [0.0, -20.0])
def test_ablation_cam_of_a_negative_score_points_where_that_of_a_positive_one_does(shift: float) -> None:
    # The drops are 13 and -6 as above, whether y is 7 or 7 - 20 = -13: the map is 13 A1 - 6 A2, over |y|.
    network = two_by_two()
    with torch.no_grad():
        network[-1].bias = nn.Parameter(torch.full((2,), shift, dtype=torch.float64))
    found = egcam.AblationCAM(network, "0", signed=True)(image(), target=0)
    assert found.scores.tolist() == [7 + shift]
    assert (found.maps[0] * abs(7 + shift)).flatten().tolist() == pytest.approx([7, 26, 39, 40])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [4e-4, 1e-8, 1e-20])
def test_plus_plus_weights_of_tiny_gradients(scale: float, dtype: torch.dtype) -> None:
    # w1 = s/(2 + 10 s) + 3 s/(2 + 30 s), near 2 s for small s. With eps = 1e-6 under the fraction alpha
    # would be 4 times too small at s = 4e-4 and nothing at s = 1e-8; the square of 1e-20 is no float32 number any more.
    weight = scale / (2 + 10 * scale) + 3 * scale / (2 + 30 * scale)
    found = egcam.GradCAMPlusPlus(two_by_two(scale, dtype), "0")(image(dtype), target=0).maps[0]
    assert found.dtype == dtype
    assert found.flatten().tolist() == pytest.approx([weight, 2 * weight, 3 * weight, 4 * weight], rel=1e-6, abs=0)


def test_plus_plus_gives_a_dead_position_no_weight() -> None:
    # g = 0 at two positions of each channel: the textbook fraction is 0/0 there; the map must stay finite.
    found = explained(egcam.GradCAMPlusPlus).maps
    assert bool(found.isfinite().all())
    assert float(found.sum()) == pytest.approx(10 * 17 / 96)


def test_xgrad_gives_a_channel_without_activation_no_weight() -> None:
    # A2 = 0: sum A2 = 0, so only 1.3 A1 remains
    dark = image()
    dark[0, 1] = 0
    found = egcam.XGradCAM(two_by_two(), "0")(dark, target=0)
    assert found.maps[0].flatten().tolist() == pytest.approx([1.3, 2.6, 3.9, 5.2])


def test_score_and_scaling_of_the_heat_map_by_hand() -> None:
    found = explained(egcam.HiResCAM, signed=True)
    assert found.scores.tolist() == [7.0]
    assert found.targets is not None
    assert found.targets.tolist() == [0]
    # divided by the largest absolute value, 8
    assert found.heatmaps[0].flatten().tolist() == [-1 / 8, 0, 0, 1]


def test_upsampling_by_hand() -> None:
    # A 4x4 image, average-pooled to 2x2: bilinear weights 1, 3/4, 1/4, 0 without aligned corners.
    # Grad-CAM map (0 2; 3 2): first row 0, 0.5, 1.5, 2; last row 3, 2.75, 2.25, 2; divided by the maximum 3
    pooling = nn.Sequential(nn.AvgPool2d(2), *two_by_two()).double()
    large = image().repeat_interleave(2, 2).repeat_interleave(2, 3)
    heat = egcam.GradCAM(pooling, "1")(large, target=0).heatmaps[0]
    assert heat[0].tolist() == pytest.approx([0, 0.5 / 3, 1.5 / 3, 2 / 3])
    assert heat[3].tolist() == pytest.approx([1, 2.75 / 3, 2.25 / 3, 2 / 3])
    # second row: 3/4 of the first and 1/4 of the last
    assert heat[1, 0].item() == pytest.approx(0.75 / 3)
