"""Signals, volumes and video: the maps are those of the same formulas, whatever the number of dimensions."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam.attribution import references, registry
from egcam.errors import MethodError, SamplingError
from support.small_models import METHODS, PEERS, explainer
from support.twins import lifted, signals, solid, twin

REFERENCES = ("colours", "noise", "uniform", "constant", "black", "white", references.blurred(0.8))


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("method", [name for name in (*METHODS, *PEERS) if name not in ("rise", "superpixel-shapley")])
def test_a_signal_is_an_image_of_height_one(method: str, dimensions: int) -> None:
    if method in PEERS:
        pytest.importorskip(registry.method(method).package)
    # Blurred by itself, an image of height 1 would be blurred by a twentieth of that.
    reference = references.mixture(references.blurred(0.8), "colours")
    made = [explainer(method, twin(count), signed=True, reference=reference, alpha=1e-9) for count in (2, dimensions)]
    image, other = (one(lifted(signals(), count)) for one, count in zip(made, (2, dimensions), strict=True))
    assert other.size == (1, 1, 16)[3 - dimensions :]
    assert other.layer == image.layer
    for name in ("maps", "heatmaps", "scores"):
        torch.testing.assert_close(*(getattr(one, name).reshape(2, -1) for one in (other, image)), msg=name)
    assert bool(other.maps.any())
    if image.error is not None:
        torch.testing.assert_close(other.error.flatten(1), image.error.flatten(1))


@pytest.mark.parametrize("dimensions", [1, 3])
def test_rise_draws_masks_of_its_own_for_signals_and_volumes(dimensions: int) -> None:
    """The masks are read off what the network was shown, and are the same for all images and channels."""
    model, images = (twin(1), signals()) if dimensions == 1 else solid()
    shown: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor]) -> None:
        shown.extend(given[0].clone() if given[0].device.type == "cpu" else [])

    handle = model.register_forward_pre_hook(keep)
    found = egcam.RISE(model, samples=4, cells=2, probability=0.4, score="logit", signed=True, batch_size=2)(images, 1)
    handle.remove()
    points = torch.stack(shown[-8:]).reshape(4, 2, *images.shape[1:])
    masks = points / images
    torch.testing.assert_close(masks, masks[:, :1, :1].expand_as(masks))
    assert float(masks.min()) >= 0
    assert float(masks.max()) <= 1
    for axis in range(3, masks.ndim):
        assert bool((masks.diff(dim=axis) != 0).any())
    scores = torch.stack([model(some)[:, 1] for some in points]).detach()
    wanted = torch.einsum("sn,sn...->n...", scores, masks[:, :, 0]) / (4 * 0.4)
    torch.testing.assert_close(found.maps, wanted)


def test_occlusion_of_a_volume_by_brute_force() -> None:
    model, volumes = solid()
    total, covered = torch.zeros(2, 4, 6, 5, dtype=torch.float64), torch.zeros(4, 6, 5, dtype=torch.float64)
    for corner in product((0, 2), (0, 2, 3), (0, 1, 2, 3)):
        window = tuple(slice(start, start + side) for start, side in zip(corner, (2, 3, 2), strict=True))
        hidden = volumes.clone()
        hidden[:, :, *window] = 0
        total[:, *window] += (model(volumes) - model(hidden)).detach()[:, 1].reshape(2, 1, 1, 1)
        covered[window] += 1
    cam = egcam.Occlusion(
        model, window=(2, 3, 2), stride=(2, 2, 1), reference=torch.zeros_like(volumes[0]), signed=True
    )
    found = cam(volumes, 1)
    torch.testing.assert_close(found.maps, total / covered)
    assert found.passes == 2 * (1 + 24)
    with pytest.raises(MethodError, match="window has 2 numbers, and images of 4 x 6 x 5 need 3, or one"):
        egcam.Occlusion(model, window=(2, 2))(volumes, 1)


def test_what_signals_and_volumes_have_no_meaning_for_is_refused() -> None:
    model, volumes = solid()
    with pytest.raises(SamplingError, match="a signal runs backwards: pass flip=False"):
        egcam.GradCAM(twin(1), gradient=egcam.Augmented())(signals(), 0)
    with pytest.raises(SamplingError, match="scales are for images"):
        egcam.GradCAM(model, gradient=egcam.Augmented(scales=(0.5, 1.0)))(volumes, 0)
    dense = nn.Sequential(nn.Conv1d(2, 4, 1), Transposed(), nn.Linear(4, 3), nn.Flatten(), nn.Linear(48, 2)).double()
    with pytest.raises(MethodError, match="cannot tell channels from places"):
        egcam.FullGrad(dense)(signals(), 0)


class Transposed(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.transpose(1, 2)


def test_augmented_volumes_and_signals() -> None:
    model, volumes = solid()
    plain = egcam.GradCAM(model, "3", signed=True)
    cam = egcam.GradCAM(model, "3", gradient=egcam.Augmented(contrasts=(1.0,)), signed=True)
    wanted = (plain(volumes, 0).maps + plain(volumes.flip(-1), 0).maps.flip(-1)) / 2
    torch.testing.assert_close(cam(volumes, 0).maps, wanted)
    alike = egcam.GradCAM(twin(1), "3", gradient=egcam.Augmented(flip=False, contrasts=(0.5, 1.0)), signed=True)
    plain = egcam.GradCAM(twin(1), "3", signed=True)
    wanted = (plain(signals() / 2, 0).maps + plain(signals(), 0).maps) / 2
    torch.testing.assert_close(alike(signals(), 0).maps, wanted)


@pytest.mark.parametrize("reference", REFERENCES)
def test_references_of_signals_are_those_of_an_image_of_height_one(reference: references.ReferenceLike) -> None:
    drawn = [references.as_reference(reference).draw(lifted(signals(), count), [0, 1], 1, 0).images for count in (1, 2)]
    torch.testing.assert_close(*(one.flatten(1) for one in drawn))


@pytest.mark.parametrize("path", ["linear", "subset"])
@pytest.mark.parametrize("dimensions", [1, 3])
def test_paths_references_and_differences(path: str, dimensions: int) -> None:
    pool = signals(4, seed=1)

    def maps(count: int) -> egcam.Explanation:
        gradient = egcam.Expected(lifted(pool, count), 6, path=path, difference="latent", kernel="gaussian")
        cam = egcam.GradientCAM(twin(count, pooled=False), gradient=gradient, weighting="summed", signed=True)
        return cam(lifted(signals(), count))

    image, other = maps(2), maps(dimensions)
    assert other.reference == "4 images"
    torch.testing.assert_close(other.maps.flatten(1), image.maps.flatten(1))


@pytest.mark.parametrize("dimensions", [1, 3])
def test_slopes_and_shares(dimensions: int) -> None:
    pool, mask = signals(4, seed=1), torch.zeros(16)
    mask[3:9] = 1
    image, other = (
        egcam.SlopeCAM(twin(count, pooled=False), reference=lifted(pool, count), signed=True)(lifted(signals(), count))
        for count in (2, dimensions)
    )
    assert other.reference == "4 images"
    torch.testing.assert_close(other.maps.flatten(1), image.maps.flatten(1))
    shares = [one.share(lifted(mask[None], count)[0]) for one, count in ((image, 2), (other, dimensions))]
    torch.testing.assert_close(*shares)
    for side in ("total", "expected", "around"):
        torch.testing.assert_close(getattr(other.completeness, side), getattr(image.completeness, side))


def test_a_loader_and_a_data_set_of_signals_are_references() -> None:
    pool = signals(4, seed=1)
    found = []
    for source in (pool, list(pool), torch.utils.data.DataLoader(pool, batch_size=3), [(one, 0) for one in pool]):
        reference = references.Images(source)
        found.append(reference.draw(signals(), [0, 1], 0, 0).images)
        assert reference.description == "4 images"
    assert all(one.shape == (2, 2, 16) for one in found)
    torch.testing.assert_close(found[2], found[0])
    one_alone = references.Images(pool[0])
    torch.testing.assert_close(one_alone.draw(signals(), [0, 1], 0, 0).images, pool[:1].expand(2, -1, -1))


def test_photographs_are_refused_with_what_to_use() -> None:
    with pytest.raises(SamplingError, match="'blurred', 'constant' or 'noise'"):
        egcam.explain(twin(1), signals(), reference="photographs")


def by_hand(model: nn.Sequential, images: Tensor, layer: int, target: int) -> tuple[Tensor, Tensor]:
    """Activations at a layer and the gradient of a logit there."""
    activations = model[: layer + 1](images).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model[layer + 1 :](activations)[:, target].sum(), activations)
    return activations.detach(), gradient


def test_volumes_against_autograd() -> None:
    model, volumes = solid()
    activations, gradient = by_hand(model, volumes, 4, 1)
    assert activations.shape == (2, 4, 4, 3, 5)
    weights = gradient.mean((2, 3, 4), keepdim=True)
    wanted = {
        "grad-cam": (weights * activations).sum(1),
        "hires-cam": (gradient * activations).sum(1),
        "layer-cam": (gradient.relu() * activations).sum(1),
        "xgrad-cam": (gradient * activations).sum((2, 3, 4)) / activations.sum((2, 3, 4)),
    }
    wanted["xgrad-cam"] = torch.einsum("nk,nkdhw->ndhw", wanted["xgrad-cam"], activations)
    for method, maps in wanted.items():
        explanation = egcam.explain(model, volumes, method, target=1, signed=True)
        torch.testing.assert_close(explanation.maps, maps, msg=method)
        enlarged = functional.interpolate(maps[:, None], (4, 6, 5), mode="trilinear", align_corners=False)[:, 0]
        torch.testing.assert_close(explanation.heatmaps, enlarged / enlarged.abs().amax((1, 2, 3), keepdim=True))
    volumes.requires_grad_()
    (at_input,) = torch.autograd.grad(model(volumes)[:, 1].sum(), volumes)
    found = egcam.explain(model, volumes, "input-gradient", target=1).maps
    torch.testing.assert_close(found, at_input.abs().sum(1))


def test_score_cam_and_ablation_cam_of_volumes_by_brute_force() -> None:
    model, volumes = solid()
    activations, _ = by_hand(model, volumes[:1], 4, 1)
    score = model(volumes[:1])[0, 1]
    masked, ablated = [], []
    for channel in range(4):
        large = functional.interpolate(activations[:, channel, None], (4, 6, 5), mode="trilinear", align_corners=False)
        mask = (large - large.min()) / (large.max() - large.min())
        masked.append(model(volumes[:1] * mask)[0, 1])
        without = activations.clone()
        without[:, channel] = 0
        ablated.append((score - model[5:](without)[0, 1]) / score.abs())
    for method, weights in (("score-cam", torch.stack(masked).softmax(0)), ("ablation-cam", torch.stack(ablated))):
        wanted = (weights.detach()[:, None, None, None] * activations[0]).sum(0)
        torch.testing.assert_close(
            egcam.explain(model, volumes[0], method, target=1, signed=True).maps, wanted, msg=method
        )


def test_a_blurred_volume_is_blurred_by_each_side() -> None:
    volume = torch.zeros(1, 1, 16, 40, 20, dtype=torch.float64)
    volume[0, 0, 8, 20, 10] = 1
    blurred = references.blurred().draw(volume, [0], 0, 0).images[0, 0]
    weights = []
    for side in (16, 40, 20):
        radius = int(3 * side / 20 + 0.5)
        offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
        window = torch.exp(-0.5 * (offsets / (side / 20)) ** 2)
        weights.append(window / window.sum())
    wanted = torch.zeros(16, 40, 20, dtype=torch.float64)
    wanted[6:11, 14:27, 7:14] = torch.einsum("i,j,k->ijk", *weights)
    torch.testing.assert_close(blurred, wanted)


@pytest.mark.parametrize("method", ["slope-cam", "score-cam", "ablation-cam", "expected-gradients"])
def test_one_alone_is_answered_without_its_first_axis(method: str) -> None:
    model, volumes = solid()
    for network, images in ((twin(1), signals()), (model, volumes)):
        cam = explainer(method, network, signed=True)
        batch, one = cam(images), cam(images[1])
        assert one.is_single
        assert not batch.is_single
        torch.testing.assert_close(one.maps, batch.maps[1])
        torch.testing.assert_close(one.heatmaps, batch.heatmaps[1])


def test_layers_of_several_resolutions_are_fused() -> None:
    model, volumes = solid()
    layers = [egcam.explain(model, volumes, "layer-cam", layer=name, target=0, signed=True).maps for name in ("1", "4")]
    finest = functional.interpolate(layers[1][:, None], (4, 6, 5), mode="trilinear", align_corners=False)[:, 0]
    parts = [maps / maps.abs().amax((1, 2, 3), keepdim=True) for maps in (layers[0], finest)]
    found = egcam.explain(model, volumes, "layer-cam", layer=["1", "4"], target=0, signed=True).maps
    torch.testing.assert_close(found, (parts[0] + parts[1]) / 2)


@pytest.mark.parametrize("kind", ["signals", "volumes", "one volume"])
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    model, volumes = solid()
    images = {"signals": signals(), "volumes": volumes, "one volume": volumes[0]}[kind]
    explained = egcam.explain(twin(1) if kind == "signals" else model, images, "grad-cam", target=0, signed=True)
    explained.save(tmp_path)
    again = egcam.Explanation.load(tmp_path)
    assert (again.size, again.is_single) == (explained.size, explained.is_single)
    torch.testing.assert_close(again.maps, explained.maps)
    torch.testing.assert_close(again.heatmaps, explained.heatmaps)
    count = 1 if kind == "one volume" else 2
    written = {path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".gif")}
    kinds = ["heatmap_{}.png", "overlay_{}.png", *(["overlay_{}.gif"] if "volume" in kind else [])]
    assert written == {name.format(number) for name in kinds for number in range(count)}
    # What is saved again takes the place of all of it.
    explained.save(tmp_path, pictures=False)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".png", ".gif")]


def test_cam_takes_a_convolution_of_one_place_for_a_linear_layer() -> None:
    body = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh())
    model = nn.Sequential(body, nn.AdaptiveAvgPool1d(1), nn.Conv1d(4, 3, 1), nn.Flatten()).double()
    found = egcam.explain(model, signals(), "cam", layer="0", target=2, signed=True).maps
    torch.testing.assert_close(found, torch.einsum("k,nkl->nl", model[2].weight[2, :, 0], body(signals())).detach())


def test_every_method_takes_dimensions() -> None:
    assert all("dimensions" in registry.takes(method) for method in METHODS)
