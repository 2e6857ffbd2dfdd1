"""Estimators: the design's equivalences, convergence, honest errors, completeness, and what is drawn.

Draws are read off the images the network was shown, or recorded by a path callable; no internals are used.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.attribution.sampling import SAMPLINGS, Sampling
from egcam.attribution.weightings import Elementwise
from support.forms import along_images
from support.networks import (
    IMAGE,
    TwoHalves,
    flat_linear_head,
    perceptron_head,
    pictures,
    pooled_linear_head,
    saturated,
    signed_activations,
    smooth_everywhere,
    watched,
)
from support.small_models import METHODS

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = "features"
EXACT = {"rtol": 0.0, "atol": 1e-10}
WEIGHTINGS = [egcam.GradCAM, egcam.HiResCAM, egcam.XGradCAM, egcam.LayerCAM, egcam.GradCAMPlusPlus]


def each_weighting(function: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("cam", WEIGHTINGS, ids=lambda cam: cam.name)(function)


def signed_map(cam: type[egcam.GradientCAM], network: nn.Module, gradient: object, images: Tensor) -> Tensor:
    return cam(network, LAYER, gradient=gradient, signed=True, batch_size=64)(images, target=1).maps


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def stay(references: Tensor, images: Tensor, share: float) -> Tensor:
    """A path that is at the image all the time: a = 1."""
    return images


class Recorder:
    """The straight path, and all it was asked for: (reference, image, share, point) of one image at a time."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor, float, Tensor]] = []

    def __call__(self, references: Tensor, images: Tensor, share: float) -> Tensor:
        points = references + share * (images - references)
        self.calls += [(one, image, share, point) for one, image, point in zip(references, images, points, strict=True)]
        return points

    @property
    def shares(self) -> list[float]:
        return [share for _, _, share, _ in self.calls]


def gradients_at(network: nn.Module, points: Tensor, target: int = 1) -> Tensor:
    """dL/dA of the target's logit at each point, (S, K, h, w)."""
    activations = network.features(points).detach().requires_grad_()
    logits = network.head(activations.clone())
    return torch.autograd.grad(logits[:, target].sum(), activations)[0]


def activations_at(network: nn.Module, points: Tensor) -> Tensor:
    with torch.no_grad():
        return network.features(points)


# -- the equivalences of the design --------------------------------------------------------------


@each_weighting
def test_one_constant_reference_tends_to_integrated(cam: type[egcam.GradientCAM]) -> None:
    network, images = smooth_everywhere(), pictures(2)
    colour = egcam.attribution.references.constant([0.3, -0.7])
    truth = signed_map(cam, network, egcam.Integrated(2000, reference=colour), images)
    found = signed_map(cam, network, egcam.Expected(colour, 512), images)
    assert relative(found, truth) < 1e-3
    vanilla = signed_map(cam, network, egcam.Vanilla(), images)
    assert relative(vanilla, truth) > 0.03, "the path must matter for this to mean anything"


def root_mean_square_error(truth: Tensor, samples: int, sampling: Sampling) -> float:
    network, images = smooth_everywhere(), pictures(2)
    errors = [
        relative(
            signed_map(egcam.HiResCAM, network, egcam.Expected("black", samples, sampling=sampling, seed=seed), images),
            truth,
        )
        for seed in range(12)
    ]
    return float(torch.tensor(errors).square().mean().sqrt())


def test_expected_converges_at_the_rate_of_its_design() -> None:
    """From 32 to 512 samples Monte Carlo gains sqrt(16) = 4, strata of 1/4 and 1/32 about 32, a shifted lattice 16."""
    truth = signed_map(egcam.HiResCAM, smooth_everywhere(), egcam.Integrated(4000), pictures(2))
    plain = [root_mean_square_error(truth, samples, "monte-carlo") for samples in (32, 512)]
    stratified = [root_mean_square_error(truth, samples, "stratified") for samples in (32, 512)]
    lattice = [root_mean_square_error(truth, samples, "lattice") for samples in (32, 512)]
    assert 2.2 < plain[0] / plain[1] < 7
    assert 16 < stratified[0] / stratified[1] < 64
    assert 11 < lattice[0] / lattice[1] < 23
    assert lattice[0] < stratified[0] < plain[0] / 2


@each_weighting
def test_staying_at_the_image_without_noise_is_vanilla(cam: type[egcam.GradientCAM]) -> None:
    network, images = perceptron_head(), pictures(3)
    found = signed_map(cam, network, egcam.Expected("noise", 7, path=stay), images)
    torch.testing.assert_close(found, signed_map(cam, network, egcam.Vanilla(), images), **EXACT)


@each_weighting
def test_gaussian_kernel_at_the_image_is_smooth(cam: type[egcam.GradientCAM]) -> None:
    network, images = perceptron_head(), pictures(3)
    kernel = egcam.Kernel("gaussian", 0.15, relative=True)
    found = signed_map(cam, network, egcam.Expected("black", 25, path=stay, kernel=kernel, seed=3), images)
    smooth = signed_map(cam, network, egcam.Smooth(25, seed=3), images)
    assert torch.equal(found, smooth)
    assert not torch.equal(smooth, signed_map(cam, network, egcam.Smooth(25, seed=4), images))


