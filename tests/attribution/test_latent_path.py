"""The path in the layer's own space: against its formula, captum, and its own promises."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import SamplingError

DOUBLE = torch.float64


class Bent(nn.Module):
    """Two convolutions with a smooth, decidedly non-linear head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh())
        self.second = nn.Sequential(nn.Conv2d(6, 5, 3, stride=2), nn.Tanh())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(5 * 3 * 3, 16), nn.Tanh(), nn.Linear(16, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images)))


ZERO = egcam.references.constant(0.0)


def bent() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Bent().to(DOUBLE).eval()
        for weight in model.parameters():
            weight.data.mul_(2.5)  # so that no layer is nearly linear
        return model


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def summed(model: nn.Module, layer: str, gradient: egcam.Integrated | egcam.Expected, **options) -> egcam.GradientCAM:
    return egcam.GradientCAM(model, layer, gradient=gradient, weighting="summed", signed=True, **options)


@pytest.mark.parametrize("layer", ["first", "second"])
@pytest.mark.parametrize("difference", ["none", "latent"])
def test_formula(layer: str, difference: str) -> None:
    """W = 1/n sum_s d g(A' + a (A - A')), worked out with autograd on the tail alone."""
    model, images, black = bent(), pictures(2), torch.zeros(1, 3, 8, 8, dtype=DOUBLE)
    steps = 7
    tail = nn.Sequential(model.second, model.head) if layer == "first" else model.head
    front = model.first if layer == "first" else nn.Sequential(model.first, model.second)
    with torch.no_grad():
        here, there = front(images), front(black)
    weights = torch.zeros_like(here)
    for step in range(steps):
        point = (there + (step + 0.5) / steps * (here - there)).requires_grad_()
        (gradient,) = torch.autograd.grad(tail(point)[:, 2].sum(), point)
        weights += gradient / steps
    wanted = (weights * ((here - there) if difference == "latent" else here)).sum(1)
    gradient = egcam.Integrated(steps, reference=ZERO, path="latent", difference=difference)
    weighting = "summed" if difference == "latent" else "elementwise"
    cam = egcam.GradientCAM(model, layer, gradient=gradient, weighting=weighting, signed=True)
    found = cam(images, target=2)
    torch.testing.assert_close(found.maps, wanted, rtol=1e-10, atol=1e-12)
    assert found.passes == 3  # two images and the reference, which both share
    assert found.tails >= 2 * steps


@pytest.mark.peers
@pytest.mark.parametrize("layer", ["first", "second"])
def test_captums_layer_integrated_gradients(layer: str) -> None:
    captum = pytest.importorskip("captum.attr")
    model, images = bent(), pictures(3)
    theirs = captum.LayerIntegratedGradients(model, getattr(model, layer)).attribute(
        images, torch.zeros_like(images), target=1, n_steps=20, method="riemann_middle"
    )
    ours = summed(model, layer, egcam.Integrated(20, reference=ZERO, path="latent", difference="latent"))(
        images, target=1
    )
    torch.testing.assert_close(ours.maps, theirs.sum(1).detach(), rtol=1e-6, atol=1e-8)  # its steps are float32


@pytest.mark.peers
@pytest.mark.parametrize("layer", ["first", "second"])
def test_captums_layer_conductance(layer: str) -> None:
    captum = pytest.importorskip("captum.attr")
    model, images = bent(), pictures(2)
    theirs = captum.LayerConductance(model, getattr(model, layer)).attribute(
        images, torch.zeros_like(images), target=1, n_steps=600, method="riemann_trapezoid"
    )
    ours = summed(model, layer, egcam.Integrated(600, reference=ZERO, difference="increment"))(images, target=1)
    theirs = theirs.sum(1).detach()  # the gradient at the end of each step rather than in its middle
    torch.testing.assert_close(ours.maps, theirs, rtol=0, atol=0.01 * float(theirs.abs().max()))


