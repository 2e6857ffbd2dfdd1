"""SlopeCAM in steps: sums, steps worked out apart, when derivatives take their place, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from attribution.test_latent_path import bent, pictures
from egcam.errors import SamplingError
from support.networks import perceptron_head, signed_activations
from support.networks import pictures as small_pictures
from support.steps_by_hand import attribution, first_half

pytestmark = pytest.mark.usefixtures("one_thread")

OTHERS = pictures(6, seed=1)


def stepwise(model: nn.Module, layer: str, samples: int = 12, **more: object) -> egcam.GradientCAM:
    gradient = egcam.Expected(OTHERS, samples, path="stepwise", difference="latent")
    return egcam.GradientCAM(model, layer, gradient=gradient, weighting="summed", signed=True, **more)


@pytest.mark.parametrize("layer", ["first", "second"])
@pytest.mark.parametrize("samples", [1, 2, 5, 32])
def test_adds_up_without_any_correction(layer: str, samples: int) -> None:
    model = bent()
    found = stepwise(model, layer, samples)(pictures(2), target=1)
    assert found.options["slopes"] == "steps"
    assert found.completeness.correction is None
    torch.testing.assert_close(found.completeness.total, found.completeness.expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.maps.sum((1, 2)), found.completeness.total, rtol=1e-10, atol=1e-12)
    if samples == 32:  # 16 references: each of the six twice, four of them a third time
        with torch.no_grad():
            scores = model(torch.cat([pictures(2), OTHERS]))[:, 1]
        low, high = scores[:2] - scores[2:].max(), scores[:2] - scores[2:].min()
        assert bool(((low <= found.completeness.expected) & (found.completeness.expected <= high)).all())


def test_the_default_is_stepwise_and_corrects_only_rounding() -> None:
    found = egcam.SlopeCAM(bent(), "first", reference=OTHERS, samples=12, signed=True)(pictures(2), target=1)
    torch.testing.assert_close(found.maps, stepwise(bent(), "first")(pictures(2), target=1).maps, rtol=1e-9, atol=1e-12)
    assert float(found.completeness.correction.abs().max()) < 1e-12
    assert found.options["gradient"]["path"] == "stepwise"


def test_two_steps_by_hand() -> None:
    """Two samples are one reference and two steps; the four of two references have opposite halves."""
    network, image, others = signed_activations(), small_pictures(1), small_pictures(2, seed=3)
    with torch.no_grad():
        here, there = network.features(image)[0].numpy(), network.features(others).numpy()
    maps = [attribution(network.head, one, here, 1, half=first_half(0, here.shape[1:])).sum(0) for one in there]
    one = egcam.SlopeCAM(network, "features", reference=others, samples=2, signed=True)(image, target=1)
    distances = [np.abs(one.maps[0].numpy() - found).max() for found in maps]
    assert min(distances) < 1e-10 < max(distances)
    assert not (first_half(0, (4, 3)) & first_half(1, (4, 3))).any()
    assert (first_half(0, (4, 3)) | first_half(1, (4, 3))).all()
    assert not np.array_equal(first_half(0, (4, 3)), first_half(2, (4, 3)))


def test_before_a_dense_head_each_reference_takes_one_step() -> None:
    network, image, others = perceptron_head(), small_pictures(1), small_pictures(4, seed=3)
    with torch.no_grad():
        here, there = network.features(image)[0].numpy(), network.features(others).numpy()
    truth = np.mean([attribution(network.head, one, here, 1).sum(0) for one in there], 0)
    found = egcam.SlopeCAM(network, "features", reference=others, samples=4, signed=True)(image, target=1)
    torch.testing.assert_close(found.maps[0], torch.from_numpy(truth), rtol=0, atol=1e-10)
    assert found.reference == "4 images"


class Runs(nn.Module):
    """A convolution, something between, and a head."""

    def __init__(self, between) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)
        self.between = between

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.between(self.layer(images)).mean((2, 3)))


def runs(between) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Runs(between).double().eval()


def test_an_operation_without_a_rule_leads_to_derivatives() -> None:
    """Then the map is that of the latent path, to the last bit, and the explanation says so."""
    model = runs(lambda z: z.cumprod(-1))
    cams = [
        egcam.SlopeCAM(model, "layer", reference=OTHERS, samples=8, path=path, signed=True)
        for path in (None, "latent")
    ]
    for _ in range(2):  # in the second call the network is known
        found, wanted = (cam(pictures(2), target=1) for cam in cams)
        assert found.options["slopes"] == "derivatives"
        assert torch.equal(found.maps, wanted.maps)
        assert found.reference == wanted.reference
        torch.testing.assert_close(found.completeness.total, found.completeness.expected)


def test_a_reference_that_is_the_image_hides_nothing() -> None:
    """From black to black nothing rises, whatever the operations; the next image shows that one lacks a rule."""
    model = runs(lambda z: z.cumprod(-1))
    cam = egcam.SlopeCAM(model, "layer", reference="black", samples=8, signed=True)
    both = torch.cat([torch.zeros_like(pictures(1)), pictures(1)])
    with pytest.warns(egcam.errors.ZeroMapWarning):
        found = cam(both, target=1)
    assert found.options["slopes"] == "derivatives"
    torch.testing.assert_close(found.completeness.total, found.completeness.expected)


@pytest.mark.parametrize("name", ["relu_", "hardtanh", "mul_"])
def test_operations_in_place_whose_result_is_ignored(name: str) -> None:
    """A small image, which clipping leaves as it is, must not hide that the references are clipped."""

    def in_place(z: Tensor) -> Tensor:
        z = z * 1.0
        if name == "relu_":
            z.relu_()
        elif name == "hardtanh":
            nn.functional.hardtanh(z, -0.5, 0.5, inplace=True)
        else:
            z.mul_((2 * z).tanh())
        return z.square()

    def out_of_place(z: Tensor) -> Tensor:
        plain = {"relu_": torch.relu, "hardtanh": lambda z: z.clamp(-0.5, 0.5), "mul_": lambda z: z * (2 * z).tanh()}
        return plain[name](z).square()

    found, wanted = (
        stepwise(runs(between), "layer")(0.05 * pictures(2), target=1) for between in (in_place, out_of_place)
    )
    assert found.options["slopes"] == "steps"
    torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.completeness.expected, wanted.completeness.expected)


class Moody(nn.Module):
    """Another computation for some references than for the image and its first two references."""

    def forward(self, z: Tensor) -> Tensor:
        deep = float(z.detach().mean()) > 0.05
        return z.tanh().sin() if deep else z.tanh()


def test_what_turns_up_in_the_middle_of_a_run_starts_it_again() -> None:
    """The map is then that of the latent path with all its samples, now and in later calls."""
    model = runs(Moody())
    images = pictures(1)
    others = torch.cat(
        [pictures(5, seed=1), pictures(1, seed=2) + 3 * model.layer.weight.sum((0, 2, 3))[None, :, None, None]]
    )
    options = {"reference": others, "samples": 24, "batch_size": 1, "signed": True}
    cam = egcam.SlopeCAM(model, "layer", **options)
    wanted = egcam.SlopeCAM(model, "layer", path="latent", **options)(images, target=1)
    for _ in range(2):
        found = cam(images, target=1)
        assert found.options["slopes"] == "derivatives"
        torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-9, atol=1e-12)
        assert found.reference == wanted.reference


def test_of_several_tasks_all_must_have_steps() -> None:
    """One image at a time: the first says nothing about the second."""
    model = runs(lambda z: z.cumprod(-1))
    both = torch.cat([torch.zeros_like(pictures(1)), pictures(1)])
    cam = egcam.SlopeCAM(model, "layer", reference="black", samples=8, batch_size=1, signed=True)
    with pytest.warns(egcam.errors.ZeroMapWarning):
        assert cam(both, target=1).options["slopes"] == "derivatives"


def test_what_is_not_finite_leads_to_derivatives() -> None:
    """Slope times an infinite derivative is no number, where the derivative of a ReLU is 0."""
    found = egcam.SlopeCAM(runs(lambda z: z.relu().sqrt()), "layer", reference=OTHERS, samples=8)(
        pictures(2), target=1
    )
    assert bool(found.maps.isfinite().all())


def test_a_reshape_that_takes_only_the_layers_own_numbers() -> None:
    turn = torch.randn(4, 4)  # float32, as the network
    model = runs(torch.tanh).float()
    images, others = pictures(2).float(), OTHERS.float()
    cam = egcam.SlopeCAM(
        model, "layer", reference=others, samples=8, reshape=lambda z: torch.einsum("bkhw,kc->bchw", z, turn)
    )
    assert bool(cam(images, target=1).maps.isfinite().all())


def test_bfloat16_autocast_with_wide_scores() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = runs(nn.GELU()).float()

        def forward(self, images: Tensor) -> Tensor:
            return self.inner(images).float()

    cam = egcam.SlopeCAM(Wide().eval(), "inner.layer", reference=OTHERS.float(), samples=8)
    with torch.autocast("cpu", torch.bfloat16):
        assert cam(pictures(2).float(), target=1).options["slopes"] == "steps"


def test_parameters_come_back_unmarked() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

        def forward(self, z: Tensor) -> Tensor:
            return nn.functional.layer_norm(z, (8,), self.weight.to(z), self.bias.type_as(z)).tanh()

    model = runs(Scaled())
    assert stepwise(model, "layer")(pictures(1), target=1).options["slopes"] == "steps"
    assert not [name for name, weight in model.named_parameters() if vars(weight)]


def test_attention_with_a_mask_keeps_the_cheap_tail() -> None:
    """What is refused costs no more than derivatives do."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, z: Tensor) -> Tensor:
            tokens, hidden = z.flatten(2).transpose(1, 2), torch.zeros(64, 64, dtype=z.dtype)
            return (
                z + self.attention(tokens, tokens, tokens, attn_mask=hidden)[0].transpose(1, 2).reshape(z.shape).tanh()
            )

    cam = egcam.SlopeCAM(runs(Masked()), "layer", reference=OTHERS, samples=8)
    cam(pictures(1), target=1)
    assert cam(pictures(1), target=1).passes == 1