def test_smooth_grad_cam_plus_plus_is_plus_plus_with_the_smooth_gradient() -> None:
    network, images = perceptron_head(), pictures(2)
    named = egcam.SmoothGradCAMPlusPlus(network, LAYER, samples=9, signed=True)(images, target=1).maps
    assert torch.equal(named, signed_map(egcam.GradCAMPlusPlus, network, egcam.Smooth(9), images))


@pytest.mark.parametrize(("weighting", "cam"), [("mean", egcam.GradCAM), ("elementwise", egcam.HiResCAM)])
def test_expected_grad_cam_is_a_cam_with_the_expected_gradient(weighting: str, cam: type[egcam.GradientCAM]) -> None:
    network, images, others = perceptron_head(), pictures(2), pictures(5, seed=9)
    options = {"reference": others, "samples": 8, "weighting": weighting, "signed": True, "batch_size": 64}
    plain = egcam.ExpectedGradCAM(network, LAYER, kernel=None, difference="none", **options)(images, target=1)
    assert torch.equal(plain.maps, signed_map(cam, network, egcam.Expected(others, 8), images))
    latent = {"path": "subset", "kernel": "gaussian", "difference": "latent", "seed": 3}
    named = egcam.ExpectedGradCAM(network, LAYER, **latent, **options)(images, target=1)
    assert torch.equal(named.maps, signed_map(cam, network, egcam.Expected(others, 8, **latent), images))
    assert relative(named.maps, plain.maps) > 0.1


@pytest.mark.parametrize(("weighting", "cam"), [("mean", egcam.GradCAM), ("elementwise", egcam.HiResCAM)])
def test_at_a_linear_head_the_map_is_that_of_the_plain_gradient(weighting: str, cam: type[egcam.GradientCAM]) -> None:
    network, images = pooled_linear_head(), pictures(2)
    found = along_images(network, LAYER, samples=6, weighting=weighting)(images, target=1)
    plain = cam(network, LAYER)(images, target=1)
    assert float(plain.maps.max()) > 0
    torch.testing.assert_close(found.maps, plain.maps, **EXACT)
    torch.testing.assert_close(found.heatmaps, plain.heatmaps, **EXACT)


@each_weighting
def test_a_named_cam_takes_no_other_weighting(cam: type[egcam.GradientCAM]) -> None:
    """With another weighting it would be another method under this name."""
    with pytest.raises(
        egcam.errors.MethodError, match=rf"^{re.escape(cam.name)} is defined by its weighting.*GradientCAM"
    ):
        cam(perceptron_head(), LAYER, weighting=Elementwise())
    assert "weighting" not in inspect.signature(cam).parameters
    own = egcam.GradientCAM(perceptron_head(), LAYER, weighting=cam.weighting, signed=True)
    torch.testing.assert_close(
        own(pictures(2), target=1).maps, cam(perceptron_head(), LAYER, signed=True)(pictures(2), target=1).maps, **EXACT
    )


# -- any estimator in any weighting --------------------------------------------------------------

MAP_OF: dict[type[egcam.GradientCAM], Callable[[Tensor, Tensor], Tensor]] = {
    egcam.GradCAM: lambda g, a: (g.mean(0).mean((1, 2), keepdim=True) * a).sum(0),
    egcam.HiResCAM: lambda g, a: (g.mean(0) * a).sum(0),
    egcam.LayerCAM: lambda g, a: (g.mean(0).clamp(min=0) * a).sum(0),
    egcam.XGradCAM: lambda g, a: ((g.mean(0) * a).sum((1, 2), True) / a.sum((1, 2), True) * a).sum(0),
    egcam.GradCAMPlusPlus: lambda g, a: (plus_plus_weights(g, a) * a).sum(0),
}


def plus_plus_weights(g: Tensor, a: Tensor) -> Tensor:
    below = 2 * (g**2).mean(0) + a.sum((1, 2), True) * (g**3).mean(0)
    return ((g**2).mean(0) / below * g.mean(0).clamp(min=0)).sum((1, 2), True)


ESTIMATORS = {
    "vanilla": egcam.Vanilla(),
    "smooth": egcam.Smooth(6),
    "integrated": egcam.Integrated(6, reference="white"),
    "expected": egcam.Expected("uniform", 6),
    "expected with noise": egcam.Expected("blurred", 3, kernel=egcam.Kernel("uniform", 0.5, draws=2)),
}


@each_weighting
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_in_every_weighting(cam: type[egcam.GradientCAM], estimator: str) -> None:
    network, image = signed_activations(), pictures(1)
    with watched(network) as shown:
        found = signed_map(cam, network, ESTIMATORS[estimator], image)
    points = torch.cat(shown[1:]) if estimator != "vanilla" else shown[0]
    assert len(points) == (1 if estimator == "vanilla" else 6)
    truth = MAP_OF[cam](gradients_at(network, points), activations_at(network, image)[0])
    torch.testing.assert_close(found[0], truth, **EXACT)


