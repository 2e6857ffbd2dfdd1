"""Maps corrected by their known sum: the formula, that they add up, and that they are no further from the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from attribution.test_latent_path import bent, pictures
from egcam.attribution.adding_up import AddingUp
from egcam.errors import SamplingError, ZeroMapWarning
from support.corrected_samples import corrected

OTHERS = pictures(6, seed=1)


def latent(model: nn.Module, layer: str, samples: int, exact_sum: bool, seed: int = 0, **more: Any) -> Tensor:
    gradient = egcam.Expected(OTHERS, samples, path="latent", difference="latent", exact_sum=exact_sum, seed=seed)
    cam = egcam.GradientCAM(model, layer, gradient=gradient, weighting="summed", signed=True, **more)
    return cam(pictures(2), target=1).maps


@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_formula(rest: float) -> None:
    """With and without something that belongs to no cell; two images, whose samples arrive mixed."""
    chance = np.random.default_rng(0)
    maps = chance.normal(1, 1, (12, 2, 3))
    totals = maps.sum((1, 2)) + rest * chance.normal(1, 1, 12)
    own = np.arange(12) % 2
    sums = AddingUp(2)
    for part in (slice(0, 5), slice(5, 12)):
        sums.add(torch.from_numpy(own[part]), torch.from_numpy(maps[part]), torch.from_numpy(totals[part]))
    means = np.stack([maps[own == image].mean(0) for image in (0, 1)])
    found, total, lacked = sums.corrected(torch.from_numpy(means), torch.tensor([7.0, 2.0]))
    for image, expected in enumerate((7.0, 2.0)):
        mine = own == image
        wanted = corrected(maps[mine].reshape(6, 6), totals[mine], expected)
        np.testing.assert_allclose(found[image].flatten(), wanted, rtol=1e-9)
        np.testing.assert_allclose(total[image], expected)
        np.testing.assert_allclose(lacked[image], expected - totals[mine].mean())


def on_latent_path(model: nn.Module, layer: str, samples: int, **more: Any) -> egcam.SlopeCAM:
    return egcam.SlopeCAM(model, layer, reference=OTHERS, samples=samples, path="latent", **more)


@pytest.mark.parametrize("layer", ["first", "second"])
@pytest.mark.parametrize("samples", [1, 2, 5, 32])
def test_the_latent_path_adds_up_with_any_number_of_samples(layer: str, samples: int) -> None:
    model = bent()
    found = on_latent_path(model, layer, samples, signed=True)(pictures(2), target=1)
    rises = found.completeness.expected
    torch.testing.assert_close(found.maps.sum((1, 2)), rises, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.completeness.total, rises, rtol=1e-10, atol=1e-10)
    plain = latent(model, layer, samples, exact_sum=False).sum((1, 2))
    torch.testing.assert_close(found.completeness.correction, rises - plain, rtol=1e-9, atol=1e-10)
    if samples <= 6:  # each sample has another reference
        with torch.no_grad():
            scores = model(torch.cat([pictures(2), OTHERS]))[:, 1]
        low, high = scores[:2] - scores[2:].max(), scores[:2] - scores[2:].min()
        assert bool(((low <= rises) & (rises <= high)).all())


@pytest.mark.parametrize("layer", ["first", "second"])
def test_no_further_from_the_limit(layer: str) -> None:
    """On average over seeds; and the limit is the same."""
    model = bent()
    limit = latent(model, layer, 6000, exact_sum=False)
    torch.testing.assert_close(latent(model, layer, 6000, True), limit, rtol=0, atol=2e-3 * float(limit.abs().max()))
    errors = [
        torch.stack([(latent(model, layer, 12, exact, seed) - limit).norm() for seed in range(20)]).mean()
        for exact in (False, True)
    ]
    assert errors[1] < 1.01 * errors[0]


class HalfBlind(nn.Module):
    """The head sees the upper half only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 4 * 8, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layer(images)[:, :, :4])


def test_what_the_head_cannot_see_stays_exactly_zero() -> None:
    torch.manual_seed(0)
    model = HalfBlind().double().eval()
    found = on_latent_path(model, "layer", 6, signed=True)(pictures(2), target=1)
    assert float(found.completeness.correction.abs().min()) > 1e-6
    assert not found.maps[:, 4:].any()
    assert found.maps[:, :4].all()


