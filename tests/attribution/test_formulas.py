"""Every method against its formula, worked out here in plain loops on tiny float64 networks.

Nothing of egcam's is used but its public calls. What a sampled method drew is read off the images it showed the
network; whether those draws have the right distribution is asked in test_estimators.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.attribution import registry
from support.networks import (
    NETWORKS,
    perceptron_head,
    pictures,
    pooled_linear_head,
    seeded,
    signed_activations,
    watched,
)
from support.small_models import METHODS
from support.steps_by_hand import attribution

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = "features"
SAMPLES = 5
STEPS = 7
EXACT = {"rtol": 0.0, "atol": 1e-10}

# What each method is called with here, so that its draws are few.
OPTIONS: dict[str, dict[str, object]] = {
    "smooth-grad-cam++": {"samples": SAMPLES},
    "smooth-grad": {"samples": SAMPLES},
    "integrated-grad-cam": {"samples": STEPS},
    "integrated-gradients": {"samples": STEPS},
    "slope-cam": {"samples": SAMPLES, "reference": pictures(9, seed=7)},
    "expected-grad-cam": {"samples": SAMPLES, "reference": pictures(9, seed=7)},
    "expected-gradients": {"samples": SAMPLES, "reference": pictures(9, seed=7)},
    "finer-cam": {"similar": 1, "gamma": 0.6},
    "occlusion": {"window": (3, 2), "stride": (2, 1)},
    "rise": {"samples": SAMPLES, "cells": 3, "probability": 0.4},
}
AT_INPUT = {name for name in METHODS if "layer" not in registry.takes(name)}


@dataclass
class Case:
    """One image, its target, and the batches the network was shown while it was explained."""

    network: nn.Module
    image: Tensor
    target: int
    score: str
    signed: bool
    shown: list[Tensor]

    def y(self, activations: Tensor) -> Tensor:
        """The explained number, from the activations (K, h, w)."""
        return self._number(self.network.head(activations[None].clone())[0])

    def y_of_image(self, image: Tensor) -> Tensor:
        return self._number(self.network(image[None])[0])

    def _number(self, logits: Tensor) -> Tensor:
        if self.score == "probability":
            return logits[self.target].exp() / logits.exp().sum()
        if self.score == "sigmoid":
            return 1 / (1 + (-logits[self.target]).exp())
        return logits[self.target]

    def activations(self, image: Tensor) -> np.ndarray:
        with torch.no_grad():
            return self.network.features(image[None])[0].numpy()

    def gradient(self, image: Tensor) -> np.ndarray:
        """dy/dA at the activations of `image`."""
        return self.gradient_at(self.activations(image))

    def gradient_at(self, activations: np.ndarray) -> np.ndarray:
        leaf = torch.from_numpy(activations).requires_grad_()
        return torch.autograd.grad(self.y(leaf), leaf)[0].numpy()

    def input_gradient(self, image: Tensor) -> np.ndarray:
        leaf = image.detach().clone().requires_grad_()
        return torch.autograd.grad(self.y_of_image(leaf), leaf)[0].numpy()

    def rectified(self, found: np.ndarray) -> np.ndarray:
        return found if self.signed else np.maximum(found, 0)

    @property
    def samples(self) -> list[Tensor]:
        """The points at which a sampled method looked: all it showed after the image itself."""
        assert torch.equal(self.shown[0][0], self.image)
        return list(torch.cat(self.shown[1:]))


def weighted_channels(weights: list[float], activations: np.ndarray) -> np.ndarray:
    channels, height, width = activations.shape
    found = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            found[i, j] = sum(weights[k] * activations[k, i, j] for k in range(channels))
    return found


def upsampled(plane: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear interpolation between pixel centres, the border repeated."""

    def neighbours(place: int, small: int, large: int) -> tuple[int, int, float]:
        at = min(max((place + 0.5) * small / large - 0.5, 0.0), small - 1.0)
        low = math.floor(at)
        return low, min(low + 1, small - 1), at - low

    found = np.zeros((height, width))
    for i in range(height):
        top, bottom, down = neighbours(i, plane.shape[0], height)
        for j in range(width):
            left, right, across = neighbours(j, plane.shape[1], width)
            upper = (1 - across) * plane[top, left] + across * plane[top, right]
            lower = (1 - across) * plane[bottom, left] + across * plane[bottom, right]
            found[i, j] = (1 - down) * upper + down * lower
    return found


