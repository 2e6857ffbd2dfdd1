"""The rest of the field: what the formulas of single maps do not show."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam.attribution.weightings import Principal
from egcam.errors import IncompleteMapWarning, LayerError, MethodError, ModelError, SamplingError, TargetError
from support.networks import (
    flat_linear_head,
    perceptron_head,
    pictures,
    pooled_linear_head,
    seeded,
    signed_activations,
    smooth_everywhere,
)

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = "features"
EXACT = {"rtol": 0.0, "atol": 1e-10}


# -- the principal component -----------------------------------------------------------------------


def test_the_principal_weighting_takes_averaged_gradients() -> None:
    """On noisy copies, the component of the mean gradient times the clean activations."""
    network, image = perceptron_head(), pictures(1)
    gradient = egcam.Smooth(5)
    cam = egcam.GradientCAM(network, LAYER, gradient=gradient, weighting="principal", signed=True)
    products = egcam.GradientCAM(
        network, LAYER, gradient=gradient, weighting=lambda gradient, activations: seen.append(gradient) or gradient
    )
    seen: list[Tensor] = []
    products(image, 1)
    planes = (seen[-1] * network.features(image))[0].detach().numpy().reshape(4, -1).T
    direction = np.linalg.svd(planes)[2][0]
    component = planes @ direction
    component *= np.sign((component * planes.sum(1)).sum())
    torch.testing.assert_close(cam(image, 1).maps[0], torch.from_numpy(component.reshape(4, 3)), **EXACT)


@pytest.mark.parametrize("method", ["eigen-cam", "kpca-cam"])
def test_planes_of_nan_give_nan_and_no_error(method: str) -> None:
    network, images = perceptron_head(), pictures(2)
    with torch.no_grad():
        network.features[2].bias[0] = float("nan")
    with pytest.warns(egcam.errors.NonFiniteMapWarning):
        assert egcam.explain(network, images, method, layer=LAYER).maps.isnan().all()


def test_kernel_pca_is_scikit_learns() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    network, images = perceptron_head(), pictures(2)
    for gamma in (None, 0.3):
        maps = egcam.explain(network, images, "kpca-cam", layer=LAYER, gamma=gamma, signed=True).maps
        for own, activations in zip(maps, network.features(images).detach().flatten(2).numpy(), strict=True):
            cells = (activations - activations.mean(1, keepdims=True)).T
            theirs = decomposition.KernelPCA(1, kernel="sigmoid", gamma=gamma).fit_transform(cells)[:, 0]
            theirs *= np.sign((theirs * activations.sum(0)).sum())
            np.testing.assert_allclose(own.flatten().numpy(), theirs, atol=1e-9)


# -- second derivatives ----------------------------------------------------------------------------


def test_shapley_cam_takes_half_the_curvature_off_the_gradient() -> None:
    network, images = smooth_everywhere(), pictures(2)
    found = egcam.explain(network, images, "shapley-cam", target=1, layer=LAYER, signed=True, batch_size=1)
    for own, image in zip(found.maps, images, strict=True):
        activations = network.features(image[None]).detach()

        def score(planes: Tensor) -> Tensor:
            return network.head(planes)[0, 1]

        gradient = torch.autograd.functional.jacobian(score, activations)
        _, product = torch.autograd.functional.hvp(score, activations, activations)
        assert product.abs().max() > 1e-6
        weights = (gradient - product / 2).mean((2, 3), keepdim=True)
        torch.testing.assert_close(own, (weights * activations).sum(1)[0], **EXACT)


def test_shapley_cam_is_grad_cam_where_nothing_bends() -> None:
    network, images = pooled_linear_head(), pictures(2)
    maps = [egcam.explain(network, images, name, target=1, layer=LAYER, signed=True).maps for name in SAME_IF_LINEAR]
    torch.testing.assert_close(maps[0], maps[1], **EXACT)


SAME_IF_LINEAR = ("shapley-cam", "grad-cam")


# -- several masks of each channel -----------------------------------------------------------------


def scores_of_masks(network: nn.Module, image: Tensor, masks: Tensor) -> Tensor:
    with torch.no_grad():
        return network(image * masks)[:, 1]


def enlarged(planes: Tensor, image: Tensor) -> Tensor:
    return functional.interpolate(planes[:, None], image.shape[-2:], mode="bilinear", align_corners=False)


def scaled(planes: Tensor) -> Tensor:
    low, high = planes.amin((2, 3), keepdim=True), planes.amax((2, 3), keepdim=True)
    return (planes - low) / (high - low)


def test_is_cam_grows_its_masks_in_steps() -> None:
    network, image = perceptron_head(), pictures(1)
    planes = network.features(image).detach()[0]
    masks = scaled(enlarged(planes, image))
    scores = sum(scores_of_masks(network, image, masks * share) for share in (1 / 3, 3 / 3, 6 / 3)) / 3
    expected = (scores.softmax(0)[:, None, None] * planes).sum(0)
    found = egcam.explain(network, image, "is-cam", target=1, layer=LAYER, samples=3, signed=True)
    torch.testing.assert_close(found.maps[0], expected, **EXACT)


def test_ss_cam_averages_over_noisy_masks_and_is_score_cam_without_noise() -> None:
    network, image = perceptron_head(), pictures(1)
    options = {"target": 1, "layer": LAYER, "signed": True}
    plain = egcam.explain(network, image, "score-cam", **options).maps
    torch.testing.assert_close(egcam.explain(network, image, "ss-cam", samples=2, scale=0.0, **options).maps, plain)
    alone = egcam.explain(network, image, "ss-cam", samples=40, seed=1, batch_size=1, **options).maps
    together = egcam.explain(network, image, "ss-cam", samples=40, seed=1, batch_size=9, **options).maps
    other = egcam.explain(network, image, "ss-cam", samples=40, seed=2, **options).maps
    torch.testing.assert_close(alone, together, **EXACT)
    assert (other - alone).abs().max() > 1e-9
    planes = network.features(image).detach()[0]
    source = torch.Generator().manual_seed(5)
    large = enlarged(planes, image)
    draws = [torch.randn(large.shape, generator=source, dtype=large.dtype) for _ in range(400)]
    scores = torch.stack([scores_of_masks(network, image, scaled(large + 2 * noise)) for noise in draws]).mean(0)
    expected = (scores.softmax(0)[:, None, None] * planes).sum(0)
    many = egcam.explain(network, image, "ss-cam", samples=400, **options).maps[0]
    assert (many - expected).abs().max() < 0.05 * expected.abs().max()


def test_centred_components_have_mean_zero() -> None:
    found = egcam.EigenCAM(signed_activations(), LAYER, centred=True, signed=True)(pictures(2), 0).maps
    torch.testing.assert_close(found.mean((1, 2)), torch.zeros(2, dtype=torch.float64), **EXACT)
    assert float(found.abs().max()) > 0.1
    named = egcam.EigenGradCAM(signed_activations(), LAYER, centred=True, signed=True)(pictures(2), 0).maps
    weighting = Principal(centred=True)
    made = egcam.GradientCAM(signed_activations(), LAYER, weighting=weighting, signed=True)(pictures(2), 0).maps
    assert torch.equal(named, made)


# -- Finer-CAM -------------------------------------------------------------------------------------


def test_finer_cam_without_gamma_is_the_cam_itself_and_fits_every_estimator() -> None:
    network, images = perceptron_head(), pictures(3)
    plain = egcam.GradCAM(network, LAYER, signed=True)(images, [2, 0, 1])
    found = egcam.FinerCAM(network, LAYER, gamma=0, signed=True)(images, [2, 0, 1])
    torch.testing.assert_close(found.maps, plain.maps, **EXACT)
    torch.testing.assert_close(found.scores, plain.scores, **EXACT)
    # Both other classes, at all points of a path: the mean of three maps of plain logits, by linearity.
    how = {"gradient": egcam.Integrated(4), "weighting": "elementwise", "signed": True}
    of_class = [egcam.GradientCAM(network, LAYER, **how)(images, c).maps for c in range(3)]
    finer = egcam.FinerCAM(network, LAYER, similar=5, **how)(images, 0).maps
    torch.testing.assert_close(finer, of_class[0] - (of_class[1] + of_class[2]) / 2, **EXACT)


def test_finer_cam_needs_a_class_and_another_one() -> None:
    with pytest.raises(TargetError, match="callable target has none"):
        egcam.FinerCAM(perceptron_head(), LAYER)(pictures(1), lambda output: output[:, 0])
    one = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 1)))
    with pytest.raises(TargetError, match="the model has one only"):
        egcam.FinerCAM(one, "1")(pictures(1))


# -- guided backpropagation ------------------------------------------------------------------------


class Functional(nn.Module):
    """The same numbers as a network of modules, its ReLUs called as functions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.features, self.head = network.features, network.head

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.features[2](functional.relu(self.features[0](images)))
        flat = torch.relu_(hidden).flatten(1)
        return self.head[3](self.head[1](flat).relu())


