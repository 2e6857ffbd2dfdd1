"""Networks that cannot see: what no method may show, and what pooled ones show all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam import truth
from egcam.errors import InputError, LayerError, ModelError, TargetError
from egcam.truth.grids import cut_up, stitched
from support.networks import seeded
from support.small_models import Kept


def network() -> nn.Module:
    """Takes images of any size; the layer "0" outputs maps of the image's size."""
    layers = lambda: [  # noqa: E731
        nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU()),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.Tanh(),
        nn.Linear(5, 5),
    ]
    return seeded(lambda: nn.Sequential(*layers()), 2).float()


def images(count: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_no_heat_behind_a_wall_by_location_but_by_channel() -> None:
    net, pictures = network(), images()
    kept = Kept(net, pictures)
    trial = truth.walls_trial(net, pictures, "0", rows=2)
    assert trial.scores("hires-cam").nan_to_num().tolist() == [0] * 5
    assert trial.scores("layer-cam").nan_to_num().tolist() == [0] * 5
    pooled = trial.scores("grad-cam")
    assert float(pooled[pooled.isfinite()].min()) > 0.05
    kept.check()


def test_the_walled_network_is_the_network_with_zeroed_rows() -> None:
    net, pictures = network(), images(2)
    walled = truth.Walled(net, "0", rows=2)
    with torch.no_grad():
        cells = net[0](pictures)
        cells[:, :, -2:] = 0
        torch.testing.assert_close(walled(pictures), net[1:](cells))
        other = pictures.clone()
        other[:, :, -1] += 9  # seen by hidden cells alone
        torch.testing.assert_close(walled(other), walled(pictures))
        assert not torch.allclose(net(other), net(pictures))


class Turned(nn.Module):
    """A network whose layer "cells" outputs (N, height, width, channels): what its second module outputs."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of, self.cells = of, nn.Identity()

    def forward(self, seen: Tensor) -> Tensor:
        front, tail = self.of[:2], self.of[2:]
        return tail(self.cells(front(seen).movedim(1, -1)).movedim(-1, 1))


@pytest.mark.parametrize("method", ["hires-cam", "grad-cam"])
def test_channels_last_is_scored_as_channels_first(method: str) -> None:
    def first() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 5))

    plain = seeded(first, 2).float()
    turned = Turned(plain)
    both = ((turned, "cells", "channels-last"), (plain, "1", None))
    grids = truth.make_grids(images(), range(5), count=4)
    for make in (truth.difull_trial, truth.dipart_trial):
        ours, right = (make(net, grids, layer, reshape=way).scores(method) for net, layer, way in both)
        torch.testing.assert_close(ours, right, equal_nan=True)
    walls = [truth.walls_trial(net, images(), layer, 2, reshape=way) for net, layer, way in both]
    torch.testing.assert_close(walls[0].scores(method), walls[1].scores(method), equal_nan=True)
    assert walls[0].maps(method).shape == (5, 6, 6)
    with pytest.raises(LayerError, match="axis='channels-last'"):
        truth.Walled(turned, "cells", 2)(images())


def test_as_many_channels_as_rows_are_no_riddle() -> None:
    """A layer that nothing but its owner can tell from channels-last, and as "cells" nobody: as tall as deep."""
    net = seeded(lambda: nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5)), 3)
    trial = truth.walls_trial(net.float(), images(), "0", rows=2)
    assert isinstance(trial.model.get_submodule("cells"), nn.AvgPool2d)
    maps = trial.maps("mean-activation")
    torch.testing.assert_close(maps, net[0](images()).mean(1).detach())
    wide = nn.Sequential(nn.Conv2d(2, 6, (3, 5), padding=(1, 1)), nn.Flatten(), nn.Linear(144, 5))
    found = truth.walls_trial(wide, images(), "0", rows=2, reshape="channels-first").scores("hires-cam")
    assert found.nan_to_num().tolist() == [0] * 5


def test_a_reshape_that_cannot_be_undone_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(108, 5))
    for reshape in (lambda output: output, (6, 6), "tokens"):
        with pytest.raises(LayerError, match="pass 'channels-first' or 'channels-last'"):
            truth.walls_trial(net, images(), "0", rows=2, reshape=reshape)


def test_wrappers_are_seen_through_and_what_cannot_be_looked_into_is_refused() -> None:
    head = (nn.Flatten(), nn.Linear(256, 4))
    net = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), *head))
    images = torch.rand(4, 3, 8, 8, dtype=torch.double)
    plain, wrapped = (
        truth.walls_trial(one, images, "1", rows=2).scores("grad-cam") for one in (net, nn.DataParallel(net))
    )
    torch.testing.assert_close(plain, wrapped, rtol=0, atol=0, equal_nan=True)
    traced = torch.jit.trace(net, images)
    grids = truth.make_grids(images, torch.arange(4), count=1)
    with pytest.raises(ModelError, match="TorchScript"):
        truth.walls_trial(traced, images, "1", rows=2)
    with pytest.raises(ModelError, match="TorchScript"):
        truth.difull_trial(traced, grids, "1")


def test_labels_the_network_does_not_have() -> None:
    net = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(108, 4)), 0).float()
    with pytest.raises(TargetError, match="labels are 0 to 4, and the network has the classes 0 to 3"):
        truth.difull_trial(net, truth.make_grids(images(), range(5), count=8), "0")
    with pytest.raises(InputError, match="labels of shape \\(6,\\) for 5 images"):
        truth.make_grids(images(), torch.arange(6))
    with pytest.raises(InputError, match="count must be a whole number of at least 1"):
        truth.make_grids(images(), torch.arange(5), count=0)


def test_a_dense_head_is_told_from_grids() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(108, 5))
    with pytest.raises(InputError, match="difull_trial or dipart_trial"):
        truth.gridpg_trial(net, truth.make_grids(images(), torch.arange(5)), "0")


def test_dead_heat() -> None:
    maps = torch.tensor([[[0.0, 3.0], [4.0, -9.0]], [[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    torch.testing.assert_close(truth.dead_heat(maps, 1), torch.tensor([0.8, 0.0, torch.nan]), equal_nan=True)


def grids() -> truth.Grids:
    return truth.make_grids(images(), torch.arange(5), n=2, count=4, seed=1)


def test_a_grid_is_made_of_the_images_and_its_mask_is_one_cell() -> None:
    made, pictures = grids(), images()
    for grid, labels, cell, mask in zip(made.images, made.labels, made.cells, made.masks, strict=True):
        assert len(set(labels.tolist())) == 4
        for place, (top, left) in enumerate([(0, 0), (0, 6), (6, 0), (6, 6)]):
            torch.testing.assert_close(grid[:, top : top + 6, left : left + 6], pictures[labels[place]])
            assert float(mask[top : top + 6, left : left + 6].mean()) == float(place == cell)
    torch.testing.assert_close(stitched(cut_up(made.images, 2), 2), made.images)
    assert made.cells.tolist() == [0, 1, 2, 3]


def test_disconnected_heads_are_the_network_on_their_own_cell() -> None:
    net, made = network(), grids()
    full = truth.Disconnected(net, "0", 2, full=True)
    with torch.no_grad():
        torch.testing.assert_close(full(made.images), net(cut_up(made.images, 2)).reshape(4, 20))
        part = truth.Disconnected(net, "0", 2, full=False)
        torch.testing.assert_close(part(made.images), net[1:](cut_up(net[0](made.images), 2)).reshape(4, 20))
        assert not torch.allclose(part(made.images), full(made.images))  # features see across the border


def test_by_location_heat_is_all_in_the_connected_cell() -> None:
    net, made = network(), grids()
    for trial in (truth.difull_trial(net, made, "0"), truth.dipart_trial(net, made, "0")):
        with torch.no_grad():
            logit = trial.model(made.images).gather(1, trial.targets[:, None])[:, 0]
        explained = egcam.explain(trial.model, made.images, "hires-cam", trial.targets, layer="cells", signed=True)
        torch.testing.assert_close(explained.scores, logit)
        assert set(trial.scores("hires-cam").tolist()) <= {0.0, 1.0}
        assert 1.0 in trial.scores("hires-cam").tolist()
        pooled = trial.scores("grad-cam")
        assert float(pooled[pooled > 0].max()) < 0.9
        assert float(trial.score(torch.ones(4, 12, 12)).sum()) == pytest.approx(4 * 0.25)
        torch.testing.assert_close(trial.score(made.masks), torch.ones(4))


def test_tails_by_themselves_too() -> None:
    """SlopeCAM runs what follows the stitched map by itself."""
    trial = truth.difull_trial(network(), grids(), "0")
    away = 1 - trial.truth
    found = egcam.SlopeCAM(trial.model, "cells", reference="black", signed=True)(trial.images, trial.targets)
    assert float((found.maps * away).abs().max()) == 0
    assert float(found.maps.abs().sum()) > 0


def test_a_head_of_one_size_takes_part_in_grids() -> None:
    """As AlexNet's and VGG's: the layers up to the cut see the grid, the head single cells."""
    net = seeded(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5))
    ).float()
    made = grids()
    trial = truth.dipart_trial(net, made, "1")
    with torch.no_grad():
        expected = net[2:](cut_up(net[:2](made.images), 2)).reshape(4, 20)
        torch.testing.assert_close(trial.model(made.images), expected)
    assert set(trial.scores("hires-cam").tolist()) <= {0.0, 1.0}


def test_gridpg_is_the_unchanged_network() -> None:
    net, made = network(), grids()
    trial = truth.gridpg_trial(net, made, "0")
    assert trial.model is net
    assert trial.targets.tolist() == made.explained.tolist()
    torch.testing.assert_close(trial.score(torch.ones(4, 5, 5)), torch.full((4,), 0.25), rtol=0.05, atol=0)


def test_share_inside() -> None:
    mask = torch.zeros(2, 4, 4)
    mask[:, 0, 0] = 1
    maps = torch.tensor([[[1.0, 0.0], [-3.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    torch.testing.assert_close(truth.share_inside(maps, mask), torch.tensor([0.125, 0.0]))
    torch.testing.assert_close(truth.share_inside(maps, mask, whole_cells=True), torch.tensor([0.5, 0.0]))


def test_the_share_inside_is_by_exact_areas_where_cells_do_not_divide_the_image() -> None:
    band = torch.zeros(1, 10, 10)
    band[:, 4:6] = 1
    torch.testing.assert_close(truth.share_inside(torch.ones(1, 3, 3), band), torch.tensor([0.2]))
    middle = torch.tensor([[[0.0] * 3, [1.0] * 3, [0.0] * 3]])  # the third from 3.33 to 6.67, of which 2 are masked
    torch.testing.assert_close(truth.share_inside(middle, band), torch.tensor([0.6]))


def test_what_is_refused() -> None:
    net, pictures = network(), images()
    with pytest.raises(InputError, match="some must be hidden"):
        truth.walls_trial(net, pictures, "0", rows=6)
    with pytest.raises(LayerError, match="no layer 'conv9'"):
        truth.walls_trial(net, pictures, "conv9", rows=2)
    twice = nn.Sequential(relu := nn.ReLU(), nn.Conv2d(2, 2, 1), relu, nn.Flatten(), nn.Linear(72, 2))
    with pytest.raises(LayerError, match="more than once"):
        truth.walls_trial(twice, pictures, "0", rows=2)
    with pytest.raises(LayerError, match="no map with height and width"):
        truth.walls_trial(net, pictures, "4", rows=2)
    with pytest.raises(InputError, match="needs 9 classes"):
        truth.make_grids(pictures, torch.arange(5), n=3)
    with pytest.raises(InputError, match="cannot be cut"):
        cut_up(torch.zeros(1, 1, 5, 6), 2)
    with pytest.raises(InputError, match="only maps made at the layer"):
        truth.walls_trial(net, images(1, 3).repeat(1, 1, 1, 1), "0", rows=2).score(torch.ones(1, 3, 3))


def test_a_network_in_training_is_tried_as_it_predicts_and_left_in_training() -> None:
    def with_norm() -> nn.Module:
        layers = [nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)), nn.ReLU(), nn.Dropout(0.5)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))

    net = seeded(with_norm, 2).float().train()
    calm = seeded(with_norm, 2).float().eval()
    grids = truth.make_grids(images(), torch.arange(5), count=3)
    for make in (
        lambda model: truth.walls_trial(model, images(), "0", rows=2),
        lambda model: truth.difull_trial(model, grids, "0"),
        lambda model: truth.dipart_trial(model, grids, "0"),
        lambda model: truth.gridpg_trial(model, grids, "0"),
    ):
        tried, wanted = make(net), make(calm)
        assert torch.equal(tried.targets, wanted.targets)
        torch.testing.assert_close(tried.scores("hires-cam"), wanted.scores("hires-cam"), equal_nan=True)
        assert all(module.training for module in net.modules())
        assert all(torch.equal(one, other) for one, other in zip(net.buffers(), calm.buffers(), strict=True))