# -- the formulas --------------------------------------------------------------------------------


def grad_cam(case: Case) -> np.ndarray:
    gradient = case.gradient(case.image)
    return case.rectified(weighted_channels([g.mean() for g in gradient], case.activations(case.image)))


def hires_cam(case: Case) -> np.ndarray:
    return case.rectified((case.gradient(case.image) * case.activations(case.image)).sum(0))


def layer_cam(case: Case) -> np.ndarray:
    return case.rectified((np.maximum(case.gradient(case.image), 0) * case.activations(case.image)).sum(0))


def xgrad_cam(case: Case) -> np.ndarray:
    activations = case.activations(case.image)
    weights = [
        (g * a).sum() / a.sum() if a.sum() != 0 else 0.0
        for g, a in zip(case.gradient(case.image), activations, strict=True)
    ]
    return case.rectified(weighted_channels(weights, activations))


def plus_plus(case: Case, points: list[Tensor]) -> np.ndarray:
    """alpha = E[g^2] / (2 E[g^2] + sum(A) E[g^3]), w = sum alpha relu(E[g]), on the clean image's activations."""
    activations = case.activations(case.image)
    gradients = np.stack([case.gradient(point) for point in points])
    weights = []
    for k in range(len(activations)):
        weight = 0.0
        for i in range(activations.shape[1]):
            for j in range(activations.shape[2]):
                g = gradients[:, k, i, j]
                below = 2 * (g**2).mean() + activations[k].sum() * (g**3).mean()
                if below != 0:
                    weight += (g**2).mean() / below * max(g.mean(), 0.0)
        weights.append(weight)
    return case.rectified(weighted_channels(weights, activations))


def integrated_grad_cam(case: Case) -> np.ndarray:
    """From black, midpoint rule."""
    total = 0.0
    at_black = case.activations(torch.zeros_like(case.image))
    for step in range(STEPS):
        point = (step + 0.5) / STEPS * case.image
        weights = [g.mean() for g in case.gradient(point)]
        total = total + case.rectified(weighted_channels(weights, case.activations(point) - at_black))
    return total / STEPS


def slope_cam(case: Case) -> np.ndarray:
    """The mean over references of slope times step from A' to A, summed over the channels."""
    here = case.activations(case.image)
    shown = list(torch.cat(case.shown))
    drawn = [one for one in OPTIONS["slope-cam"]["reference"] if any(torch.equal(one, image) for image in shown)]
    assert len(drawn) == SAMPLES
    lowers = [case.activations(reference) for reference in drawn]
    maps = [attribution(case.network.head, there, here, case.target, case.score).sum(0) for there in lowers]
    return case.rectified(np.mean(maps, 0))


def expected_grad_cam(case: Case) -> np.ndarray:
    """By location, d = f(x - x'). The network is shown the image, all points z_s, then all x - x'_s."""
    _, points, differences = case.shown
    assert len(points) == len(differences) == SAMPLES
    average = sum(
        case.activations(difference) * case.gradient(point)
        for point, difference in zip(points, differences, strict=True)
    )
    return case.rectified((average / SAMPLES * case.activations(case.image)).sum(0))


def cam(case: Case) -> np.ndarray:
    weights = case.network.head[-1].weight[case.target].tolist()
    return case.rectified(weighted_channels(weights, case.activations(case.image)))


def score_cam(case: Case) -> np.ndarray:
    activations = case.activations(case.image)
    scores = []
    for plane in activations:
        large = upsampled(plane, *case.image.shape[1:])
        extent = large.max() - large.min()
        mask = (large - large.min()) / extent if extent > 0 else np.zeros_like(large)
        with torch.no_grad():
            scores.append(case.y_of_image(case.image * torch.from_numpy(mask)).item())
    powers = [math.exp(score) for score in scores]
    return case.rectified(weighted_channels([power / sum(powers) for power in powers], activations))


def ablation_cam(case: Case) -> np.ndarray:
    activations = case.activations(case.image)
    weights = []
    with torch.no_grad():
        full = case.y(torch.from_numpy(activations)).item()
        for k in range(len(activations)):
            without = activations.copy()
            without[k] = 0
            weights.append((full - case.y(torch.from_numpy(without)).item()) / abs(full))
    return case.rectified(weighted_channels(weights, activations))