@pytest.mark.parametrize("layer", ["first", "second"])
def test_complete_at_any_layer(layer: str) -> None:
    model, images = bent(), pictures(2)
    gradient = egcam.Integrated(1000, reference=ZERO, path="latent", difference="latent")
    found = summed(model, layer, gradient)(images, target=1)
    with torch.no_grad():
        rise = model(images)[:, 1] - model(torch.zeros_like(images))[:, 1]
    torch.testing.assert_close(found.maps.sum((1, 2)), rise, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.completeness.expected, rise)
    torch.testing.assert_close(found.completeness.total, found.maps.sum((1, 2)))
    assert float(found.completeness.gap.abs().max()) < 1e-6


@pytest.mark.parametrize("sampling", ["lattice", "stratified", "monte-carlo"])
def test_expected_is_complete_as_samples_grow(sampling: str) -> None:
    model, images, others = bent(), pictures(2), pictures(8, seed=1)
    gradient = egcam.Expected(others, 4096, path="latent", difference="latent", sampling=sampling)
    found = summed(model, "first", gradient)(images, target=1)
    with torch.no_grad():
        rise = model(images)[:, 1] - model(others)[:, 1].mean()
    bound = {"lattice": 2e-3, "stratified": 5e-2, "monte-carlo": 0.1}[sampling] * float(rise.abs().max())
    torch.testing.assert_close(found.completeness.total, rise, rtol=0, atol=bound)
    torch.testing.assert_close(found.completeness.expected, rise, rtol=0, atol=bound)
    assert float(found.completeness.gap.abs().max()) < bound


def test_increments_are_complete_where_the_latent_difference_is_not() -> None:
    model, images = bent(), pictures(2)
    with torch.no_grad():
        rise = model(images)[:, 1] - model(torch.zeros_like(images))[:, 1]
    conductance = summed(model, "first", egcam.Integrated(400, reference=ZERO, difference="increment"))(
        images, target=1
    )
    mixed = summed(model, "first", egcam.Integrated(400, reference=ZERO, difference="latent"))(images, target=1)
    torch.testing.assert_close(conductance.maps.sum((1, 2)), rise, rtol=0, atol=1e-3)
    assert float((mixed.maps.sum((1, 2)) - rise).abs().max()) > 0.02


class Around(nn.Module):
    """A network with a skip connection around its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 64, 3)

    def forward(self, images: Tensor) -> Tensor:
        early = self.stem(images).tanh()
        return self.head((early + self.layer(early)).tanh().flatten(1))


def test_what_goes_around_the_layer_stays_the_image() -> None:
    """The sum is y(x) - y(A', skip of x), and completeness is told against that number."""
    torch.manual_seed(0)
    model, images = Around().to(DOUBLE).eval(), pictures(2)
    with torch.no_grad():
        early = model.stem(images).tanh()
        replaced = model.layer(model.stem(torch.zeros_like(images)).tanh())
        rise = model(images)[:, 1] - model.head((early + replaced).tanh().flatten(1))[:, 1]
        far = model(images)[:, 1] - model(torch.zeros_like(images))[:, 1]
    assert float((rise - far).abs().max()) > 0.05
    found = summed(model, "layer", egcam.Integrated(800, reference=ZERO, path="latent", difference="latent"))(
        images, target=1
    )
    torch.testing.assert_close(found.completeness.expected, rise)
    assert float(found.completeness.gap.abs().max()) < 1e-5


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh())
        self.fc = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.features(images).mean((2, 3)))


def test_a_linear_head_takes_one_gradient() -> None:
    torch.manual_seed(0)
    model, images, others = Linear().to(DOUBLE).eval(), pictures(2), pictures(8, seed=1)
    found = summed(model, "features", egcam.Expected(others, 32, path="latent", difference="latent"))(images, target=1)
    with torch.no_grad():
        away = model.features(images) - model.features(others).mean(0)
    wanted = (model.fc.weight[1][:, None, None] / 36 * away).sum(1)
    torch.testing.assert_close(found.maps, wanted.detach(), rtol=1e-10, atol=1e-12)
    assert found.tails < 12
    assert float(found.error.max()) == 0
    assert float(found.completeness.gap.abs().max()) < 1e-12