def test_own_weighting_gets_the_averaged_gradient_and_the_clean_activations() -> None:
    network, image = signed_activations(), pictures(1)

    def largest(gradient: Tensor, activations: Tensor) -> Tensor:
        return gradient.amax((2, 3), keepdim=True) * activations.amin((2, 3), keepdim=True)

    with watched(network) as shown:
        cam = egcam.GradientCAM(network, LAYER, gradient=egcam.Smooth(4), weighting=largest, signed=True, batch_size=64)
        found = cam(image, target=1).maps[0]
    gradient = gradients_at(network, torch.cat(shown[1:])).mean(0)
    clean = activations_at(network, image)[0]
    truth = sum(gradient[k].max() * clean[k].min() * clean[k] for k in range(4))
    torch.testing.assert_close(found, truth, **EXACT)


# -- what is drawn -------------------------------------------------------------------------------


def drawn_shares(samples: int, sampling: Sampling, seed: int = 0) -> Tensor:
    recorder = Recorder()
    gradient = egcam.Expected("black", samples, path=recorder, sampling=sampling, seed=seed)
    signed_map(egcam.GradCAM, flat_linear_head(), gradient, pictures(1))
    return torch.tensor(recorder.shares)


def test_stratified_shares_fall_into_each_stratum_once_for_each_replicate() -> None:
    shares = drawn_shares(32, "stratified").reshape(8, 4)
    assert (shares * 4).floor().long().sort(1).values.tolist() == [[0, 1, 2, 3]] * 8
    orders = {tuple(row) for row in (shares * 4).floor().long().tolist()}
    assert len(orders) > 2, "strata must come in random order"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_shares_are_uniform(sampling: Sampling) -> None:
    shares = drawn_shares(512, sampling).sort().values
    assert shares[0] >= 0
    assert shares[-1] < 1
    even = (torch.arange(512) + 0.5) / 512
    # Kolmogorov-Smirnov at 1e-4: 2.2 / sqrt(n) for independent draws
    assert float((shares - even).abs().max()) < 2.2 / 512**0.5
    if sampling == "monte-carlo":
        assert float((shares - even).abs().max()) > 1 / 512, "independent draws are not that even"