def first_component(planes: np.ndarray) -> np.ndarray:
    """The planes projected on their first singular vector, which looks the way their sum does."""
    rows = planes.reshape(len(planes), -1).T
    _, _, directions = np.linalg.svd(rows)
    found = rows @ directions[0]
    found = found if (found * rows.sum(1)).sum() >= 0 else -found
    return found.reshape(planes.shape[1:])


def eigen_cam(case: Case) -> np.ndarray:
    return case.rectified(first_component(case.activations(case.image)))


def eigen_grad_cam(case: Case) -> np.ndarray:
    return case.rectified(first_component(case.gradient(case.image) * case.activations(case.image)))


def finer_cam(case: Case) -> np.ndarray:
    """Less 0.6 times the score of the class with the nearest logit."""
    with torch.no_grad():
        logits = case.network(case.image[None])[0]
    others = [number for number in range(3) if number != case.target]
    nearest = min(others, key=lambda number: abs(float(logits[number] - logits[case.target])))
    leaf = torch.from_numpy(case.activations(case.image)).requires_grad_()
    contrast = case.y(leaf) - 0.6 * replace(case, target=nearest).y(leaf)
    (gradient,) = torch.autograd.grad(contrast, leaf)
    return case.rectified(weighted_channels([float(g.mean()) for g in gradient], case.activations(case.image)))


def occlusion(case: Case) -> np.ndarray:
    """Black windows of 3 x 2 at rows 0, 2, 3 and columns 0 to 3 of 6 x 5 pixels."""
    total, covered = np.zeros((6, 5)), np.zeros((6, 5))
    with torch.no_grad():
        for top in (0, 2, 3):
            for left in range(4):
                hidden = case.image.clone()
                hidden[:, top : top + 3, left : left + 2] = 0
                drop = float(case.y_of_image(case.image) - case.y_of_image(hidden))
                total[top : top + 3, left : left + 2] += drop
                covered[top : top + 3, left : left + 2] += 1
    return case.rectified(total / covered)


def rise(case: Case) -> np.ndarray:
    """The masks are read off what was shown: no pixel of these images is zero."""
    total = np.zeros((6, 5))
    for point in case.samples:
        masks = (point / case.image).numpy()
        np.testing.assert_allclose(masks[0], masks[1], atol=1e-12)
        assert masks.min() >= 0
        assert masks.max() <= 1
        with torch.no_grad():
            total += float(case.y_of_image(point)) * masks[0]
    return case.rectified(total / (SAMPLES * 0.4))


def layer_by_layer(case: Case, guided: bool = False) -> list[tuple[nn.Module, Tensor, Tensor, Tensor]]:
    """Each layer, what goes in, the gradient there, and the gradient of what comes out; the backward pass by hand."""

    def run(layer: nn.Module, given: Tensor) -> Tensor:
        return given.relu() if isinstance(layer, nn.ReLU) else layer(given)

    layers = [*case.network.features, *case.network.head]
    given = [case.image[None]]
    with torch.no_grad():
        for layer in layers:
            given.append(run(layer, given[-1]))
    logits = given[-1][0].requires_grad_()
    gradient = torch.autograd.grad(case._number(logits), logits)[0][None]
    found = []
    for layer, before in zip(reversed(layers), reversed(given[:-1]), strict=True):
        behind = gradient.clamp(min=0) if guided and isinstance(layer, nn.ReLU) else gradient
        leaf = before.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(run(layer, leaf), leaf, behind)
        found.append((layer, before[0], gradient[0], behind[0]))
    return found[::-1]


def guided_backprop(case: Case) -> np.ndarray:
    _, _, gradient, _ = layer_by_layer(case, guided=True)[0]
    return over_colours(case, gradient.numpy())


def guided_grad_cam(case: Case) -> np.ndarray:
    return upsampled(grad_cam(replace(case, signed=False)), 6, 5) * guided_backprop(case)


def full_grad(case: Case) -> np.ndarray:
    """x dy/dx, and for each layer with places its bias times the gradient; a bend f has the bias f(z) - f'(z) z."""
    passed = layer_by_layer(case)
    parts = [passed[0][1] * passed[0][2]]
    for layer, given, before, behind in passed:
        if isinstance(layer, nn.Conv2d):
            parts.append(layer.bias.detach()[:, None, None] * behind)
        elif isinstance(layer, nn.Tanh | nn.Softplus) and given.ndim == 3:
            parts.append(layer(given) * behind - given * before)
    total = np.zeros((6, 5))
    for part in parts:
        plane = part.numpy()
        if not case.signed:
            plane = np.abs(plane)
            plane = (plane - plane.min()) / (plane.max() - plane.min())
        share = plane[0].size / total.size if case.signed else 1.0
        total += upsampled(plane.sum(0), 6, 5) * share
    return total