def test_a_score_that_is_not_finite_leaves_the_map_as_it_is() -> None:
    sums, maps = AddingUp(2), torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]]])
    sums.add(torch.tensor([0, 1]), maps, maps.sum((1, 2)))
    found, total, lacked = sums.corrected(maps, torch.tensor([torch.inf, 6.0]))
    assert found.tolist() == [[[1.0, 2.0]], [[2.0, 4.0]]]
    assert total.tolist() == [3.0, 6.0]
    assert lacked.tolist() == [0.0, 3.0]


def test_an_image_that_equals_its_references_is_told_so() -> None:
    cam = egcam.SlopeCAM(bent(), "first", reference="black", samples=4)
    with pytest.warns(ZeroMapWarning, match="the layer outputs the same for it as for its references"):
        cam(torch.zeros(1, 3, 8, 8, dtype=torch.float64), target=1)


def test_sampling_that_stops_early_adds_up() -> None:
    cam = egcam.SlopeCAM(bent(), "first", reference=OTHERS, samples=512, tolerance=0.2, signed=True)
    found = cam(pictures(2), target=1)
    assert found.tails < 2 * 512
    torch.testing.assert_close(found.maps.sum((1, 2)), found.completeness.expected)


def test_the_class_token_takes_its_part() -> None:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    model = VisionTransformer(**sizes, num_classes=3).double().eval()
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    images, others = torch.randn(2, 3, 16, 16).double(), torch.randn(4, 3, 16, 16).double()
    found = egcam.SlopeCAM(model, reference=others, samples=8, signed=True)(images, target=1)
    torch.testing.assert_close(found.completeness.total, found.completeness.expected)
    assert float((found.maps.sum((1, 2)) - found.completeness.total).abs().min()) > 1e-4  # the token has the rest


@pytest.mark.parametrize(
    "options",
    [{"path": "linear"}, {"path": "latent"}, {"path": "latent", "difference": "latent", "kernel": "gaussian"}],
)
def test_a_sum_that_is_not_known_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        SamplingError, match="exact_sum=True needs path='latent' or 'stepwise', difference='latent' and no kernel"
    ):
        egcam.Expected(OTHERS, 4, exact_sum=True, **options)


def test_a_map_that_is_no_sum_is_refused() -> None:
    gradient = egcam.Expected(OTHERS, 4, path="latent", difference="latent", exact_sum=True)
    with pytest.raises(SamplingError, match="needs weighting='summed'"):
        egcam.GradientCAM(bent(), "first", gradient=gradient, weighting="mean")(pictures(1), target=1)


def test_the_correction_goes_where_its_image_goes(tmp_path) -> None:
    cam = on_latent_path(bent(), "first", 5)
    found = cam(pictures(3), target=1)
    correction = found.completeness.correction
    assert found[1].completeness.correction == correction[1]
    assert torch.equal(found[1:].completeness.correction, correction[1:])
    torch.testing.assert_close(cam(pictures(3)[2], target=1).completeness.correction, correction[2])
    other = cam(pictures(3), target=0)
    torch.testing.assert_close(
        found.difference(other).completeness.correction, correction - other.completeness.correction
    )
    found.save(tmp_path / "kept", pictures=False)
    assert torch.equal(egcam.Explanation.load(tmp_path / "kept").completeness.correction, correction)
    without = replace(found, completeness=replace(found.completeness, correction=None))
    without.save(tmp_path / "without", pictures=False)
    assert egcam.Explanation.load(tmp_path / "without").completeness.correction is None


