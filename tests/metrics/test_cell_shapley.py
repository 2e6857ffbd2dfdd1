"""Shapley values of cells, against the definition over all subsets."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam import metrics
from egcam.errors import InputError, LayerError
from egcam.metrics import cell_shapley as module
from egcam.truth import cell_agreement, cell_shapley
from support.networks import TwoHalves, pictures, seeded
from support.small_models import Kept

SHAPE = (1, 4, 5)
CELLS = 6


def bent(seed: int = 1) -> nn.Module:
    """A layer of 2 x 3 cells and a head that is far from additive."""
    features = lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh())  # noqa: E731
    head = lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 2))  # noqa: E731
    network = seeded(lambda: TwoHalves(features(), head()), seed)
    for weight in network.parameters():
        weight.data.mul_(3)
    return network


def by_all_subsets(network: nn.Module, image: Tensor, references: Tensor, target: int) -> Tensor:
    """phi_c = sum over S without c of |S|! (n - |S| - 1)! / n! (y(S + c) - y(S)), averaged over references."""
    with torch.no_grad():
        here, there = network.features(image[None])[0].flatten(1), network.features(references).flatten(2)

        def value(subset: tuple[int, ...]) -> float:
            filled = there.clone()
            filled[:, :, list(subset)] = here[:, list(subset)]
            return float(network.head(filled)[:, target].mean())

        values = {subset: value(subset) for size in range(CELLS + 1) for subset in combinations(range(CELLS), size)}
    phi = torch.zeros(CELLS, dtype=torch.float64)
    for subset, low in values.items():
        weight = (
            factorial(len(subset)) * factorial(CELLS - len(subset) - 1) / factorial(CELLS) if len(subset) < 6 else 0
        )
        for cell in set(range(CELLS)) - set(subset):
            phi[cell] += weight * (values[tuple(sorted((*subset, cell)))] - low)
    return phi.reshape(2, 3)


def test_all_subsets_give_the_same() -> None:
    network, images, references = bent(), pictures(2, shape=SHAPE), pictures(3, seed=1, shape=SHAPE)
    truth = torch.stack([by_all_subsets(network, image, references, target=1) for image in images])
    few, many = (cell_shapley(network, images, "features", references, count, target=1) for count in (12, 240))
    spread = truth.std()
    assert float((many - truth).abs().max()) < 0.1 * float(spread)
    assert float((many - truth).square().mean()) < float((few - truth).square().mean())


def test_reversed_orders_are_exact_for_pairs() -> None:
    """Where cells act together at most two by two, an order and its reverse give the Shapley values themselves."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Conv2d(1, 1, 1, bias=False)

        def forward(self, images: Tensor) -> Tensor:
            total = self.features(images).flatten(1).sum(1)
            return torch.stack([total**2 + total, total], 1)

    network = seeded(Pairs)
    images, references = pictures(1, shape=(1, 2, 3)), pictures(2, seed=1, shape=(1, 2, 3))
    found = cell_shapley(network, images, "features", references, permutations=4, target=0)
    network.head = lambda cells: torch.stack([cells.sum((1, 2)) ** 2 + cells.sum((1, 2))], 1)
    torch.testing.assert_close(found[0], by_all_subsets(network, images[0], references, target=0))


@pytest.mark.parametrize("permutations", [3, 7])
def test_they_add_up_with_any_number_of_permutations(permutations: int) -> None:
    network, images, references = bent(), pictures(2, shape=SHAPE), pictures(3, seed=1, shape=SHAPE)
    found = cell_shapley(network, images, "features", references, permutations, target=[0, 1])
    with torch.no_grad():
        rise = network(images)[[0, 1], [0, 1]] - network(references).mean(0)[[0, 1]]
    torch.testing.assert_close(found.sum((1, 2)), rise, rtol=1e-12, atol=1e-12)
    assert float(found.min()) < 0 < float(found.max())