def over_colours(case: Case, gradient: np.ndarray) -> np.ndarray:
    return gradient.sum(0) if case.signed else np.abs(gradient).sum(0)


def input_gradient(case: Case) -> np.ndarray:
    return over_colours(case, case.input_gradient(case.image))


def smooth_grad(case: Case) -> np.ndarray:
    return over_colours(case, sum(case.input_gradient(point) for point in case.samples) / SAMPLES)


def integrated_gradients(case: Case) -> np.ndarray:
    average = sum(case.input_gradient((step + 0.5) / STEPS * case.image) for step in range(STEPS)) / STEPS
    return case.rectified((case.image.numpy() * average).sum(0))


def expected_gradients(case: Case) -> np.ndarray:
    """x' is read off the point: of all references, the one on whose line to the image the point lies."""
    references = OPTIONS["expected-gradients"]["reference"]
    total = 0.0
    for point in case.samples:
        (reference,) = [one for one in references if on_the_line(point, one, case.image)]
        total = total + (case.image - reference).numpy() * case.input_gradient(point)
    return case.rectified((total / SAMPLES).sum(0))


def on_the_line(point: Tensor, start: Tensor, end: Tensor) -> bool:
    share = ((point - start) * (end - start)).sum() / (end - start).square().sum()
    return bool(torch.allclose(point, start + share * (end - start), rtol=0, atol=1e-12)) and 0 <= share <= 1


FORMULAS: dict[str, Callable[[Case], np.ndarray]] = {
    "cam": cam,
    "grad-cam": grad_cam,
    "grad-cam++": lambda case: plus_plus(case, [case.image]),
    "smooth-grad-cam++": lambda case: plus_plus(case, case.samples),
    "integrated-grad-cam": integrated_grad_cam,
    "hires-cam": hires_cam,
    "xgrad-cam": xgrad_cam,
    "layer-cam": layer_cam,
    "score-cam": score_cam,
    "ablation-cam": ablation_cam,
    "slope-cam": slope_cam,
    "expected-grad-cam": expected_grad_cam,
    "input-gradient": input_gradient,
    "smooth-grad": smooth_grad,
    "integrated-gradients": integrated_gradients,
    "expected-gradients": expected_gradients,
    "eigen-cam": eigen_cam,
    "eigen-grad-cam": eigen_grad_cam,
    "finer-cam": finer_cam,
    "guided-backprop": guided_backprop,
    "guided-grad-cam": guided_grad_cam,
    "full-grad": full_grad,
    "occlusion": occlusion,
    "rise": rise,
}

# -- the tests -----------------------------------------------------------------------------------


def options_of(method: str) -> dict[str, object]:
    at_layer = {} if method in AT_INPUT else {"layer": LAYER}
    return {**OPTIONS.get(method, {}), **at_layer, "batch_size": 64}


def by_formula(
    method: str, network: nn.Module, image: Tensor, target: int, score: str = "logit", signed: bool = False
) -> Tensor:
    with watched(network) as shown:
        egcam.explain(network, image[None], method, target, score=score, signed=signed, **options_of(method))
    return torch.from_numpy(FORMULAS[method](Case(network, image, target, score, signed, shown)))


def assert_follows_formula(
    method: str, network: nn.Module, targets: list[int] | None, score: str = "logit", signed: bool = False
) -> None:
    images = pictures(3)
    found = egcam.explain(network, images, method, targets, score=score, signed=signed, **options_of(method))
    with torch.no_grad():
        wanted = network(images).argmax(1).tolist() if targets is None else targets
    assert found.targets is not None
    assert found.targets.tolist() == wanted
    truth = torch.stack(
        [
            by_formula(method, network, image, target, score, signed)
            for image, target in zip(images, wanted, strict=True)
        ]
    )
    # Guided Grad-CAM is a product of two small numbers.
    least = 1e-5 if method == "guided-grad-cam" else 1e-4
    assert float(truth.abs().max()) > least, "a formula that gives nothing tests nothing"
    torch.testing.assert_close(found.maps, truth, **EXACT)


