"""Against the other libraries, where they are right and where the definitions coincide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from support.forms import along_images
from support.networks import (
    flat_linear_head,
    perceptron_head,
    pictures,
    pooled_linear_head,
    signed_activations,
    watched,
)

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

LAYER = "features"
TARGETS = [2, 0, 1]
EXACT = {"rtol": 0.0, "atol": 1e-10}


def signed(method: str, network: nn.Module, images: Tensor, target: object, **options: object) -> Tensor:
    return egcam.explain(network, images, method, target, signed=True, batch_size=64, **options).maps


# -- captum: the same number, sign and scale -----------------------------------------------------


@pytest.fixture
def attr() -> object:
    return pytest.importorskip("captum.attr")


@pytest.mark.parametrize("build", [perceptron_head, signed_activations, pooled_linear_head])
def test_captum_layer_grad_cam(attr: object, build: Callable[[], nn.Module]) -> None:
    network, images = build(), pictures(3)
    peer = attr.LayerGradCam(network, network.features)
    raw = peer.attribute(images, target=TARGETS)[:, 0].detach()
    torch.testing.assert_close(signed("grad-cam", network, images, TARGETS, layer=LAYER), raw, **EXACT)
    positive = peer.attribute(images, target=TARGETS, relu_attributions=True)[:, 0].detach()
    found = egcam.GradCAM(network, LAYER)(images, target=TARGETS).maps
    torch.testing.assert_close(found, positive, **EXACT)


def test_captum_layer_gradient_x_activation_is_hires_cam(attr: object) -> None:
    network, images = signed_activations(), pictures(3)
    peer = attr.LayerGradientXActivation(network, network.features).attribute(images, target=TARGETS)
    found = signed("hires-cam", network, images, TARGETS, layer=LAYER)
    torch.testing.assert_close(found, peer.sum(1).detach(), **EXACT)


def test_captum_layer_feature_ablation_is_ablation_cam_before_division(attr: object) -> None:
    """captum gives y - y_k for each channel; the map weighs the channels by that over y."""
    network, images = perceptron_head(), pictures(3)
    channels = torch.arange(4)[None, :, None, None].expand(1, 4, 4, 3)
    with torch.no_grad():
        drops = attr.LayerFeatureAblation(network, network.features).attribute(
            images, layer_baselines=0, target=TARGETS, layer_mask=channels
        )
        truth = (drops * network.features(images)).sum(1) / network(images)[range(3), TARGETS].abs()[:, None, None]
    torch.testing.assert_close(signed("ablation-cam", network, images, TARGETS, layer=LAYER), truth, **EXACT)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_captum_saliency(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    peer = attr.Saliency(network)
    found = egcam.InputGradient(network)(images, target=TARGETS).maps
    torch.testing.assert_close(found, peer.attribute(images, target=TARGETS).sum(1).detach(), **EXACT)
    plain = peer.attribute(images, target=TARGETS, abs=False).sum(1).detach()
    torch.testing.assert_close(signed("input-gradient", network, images, TARGETS), plain, **EXACT)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
@pytest.mark.filterwarnings("ignore:Setting backward hooks on ReLU activations")
def test_captum_guided_backprop(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    peer = attr.GuidedBackprop(network).attribute(images, target=TARGETS).sum(1).detach()
    torch.testing.assert_close(signed("guided-backprop", network, images, TARGETS), peer, **EXACT)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
@pytest.mark.filterwarnings("ignore:Setting backward hooks on ReLU activations")
def test_captum_guided_grad_cam(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    peer = attr.GuidedGradCam(network, network.features).attribute(images, target=TARGETS, interpolate_mode="bilinear")
    found = signed("guided-grad-cam", network, images, TARGETS, layer=LAYER)
    torch.testing.assert_close(found, peer.sum(1).detach(), **EXACT)


def test_captum_occlusion(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    peer = attr.Occlusion(network).attribute(images, (2, 3, 2), strides=(2, 1, 1), baselines=0.0, target=TARGETS)
    found = signed("occlusion", network, images, TARGETS, window=(3, 2), stride=1)
    # Each colour has the drop of the whole window; captum rounds it to float32.
    torch.testing.assert_close(found, peer[:, 0].double(), rtol=1e-5, atol=1e-6)


def test_captum_integrated_gradients(attr: object) -> None:
    network, images = perceptron_head(), pictures(3)
    peer = attr.IntegratedGradients(network).attribute(
        images, baselines=1.0, target=TARGETS, n_steps=20, method="riemann_middle"
    )
    found = signed("integrated-gradients", network, images, TARGETS, samples=20, reference="white")
    # captum's step sizes are rounded to float32
    torch.testing.assert_close(found, peer.sum(1).detach(), rtol=1e-7, atol=1e-8)


def test_captum_noise_tunnel_with_our_noise_is_smooth_grad(attr: object, monkeypatch: pytest.MonkeyPatch) -> None:
    network, image = perceptron_head(), pictures(1)
    with watched(network) as shown:
        found = signed("smooth-grad", network, image, 1, samples=12)
    noise = torch.cat(shown[1:]) - image
    monkeypatch.setattr(torch, "normal", lambda mean, spread: noise)
    peer = attr.NoiseTunnel(attr.Saliency(network)).attribute(image, nt_samples=12, target=1, abs=False)
    torch.testing.assert_close(found, peer.sum(1).detach(), **EXACT)


def recorded(explain: Callable[[object], Tensor]) -> tuple[Tensor, list[float]]:
    """A map and the shares a of its path points, which start at one single reference."""
    shares: list[float] = []

    def path(references: Tensor, images: Tensor, share: float) -> Tensor:
        shares.append(share)
        return references + share * (images - references)

    return explain(path), shares


def test_captum_gradient_shap_with_our_shares_is_expected_gradients(
    attr: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, image, other = perceptron_head(), pictures(1), pictures(1, seed=4)
    found, shares = recorded(
        lambda path: signed("expected-gradients", network, image, 1, samples=16, reference=other, path=path)
    )
    monkeypatch.setattr(np.random, "uniform", lambda low, high, size: np.array(shares))
    peer = attr.GradientShap(network).attribute(image, baselines=other, n_samples=16, target=1)
    torch.testing.assert_close(found, peer.sum(1).detach(), **EXACT)


@pytest.mark.parametrize("build", [perceptron_head, signed_activations])
def test_captum_layer_gradient_shap_with_our_shares_is_the_latent_summed_map(
    attr: object, monkeypatch: pytest.MonkeyPatch, build: Callable[[], nn.Module]
) -> None:
    network, image, other = build(), pictures(1), pictures(1, seed=4)
    form = {"reference": other, "samples": 16, "difference": "latent", "weighting": "summed", "batch_size": 64}
    found, shares = recorded(
        lambda path: along_images(network, LAYER, path=path, signed=True, **form)(image, target=1).maps
    )
    monkeypatch.setattr(np.random, "uniform", lambda low, high, size: np.array(shares))
    peer = attr.LayerGradientShap(network, network.features).attribute(image, other, n_samples=16, target=1)
    torch.testing.assert_close(found, peer.sum(1).detach(), **EXACT)


def test_captum_layer_gradient_shap_at_a_linear_head(attr: object) -> None:
    """The gradient is constant there, so captum's own shares do not matter."""
    network, images, other = flat_linear_head(), pictures(3), pictures(1, seed=4)
    form = {"reference": other, "samples": 8, "difference": "latent", "weighting": "summed"}
    found = along_images(network, LAYER, signed=True, **form)(images, target=TARGETS).maps
    peer = attr.LayerGradientShap(network, network.features).attribute(images, other, n_samples=3, target=TARGETS)
    torch.testing.assert_close(found, peer.sum(1).detach(), **EXACT)
    slopes = egcam.SlopeCAM(network, LAYER, reference=other, signed=True)(images, target=TARGETS).maps
    torch.testing.assert_close(slopes, peer.sum(1).detach(), **EXACT)


