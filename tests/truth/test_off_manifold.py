"""How real path points are: against the formula, and in a case worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from egcam import truth
from egcam.errors import InputError, LayerError
from support.networks import perceptron_head, pictures
from support.small_models import Kept


def test_formula() -> None:
    network, images, references, real = perceptron_head(), pictures(2), pictures(2, seed=1), pictures(12, seed=2)
    kept = Kept(network, images)
    found = truth.off_manifold(network, images, "features", references, real, shares=(0.5,))
    kept.check()
    with torch.no_grad():
        cells = {name: network.features(x).numpy() for name, x in
                 {"here": images, "there": references, "known": real[0::2], "held": real[1::2],
                  "between": (images + references) / 2}.items()}  # fmt: skip
    pooled = {name: value.mean((2, 3)) for name, value in cells.items()}
    spread = np.cov(pooled["known"].T)
    inverse = np.linalg.inv(spread + 0.1 * np.trace(spread) / 4 * np.eye(4))

    def distance(rows: np.ndarray) -> float:
        away = rows - pooled["known"].mean(0)
        return float(np.sqrt(np.einsum("nk,kl,nl->n", away, inverse, away) / 4).mean())

    latent, image = found.by_path["latent"][0], found.by_path["image"][0]
    mixed = (cells["here"] + cells["there"]) / 2
    assert latent.distance == pytest.approx(distance(mixed.mean((2, 3))) / distance(pooled["held"]))
    assert image.distance == pytest.approx(distance(pooled["between"]) / distance(pooled["held"]))
    assert latent.active == pytest.approx((mixed > 0).mean())
    assert found.real.active == pytest.approx((cells["held"] > 0).mean())


def test_a_mixture_of_two_is_denser_than_either() -> None:
    layer = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.ReLU())
    layer[0].weight.data[:] = torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)  # one of the two is active for any pixel
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(8, 2))
    ones = torch.ones(1, 1, 2, 2)
    found = truth.off_manifold(network, ones, "0", -ones, torch.randn(6, 1, 2, 2), shares=(0.0, 0.5, 1.0))
    assert [one.active for one in found.by_path["latent"]] == [0.5, 1.0, 0.5]
    assert [one.active for one in found.by_path["image"]] == [0.5, 0.0, 0.5]
    assert [one.active for one in found.by_path["stepwise"]] == [0.5, 0.5, 0.5]  # each cell is one of the two


def test_steps_meet_where_a_share_of_the_cells_is_the_images() -> None:
    """Of one channel with cells of 4 and of 0, the pooled mean is the share times 4."""
    network = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    nn.init.ones_(network[0].weight)
    images, references, real = torch.full((1, 1, 4, 4), 4.0), torch.zeros(1, 1, 4, 4), torch.rand(8, 1, 4, 4)
    found = truth.off_manifold(network, images, "1", references, real, shares=(0.0, 0.25, 0.5, 1.0))
    assert [one.active for one in found.by_path["stepwise"]] == [0.0, 0.25, 0.5, 1.0]
    straight = [one.distance for one in found.by_path["latent"]]
    assert [one.distance for one in found.by_path["stepwise"]] == pytest.approx(straight)


class Tokens(nn.Module):
    """The cells of a convolution as tokens, behind one that belongs to no place."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed, self.tokens, self.head = embed, nn.Identity(), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        cells = self.embed(images).flatten(2).mT
        return self.head(self.tokens(torch.cat([cells[:, :1] + 9, cells], 1)).mean(1))


def test_tokens_are_read_as_maps() -> None:
    embed = nn.Sequential(nn.Conv2d(1, 4, 2, stride=2), nn.ReLU())
    here, there, real = (torch.rand(count, 1, 8, 8) for count in (3, 2, 8))
    net = nn.Sequential(embed, nn.Flatten(), nn.Linear(64, 3))
    right = truth.off_manifold(net, here, "0", there, real)
    found = truth.off_manifold(Tokens(embed), here, "tokens", there, real, reshape=(4, 4))
    for path, points in right.by_path.items():
        for ours, wanted in zip(found.by_path[path], points, strict=True):
            assert (ours.active, ours.distance) == pytest.approx((wanted.active, wanted.distance))


def test_what_is_refused() -> None:
    network, images = perceptron_head(), pictures(2)
    with pytest.raises(InputError, match="at least four"):
        truth.off_manifold(network, images, "features", images, images)
    with pytest.raises(InputError, match="all alike"):
        truth.off_manifold(network, images, "features", images, images[:1].repeat(4, 1, 1, 1))
    with pytest.raises(InputError, match="must be of the size of the images"):
        truth.off_manifold(network, images, "features", images[..., :-1], pictures(4))
    twice = nn.Sequential(relu := nn.ReLU(), nn.Conv2d(1, 2, 1), relu, nn.Flatten(), nn.Linear(32, 2))
    with pytest.raises(LayerError, match="more than once"):
        truth.off_manifold(twice, torch.rand(2, 1, 4, 4), "0", torch.rand(2, 1, 4, 4), torch.rand(4, 1, 4, 4))
