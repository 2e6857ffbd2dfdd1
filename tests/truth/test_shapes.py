"""Shapes, patches and the network that learns them; training itself is tried with a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from egcam import truth
from egcam.errors import EgcamError, InputError
from egcam.truth.shapes import CLASSES, PLANTED, SIDE, _train, accuracy


def test_masks_are_exact() -> None:
    drawn = truth.draw_shapes(12, seed=3)
    assert drawn.labels.tolist() == [0, 1, 2, 3, 4, 5] * 2
    for image, mask in zip(drawn.images, drawn.masks > 0, strict=True):
        inside = image[:, mask]
        assert bool((inside == inside[:, :1]).all())
        alike = (image == inside[:, :1, None]).all(0)
        assert int((alike & ~mask).sum()) <= 2
    areas = dict(zip(CLASSES, drawn.masks[:6].sum((1, 2)).tolist(), strict=False))
    for shape in ("circle", "square", "triangle"):
        assert areas[shape] > 0
        assert areas[f"{shape} frame"] > 0


def test_areas_are_those_of_the_formulas() -> None:
    """Of a full circle pi r^2, of its frame 0.64 of that: compared in the mean, for the radius is drawn."""
    drawn = truth.draw_shapes(2400, seed=2, background="noise")
    areas = [float(drawn.masks[drawn.labels == label].sum((1, 2)).mean()) for label in range(6)]
    square_radius = 14**2 - 14 * 7 + 7**2 / 3  # mean of r^2, r uniform on 7 to 14
    wanted = [3.1416, 4 * 0.85**2, 3 * 3**0.5 * 0.65**2]
    for full, frame, area in zip(areas[:3], areas[3:], wanted, strict=True):
        assert full == pytest.approx(area * square_radius, rel=0.06)
        assert frame == pytest.approx((1 - 0.36) * full, rel=0.08)


def test_the_background_does_not_give_the_class_away() -> None:
    drawn = truth.draw_shapes(600, seed=5)
    outside = drawn.masks[:, None, :, 1:] + drawn.masks[:, None, :, :-1] == 0
    rough = (drawn.images.diff(dim=3).abs() * outside).sum((1, 2, 3)) / outside.sum((1, 2, 3))
    is_noise = rough > 2.0  # three channels of noise from pixel to pixel; photographs are smooth
    shares = torch.stack([is_noise[drawn.labels == label].float().mean() for label in range(6)])
    assert float(shares.min()) > 0.35
    assert float(shares.max()) < 0.65


def test_same_seed_same_images_and_backgrounds_differ() -> None:
    assert torch.equal(truth.draw_shapes(4, 1).images, truth.draw_shapes(4, 1).images)
    assert not torch.equal(truth.draw_shapes(4, 1).images, truth.draw_shapes(4, 2).images)
    with pytest.raises(InputError, match="background is"):
        truth.draw_shapes(1, background="sky")  # type: ignore[arg-type]


def test_a_patch_is_planted_and_nothing_else_changes() -> None:
    images = truth.draw_shapes(3).images
    found = truth.plant(images, seed=1)
    assert found.masks.sum((1, 2)).tolist() == [36, 36, 36]
    changed = (found.images != images).any(1)
    assert not bool((changed & (found.masks == 0)).any())
    assert len({tuple(mask.nonzero()[0].tolist()) for mask in found.masks}) > 1


def test_a_network_that_knows_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    state = torch.get_rng_state()
    with pytest.raises(EgcamError, match=r"learned only \d+% of the shapes in 1 steps"):
        truth.shapes_network(steps=1)
    assert torch.equal(torch.get_rng_state(), state)
    (kept,) = (tmp_path / "egcam").iterdir()
    assert kept.name == "shapes-2-0-1.pt"
    network = truth.ShapesNetwork().eval()
    with pytest.raises(EgcamError, match="both must be 99 %"):
        truth.planted_trial(network)


def test_training_is_seeded_and_lowers_the_loss() -> None:
    def trained(steps: int) -> truth.ShapesNetwork:
        network = truth.ShapesNetwork()
        _train(network, 0, steps, None)
        return network

    first, again = trained(2), trained(2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not first.training
    assert accuracy(first, truth.draw_shapes(12)) <= 1


class Oracle(torch.nn.Module):
    """Says "planted" where there is a magenta pixel, else the class by the order images were drawn in."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        is_planted = (images == torch.tensor([2.0, -2.0, 2.0])[:, None, None]).all(1).flatten(1).any(1)
        shape = torch.arange(len(images)) % 6
        return torch.nn.functional.one_hot(torch.where(is_planted, PLANTED, shape), 7).float() * 9


def test_what_decides_is_checked() -> None:
    found = truth.decided_by_patch(Oracle(), count=24)
    assert (found.with_patch, found.without, found.is_sure) == (1.0, 1.0, True)
    trial = truth.planted_trial(Oracle(), count=6)
    assert trial.targets.tolist() == [PLANTED] * 6
    torch.testing.assert_close(trial.score(trial.truth), torch.ones(6))
    uniform = trial.score(torch.ones(6, SIDE, SIDE))
    torch.testing.assert_close(uniform, torch.full((6,), 36 / SIDE**2))
    shapes = truth.shapes_trial(Oracle(), count=6)
    assert sorted(shapes.targets.tolist()) == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(shapes.score(shapes.truth), torch.ones(6))


def test_a_network_in_training_is_left_as_it_was() -> None:
    network = truth.ShapesNetwork().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(EgcamError, match="shapes right"):
        truth.shapes_trial(network, 200)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