def test_whether_the_head_is_linear_is_tried_once_and_again_when_the_network_changes() -> None:
    model = Linear().to(DOUBLE).eval()
    cam = egcam.SlopeCAM(model, "features", reference=pictures(8, 1), samples=8, signed=True)
    first, second = cam(pictures(1, 2), 0), cam(pictures(1, 3), 1)
    assert first.tails - second.tails == 6
    model.fc = nn.Sequential(model.fc, nn.Tanh())
    now = cam(pictures(1, 3), 1)
    assert now.tails > 8
    fresh = egcam.SlopeCAM(model, "features", reference=pictures(8, 1), samples=8, signed=True)
    assert torch.equal(now.maps, fresh(pictures(1, 3), 1).maps)


def test_a_batch_is_its_images_one_by_one() -> None:
    model, images, others = bent(), pictures(3), pictures(6, seed=1)
    for difference in ("none", "latent"):
        gradient = egcam.Expected(others, 12, path="latent", difference=difference, kernel="gaussian")
        cam = egcam.GradientCAM(model, "first", gradient=gradient, weighting="elementwise", signed=True)
        together = cam(images, target=[0, 1, 2])
        for row in range(3):
            alone = cam(images[row], target=row)
            torch.testing.assert_close(together.maps[row], alone.maps, rtol=1e-9, atol=1e-12)


def cached(model: nn.Module, others: Tensor) -> egcam.GradientCAM:
    return summed(model, "first", egcam.Expected(others, 8, path="latent", difference="latent"))


def fresh_map(model: nn.Module, others: Tensor, images: Tensor) -> Tensor:
    return cached(copy.deepcopy(model), others)(images, target=1).maps


def test_references_are_passed_through_the_network_once() -> None:
    model, images, others = bent(), pictures(4), pictures(8, seed=1)
    cam = cached(model, others)
    assert cam(images[:2], target=1).passes == 2 + 8
    assert cam(images[2:], target=1).passes == 2
    assert cam(images[2:], target=0).passes == 2


def multiply_through_data(model: nn.Module) -> None:
    model.first[0].weight.data.mul_(1.5)


def step_of_an_optimiser(model: nn.Module) -> None:
    with torch.no_grad():
        model.first[0].weight.add_(0.1)


def new_tensor(model: nn.Module) -> None:
    model.first[0].weight = nn.Parameter(model.first[0].weight.detach() * 0.5)


def a_hook(model: nn.Module) -> None:
    model.first.register_forward_hook(lambda module, args, output: output * 2)


def another_module(model: nn.Module) -> None:
    model.first[1] = nn.Sigmoid()


@pytest.mark.parametrize("change", [multiply_through_data, step_of_an_optimiser, new_tensor, a_hook, another_module])
def test_a_changed_network_sees_its_references_anew(change) -> None:
    model, images, others = bent(), pictures(2), pictures(8, seed=1)
    cam = cached(model, others)
    before = cam(images, target=1).maps
    change(model)
    after = cam(images, target=1)
    assert after.passes == 2 + 8
    assert not torch.allclose(after.maps, before)
    torch.testing.assert_close(after.maps, fresh_map(model, others, images))


def test_another_dtype_size_or_mode_sees_its_references_anew() -> None:
    model, images = bent(), pictures(2)
    cam = summed(model, "first", egcam.Expected(ZERO, 8, path="latent", difference="latent"))
    cam(images, target=1)
    model.float()
    assert cam(images.float(), target=1).passes == 3
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    cam = summed(pooled, "1", egcam.Expected(ZERO, 8, path="latent", difference="latent"))
    assert cam(torch.rand(1, 3, 8, 8), target=1).passes == 2
    assert cam(torch.rand(1, 3, 9, 9), target=1).passes == 2
    assert cam(torch.rand(1, 3, 9, 9), target=1).passes == 1


def test_references_changed_in_place_are_seen_anew() -> None:
    model, images, others = bent(), pictures(2), pictures(8, seed=1)
    cam = cached(model, others)
    cam(images, target=1)
    others.mul_(0.5)
    torch.testing.assert_close(cam(images, target=1).maps, fresh_map(model, others, images))


def test_a_mode_with_dropout_is_as_in_eval() -> None:
    model, images, others = bent(), pictures(2), pictures(8, seed=1)
    model.head.insert(3, nn.Dropout(0.5))
    cam = cached(model, others)
    before = cam(images, target=1).maps
    model.train()
    torch.testing.assert_close(cam(images, target=1).maps, before)
    assert model.training