def test_relus_called_as_functions_are_guided_too() -> None:
    network, images = perceptron_head(), pictures(3)
    found = egcam.GuidedBackprop(Functional(network), signed=True)(images, [2, 0, 1]).maps
    expected = egcam.GuidedBackprop(network, signed=True)(images, [2, 0, 1]).maps
    torch.testing.assert_close(found, expected, **EXACT)
    assert not torch.allclose(expected, egcam.InputGradient(network, signed=True)(images, [2, 0, 1]).maps)


def test_a_network_without_relus_has_its_plain_gradient_and_a_warning() -> None:
    network, images = smooth_everywhere(), pictures(2)
    with pytest.warns(UserWarning, match="this network has none"):
        found = egcam.GuidedBackprop(network, signed=True)(images, 1).maps
    assert torch.equal(found, egcam.InputGradient(network, signed=True)(images, 1).maps)


def test_relu6_is_guided() -> None:
    network = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU6(), nn.Flatten(), nn.Linear(36, 3)))
    images = pictures(2)
    hidden = network[0](images)
    behind = network[3].weight[1].reshape(3, 4, 3).clamp(min=0) * ((hidden > 0) & (hidden < 6))
    truth = functional.conv_transpose2d(behind, network[0].weight).sum(1).detach()
    torch.testing.assert_close(egcam.GuidedBackprop(network, signed=True)(images, 1).maps, truth, **EXACT)


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron_head()

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.net.features(images)
        return self.net.head(features)