def test_a_function_as_target_is_asked_each_time() -> None:
    cam = stepwise(runs(torch.tanh), "layer")
    assert cam(pictures(1), lambda output: output[:, 0].square()).options["slopes"] == "steps"
    assert cam(pictures(1), lambda output: output.cumprod(1)[:, 2]).options["slopes"] == "derivatives"
    assert cam(pictures(1), lambda output: output[:, 0].square()).options["slopes"] == "steps"


@pytest.mark.parametrize("batch_size", [1, 2, 5, None])
def test_batches_change_nothing(batch_size: int | None) -> None:
    cam = stepwise(bent(), "first", 24, batch_size=batch_size)
    whole = stepwise(bent(), "first", 24)(pictures(3), target=[0, 1, 0])
    found = cam(pictures(3), target=[0, 1, 0])
    torch.testing.assert_close(found.maps, whole.maps, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.error, whole.error, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(cam(pictures(3)[1], target=1).maps, whole.maps[1], rtol=1e-9, atol=1e-12)


def test_what_it_costs() -> None:
    """One pass for the image; for each reference two runs of what follows the layer, and one of the image's own."""
    cam = stepwise(bent(), "first", 12)
    cam(pictures(1), target=1)
    found = cam(pictures(2), target=1)
    assert found.passes == 2
    assert found.tails == 2 * (12 + 1)


def test_signals_and_volumes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    gradient = egcam.Expected(torch.randn(4, 2, 16), 8, path="stepwise", difference="latent")
    cam = egcam.GradientCAM(model, "1", gradient=gradient, weighting="summed", signed=True)
    found = cam(torch.randn(2, 2, 16), target=1)
    assert found.options["slopes"] == "steps"
    torch.testing.assert_close(found.maps.sum(1).double(), found.completeness.expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"difference": "none"}, {"difference": "increment"}, {"difference": "latent", "kernel": "gaussian"}]
)
def test_what_has_no_meaning_for_steps_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(SamplingError, match="path='stepwise' attributes whole steps"):
        egcam.Expected(OTHERS, 4, path="stepwise", **options)


def test_another_difference_takes_the_latent_path() -> None:
    found = egcam.SlopeCAM(bent(), "first", reference=OTHERS, samples=4, difference="none")(
        pictures(1), target=1
    )
    assert found.options["gradient"]["path"] == "latent"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet18", "efficientnet_b0", "convnext_tiny", "swin_t", "swin_v2_t", "shufflenet_v2_x0_5"]
)
def test_networks_in_use_have_slopes(name: str) -> None:
    from torchvision import models

    torch.manual_seed(0)
    model = models.get_model(name, weights=None).eval()
    cam = egcam.SlopeCAM(model, reference=torch.randn(2, 3, 64, 64), samples=4, signed=True)
    found = cam(torch.randn(1, 3, 64, 64))
    assert found.options["slopes"] == "steps"