def test_smooth_noise_is_gaussian_with_the_share_of_the_range() -> None:
    network, image = flat_linear_head(), pictures(1) * 3 + 1
    with watched(network) as shown:
        signed_map(egcam.GradCAM, network, egcam.Smooth(400, scale=0.2), image)
    noise = (torch.cat(shown[1:]) - image) / (0.2 * (image.max() - image.min()))
    assert abs(float(noise.mean())) < 4 / noise.numel() ** 0.5
    assert float(noise.std()) == pytest.approx(1, abs=4 / (2 * noise.numel()) ** 0.5)
    assert float((noise.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.02)


def test_path_points_lie_on_the_straight_line_from_the_reference() -> None:
    network, image, others = flat_linear_head(), pictures(1), pictures(4, seed=5)
    recorder = Recorder()
    with watched(network) as by_callable:
        signed_map(egcam.GradCAM, network, egcam.Expected(others, 12, path=recorder), image)
    with watched(network) as by_name:
        signed_map(egcam.GradCAM, network, egcam.Expected(others, 12), image)
    for (reference, _, share, _), point in zip(recorder.calls, torch.cat(by_name[1:]), strict=True):
        torch.testing.assert_close(point, reference + share * (image[0] - reference), **EXACT)
    torch.testing.assert_close(torch.cat(by_name), torch.cat(by_callable), **EXACT)


@pytest.mark.parametrize(
    ("kernel", "low", "high"),
    [
        ("uniform", 0.0, 1.0),
        (egcam.Kernel("uniform", 0.25), 0.0, 0.25),
        (egcam.Kernel("gaussian", 0.1), -0.6, 0.6),
        ("gaussian", -0.9, 0.9),
    ],
)
def test_kernel_noise_is_added_at_the_path_points(kernel: object, low: float, high: float) -> None:
    network, image, recorder = flat_linear_head(), pictures(1), Recorder()
    with watched(network) as shown:
        signed_map(egcam.GradCAM, network, egcam.Expected("white", 200, path=recorder, kernel=kernel), image)
    noise = torch.cat(shown[1:]) - torch.stack([point for *_, point in recorder.calls])
    gaussian = low < 0
    middle, spread = (0.0, high / 6) if gaussian else (high / 2, high / 12**0.5)
    assert low <= float(noise.min())
    assert float(noise.max()) <= high
    assert float(noise.mean()) == pytest.approx(middle, abs=5 * spread / noise.numel() ** 0.5)
    assert float(noise.std()) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize("weighting", ["elementwise", "mean"])
def test_the_paper_form_adds_uniform_noise_and_multiplies_by_the_response_to_the_difference(weighting: str) -> None:
    """S = relu( sum_k W_k A_k ), W_k = 1/n sum_s f_k(x - x'_s) dy/dA_k at x' + a (x - x') + eta, eta ~ U(0, 1)."""
    network, images, others, samples = perceptron_head(), pictures(2), pictures(5, seed=3), 40
    for image in images:
        recorder, options = Recorder(), {"samples": samples, "reference": others, "batch_size": 64}
        with watched(network) as shown:
            paper = egcam.explain(
                network, image[None], "expected-grad-cam", 1, signed=True, layer=LAYER, weighting=weighting, **options
            )
            found = paper.maps[0]
        form = {"path": recorder, "kernel": egcam.Kernel("uniform", scale=1.0), "difference": "input"}
        composed = along_images(network, LAYER, signed=True, weighting=weighting, **form, **options)
        assert torch.equal(found, composed(image[None], target=1).maps[0])
        points, differences = shown[1], shown[2]
        noise = points - torch.stack([point for *_, point in recorder.calls])
        assert float(noise.min()) >= 0
        assert float(noise.max()) <= 1
        assert float(noise.mean()) == pytest.approx(0.5, abs=0.03)
        for (reference, *_), difference in zip(recorder.calls, differences, strict=True):
            torch.testing.assert_close(difference, image - reference, **EXACT)
        weights = (activations_at(network, differences) * gradients_at(network, points)).mean(0)
        weights = weights.mean((1, 2), keepdim=True) if weighting == "mean" else weights
        truth = (weights * activations_at(network, image[None])[0]).sum(0)
        torch.testing.assert_close(found, truth, **EXACT)


def test_latent_difference_is_that_of_the_activations() -> None:
    network, image, recorder = signed_activations(), pictures(1), Recorder()
    gradient = egcam.Expected(pictures(5, seed=3), 12, path=recorder, difference="latent")
    found = signed_map(egcam.HiResCAM, network, gradient, image)[0]
    clean = activations_at(network, image)[0]
    references = torch.stack([reference for reference, *_ in recorder.calls])
    points = torch.stack([point for *_, point in recorder.calls])
    weights = ((clean - activations_at(network, references)) * gradients_at(network, points)).mean(0)
    torch.testing.assert_close(found, (weights * clean).sum(0), **EXACT)


@pytest.mark.parametrize("relative_noise", [False, True])
def test_kernel_normaliser_is_the_inverse_mean_response_to_the_noise(relative_noise: bool) -> None:
    network, image = signed_activations(), pictures(1) * 2
    kernel = egcam.Kernel("uniform", 0.5, relative=relative_noise, draws=2, normaliser=True)
    with watched(network) as shown:
        gradient = egcam.Expected("black", 6, path=stay, kernel=kernel)
        found = egcam.HiResCAM(network, LAYER, gradient=gradient, signed=True, batch_size=64)(image, target=1).maps[0]
    points, noise = shown[1], shown[2]
    torch.testing.assert_close(points - image, noise, **EXACT)
    assert len(noise) == 12
    width = 0.5 * (float(image.max() - image.min()) if relative_noise else 1)
    assert 0.9 * width < float(noise.max()) <= width
    response = activations_at(network, noise).mean((0, 2, 3))
    weights = gradients_at(network, points).mean(0) / response[:, None, None]
    torch.testing.assert_close(found, (weights * activations_at(network, image)[0]).sum(0), **EXACT)


def test_channel_that_does_not_answer_to_the_noise_keeps_the_factor_one() -> None:
    """Channel 0 sees -x, so positive noise leaves it dark, while the negative image lights it up."""
    features = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.ReLU())
    network = TwoHalves(features, nn.Sequential(nn.Flatten(), nn.Linear(2 * 4, 2))).double()
    with torch.no_grad():
        features[0].weight.copy_(torch.tensor([-1.0, 3.0])[:, None, None, None])
        network.head[1].weight[1] = torch.arange(1.0, 9.0)
    image = torch.tensor([[[[-1.0, -2.0], [0.5, 4.0]]]], dtype=torch.float64)
    kernel = egcam.Kernel("uniform", 0.1, normaliser=True)
    with watched(network) as shown:
        gradient = egcam.Expected("black", 4, path=stay, kernel=kernel)
        found = egcam.HiResCAM(network, LAYER, gradient=gradient, batch_size=8)(image, target=1).maps[0]
    response = 3 * float(shown[2].mean())
    # A0 = 1 2 0 0 with g = 1 2 3 4, factor 1; A1 = 0 0 1.5 12 with g = 5 6 7 8, factor 1/response
    truth = [1.0, 4.0, 7 * 1.5 / response, 8 * 12 / response]
    assert found.flatten().tolist() == pytest.approx(truth, rel=1e-6)


def test_kernel_draws_are_several_noises_at_each_path_point() -> None:
    network, image, recorder = perceptron_head(), pictures(1), Recorder()
    kernel = egcam.Kernel("gaussian", 0.3, draws=3)
    with watched(network) as shown:
        gradient = egcam.Expected("uniform", 5, path=recorder, kernel=kernel)
        found = signed_map(egcam.HiResCAM, network, gradient, image)[0]
    points = torch.cat(shown[1:])
    assert len(points) == 15
    assert len({round(share, 12) for share in recorder.shares}) == 5
    noise = (points - torch.stack([point for *_, point in recorder.calls])).reshape(5, 3, -1)
    assert float(torch.pdist(noise.flatten(0, 1)).min()) > 0.5, "every draw is a new one"
    truth = (gradients_at(network, points).mean(0) * activations_at(network, image)[0]).sum(0)
    torch.testing.assert_close(found, truth, **EXACT)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("patch", [1, 2])