def test_every_method_for_any_network_has_a_formula_here() -> None:
    """Those of other packages are compared with these packages, in test_foreign.py; four are in test_field.py."""
    assert set(FORMULAS) | {"kpca-cam", "shapley-cam", "ss-cam", "is-cam"} == set(METHODS)


# CAM is defined for pooling and one linear layer only.
PAIRS = [(method, name) for method in FORMULAS for name in NETWORKS if method != "cam" or name == "pooled"]


@pytest.mark.parametrize(("method", "network"), PAIRS)
def test_signed_map_follows_the_formula_on_every_network(method: str, network: str) -> None:
    assert_follows_formula(method, NETWORKS[network](), [2, 0, 1], signed=True)


def network_for(method: str) -> nn.Module:
    return pooled_linear_head() if method == "cam" else perceptron_head()


@pytest.mark.parametrize("score", ["logit", "probability", "sigmoid"])
@pytest.mark.parametrize("method", FORMULAS)
def test_map_follows_the_formula_for_predictions_and_every_score(method: str, score: str) -> None:
    assert_follows_formula(method, network_for(method), None, score=score)


@pytest.mark.filterwarnings("ignore:.*image 0 is zero:egcam.errors.ZeroMapWarning")
@pytest.mark.parametrize("method", FORMULAS)
def test_map_after_relu_follows_the_formula_for_given_targets(method: str) -> None:
    # RISE of a negative logit is negative everywhere; it is made for probabilities.
    score = "probability" if method == "rise" else "logit"
    assert_follows_formula(method, network_for(method), [1, 1, 0], score=score)


# Eigen-CAM asks for no score at all.
@pytest.mark.parametrize("method", sorted(set(FORMULAS) - {"cam", "eigen-cam"}))
def test_scores_change_the_map_where_they_should(method: str) -> None:
    """A score that were ignored would pass the formula of the logit only."""
    maps = [
        egcam.explain(perceptron_head(), pictures(1), method, 0, score=score, signed=True, **options_of(method)).maps
        for score in ("logit", "probability", "sigmoid")
    ]
    assert not torch.allclose(maps[0], maps[1], rtol=1e-3)
    assert not torch.allclose(maps[0], maps[2], rtol=1e-3)
    assert not torch.allclose(maps[1], maps[2], rtol=1e-3)


@pytest.mark.parametrize("method", sorted(set(FORMULAS) - {"cam", "finer-cam"}))
def test_callable_target_is_the_number_explained(method: str) -> None:
    """The difference of two logits; the softmax of its parts is something else."""
    network, images = signed_activations(), pictures(2)
    contrast = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        contrast.weight.copy_(torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]))
    as_class = type(network)(network.features, nn.Sequential(network.head, contrast))
    options = options_of(method)
    truth = egcam.explain(as_class, images, method, 0, signed=True, **{"score": "logit", **options})
    found = egcam.explain(network, images, method, lambda out: out[:, 0] - out[:, 1], signed=True, **options)
    torch.testing.assert_close(found.maps, truth.maps, **EXACT)
    torch.testing.assert_close(found.scores, truth.scores, **EXACT)
    assert found.targets is None


def test_integrated_grad_cam_as_its_authors_coded_it() -> None:
    """a = j/n from 0, activations without those of the reference, and a sum."""
    network, image = perceptron_head(), pictures(1)[0]
    case = Case(network, image, 1, "logit", False, [])
    truth = sum(
        np.maximum(
            weighted_channels(
                [g.mean() for g in case.gradient(step / STEPS * image)], case.activations(step / STEPS * image)
            ),
            0,
        )
        for step in range(STEPS)
    )
    found = egcam.IntegratedGradCAM(network, LAYER, samples=STEPS, authors=True)(image[None], target=1)
    torch.testing.assert_close(found.maps[0], torch.from_numpy(truth), **EXACT)


def test_score_cam_gives_constant_channels_the_score_of_the_black_image() -> None:
    """A dead channel has the mask 0; it takes part in the softmax though it adds nothing to the map."""
    network = perceptron_head()
    with torch.no_grad():
        network.features[2].weight[1] = 0
        network.features[2].bias[1] = -1
    image = pictures(1)[0]
    truth = by_formula("score-cam", network, image, 2)
    assert not network.features(image[None])[0, 1].any()
    found = egcam.ScoreCAM(network, LAYER)(image[None], target=2)
    torch.testing.assert_close(found.maps[0], truth, **EXACT)