def test_without_noise_and_with_one_point_at_the_image_it_is_the_gradient() -> None:
    model, images = bent(), pictures(2)

    plain = egcam.HiResCAM(model, "first", signed=True)(images, target=1).maps
    gradient = egcam.Integrated(1, reference=lambda x: x, path="latent")
    cam = egcam.GradientCAM(model, "first", gradient=gradient, weighting="elementwise", signed=True)
    torch.testing.assert_close(cam(images, target=1).maps, plain, rtol=1e-10, atol=1e-12)


def test_tolerance_stops_early_and_several_layers_are_fused() -> None:
    model, images, others = bent(), pictures(2), pictures(8, seed=1)
    gradient = egcam.Expected(others, 256, path="latent", difference="latent", tolerance=0.2)
    found = summed(model, "first", gradient)(images, target=1)
    assert found.tails < 2 * 256
    both = summed(model, ["first", "second"], egcam.Expected(others, 8, path="latent", difference="latent"))
    parts = [cached_at(model, layer, others)(images, target=1).maps for layer in ("first", "second")]
    torch.testing.assert_close(both(images, target=1).maps, fused(parts))


def cached_at(model: nn.Module, layer: str, others: Tensor) -> egcam.GradientCAM:
    return summed(model, layer, egcam.Expected(others, 8, path="latent", difference="latent"))


def fused(maps: list[Tensor]) -> Tensor:
    size = max(tuple(one.shape[-2:]) for one in maps)
    large = [nn.functional.interpolate(one[:, None], size, mode="bilinear")[:, 0] for one in maps]
    return sum(one / one.abs().amax((1, 2), keepdim=True) for one in large) / len(maps)


def test_what_belongs_to_paths_of_images_is_refused() -> None:
    with pytest.raises(SamplingError, match="path of images"):
        egcam.Expected("black", path="latent", difference="input")
    with pytest.raises(SamplingError, match="normaliser"):
        egcam.Expected("black", path="latent", kernel={"normaliser": True})


def test_probabilities_and_callables_are_explained_as_they_are() -> None:
    model, images = bent(), pictures(2)
    for options, target in (({"score": "probability"}, 1), ({}, lambda output: output[:, 1] ** 2)):
        gradient = egcam.Integrated(1000, reference=ZERO, path="latent", difference="latent")
        found = summed(model, "first", gradient, **options)(images, target=target)
        with torch.no_grad():
            values = [model(batch) for batch in (images, torch.zeros_like(images))]
        scores = [v.softmax(1)[:, 1] if options else v[:, 1] ** 2 for v in values]
        torch.testing.assert_close(found.completeness.total, scores[0] - scores[1], rtol=0, atol=1e-6)


def test_moments_of_latent_gradients_fit_grad_cam_plus_plus() -> None:
    model, images, others = bent(), pictures(2), pictures(8, seed=1)
    cam = egcam.GradientCAM(
        model, "first", gradient=egcam.Expected(others, 8, path="latent"), weighting="plus-plus", signed=True
    )
    assert bool(cam(images, target=1).maps.isfinite().all())


def test_regions_add_up_to_the_whole() -> None:
    model, images = bent(), pictures(2)
    found = summed(model, "second", egcam.Integrated(50, reference=ZERO, path="latent", difference="latent"))(
        images, target=1
    )
    left = torch.zeros(8, 8)
    left[:, :3] = 1
    whole = found.share(torch.ones(8, 8))
    torch.testing.assert_close(whole, found.completeness.total)
    torch.testing.assert_close(found.share(left) + found.share(1 - left), whole)
    # The three cells of a row cover pixels 0-2.67, 2.67-5.33, 5.33-8: of the second, an eighth is left of 3.
    by_hand = found.maps[:, :, 0].sum(1) + found.maps[:, :, 1].sum(1) / 8
    torch.testing.assert_close(found.share(left), by_hand)
    rectified = egcam.GradientCAM(
        model,
        "second",
        gradient=egcam.Integrated(50, reference=ZERO, path="latent", difference="latent"),
        weighting="summed",
    )(images, target=1)
    torch.testing.assert_close(rectified.share(left), by_hand)
    one = summed(model, "second", egcam.Integrated(50, reference=ZERO, path="latent", difference="latent"))(
        images[0], target=1
    )
    torch.testing.assert_close(one.share(left), by_hand[0])
    with pytest.raises(egcam.errors.MethodError, match="only a complete attribution"):
        egcam.GradCAM(model, "second", signed=True)(images, target=1).share(left)