def test_captum_layer_gradient_shap_agrees_within_the_error(attr: object) -> None:
    """Many references and captum's own draws, which repeat references at random and so scatter more than ours."""
    network, image, others = signed_activations(), pictures(1), pictures(6, seed=4)
    form = {"reference": others, "samples": 384, "difference": "latent", "weighting": "summed"}
    found = along_images(network, LAYER, signed=True, batch_size=64, **form)(image, target=1)
    np.random.seed(0)  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        peer = attr.LayerGradientShap(network, network.features)
        runs = [peer.attribute(image, others, n_samples=96, target=1).sum(1).detach() for _ in range(24)]
    truth, error = torch.stack(runs).mean(0), torch.stack(runs).std(0) / 24**0.5
    assert found.error is not None
    apart = (found.maps - truth).abs() / (found.error**2 + error**2).sqrt()
    assert float(apart.max()) < 4
    assert float(error.norm()) < 0.1 * float(found.maps.norm()), "close enough to mean something"


# -- pytorch-grad-cam: after its own scaling -----------------------------------------------------


@pytest.fixture
def grad_cam() -> object:
    return pytest.importorskip("pytorch_grad_cam")


def convolutional(width: int = 6) -> nn.Sequential:
    """A float32 network with a non-linear head, as pytorch-grad-cam computes in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(width * 6 * 5, 16),
            nn.ReLU(),
            nn.Linear(16, 3),
        ).eval()


@pytest.fixture
def network() -> nn.Sequential:
    return convolutional()


@pytest.fixture
def images() -> Tensor:
    return pictures(3, shape=(2, 12, 10)).float()


PEER_CLASSES = {
    "grad-cam": "GradCAM",
    "hires-cam": "HiResCAM",
    "xgrad-cam": "XGradCAM",
    "layer-cam": "LayerCAM",
    "score-cam": "ScoreCAM",
    "ablation-cam": "AblationCAM",
    "grad-cam++": "GradCAMPlusPlus",
}


def peer_heatmaps(grad_cam: object, name: str, network: nn.Module, layer: nn.Module, images: Tensor) -> np.ndarray:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    with getattr(grad_cam, PEER_CLASSES[name])(model=network, target_layers=[layer]) as peer:
        return peer(input_tensor=images, targets=[ClassifierOutputTarget(target) for target in TARGETS])


def scaled_like_the_peer(maps: Tensor, size: tuple[int, int]) -> np.ndarray:
    """Between 0 and 1, enlarged with OpenCV, between 0 and 1 again."""
    from pytorch_grad_cam.utils.image import scale_cam_image

    return scale_cam_image(scale_cam_image(maps.numpy(), size[::-1]))


@pytest.mark.filterwarnings("ignore::egcam.errors.ZeroMapWarning")
@pytest.mark.parametrize("layer", ["2", "5"])
@pytest.mark.parametrize("method", sorted(set(PEER_CLASSES) - {"grad-cam++"}))
def test_pytorch_grad_cam(grad_cam: object, network: nn.Sequential, images: Tensor, method: str, layer: str) -> None:
    options = {"align_corners": True} if method == "score-cam" else {}
    if method == "ablation-cam":
        # Theirs divides by the score, ours by its absolute value.
        with torch.no_grad():
            network[-1].bias += 1
        assert float(network(images).min()) > 0
    found = egcam.explain(network, images, method, TARGETS, layer=layer, **options)
    peer = peer_heatmaps(grad_cam, method, network, network.get_submodule(layer), images)
    assert float(found.maps.amax((1, 2)).max()) > 1e-4
    np.testing.assert_allclose(scaled_like_the_peer(found.maps, (12, 10)), peer, rtol=0, atol=1e-4)


def test_pytorch_grad_cam_plus_plus_where_gradients_are_large(
    grad_cam: object, network: nn.Sequential, images: Tensor
) -> None:
    """Its small number under the fraction does no harm once gradients are of size 1 and more."""
    with torch.no_grad():
        network[-1].weight *= 1000
    peer = peer_heatmaps(grad_cam, "grad-cam++", network, network[5], images)
    found = egcam.GradCAMPlusPlus(network, "5")(images, target=TARGETS)
    np.testing.assert_allclose(scaled_like_the_peer(found.maps, (12, 10)), peer, rtol=0, atol=1e-4)


def peer_raw_map(grad_cam: object, name: str, network: nn.Module, images: Tensor) -> np.ndarray:
    """Before the ReLU and the stretching; its sign is whatever its SVD gave."""
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    seen = []

    class Raw(getattr(grad_cam, name)):
        def get_cam_image(self, *args: object, **options: object) -> np.ndarray:
            seen.append(super().get_cam_image(*args, **options))
            return seen[-1]

    with Raw(network, [network.features]) as peer:
        peer(images, [ClassifierOutputTarget(target) for target in TARGETS])
    return seen[0]


@pytest.mark.parametrize(("method", "name"), [("eigen-cam", "EigenCAM"), ("eigen-grad-cam", "EigenGradCAM")])
def test_pytorch_grad_cam_principal_components(grad_cam: object, method: str, name: str) -> None:
    network, images = perceptron_head(), pictures(3)
    found = signed(method, network, images, TARGETS, layer=LAYER, centred=True).numpy()
    peer = peer_raw_map(grad_cam, name, network, images)
    signs = np.sign((found * peer).sum((1, 2)))[:, None, None]
    assert np.abs(found).max() > 1e-3
    np.testing.assert_allclose(found, signs * peer, rtol=1e-4, atol=1e-6)


def test_pytorch_grad_cams_finer_cam_weights_the_rivals_by_probability(grad_cam: object) -> None:
    """Its target gives its map; the rivals of ours count alike, and the map is another."""
    from pytorch_grad_cam.utils.model_targets import FinerWeightedTarget

    network, images = convolutional(), pictures(1, shape=(2, 12, 10)).float()
    with torch.no_grad():
        network[-1].weight *= 8
        logits = network(images)[0]
        chosen = int(logits.argmax())
        rivals = (logits - logits[chosen]).abs().argsort()[1:].tolist()
    with grad_cam.FinerCAM(network, [network[5]]) as peer:
        theirs = peer(images, alpha=0.6)
    same = egcam.explain(network, images, "grad-cam", [FinerWeightedTarget(chosen, rivals, 0.6)], layer="5").maps
    np.testing.assert_allclose(scaled_like_the_peer(same, (12, 10)), theirs, rtol=0, atol=1e-4)
    ours = egcam.FinerCAM(network, "5", similar=2, gamma=0.6)(images, chosen).maps
    mean = egcam.explain(
        network, images, "grad-cam", lambda y: y[:, chosen] - 0.6 * y[:, rivals].mean(1), layer="5"
    ).maps
    torch.testing.assert_close(ours, mean)
    assert np.abs(scaled_like_the_peer(ours, (12, 10)) - theirs).max() > 0.05


# -- torch-cam -----------------------------------------------------------------------------------


@pytest.fixture
def torchcam() -> object:
    return pytest.importorskip("torchcam.methods")


def torchcam_map(kind: type, network: nn.Module, layer: str, image: Tensor, target: int, **options: object) -> Tensor:
    """The peer's raw map of one image, after the ReLU."""
    with kind(network, layer, input_shape=tuple(image.shape), **options) as peer:
        output = network(image[None].requires_grad_())
        return peer(target, output, normalized=False)[0][0].detach().clamp(min=0)


