"""Controls: maps by formula, left out of lists, and what does not beat them is marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import egcam
from egcam.attribution import registry
from egcam.errors import MethodError
from egcam.evaluation.controls import not_ahead, not_ahead_of_controls
from egcam.evaluation.score import Score
from egcam.evaluation.table import Table
from support.networks import perceptron_head, pictures
from support.small_models import Kept

CONTROLS = ("random", "centre", "edges", "mean-activation")


def maps(method: str, images: torch.Tensor, target: int | None = None, **options) -> torch.Tensor:
    return egcam.explain(perceptron_head(), images, method, target, layer="features", signed=True, **options).maps


@pytest.mark.parametrize("method", CONTROLS)
def test_they_know_nothing_of_the_class_and_of_other_images(method: str) -> None:
    network, images = perceptron_head(), pictures(3)
    kept = Kept(network, images)
    found = egcam.explain(network, images, method, 0, layer="features", signed=True)
    kept.check()
    assert found.maps.shape == (3, 4, 3)
    assert found.method == method
    torch.testing.assert_close(maps(method, images, 1), found.maps)
    torch.testing.assert_close(maps(method, images[1:2]), found.maps[1:2])


def test_formulas() -> None:
    images, network = pictures(2), perceptron_head()
    with torch.no_grad():
        torch.testing.assert_close(maps("mean-activation", images), network.features(images).mean(1))
    far = (np.arange(4)[:, None] + 0.5) / 4 - 0.5, (np.arange(3) + 0.5) / 3 - 0.5
    bump = torch.from_numpy(np.exp(-(far[0] ** 2 + far[1] ** 2) / (2 * 0.1**2)))
    torch.testing.assert_close(maps("centre", images, width=0.1)[1], bump)
    ramp = 2.0 * torch.arange(5, dtype=torch.float64).expand(1, 2, 6, 5).clone()
    edges = maps("edges", ramp)[0]  # Sobel of a ramp of slope 2 is 16, half of that at the border
    torch.testing.assert_close(edges, torch.tensor([12.0, 16, 12], dtype=torch.float64).expand(4, 3))


@pytest.mark.parametrize("dimensions", [1, 3])
def test_signals_and_volumes_have_controls_over_all_their_axes(dimensions: int) -> None:
    kind = {1: torch.nn.Conv1d, 3: torch.nn.Conv3d}[dimensions]
    size = (5, 7, 9)[:dimensions]
    net = torch.nn.Sequential(kind(2, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2))
    ramp = 2.0 * torch.arange(size[-1]).float().expand(2, 2, *size).clone()
    net(ramp)
    found = {
        name: egcam.explain(net.eval(), ramp, name, 0, layer="1", signed=True, dimensions=dimensions).maps
        for name in CONTROLS
    }
    assert {tuple(made.shape) for made in found.values()} == {(2, *size)}
    far = [(np.arange(side) + 0.5) / side - 0.5 for side in size]
    bump = np.exp(-sum(np.square(one) for one in np.meshgrid(*far, indexing="ij")) / (2 * 0.25**2))
    torch.testing.assert_close(found["centre"][0], torch.from_numpy(bump).float())
    inner = found["edges"][0].reshape(-1, size[-1])[
        :, 1:-1
    ]  # a slope of 2 over two pixels, times 4 for each other axis
    torch.testing.assert_close(inner, torch.full_like(inner, 4.0 * 4 ** (dimensions - 1)))


def test_random_maps_depend_on_image_and_seed_alone() -> None:
    images = pictures(2)
    found = maps("random", images)
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found, maps("random", images, seed=1))
    many = maps("random", pictures(300)).flatten()
    assert abs(float(many.mean()) - 0.5) < 0.02
    assert 0 <= float(many.min()) < 0.01
    with pytest.raises(MethodError, match="must be positive"):
        maps("centre", images, width=0.0)


def test_lists_leave_them_out() -> None:
    assert not set(CONTROLS) & {*egcam.methods(), *registry.usual_methods()}
    assert set(registry.methods(controls=True)) - set(egcam.methods()) == set(CONTROLS)


def made(scores: dict[str, list[float]], metric: str = "insertion") -> Table:
    rows = (Score(image, name, metric, scores[name][image], 0.0) for name in scores for image in range(8))
    return Table.of(rows, tuple(scores), (metric,))


SCORES = {
    "grad-cam": [0.8, 0.9, 0.7, 0.8] * 2,
    "layer-cam": [0.9, 0.1, 0.9, 0.1] * 2,
    "centre": [0.3, 0.4, 0.3, 0.2] * 2,
    "random": [0.1, 0.1, 0.2, 0.1] * 2,
}


def test_what_does_not_beat_every_control_is_marked() -> None:
    table = made(SCORES)
    assert not_ahead_of_controls(table, "insertion") == {"layer-cam"}
    assert not_ahead_of_controls(made(SCORES, "deletion"), "deletion") == {"grad-cam", "layer-cam"}
    assert "| layer-cam | <u>0.5000</u>° |" in table.to_markdown()
    assert "| grad-cam | **0.8000** |" in table.to_markdown()
    assert "° is not shown to be better than each control (centre, random)" in table.to_markdown()
    assert r"\underline{0.5000}$^\circ$" in table.to_latex()


def test_noise_seldom_beats_a_control_however_few_the_images() -> None:
    source = np.random.default_rng(0)
    for images in (2, 3, 5, 6, 9):
        drawn = [{"grad-cam": source.random(images), "random": source.random(images)} for _ in range(200)]
        beaten = np.mean([not not_ahead(scores, True) for scores in drawn])
        assert beaten == 0 if images < 6 else beaten < 0.05


def test_a_control_without_scores_is_not_said_to_be_beaten() -> None:
    text = made({**SCORES, "random": [np.nan] * 8}).to_markdown()
    assert "each control (centre)" in text


def test_without_controls_nothing_is_said() -> None:
    table = made({name: SCORES[name] for name in ("grad-cam", "layer-cam")})
    assert "°" not in table.to_markdown()