def test_additive_tail_is_the_difference_itself() -> None:
    """After the layer only a sum: each cell's value is its own contribution, whatever the order."""
    head = lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 2))  # noqa: E731
    network = seeded(lambda: TwoHalves(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()), head()))
    images, references = pictures(2, shape=SHAPE), pictures(2, seed=1, shape=SHAPE)
    found = cell_shapley(network, images, "features", references, permutations=2, target=1)
    with torch.no_grad():
        away = network.features(images) - network.features(references).mean(0)
        wanted = (network.head[1].weight[1].reshape(3, 2, 3) * away).sum(1)
    torch.testing.assert_close(found, wanted)
    agreement = cell_agreement(wanted.float() * 3, found)
    torch.testing.assert_close(agreement.pearson, torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(agreement.cosine, torch.ones(2, dtype=torch.float64))
    assert agreement.rank.tolist() == [1, 1]


def test_tokens_are_cells_and_the_class_token_is_none() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, 4, 2, 2)
            self.block = nn.Tanh()
            self.head = nn.Linear(4, 2)

        def forward(self, images: Tensor) -> Tensor:
            patches = self.patches(images).flatten(2).transpose(1, 2)
            tokens = self.block(torch.cat([patches.mean(1, keepdim=True), patches], 1))
            return self.head((tokens[:, :1] * tokens).sum(1).tanh())

    network = seeded(Tokens)
    images, references = pictures(1, shape=(1, 4, 6)), pictures(2, seed=1, shape=(1, 4, 6))
    found = cell_shapley(network, images, "block", references, 4, target=0, reshape=(2, 3))
    with torch.no_grad():

        def tokens(pixels: Tensor) -> Tensor:
            patches = network.patches(pixels).flatten(2).transpose(1, 2)
            return torch.cat([patches.mean(1, keepdim=True), patches], 1).tanh()

        mixed = torch.cat([tokens(images)[:, :1].expand(2, 1, 4), tokens(references)[:, 1:]], 1)
        empty = network.head((mixed[:, :1] * mixed).sum(1).tanh())[:, 0].mean()
        rise = network(images)[0, 0] - empty
    assert found.shape == (1, 2, 3)
    torch.testing.assert_close(found.sum(), rise)


def test_manners_seeds_and_batches() -> None:
    network, images, references = bent().float(), pictures(3, shape=SHAPE).float(), pictures(2, shape=SHAPE).float()
    kept, told = Kept(network, images), []
    found = cell_shapley(network, images, "features", references, 6, progress=lambda *at: told.append(at))
    again = cell_shapley(network, images, "features", references, 6, batch_size=1)
    other = cell_shapley(network, images, "features", references, 6, seed=1)
    kept.check()
    torch.testing.assert_close(found, again, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, other, rtol=1e-2)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_what_is_refused() -> None:
    network, images, references = bent(), pictures(1, shape=SHAPE), pictures(3, shape=SHAPE)
    with pytest.raises(InputError, match="every reference needs at least one"):
        cell_shapley(network, images, "features", references, permutations=2)
    with pytest.raises(LayerError, match="one layer"):
        cell_shapley(network, images, ["features.0", "features"], references)
    with pytest.raises(LayerError, match="does more than rearrange"):
        cell_shapley(network, images, "features", references, reshape=lambda out: out * out)
    with pytest.raises(InputError, match="at the same layer"):
        cell_agreement(torch.zeros(1, 4, 4), torch.zeros(1, 2, 3))


def test_agreement_of_maps_that_say_nothing() -> None:
    truth = torch.tensor([[[1.0, 2.0, 3.0]]] * 3)
    maps = torch.tensor([[[0.0, 0, 0]], [[1, 1, 1]], [[1, torch.nan, 1]]])
    found = cell_agreement(maps, truth)
    assert found.pearson[:2].tolist() == found.rank[:2].tolist() == [0, 0]
    torch.testing.assert_close(found.cosine[:2], torch.tensor([0, 6 / (3 * 14) ** 0.5], dtype=torch.float64))
    assert all(bool(part[2].isnan()) for part in (found.pearson, found.rank, found.cosine))


def test_slopes_agree_better_than_pooled_gradients() -> None:
    network, images, references = bent(), pictures(4, shape=SHAPE), pictures(8, seed=1, shape=SHAPE)
    truth = cell_shapley(network, images, "features", references, 64, target=1)
    slopes = egcam.SlopeCAM(network, "features", reference=references, signed=True)
    pooled = egcam.GradCAM(network, "features", signed=True)
    assert float(cell_agreement(slopes(images, 1).maps, truth).pearson.mean()) > 0.9
    assert float(cell_agreement(pooled(images, 1).maps, truth).pearson.mean()) < 0.6