def test_score_cam_aligned_corners() -> None:
    """The corner pixels of the mask are the corner values of the map themselves."""
    network, image = perceptron_head(), pictures(1)[0]
    case = Case(network, image, 0, "logit", False, [])
    rows = np.linspace(0, 3, 6)
    columns = np.linspace(0, 2, 5)
    activations = case.activations(image)
    scores = []
    for plane in activations:
        tall = np.stack([np.interp(rows, range(4), plane[:, j]) for j in range(3)], 1)
        large = np.stack([np.interp(columns, range(3), tall[i]) for i in range(6)])
        mask = (large - large.min()) / (large.max() - large.min())
        scores.append(case.y_of_image(image * torch.from_numpy(mask)).item())
    powers = np.exp(scores)
    truth = weighted_channels(list(powers / powers.sum()), activations)
    found = egcam.ScoreCAM(network, LAYER, align_corners=True, signed=True)(image[None], target=0)
    torch.testing.assert_close(found.maps[0], torch.from_numpy(truth), **EXACT)


@pytest.mark.parametrize("method", sorted(set(FORMULAS) - {"cam"}))
@pytest.mark.parametrize("signed", [False, True])
def test_heat_map_is_the_upsampled_map_divided_by_its_largest_value(method: str, signed: bool) -> None:
    found = egcam.explain(perceptron_head(), pictures(2), method, signed=signed, **options_of(method))
    for small, heat in zip(found.maps, found.heatmaps, strict=True):
        large = upsampled(small.numpy(), 6, 5) if tuple(small.shape) != (6, 5) else small.numpy()
        scaled = torch.from_numpy(large / np.abs(large).max())
        torch.testing.assert_close(heat, scaled, **EXACT)
        assert float(heat.abs().max()) == pytest.approx(1.0, abs=1e-12)


def test_maps_of_several_layers_are_upsampled_scaled_and_averaged() -> None:
    network, images = perceptron_head(), pictures(2)
    found = egcam.LayerCAM(network, ["features.1", "features"])(images, target=0).maps
    fine = egcam.LayerCAM(network, "features.1")(images, target=0).maps.numpy()
    coarse = egcam.LayerCAM(network, "features")(images, target=0).maps.numpy()
    assert fine.shape == (2, 6, 5)
    for image in range(2):
        large = upsampled(coarse[image], 6, 5)
        truth = (fine[image] / fine[image].max() + large / large.max()) / 2
        torch.testing.assert_close(found[image], torch.from_numpy(truth), **EXACT)


@pytest.mark.parametrize("method", sorted(set(FORMULAS) - {"cam"}))
def test_scores_targets_and_predictions_are_those_of_the_network(method: str) -> None:
    network, images = perceptron_head(), pictures(3)
    found = egcam.explain(network, images, method, [2, None, 0], score="logit", signed=True, **options_of(method))
    logits = network(images).detach()
    predicted = logits.argmax(1)
    wanted = torch.tensor([2, predicted[1], 0])
    assert torch.equal(found.predictions, predicted)
    assert torch.equal(found.targets, wanted)
    torch.testing.assert_close(found.scores, logits[torch.arange(3), wanted], **EXACT)


class BlocksInAList(nn.Module):
    """The way many networks are written: blocks in a ModuleList, called one by one, then the layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(2, 2, 3, padding=1), nn.ModuleList([nn.Conv2d(2, 4, 3)])])
        self.features = nn.ReLU()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(self.blocks[1][0](self.blocks[0](images).relu())))


def test_ablation_cam_runs_only_the_tail_behind_a_list_of_blocks() -> None:
    network = seeded(BlocksInAList)
    image = pictures(1)
    with torch.no_grad():
        clean = network.features(network.blocks[1][0](network.blocks[0](image).relu()))[0]
        full = network.head(clean[None])[0, 1]
        kept = [clean * (torch.arange(4) != k)[:, None, None] for k in range(4)]
        weights = [float((full - network.head(one[None])[0, 1]) / full) for one in kept]
    with watched(network.blocks[0]) as first, watched(network.head) as head:
        cam = egcam.AblationCAM(network, LAYER, signed=True)
        cam(image, target=1)
        first.clear()  # what found out about the network
        found = cam(image, target=1).maps[0]
    torch.testing.assert_close(found, torch.from_numpy(weighted_channels(weights, clean.numpy())), **EXACT)
    assert sum(map(len, first)) <= 2, "the blocks run for the image alone, not for each channel"
    assert sum(map(len, head)) >= 4