def test_guided_grad_cam_says_where_the_gradient_ends() -> None:
    with pytest.raises(LayerError, match="does not depend on 'input'"):
        egcam.GuidedGradCAM(Detached(), "net.features")(pictures(1), 0)


# -- FullGrad --------------------------------------------------------------------------------------


def test_full_grad_adds_up_to_the_logit_but_for_dense_biases() -> None:
    """Whole-number factors between the layer's size and the image's, so that enlarging keeps totals."""
    body = lambda: [nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3), nn.SiLU()]  # noqa: E731
    network = seeded(lambda: nn.Sequential(*body(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)))
    with torch.no_grad():
        network[1].running_mean.uniform_(-1, 1)
        network[1].running_var.uniform_(0.5, 2)
    images = pictures(2, shape=(2, 8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = egcam.FullGrad(network, signed=True)(images, [3, 1])
    truth = network(images)[range(2), [3, 1]] - network[5].bias[[3, 1]]
    torch.testing.assert_close(found.maps.sum((1, 2)), truth.detach(), rtol=1e-9, atol=1e-9)


def test_full_grad_warns_of_a_shift_it_cannot_see() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron_head()

        def forward(self, images: Tensor) -> Tensor:
            return self.net(images) + 5

    with pytest.warns(IncompleteMapWarning, match="leaves a part out"):
        egcam.FullGrad(Shifted())(pictures(1), 0)


def test_full_grad_draws_the_biases_of_the_explained_image_alone() -> None:
    """Of a network that compares two pictures, the other one's layers have no place in this one."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())

        def forward(self, images: Tensor, others: Tensor) -> Tensor:
            likeness = (self.body(images) * self.body(others).detach()).sum((1, 2, 3))
            attached = (self.body(images) * self.body(others)).sum((1, 2, 3))
            return torch.stack([likeness, attached], 1)

    network, images, others = seeded(Siamese), pictures(2), pictures(2, seed=5)
    for signed in (True, False):
        first, second = (egcam.FullGrad(network, signed=signed)(images, c, inputs=(others,)).maps for c in (0, 1))
        torch.testing.assert_close(first, second, **EXACT)
        assert float(first.abs().max()) > 0.1


# -- occlusion and RISE ----------------------------------------------------------------------------


def test_occlusion_of_a_linear_network_is_the_sum_of_what_is_covered() -> None:
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3)))
    images = pictures(2)
    found = egcam.Occlusion(network, window=1, stride=1, reference="white", signed=True)(images, 1)
    truth = ((images - 1) * network[1].weight[1].reshape(2, 6, 5)).sum(1).detach()
    torch.testing.assert_close(found.maps, truth, **EXACT)
    assert found.passes == 2 * (30 + 1)


def test_windows_and_cells_that_make_no_sense_are_refused() -> None:
    network = perceptron_head()
    with pytest.raises(MethodError, match="leave pixels out"):
        egcam.Occlusion(network, window=2, stride=3)(pictures(1), 0)
    with pytest.raises(MethodError, match="window is a number of pixels"):
        egcam.Occlusion(network, window=(2, 0))
    with pytest.raises(MethodError, match="share of visible cells"):
        egcam.RISE(network, probability=0)
    with pytest.raises(MethodError, match="cells must be"):
        egcam.RISE(network, cells=0)


class Brightness(nn.Module):
    """Two scores that add up pixels: the masks are all that a map of it shows."""

    def forward(self, images: Tensor) -> Tensor:
        total = images.mean((1, 2, 3))
        return torch.stack([total, 0 * total + 1], 1)


def test_masks_of_rise_show_their_share_everywhere_and_errors_are_those_of_the_average() -> None:
    """Of the second score, which is always 1, the map is the masks' mean over p: 1 but for chance."""
    image = torch.rand(1, 1, 20, 20, dtype=torch.float64) + 0.1
    found = egcam.RISE(Brightness(), samples=600, cells=4, probability=0.3, score="logit")(image, 1)
    away = (found.maps - 1) / found.error
    # Neighbours share their masks, so this is no sum of 400 independent numbers.
    assert float(away.square().mean()) < 3
    assert float(away.abs().max()) < 4.5
    assert float(found.error.mean()) == pytest.approx((0.7 / 0.3 / 600) ** 0.5, rel=0.35)
    other = egcam.RISE(Brightness(), samples=600, cells=4, probability=0.3, score="logit", seed=1)(image, 1)
    assert not torch.equal(other.maps, found.maps)


# -- augmented -------------------------------------------------------------------------------------


def flipped_by_hand(network: nn.Module, images: Tensor, target: int, contrasts: tuple[float, ...]) -> Tensor:
    total = 0.0
    for contrast in contrasts:
        for flip in (False, True):
            shown = images.flip(3) if flip else images
            maps = egcam.HiResCAM(network, LAYER, signed=True)(shown * contrast, target).maps
            total = total + (maps.flip(2) if flip else maps)
    return total / (2 * len(contrasts))


def test_maps_of_copies_are_laid_back_and_averaged() -> None:
    network, images = perceptron_head(), pictures(3)
    cam = egcam.HiResCAM(network, LAYER, gradient=egcam.Augmented(), signed=True, batch_size=2)
    found = cam(images, 1)
    torch.testing.assert_close(found.maps, flipped_by_hand(network, images, 1, (0.9, 1.0, 1.1)), **EXACT)
    torch.testing.assert_close(found.scores, network(images)[:, 1].detach(), **EXACT)
    assert found.passes == 3 * 6


def test_the_class_is_that_of_the_image_whatever_its_copies_are_taken_for() -> None:
    network, images = perceptron_head(), pictures(6)
    predicted = network(images).argmax(1)
    copies = network(images.flip(3) * 3).argmax(1)
    assert not torch.equal(predicted, copies)
    gradient = egcam.Augmented(contrasts=(3.0,))
    found = egcam.HiResCAM(network, LAYER, gradient=gradient, signed=True)(images)
    assert torch.equal(found.targets, predicted)
    told = egcam.HiResCAM(network, LAYER, gradient=gradient, signed=True)(images, predicted)
    assert torch.equal(found.maps, told.maps)
    assert found.passes == 6 * (2 + 1)
    truth = torch.stack(
        [flipped_by_hand(network, image[None], int(c), (3.0,))[0] for image, c in zip(images, predicted, strict=True)]
    )
    torch.testing.assert_close(found.maps, truth, **EXACT)


def test_maps_of_scaled_copies_are_enlarged_again() -> None:
    network = pooled_linear_head()
    images = pictures(2, shape=(2, 12, 10))
    gradient = egcam.Augmented(flip=False, scales=(1.0, 2.0), contrasts=(1.0,))
    found = egcam.HiResCAM(network, LAYER, gradient=gradient, signed=True)(images, 1).maps
    large = functional.interpolate(images, size=(24, 20), mode="bilinear", align_corners=False, antialias=True)
    plain, double = (egcam.HiResCAM(network, LAYER, signed=True)(some, 1).maps for some in (images, large))
    back = functional.interpolate(double[:, None], size=plain.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(found, (plain + back) / 2, **EXACT)


def test_copies_of_sampled_estimators_have_errors_and_any_weighting() -> None:
    network, images = smooth_everywhere(), pictures(2)
    for inner in (egcam.Smooth(6), egcam.Expected("black", 6), egcam.Expected("black", 6, difference="latent")):
        gradient = egcam.Augmented(inner, contrasts=(1.0,))
        for weighting in ("mean", "plus-plus", "principal"):
            cam = egcam.GradientCAM(network, LAYER, gradient=gradient, weighting=weighting, signed=True)
            found = cam(images, 1)
            plain = egcam.GradientCAM(network, LAYER, gradient=inner, weighting=weighting, signed=True)
            mirrored = plain(images.flip(3), 1)
            assert found.error is not None
            truth = (plain(images, 1).maps + mirrored.maps.flip(2)) / 2
            torch.testing.assert_close(found.maps, truth, **EXACT)


def test_networks_of_one_size_and_copies_that_make_no_sense() -> None:
    with pytest.raises(ModelError, match=r"does not take images scaled by 2\.0"):
        egcam.GradCAM(flat_linear_head(), LAYER, gradient=egcam.Augmented(scales=(1.0, 2.0)))(pictures(1), 0)
    with pytest.raises(SamplingError, match="scales are positive numbers"):
        egcam.Augmented(scales=(0.0,))
    with pytest.raises(SamplingError, match="gradient must be an estimator"):
        egcam.Augmented("vanilla")