def test_the_metric_is_the_agreement_of_maps_at_their_own_layer() -> None:
    network, images, references = bent(), pictures(2, shape=SHAPE), pictures(3, seed=1, shape=SHAPE)
    made = egcam.HiResCAM(network, "features", signed=True)(images, 1)
    truth = cell_shapley(network, images, "features", references, 6, target=1)
    options = {"reference": references, "samples": 3, "permutations": 6}
    for measure in ("pearson", "rank", "cosine"):
        found = metrics.ShapleyAgreement(measure=measure, **options)(network, images, made, 1)
        torch.testing.assert_close(found.double(), getattr(cell_agreement(made.maps, truth), measure))
    # Plain maps of the size of the images are averaged over the cells of the layer that is named.
    whole = torch.nn.functional.interpolate(made.maps[:, None], size=(4, 6))[:, 0]
    found = metrics.ShapleyAgreement(layer="features", **options)(network, images, whole[:, :, :5], 1)
    parts = torch.tensor([[3.0, 2, 0, 0, 0], [0, 1, 3, 1, 0], [0, 0, 0, 2, 3]]).to(whole) / 5  # thirds of five columns
    pooled = (whole[:, ::2, :5] + whole[:, 1::2, :5]) / 2 @ parts.T
    torch.testing.assert_close(found.double(), cell_agreement(pooled, truth).pearson)


def test_the_values_are_found_once_for_all_methods_at_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = bent(), pictures(2, shape=SHAPE)
    played = []
    values = module._shapley_values
    monkeypatch.setattr(
        module, "_shapley_values", lambda swaps, *rest: played.append(swaps.row) or values(swaps, *rest)
    )
    # Photographs are in colour, so the network is, too.
    coloured, wrapped = images.expand(-1, 3, -1, -1), nn.Sequential(Grey(), network)
    methods = {
        "one": egcam.HiResCAM(wrapped, "1.features", signed=True),
        "two": egcam.GradCAM(wrapped, "1.features", signed=True),
        "deeper": egcam.HiResCAM(wrapped, "1.features.0", signed=True),
    }
    options = {"shapley-agreement": {"samples": 2, "permutations": 4}}
    table = egcam.evaluate(wrapped, coloured, methods, ["shapley-agreement"], target=1, metric_options=options)
    assert sorted(played) == [0, 0, 1, 1]  # two images at two layers
    assert len({row.value for row in table.rows}) == 6


class Grey(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images[:, :1]


def test_maps_of_several_layers_and_wrong_options_are_refused() -> None:
    network, images, references = bent(), pictures(1, shape=SHAPE), pictures(2, seed=1, shape=SHAPE)
    fused = egcam.HiResCAM(network, ["features.0", "features"])(images, 1)
    with pytest.raises(InputError, match="cells are of one"):
        metrics.ShapleyAgreement(reference=references, samples=2)(network, images, fused, 1)
    with pytest.raises(InputError, match="too few for 8"):
        metrics.ShapleyAgreement(reference=references, permutations=4)(network, images, fused, 1)
    with pytest.raises(InputError, match="measure is"):
        metrics.ShapleyAgreement(measure="kendall")(network, images, fused, 1)


def test_mass_in_cells_is_measured_at_the_size_of_the_map() -> None:
    network, images = bent(), pictures(2, shape=SHAPE)
    made = egcam.HiResCAM(network, "features", signed=True)(images, 1)
    masks = torch.zeros(2, 4, 5, dtype=torch.bool)
    masks[:, 0, 0] = True  # lies in the first of 2 x 3 cells
    heat = made.maps.clamp(min=0)
    torch.testing.assert_close(metrics.CellMassAccuracy()(made, masks), heat[:, 0, 0] / heat.sum((1, 2)))
    table = egcam.evaluate(
        network, images, {"hires": egcam.HiResCAM(network, "features", signed=True)}, ["cell-mass-accuracy"], target=1,
        masks=masks,
    )  # fmt: skip
    assert [row.value for row in table.rows] == pytest.approx((heat[:, 0, 0] / heat.sum((1, 2))).tolist(), rel=1e-5)