def test_a_box_is_a_region_whose_cut_pixels_count_by_their_part() -> None:
    found = summed(bent(), "second", egcam.Integrated(50, reference=ZERO, path="latent", difference="latent"))(
        pictures(2), target=1
    )
    mask = torch.zeros(8, 8)
    mask[1:5, 2:6] = 1
    torch.testing.assert_close(found.share((2, 1, 6, 5)), found.share(mask))
    mask[1:5, 6] = 0.25
    mask[0, 2:7] = 0.5 * torch.tensor([1, 1, 1, 1, 0.25])
    torch.testing.assert_close(found.share((2, 0.5, 6.25, 5)), found.share(mask))
    for wrong in ((2, 1, 6), (6, 1, 2, 5), (0, 0, 9, 8)):
        with pytest.raises(egcam.errors.InputError, match=r"left, top, right, bottom.*8 wide and 8 high"):
            found.share(wrong)


def test_the_worth_of_the_hottest_tenth_is_its_share_of_what_the_image_adds() -> None:
    cam = egcam.SlopeCAM(bent(), "second", reference="black", samples=64)
    found = cam(pictures(2), target=1)
    for index in range(2):
        heat = found.heatmaps[index].double().numpy()
        mask = torch.from_numpy((heat >= np.quantile(heat.astype(np.float32), 0.9)) & (heat > 0)).float()
        assert torch.equal(found.hottest()[index].float(), mask)
        hottest = found.share(torch.stack([mask, mask]))[index]
        whole, gap = float(found.completeness.expected[index]), float(found.completeness.gap[index])
        assert abs(gap) < 0.1 * abs(whole)
        assert found.worth(index) == f"{float(hottest):+.1f} of {whole:+.1f}"
        assert cam(pictures(2)[index], target=1).worth() == found.worth(index)
    assert egcam.GradCAM(bent(), "second")(pictures(2), target=1).worth() == ""
    short = replace(found.completeness, total=found.completeness.expected * 1.5)
    whole = float(found.completeness.expected[0])
    assert replace(found, completeness=short).worth(0).endswith(f" of {whole:+.1f} (gap {whole / 2:+.1f})")


def test_completeness_is_kept_in_files(tmp_path) -> None:
    model, images = bent(), pictures(4)
    cam = summed(model, "first", egcam.Integrated(5, reference=ZERO, path="latent", difference="latent"))
    for batch in cam.stream([images[:2], images[2:]], target=1):
        batch.save(tmp_path, pictures=False)
    loaded, whole = egcam.Explanation.load(tmp_path), cam(images, target=1)
    for side in ("total", "expected", "attributions", "gap"):
        torch.testing.assert_close(getattr(loaded.completeness, side), getattr(whole.completeness, side))
    assert loaded.tails > 0


def test_the_mean_of_references_kept_at_a_linear_head_is_never_stale() -> None:
    """Bit for bit what a new explainer gives: after other images, in a batch, and with other weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    images, pool = torch.rand(3, 3, 8, 8), torch.rand(5, 3, 8, 8)

    def made() -> egcam.SlopeCAM:
        return egcam.SlopeCAM(model, "1", reference=pool, samples=10, signed=True)

    used = made()
    for _ in range(2):
        alone = [made()(image[None], target=1).maps[0] for image in images]
        for row in (2, 0, 1):
            assert torch.equal(used(images[row][None], target=1).maps[0], alone[row])
        weight = model[4].weight[1].detach()
        with torch.no_grad():
            rise = model[1](model[0](images)) - model[1](model[0](pool)).mean(0)
        assert torch.allclose(torch.stack(alone), (rise * weight[:, None, None]).sum(1) / 36, atol=1e-6)
        model[0].weight.data.mul_(-1)