def test_subset_path_replaces_exactly_the_share(share: float, patch: int) -> None:
    references, images = torch.zeros(2, 3, 6, 8), torch.ones(2, 3, 6, 8)
    points = egcam.RandomSubset(patch).between(references, images, share, torch.Generator().manual_seed(1))
    cells = 48 // patch**2
    assert points.sum((2, 3)).tolist() == [[round(share * cells) * patch**2] * 3] * 2
    squares = points[0, 0].reshape(6 // patch, patch, 8 // patch, patch)
    assert torch.equal(squares, squares[:, :1, :, :1].expand_as(squares)), "a patch goes as a whole"
    assert torch.equal(points[0], points[1]), "all images have the same pixels replaced"


def test_subset_path_in_the_estimator() -> None:
    """Pixels of the image where chosen, of the reference elsewhere; the shares are stratified as on the line."""
    network, images = perceptron_head(), pictures(1)
    with watched(network) as shown:
        found = signed_map(egcam.HiResCAM, network, egcam.Expected("white", 16, path="subset"), images)[0]
    points = torch.cat(shown[1:])
    chosen = points == images
    assert torch.equal(chosen[:, 0], chosen[:, 1]), "a pixel goes with all its colours"
    assert bool((chosen | (points == 1.0)).all())
    counts = chosen[:, 0].sum((1, 2)).reshape(4, 4).sort(1).values
    # strata of a are quarters; round(a * 30) may reach the stratum's rounded ends
    for quarter, (low, high) in enumerate([(0, 8), (7, 15), (15, 23), (22, 30)]):
        assert low <= int(counts[:, quarter].min())
        assert int(counts[:, quarter].max()) <= high
    assert len({tuple(row) for row in chosen[:, 0].flatten(1).tolist()}) == 16
    truth = (gradients_at(network, points).mean(0) * activations_at(network, images)[0]).sum(0)
    torch.testing.assert_close(found, truth, **EXACT)


# -- integrated ----------------------------------------------------------------------------------


def integrated_grad_cam(steps: int, **options: bool) -> Tensor:
    cam = egcam.IntegratedGradCAM(smooth_everywhere(), LAYER, samples=steps, **options)
    return cam(pictures(2), target=1).maps


def test_integrated_grad_cam_converges_with_the_square_of_the_steps() -> None:
    truth = integrated_grad_cam(2048, signed=True)
    errors = [relative(integrated_grad_cam(steps, signed=True), truth) for steps in (8, 16, 32, 64)]
    assert [before / after for before, after in pairwise(errors)] == pytest.approx([4] * 3, rel=0.2)
    assert errors[-1] < 1e-3


@pytest.mark.filterwarnings("ignore::egcam.errors.ZeroMapWarning")
def test_integrated_grad_cam_converges_after_relu_and_the_authors_form_does_not() -> None:
    few, many = integrated_grad_cam(256), integrated_grad_cam(1024)
    assert relative(few, many) < 1e-4
    few, many = integrated_grad_cam(256, authors=True), integrated_grad_cam(1024, authors=True)
    assert float(many.sum() / few.sum()) == pytest.approx(4, rel=0.02), "a sum grows with the steps"


def test_integrated_estimator_converges_with_the_square_of_the_steps() -> None:
    network, images = smooth_everywhere(), pictures(2)
    truth = signed_map(egcam.HiResCAM, network, egcam.Integrated(2048), images)
    errors = [relative(signed_map(egcam.HiResCAM, network, egcam.Integrated(n), images), truth) for n in (8, 16, 32)]
    assert [before / after for before, after in pairwise(errors)] == pytest.approx([4] * 2, rel=0.2)


# -- completeness --------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [flat_linear_head, pooled_linear_head])
def test_latent_summed_map_is_complete_at_a_linear_head(build: Callable[[], nn.Module]) -> None:
    """Its total is y(x) - E[y(x')]; twelve samples from twelve references show each once."""
    network, images, others = build(), pictures(3), pictures(12, seed=4)
    cam = along_images(
        network, LAYER, reference=others, samples=12, difference="latent", weighting="summed", signed=True
    )
    found = cam(images, target=2).maps.sum((1, 2))
    with torch.no_grad():
        truth = network(images)[:, 2] - network(others)[:, 2].mean()
    torch.testing.assert_close(found, truth, **EXACT)


def test_input_difference_is_not_complete() -> None:
    """f(x - x') is not f(x) - f(x'): the paper's last formula attributes something else."""
    network, images, others = flat_linear_head(), pictures(3), pictures(12, seed=4)
    cam = along_images(
        network, LAYER, reference=others, samples=12, difference="input", weighting="summed", signed=True
    )
    with torch.no_grad():
        truth = network(images)[:, 2] - network(others)[:, 2].mean()
    assert float((cam(images, target=2).maps.sum((1, 2)) - truth).abs().max()) > 0.01


@pytest.mark.parametrize("score", ["logit", "probability"])
def test_integrated_gradients_are_complete(score: str) -> None:
    network, images = smooth_everywhere(), pictures(3)
    found = egcam.IntegratedGradients(network, samples=200, reference="white", signed=True, score=score)(
        images, target=0
    )
    with torch.no_grad():
        logits, base = network(images), network(torch.ones(1, *IMAGE).double())
    if score == "probability":
        logits, base = logits.softmax(1), base.softmax(1)
    torch.testing.assert_close(found.maps.sum((1, 2)), logits[:, 0] - base[:, 0], rtol=0, atol=1e-4)


def test_expected_gradients_are_complete() -> None:
    """Sixteen times the samples bring the total at least about four times nearer to y(x) - E[y(x')]."""
    network, images, others = smooth_everywhere(), pictures(2), pictures(4, seed=4)
    with torch.no_grad():
        logits = network(others)[:, 0]
        truth = network(images)[:, 0] - logits.mean()

    def deviation(samples: int) -> float:
        totals = [
            egcam.ExpectedGradients(network, reference=others, samples=samples, signed=True, seed=seed, batch_size=64)(
                images, target=0
            ).maps.sum((1, 2))
            for seed in range(6)
        ]
        return float((torch.stack(totals) - truth).square().mean().sqrt())

    many = deviation(512)
    assert many < 0.02 * float(logits.std())
    assert many < deviation(32) / 2.5


# -- saturation ----------------------------------------------------------------------------------

BRIGHT = torch.tensor([[[[0.5, 1.0, 0.0], [1.5, 0.25, 0.75]]]], dtype=torch.float64)  # total 4: y = min(1, 4)


def test_grad_cam_is_blind_where_the_output_is_saturated() -> None:
    with pytest.warns(egcam.ZeroMapWarning, match="saturated"):
        found = egcam.GradCAM(saturated(), LAYER)(BRIGHT, target=0)
    assert not found.maps.any()
    assert not found.heatmaps.any()


def test_the_expected_gradient_sees_past_saturation() -> None:
    """From black, the gradient is 1 for a < 1/4 and 0 from there on: E[g] = 1/4, by strata of 1/4 exactly."""
    found = along_images(saturated(), LAYER, reference="black", samples=32)(BRIGHT, target=0)
    torch.testing.assert_close(found.maps[0], BRIGHT[0, 0] / 4, **EXACT)
    assert found.error is not None
    assert not found.error.any(), "every replicate of four strata gives the same map"
    plain = along_images(saturated(), LAYER, reference="black", samples=32, sampling="monte-carlo")
    scattered = plain(BRIGHT, target=0)
    assert scattered.error is not None
    assert float(scattered.error.max()) > 0.01


COMPLETE: dict[str, Callable[[], egcam.Explainer]] = {
    "slope": lambda: egcam.SlopeCAM(saturated(), LAYER, reference="black", signed=True),
    "path": lambda: along_images(
        saturated(), LAYER, reference="black", difference="latent", weighting="summed", signed=True
    ),
}


@pytest.mark.parametrize("kind", COMPLETE)
def test_summed_map_of_the_saturated_network_is_complete(kind: str) -> None:
    """E[(A - 0) g] = A / 4, whose total is 1 = y(x) - y(0)."""
    found = COMPLETE[kind]()(BRIGHT, target=0)
    torch.testing.assert_close(found.maps[0], BRIGHT[0, 0] / 4, **EXACT)
    assert float(found.maps.sum()) == pytest.approx(1, abs=1e-12)


def test_integrated_grad_cam_of_the_saturated_network_by_hand() -> None:
    """The integral over a < 1/4 of a A is A / 32; 8 midpoints give (1/16 + 3/16)/8 A = A / 32."""
    found = egcam.IntegratedGradCAM(saturated(), LAYER, samples=8)(BRIGHT, target=0)
    torch.testing.assert_close(found.maps[0], BRIGHT[0, 0] / 32, **EXACT)


# -- the error and the tolerance -----------------------------------------------------------------


def test_error_is_the_standard_error_of_the_replicates() -> None:
    """32 samples are 8 replicates of 4: the error is the standard deviation of their maps over sqrt(8)."""
    network, image = perceptron_head(), pictures(1)
    with watched(network) as shown:
        cam = along_images(network, LAYER, reference="uniform", samples=32, signed=True, batch_size=64)
        found = cam(image, target=1)
    gradients = gradients_at(network, torch.cat(shown[1:])).reshape(8, 4, 4, 4, 3).mean(1)
    maps = (gradients * activations_at(network, image)).sum(1)
    assert found.error is not None
    torch.testing.assert_close(found.error[0], maps.std(0) / 8**0.5, **EXACT)
    torch.testing.assert_close(found.maps[0], maps.mean(0), **EXACT)


def test_methods_without_chance_have_no_error() -> None:
    network, images = perceptron_head(), pictures(2)
    for method in ("grad-cam", "integrated-grad-cam", "score-cam", "ablation-cam"):
        assert egcam.explain(network, images, method, layer=LAYER, signed=True).error is None
    assert egcam.explain(network, images, "smooth-grad-cam++", layer=LAYER, signed=True).error is not None
    assert along_images(network, LAYER, samples=1, signed=True)(images).error is None, "one sample has none"


def noisy_cam(samples: int, seed: int, sampling: Sampling, tolerance: float | None = None) -> egcam.GradientCAM:
    return along_images(
        smooth_everywhere(),
        LAYER,
        reference="uniform",
        samples=samples,
        kernel=egcam.Kernel("gaussian", 0.2),
        seed=seed,
        sampling=sampling,
        tolerance=tolerance,
        signed=True,
        batch_size=64,
    )


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_error_shrinks_with_the_root_of_the_samples(sampling: Sampling) -> None:
    """References and noise dominate here, so strata change nothing of the rate: 16 times the samples, a quarter."""

    def size(samples: int) -> float:
        errors = [noisy_cam(samples, seed, sampling)(pictures(2), target=1).error for seed in range(8)]
        return float(torch.stack(errors).square().mean().sqrt())

    assert size(32) / size(512) == pytest.approx(4, rel=0.35)


def standardised(cam: Callable[[int], egcam.GradientCAM], truth: Tensor, seeds: int) -> Tensor:
    """(map - truth) / error for every seed and position."""
    found = [cam(seed)(pictures(1), target=1) for seed in range(seeds)]
    return torch.stack([(one.maps - truth) / one.error for one in found])


def assert_covers(deviations: Tensor) -> None:
    """Student's t with 15 degrees of freedom: spread 1.07, 94% within two; wide margins for correlated positions."""
    spread = float(deviations.square().mean().sqrt())
    within = float((deviations.abs() < 2).double().mean())
    assert 0.85 < spread < 1.35
    assert 0.87 < within < 0.985
    assert float(deviations.mean(0).abs().max()) < 5 / len(deviations) ** 0.5, "no bias"


def deviations_on_one_path(sampling: Sampling) -> Tensor:
    """From black, the truth is known: the integral along the line."""
    network = smooth_everywhere()
    truth = signed_map(egcam.HiResCAM, network, egcam.Integrated(4000), pictures(1))

    def cam(seed: int) -> egcam.GradientCAM:
        options = {"reference": "black", "samples": 64, "sampling": sampling, "signed": True}
        return along_images(network, LAYER, seed=seed, batch_size=64, **options)

    return standardised(cam, truth, 80)


@pytest.mark.parametrize("sampling", ["stratified", "monte-carlo"])
def test_error_covers_the_truth_on_one_path(sampling: Sampling) -> None:
    assert_covers(deviations_on_one_path(sampling))


def test_error_of_the_lattice_is_never_too_small_on_one_path() -> None:
    """Its replicates lie between each other, so their mean is better than their scatter says."""
    deviations = deviations_on_one_path("lattice")
    assert float(deviations.abs().max()) < 1
    spread = float(deviations.square().mean().sqrt())
    assert float(deviations.mean(0).abs().max()) < 5 * spread / len(deviations) ** 0.5, "no bias"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_error_covers_the_truth_with_random_references_and_noise(sampling: Sampling) -> None:
    truth = noisy_cam(4096, 999, sampling)(pictures(1), target=1).maps
    assert_covers(standardised(lambda seed: noisy_cam(64, seed, sampling), truth, 60))


def test_even_sampling_has_less_variance_than_plain_monte_carlo() -> None:
    def variance(sampling: Sampling) -> float:
        network = smooth_everywhere()
        maps = [
            signed_map(egcam.HiResCAM, network, egcam.Expected("black", 16, sampling=sampling, seed=seed), pictures(2))
            for seed in range(40)
        ]
        return float(torch.stack(maps).var(0).sum())

    assert variance("stratified") < variance("monte-carlo") / 8
    assert variance("lattice") < variance("monte-carlo") / 8


def relative_error(found: egcam.Explanation) -> Tensor:
    return found.error.flatten(1).norm(dim=1) / found.maps.flatten(1).norm(dim=1)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_tolerance_stops_early_and_meets_its_bound(sampling: Sampling) -> None:
    images = pictures(4)
    full = noisy_cam(512, 0, sampling)(images, target=1)
    reached = float(relative_error(full).max())
    loose = noisy_cam(512, 0, sampling, tolerance=3 * reached)(images, target=1)
    tight = noisy_cam(512, 0, sampling, tolerance=1.2 * reached)(images, target=1)
    assert float(relative_error(loose).max()) <= 3 * reached
    assert float(relative_error(tight).max()) <= 1.2 * reached
    assert loose.passes < tight.passes < full.passes
    assert bool((relative_error(full) < relative_error(loose)).all())
    apart = (loose.maps - full.maps).flatten(1).norm(dim=1) / full.maps.flatten(1).norm(dim=1)
    assert float(apart.max()) < 3 * 3 * reached


def test_tolerance_can_stop_long_before_a_generous_limit() -> None:
    images = pictures(1)
    reached = [noisy_cam(limit, 0, "lattice", tolerance=0.5)(images, target=1).passes for limit in (64, 2048)]
    assert reached[1] == reached[0] < 64


def test_tolerance_stops_each_image_by_itself() -> None:
    """An image of one colour near its own reference is done sooner than a wild one."""
    quiet, wild = 0.01 * pictures(1), 3 * pictures(1, seed=2)

    def explain(images: Tensor) -> egcam.Explanation:
        cam = along_images(
            smooth_everywhere(), LAYER, reference="black", samples=1024, tolerance=2e-4, signed=True, batch_size=1
        )
        return cam(images, target=1)

    alone = [explain(quiet), explain(wild)]
    assert alone[0].passes < alone[1].passes
    both = explain(torch.cat([quiet, wild]))
    assert both.passes == alone[0].passes + alone[1].passes
    torch.testing.assert_close(both.maps, torch.cat([one.maps for one in alone]), **EXACT)
    torch.testing.assert_close(both.error, torch.cat([one.error for one in alone]), **EXACT)


def test_tolerance_that_is_never_met_changes_nothing() -> None:
    images = pictures(2)
    never = noisy_cam(48, 0, "lattice", tolerance=1e-9)(images, target=1)
    plain = noisy_cam(48, 0, "lattice")(images, target=1)
    assert torch.equal(never.maps, plain.maps)
    assert never.passes == plain.passes == 2 * 49


# -- batches and seeds ---------------------------------------------------------------------------

BATCHED: dict[str, Callable[[], egcam.Expected | egcam.Smooth | egcam.Integrated]] = {
    "smooth": lambda: egcam.Smooth(7),
    "integrated": lambda: egcam.Integrated(7, difference="latent"),
    "integrated from an image": lambda: egcam.Integrated(7, reference=pictures(3, seed=8)),
    "image references": lambda: egcam.Expected(pictures(5, seed=8), 9),
    "references among which are the images": lambda: egcam.Expected(pictures(5), 9, difference="latent"),
    "references among which are some of the images": lambda: egcam.Expected(pictures(6)[2:], 9),
    "independent references": lambda: egcam.Expected(pictures(5), 9, sampling="monte-carlo"),
    "stratified": lambda: egcam.Expected(pictures(5), 9, sampling="stratified"),
    "tolerance": lambda: egcam.Expected(pictures(5, seed=8), 200, tolerance=0.1),
    "tolerance and noise": lambda: egcam.Expected("noise", 200, tolerance=0.1, kernel="uniform"),
    "normaliser": lambda: egcam.Expected("blurred", 6, kernel=egcam.Kernel("uniform", 1, True, 2, True)),
    "relative kernel": lambda: egcam.Expected("black", 6, kernel=egcam.Kernel(relative=True, draws=2)),
    "subset": lambda: egcam.Expected("uniform", 9, path="subset", difference="input"),
    "callable": lambda: egcam.Expected(lambda images: torch.rand_like(images), 6),
    "callable with generator": lambda: egcam.Expected(
        lambda images, generator: torch.rand(images.shape, generator=generator, dtype=images.dtype), 6
    ),
}


@pytest.mark.parametrize("batch_size", [None, 1, 2, 5])
@pytest.mark.parametrize("name", BATCHED)
def test_batch_equals_single_calls(name: str, batch_size: int | None) -> None:
    network, images = perceptron_head(), pictures(4)

    def explain(some: Tensor) -> egcam.Explanation:
        cam = egcam.HiResCAM(network, LAYER, gradient=BATCHED[name](), signed=True, batch_size=batch_size)
        return cam(some, target=1)

    together = explain(images)
    alone = [explain(image[None]) for image in images]
    torch.testing.assert_close(together.maps, torch.cat([one.maps for one in alone]), **EXACT)
    if together.error is not None:
        torch.testing.assert_close(together.error, torch.cat([one.error for one in alone]), **EXACT)
    backwards = explain(images.flip(0))
    torch.testing.assert_close(backwards.maps.flip(0), together.maps, **EXACT)


@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_in_a_batch_equals_single_calls(method: str, batch_size: int | None) -> None:
    network = pooled_linear_head() if method == "cam" else perceptron_head()
    images = pictures(4)
    few = {"samples": 40} if method in ("rise", "lime", "kernel-shap") else {}
    whole = egcam.explain(network, images, method, [0, 1, 2, 0], signed=True, batch_size=batch_size, **few)
    for index, target in enumerate([0, 1, 2, 0]):
        one = egcam.explain(network, images[index], method, target, signed=True, **few)
        torch.testing.assert_close(whole.maps[index], one.maps, **EXACT)


RANDOM = {
    "smooth": lambda seed: egcam.Smooth(5, seed=seed),
    "path": lambda seed: egcam.Expected("black", 5, seed=seed),
    "plain path": lambda seed: egcam.Expected("black", 5, sampling="monte-carlo", seed=seed),
    "references": lambda seed: egcam.Expected("noise", 5, path=lambda r, x, a: r, seed=seed),
    "image references": lambda seed: egcam.Expected(pictures(50, seed=8), 5, path=lambda r, x, a: r, seed=seed),
    "kernel": lambda seed: egcam.Expected("black", 5, path=stay, kernel="gaussian", seed=seed),
    "callable": lambda seed: egcam.Expected(lambda x: torch.rand_like(x), 5, path=lambda r, x, a: r, seed=seed),
}


@pytest.mark.parametrize("part", RANDOM)
def test_same_seed_same_map_and_other_seed_other_map(part: str) -> None:
    network, images = smooth_everywhere(), pictures(2)
    maps = [signed_map(egcam.HiResCAM, network, RANDOM[part](seed), images) for seed in (5, 5, 6)]
    assert torch.equal(maps[0], maps[1])
    assert bool(((maps[0] - maps[2]).abs().amax((1, 2)) > 1e-6).all())


@pytest.mark.parametrize("part", RANDOM)
def test_map_does_not_depend_on_the_global_seed_nor_change_it(part: str) -> None:
    network, images = perceptron_head(), pictures(1)
    maps = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        maps.append(signed_map(egcam.HiResCAM, network, RANDOM[part](0), images))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(maps[0], maps[1])


def test_a_kernel_may_be_given_as_a_mapping():
    from egcam.attribution.kernels import as_kernel

    assert as_kernel({"distribution": "uniform", "scale": 0.5, "draws": 2}) == egcam.Kernel("uniform", 0.5, draws=2)
    with pytest.raises(egcam.EgcamError, match="a kernel has no option 'scal'; did you mean 'scale'"):
        as_kernel({"scal": 1.0})
