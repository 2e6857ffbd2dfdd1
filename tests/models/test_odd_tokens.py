"""Networks whose tokens are easily misread: several branches, states that lie nowhere, tokens put back on a grid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import egcam
from egcam.errors import LayerError
from egcam.models.layers import find_layer
from support.plain_grad_cam import as_maps
from support.small_models import seeded

pytestmark = pytest.mark.usefixtures("one_thread")


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.query(tokens) @ tokens.mT).softmax(-1) @ self.value(tokens)


class _Branch(nn.Module):
    """Patches as tokens, mixed by one attention, and read off a class token."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.norm1 = nn.LayerNorm(8)
        self.attention, self.mlp = _Attention(), nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        tokens = torch.cat([self.first.expand(len(images), -1, -1), self.patches(images).flatten(2).mT], 1)
        tokens = tokens + self.attention(self.norm1(tokens))
        return (tokens + self.mlp(tokens).tanh())[:, 0]


class _TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = _Branch(4), _Branch(8)
        self.heads = nn.ModuleList([nn.Linear(8, 5), nn.Linear(8, 5)])

    def forward(self, images: Tensor) -> Tensor:
        return self.heads[0](self.fine(images)) + self.heads[1](self.coarse(images))


def _pictures(height: int = 16, width: int = 24) -> Tensor:
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(1))


def _by_hand(model: nn.Module, layer: str, images: Tensor, grid: tuple[int, int]) -> Tensor:
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output))
    score = model(images)[0, 1]
    handle.remove()
    gradient = as_maps(torch.autograd.grad(score, kept[0])[0], 1, grid)
    return (gradient.mean((1, 2), keepdim=True) * as_maps(kept[0], 1, grid)).sum(0).relu().detach()


def test_every_branch_of_a_transformer_of_several_is_explained() -> None:
    model, images = seeded(_TwoBranches, 1), _pictures()
    found = egcam.explain(model, images, "grad-cam", target=1)
    assert found.layer == "fine.norm1 + coarse.norm1"
    fine, coarse = (
        _by_hand(model, name, images, grid) for name, grid in [("fine.norm1", (4, 6)), ("coarse.norm1", (2, 3))]
    )
    assert float(fine.max()) > 0 < float(coarse.max())
    wider = nn.functional.interpolate((coarse / coarse.max())[None, None], (4, 6), mode="bilinear")[0, 0]
    torch.testing.assert_close(found.maps[0], (fine / fine.max() + wider) / 2, rtol=1e-3, atol=1e-5)


def test_one_branch_stays_one_layer() -> None:
    assert find_layer(seeded(lambda: nn.Sequential(_Branch(4), nn.Linear(8, 5))), _pictures()) == "0.norm1"


class _States(nn.Module):
    """Convolutions whose last map is a single place, and states of a mixer that are as many as 2 x 2 and 5 others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 8, 8), nn.ReLU())
        self.down = nn.Conv2d(6, 6, 2, 2)
        self.mix, self.norm = nn.Conv2d(6, 9, 1), nn.LayerNorm(6)
        self.head, self.other = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.body(images)
        states = self.norm(self.mix(maps).flatten(2).softmax(-1) @ maps.flatten(2).mT)
        return self.head(self.down(maps).flatten(1)) + self.other(states.mean(1))


def test_states_are_no_tokens() -> None:
    assert find_layer(seeded(_States), _pictures(16, 16)) == "mix"


class _OnAGrid(nn.Module):
    """Tokens that are put back on the grid, channels last, at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = _Encoder(), nn.Linear(20, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images).square().mean((1, 2)))


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 20, 4, 4), nn.LayerNorm(20)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images)
        return self.norm(patches.flatten(2).mT).tanh().unflatten(1, patches.shape[2:])


@pytest.mark.parametrize("size", [(16, 16), (16, 24)])
def test_tokens_put_back_on_the_grid_have_their_channels_last(size: tuple[int, int]) -> None:
    model, images = seeded(_OnAGrid), _pictures(*size)
    found = egcam.explain(model, images, "grad-cam", target=1, signed=True)
    maps = model.encoder(images).detach().requires_grad_()
    gradient = torch.autograd.grad(model.head(maps.square().mean((1, 2)))[0, 1], maps)[0]
    wanted = (maps * gradient.mean((1, 2), keepdim=True)).sum(-1)
    assert found.layer == "encoder"
    torch.testing.assert_close(found.maps, wanted.detach(), rtol=1e-4, atol=1e-7)


class _Crops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh()), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        halves = torch.stack(images.chunk(2, 2), 1).flatten(0, 1)
        return self.head(self.body(halves).square().mean((2, 3))).unflatten(0, (-1, 2)).mean(1)


class _Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Flatten(3), nn.Conv2d(3, 6, 3), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, images, use_reentrant=True).square().mean((2, 3)))


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (_Crops, r"'body' makes \(2, 6, 6, 22\): crops, windows or frames.*layer='body' and a callable reshape"),
        (_Recomputed, "use_reentrant=False"),
    ],
)
def test_why_no_layer_was_found(build: type[nn.Module], said: str) -> None:
    with pytest.raises(LayerError, match=said):
        egcam.explain(seeded(build), _pictures(), "grad-cam", target=1)