def test_torchcam_cam(torchcam: object) -> None:
    network, image = pooled_linear_head(), pictures(1)[0]
    peer = torchcam_map(torchcam.CAM, network, "features", image, 1, fc_layer="head.2")
    torch.testing.assert_close(egcam.CAM(network, LAYER)(image, target=1).maps, peer, **EXACT)


@pytest.mark.parametrize(
    ("method", "name"), [("grad-cam", "GradCAM"), ("layer-cam", "LayerCAM"), ("xgrad-cam", "XGradCAM")]
)
def test_torchcam_gradient_methods(torchcam: object, method: str, name: str) -> None:
    network, image = perceptron_head(), pictures(1)[0]
    peer = torchcam_map(getattr(torchcam, name), network, "features", image, 1)
    found = egcam.explain(network, image, method, 1, layer=LAYER).maps
    torch.testing.assert_close(found, peer, rtol=1e-6, atol=1e-8)


def test_torchcam_score_cam_where_nothing_is_upsampled(torchcam: object) -> None:
    """It scales masks before it enlarges them; at a layer of the input's size that is the same."""
    network, image = perceptron_head(), pictures(1)[0]
    peer = torchcam_map(torchcam.ScoreCAM, network, "features.1", image, 1)
    found = egcam.ScoreCAM(network, "features.1")(image, target=1).maps
    torch.testing.assert_close(found, peer, rtol=1e-6, atol=1e-8)