class Residual(nn.Module):
    """The layer is a branch beside a skip connection, so the references' own scores are not those of A' alone."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.stem, self.layer = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 64, 2)
        self.bias = bias

    def forward(self, images: Tensor) -> Tensor:
        early = self.stem(images).tanh()
        return self.head((early + self.layer(early)).tanh().flatten(1)) + self.bias


def residual(bias: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Residual(bias).double().eval()


@pytest.mark.filterwarnings("ignore::egcam.errors.ZeroMapWarning")
@pytest.mark.parametrize("reference", ["black", "blurred"])
def test_an_image_that_is_its_own_reference_does_not_hide_the_skip_connection(reference: str) -> None:
    """The first image of the batch says nothing about what goes around the layer: its reference is the image."""
    cam = egcam.SlopeCAM(residual(), "layer", reference=reference, samples=8, signed=True)
    image, plain = pictures(1), torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    alone = cam(image, target=1).maps
    behind = cam(torch.cat([plain, image]), target=1).maps[1:]
    torch.testing.assert_close(behind, alone, rtol=1e-9, atol=1e-12)


def test_a_large_score_does_not_hide_the_skip_connection() -> None:
    maps = [
        egcam.SlopeCAM(residual(bias), "layer", reference=OTHERS, samples=6, signed=True)(pictures(2), 1).maps
        for bias in (0.0, 1000.0)
    ]
    torch.testing.assert_close(maps[1], maps[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("negative", [0.5, "agreed"])
def test_less_negative_evidence_is_not_corrected(negative: Any) -> None:
    """What is left out cannot add up: the map is that of the plain samples."""
    found = egcam.SlopeCAM(bent(), "first", reference=OTHERS, samples=6, negative=negative)(
        pictures(2), target=1
    )
    gradient = egcam.Expected(OTHERS, 6, path="stepwise", difference="latent")
    cam = egcam.GradientCAM(bent(), "first", gradient=gradient, weighting="summed", negative=negative)
    assert torch.equal(found.maps, cam(pictures(2), target=1).maps)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_sampling_that_stops_early_does_not_depend_on_the_batch(batch_size: int) -> None:
    """What is evaluated beyond the point where an image stops plays no part."""
    pool = pictures(64, seed=2)

    def maps(images: Tensor, **more: Any) -> Tensor:
        cam = egcam.SlopeCAM(bent(), "first", reference=pool, samples=256, tolerance=0.15, signed=True, **more)
        return cam(images, target=1).maps

    images = pictures(3)
    torch.testing.assert_close(maps(images, batch_size=batch_size)[:1], maps(images[:1]), rtol=1e-9, atol=1e-12)


def test_a_cell_that_is_not_finite_does_not_spoil_the_others() -> None:
    sums, maps = AddingUp(1), torch.tensor([[[1.0, torch.inf, 2.0]]])
    sums.add(torch.tensor([0]), maps, maps.sum((1, 2)))
    found, _, lacked = sums.corrected(maps, torch.tensor([6.0]))
    assert found.tolist() == maps.tolist()
    assert lacked.tolist() == [0.0]


def test_a_map_of_zeros_is_given_nothing() -> None:
    sums = AddingUp(1)
    sums.add(torch.tensor([0]), torch.zeros(1, 2, 2), torch.zeros(1))
    found, total, lacked = sums.corrected(torch.zeros(1, 2, 2), torch.tensor([5.0]))
    assert not found.any()
    assert float(total) == float(lacked) == 0.0


def test_a_large_correction_is_said() -> None:
    found = egcam.SlopeCAM(bent(), "first", reference=OTHERS, samples=6)(pictures(1), target=1)
    whole = float(found.completeness.expected)
    much = replace(found.completeness, correction=torch.tensor([0.6 * whole], dtype=torch.float64))
    assert replace(found, completeness=much).worth().endswith(f" of {whole:+.1f} (corrected by {0.6 * whole:+.1f})")
    little = replace(found.completeness, correction=torch.tensor([0.4 * whole], dtype=torch.float64))
    assert replace(found, completeness=little).worth().endswith(f" of {whole:+.1f}")


def test_the_table_has_the_correction() -> None:
    found = egcam.SlopeCAM(bent(), "first", reference=OTHERS, samples=6)(pictures(2), target=1)
    np.testing.assert_allclose(found.to_frame()["correction"], found.completeness.correction)


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "3 of 6 images"), ({"tolerance": 0.1}, "6 images"), ({"sampling": "monte-carlo"}, "6 images")],
)
def test_how_many_references_were_drawn_is_said_where_it_is_known(options: dict[str, Any], said: str) -> None:
    gradient = egcam.Expected(OTHERS, 3, path="latent", difference="latent", **options)
    cam = egcam.GradientCAM(bent(), "first", gradient=gradient, weighting="summed")
    assert cam(pictures(1), target=1).reference == said
