"""Readings that the shapes suggest, and numbers contradict: what can be mended is, the rest is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import egcam
from egcam.errors import LayerError
from egcam.models.capture import Probe
from egcam.models.inputs import ExtraInputs
from egcam.models.layers import resolve
from egcam.models.place_check import Order, Picked, settled

Patch = tuple[int, int]


def pictures(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Head(nn.Module):
    """Reads all tokens, each for itself before they are averaged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.fc = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.mix(self.norm(tokens)).tanh().mean(1))


class Cut(nn.Module):
    """Cuts the image into patches by reshaping, and puts other tokens in front, in the middle or behind."""

    def __init__(
        self,
        patch: Patch,
        front: int = 0,
        middle: int = 0,
        behind: int = 0,
        by_column: bool = False,
        backwards: bool = False,
    ) -> None:
        super().__init__()
        self.patch, self.by_column, self.backwards = patch, by_column, backwards
        self.embed = nn.Linear(patch[0] * patch[1], 12)
        self.others = nn.Parameter(torch.randn(front + middle + behind, 12))
        self.counts = (front, middle, behind)
        self.head = Head(12)

    def forward(self, images: Tensor) -> Tensor:
        (down, across), count = self.patch, len(images)
        rows, columns = images.shape[2] // down, images.shape[3] // across
        cut = images.reshape(count, rows, down, columns, across)
        cut = cut.permute(0, 3, 1, 2, 4) if self.by_column else cut.permute(0, 1, 3, 2, 4)
        patches = self.embed(cut.reshape(count, rows * columns, down * across))
        patches = patches.flip(1) if self.backwards else patches
        front, middle, behind = (part.expand(count, -1, -1) for part in self.others.split(self.counts))
        half = rows * columns // 2
        return self.head(torch.cat([front, patches[:, :half], middle, patches[:, half:], behind], 1))


class Turned(nn.Module):
    """Works on the transposed image, as networks for sounds on (frequency, time)."""

    def __init__(self, backwards: bool = False) -> None:
        super().__init__()
        self.backwards = backwards
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.fc = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        turned = images.flip(3) if self.backwards else images.transpose(2, 3)
        return self.fc(self.conv(turned).relu().square().mean((2, 3)))


class Cropped(nn.Module):
    """Looks at the middle of the image only."""

    def __init__(self, rim: int) -> None:
        super().__init__()
        self.rim = rim
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.fc = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        inner = images[..., self.rim : images.shape[-1] - self.rim]
        return self.fc(self.conv(inner).relu().square().mean((2, 3)))


def changed_cell(model: nn.Module, layer: str, images: Tensor, place: tuple[float, float]) -> tuple[int, int]:
    """The cell of egcam's map of a layer that changes most if the image is changed at a place."""
    probe = Probe(model, resolve(model, layer, lambda: ""), ExtraInputs(len(images)))
    probe.settle(images, 8)
    changed = images[:1].clone()
    height, width = images.shape[2:]
    changed[:, :, int(place[0] * height), int(place[1] * width)] += 3
    first = torch.zeros(1, dtype=torch.long)
    before, after = (probe.features(some, first)[0] for some in (images[:1], changed))
    moved = (after - before).abs().sum(1)[0]
    return divmod(int(moved.argmax()), moved.shape[1])


@pytest.mark.parametrize(
    ("size", "patch", "others", "grid"),
    [
        ((32, 32), (4, 8), {"front": 1}, (8, 4)),  # shapes say 5 x 5 after 8 others
        ((32, 32), (4, 4), {"behind": 8}, (8, 8)),  # registers
        ((32, 32), (4, 4), {"behind": 1}, (8, 8)),  # the class token last
        ((32, 48), (4, 4), {"middle": 1}, (8, 12)),
        ((32, 48), (4, 4), {"front": 1, "behind": 4}, (8, 12)),
        ((48, 32), (4, 4), {"front": 2, "by_column": True}, (12, 8)),  # a spectrogram's (frequency, time)
        ((32, 32), (4, 4), {"by_column": True}, (8, 8)),
        ((32, 48), (4, 4), {"backwards": True}, (8, 12)),
    ],
)
def test_tokens_are_put_where_they_see(size: Patch, patch: Patch, others: dict[str, int], grid: Patch) -> None:
    torch.manual_seed(0)
    model, images = Cut(patch, **others).eval(), pictures(2, 1, *size)
    assert (
        egcam.explain(model, images, "grad-cam", layer="head.norm", reshape="tokens", target=1).maps.shape[1:] == grid
    )
    for row, column in ((0, 0), (1, 3), (grid[0] - 1, grid[1] - 1), (grid[0] // 2, 2)):
        place = ((row + 0.5) / grid[0], (column + 0.5) / grid[1])
        assert changed_cell(model, "head.norm", images, place) == (row, column)


def test_a_turned_map_is_turned_back() -> None:
    torch.manual_seed(0)
    model, images = Turned().eval(), pictures(1, 1, 64, 20)
    explanation = egcam.explain(model, images, "grad-cam", layer="conv", target=0, signed=True)
    leaf = model.conv(images.transpose(2, 3)).detach().requires_grad_()
    model.fc(leaf.relu().square().mean((2, 3)))[:, 0].sum().backward()
    weights = leaf.grad.mean((2, 3), keepdim=True)
    torch.testing.assert_close(explanation.maps, (weights * leaf.detach()).sum(1).transpose(1, 2))
    assert changed_cell(model, "conv", images, (18.5 / 64, 16.5 / 20)) == (9, 8)


def test_a_mirrored_map_is_turned_back() -> None:
    torch.manual_seed(0)
    assert changed_cell(Turned(backwards=True).eval(), "conv", pictures(1, 1, 32, 40), (8.5 / 32, 33.5 / 40)) == (4, 16)


def test_what_the_user_said_is_not_overruled_in_silence() -> None:
    model, images = Cut((4, 4), by_column=True).eval(), pictures(1, 1, 48, 32)
    with pytest.raises(LayerError, match=r"reshape=\(8, 12\), does not lie over the image: what lies about"):
        egcam.explain(model, images, "grad-cam", layer="head.norm", reshape=(8, 12), target=0)
    turned, square = Turned().eval(), pictures(1, 1, 32, 32)
    with pytest.raises(LayerError, match="does not lie over the image"):
        egcam.explain(turned, square, "grad-cam", layer="conv", reshape=lambda maps: maps, target=0)


def test_a_crop_inside_the_network_is_refused_with_what_it_looks_at() -> None:
    images = pictures(1, 1, 32, 64)
    with pytest.raises(LayerError, match=r"only at the columns from 0\.25 to 0\.75 of the image"):
        egcam.explain(Cropped(16).eval(), images, "grad-cam", target=0)
    whole = egcam.explain(Cropped(0).eval(), images, "grad-cam", target=0)
    assert whole.maps.shape[1:] == (16, 32)


def _halves_swapped(images: Tensor) -> Tensor:
    return images.roll(images.shape[3] // 2, 3)


def _by_polar_coordinates(images: Tensor) -> Tensor:
    radius, angle = torch.linspace(0, 1, 32)[:, None], torch.linspace(-3.1, 3.1, 32)
    grid = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    return nn.functional.grid_sample(images, grid.expand(len(images), -1, -1, -1), align_corners=False)


@pytest.mark.parametrize(
    "changed",
    [
        lambda images: nn.functional.pad(images, (0, 0, 12, 12)),  # to a square
        lambda images: nn.functional.pad(images, (0, 32)),
        lambda images: torch.cat([images[:, :, ::2], images[:, :, 1::2]], 2),
        _halves_swapped,
        _by_polar_coordinates,
    ],
)
def test_a_map_of_what_was_padded_rolled_or_warped_is_refused(changed: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
    image = pictures(1, 1, 32, 64)
    with pytest.raises(LayerError, match=r"'conv' does not lie over the image: what lies about .*pads, rolls, warps"):
        settled("channels-first", conv(changed(image)), image, lambda some: conv(changed(some)), "conv")


def test_tokens_of_one_window_after_the_other_are_refused() -> None:
    image = pictures(1, 3, 32, 32)

    def by_window(images: Tensor) -> Tensor:
        return avg_pool2d(images, 4).unflatten(2, (2, 4)).unflatten(4, (2, 4)).permute(0, 2, 4, 3, 5, 1).flatten(1, 4)

    with pytest.raises(LayerError, match=r"'windows' does not lie over the image"):
        settled((8, 8), by_window(image), image, by_window, "windows")


def test_a_spectrum_has_no_places_that_could_be_elsewhere() -> None:
    image = pictures(1, 1, 32, 32)

    def spectrum(images: Tensor) -> Tensor:
        return torch.fft.fft2(images).abs()

    assert settled("channels-first", spectrum(image), image, spectrum, "spectrum") == "channels-first"


def test_patches_that_leave_a_part_over_at_the_end_are_no_crop() -> None:
    conv = nn.Conv2d(1, 6, 16, stride=16)
    image = pictures(1, 1, 47, 62)
    assert settled("channels-first", conv(image), image, conv, "patches") == "channels-first"


def test_a_part_that_the_network_blacks_out_is_no_crop() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
    seen = (torch.arange(40) < 24).float()
    image = pictures(1, 1, 32, 40)
    assert settled("channels-first", conv(image * seen), image, lambda some: conv(some * seen), "conv") == (
        "channels-first"
    )


def test_merged_tokens_are_refused() -> None:
    order, colours = torch.randperm(64, generator=torch.Generator().manual_seed(0)), torch.eye(3)

    def merged(images: Tensor) -> Tensor:
        tokens = avg_pool2d(images, 4).flatten(2).transpose(1, 2)[:, order] @ colours
        return torch.cat([(tokens[:, :10] + tokens[:, 54:]) / 2, tokens[:, 10:36]], 1)

    image = pictures(1, 3, 32, 32)
    with pytest.raises(LayerError, match="'merge' are on no grid over the image, as where they were merged"):
        settled((6, 6), merged(image), image, merged, "merge")


@pytest.mark.parametrize("seed", range(3))
def test_where_everything_depends_on_everything_nothing_is_said(seed: int) -> None:
    mixing = torch.randn((64, 64), generator=torch.Generator().manual_seed(seed))

    def mixed(images: Tensor) -> Tensor:
        return mixing @ avg_pool2d(images, 4).flatten(2).transpose(1, 2)

    image = pictures(1, 3, 32, 32)
    assert settled((8, 8), mixed(image), image, mixed, "mix") == (8, 8)


def test_signals_and_volumes_have_one_order_each() -> None:
    signal, volume = pictures(1, 2, 40), pictures(1, 2, 4, 6, 8)

    def last(images: Tensor) -> Tensor:
        return images.movedim(1, -1)

    def turned(images: Tensor) -> Tensor:
        return images.permute(0, 1, 4, 2, 3)

    assert settled("channels-first", signal, signal, lambda some: some, "same") == "channels-first"
    assert settled("channels-first", last(signal), signal, last, "last") == Order((2, 1))
    assert settled("channels-last", last(volume), volume, last, "last") == "channels-last"
    assert settled("channels-first", turned(volume), volume, turned, "turned") == Order((1, 3, 4, 2))


def test_a_black_picture_and_a_constant_layer_say_nothing() -> None:
    black = torch.zeros(1, 1, 16, 24)
    turned = black.transpose(2, 3)
    assert settled("channels-first", turned, black, lambda some: some.transpose(2, 3), "turned") == Order((1, 3, 2))
    assert settled((4, 6), torch.ones(1, 24, 3), black, lambda some: torch.ones(len(some), 24, 3), "ones") == (4, 6)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=2)
        self.fc = nn.Linear(6, 4)
        self.rows: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "meta":
            self.rows.append(len(images))
        return self.fc(self.conv(images).relu().mean((2, 3)))


def test_it_is_done_once_for_a_network_a_layer_and_a_size() -> None:
    model = Counting().eval()
    together = []
    for method, width in (("grad-cam", 16), ("hires-cam", 16), ("grad-cam", 24), ("grad-cam", 16)):
        model.rows.clear()
        egcam.explain(model, pictures(1, 1, 16, width), method, layer="conv", target=0)
        together.append(model.rows.count(9))
    assert together == [1, 0, 1, 0]


def test_it_draws_from_no_generator_but_its_own() -> None:
    state = torch.get_rng_state()
    image = pictures(1, 1, 16, 24)
    before = torch.rand(1)
    torch.set_rng_state(state)
    settled("channels-first", image, image, lambda some: some, "same")
    assert torch.equal(torch.rand(1), before)


def test_picked_tokens_keep_their_grid() -> None:
    image = pictures(1, 3, 16, 24)

    def behind(images: Tensor) -> Tensor:
        tokens = avg_pool2d(images, 4).flatten(2).transpose(1, 2)
        return torch.cat([tokens, torch.zeros(len(images), 2, 3)], 1)

    assert settled((4, 6), behind(image), image, behind, "behind") == Picked((4, 6), tuple(range(24)))


@pytest.mark.parametrize("seed", range(3))
def test_a_single_channel_of_chance_is_not_called_disorder(seed: int) -> None:
    image = torch.randn((1, 1, 16, 24), generator=torch.Generator().manual_seed(seed))

    def behind(images: Tensor) -> Tensor:
        tokens = avg_pool2d(images, 4).flatten(2).transpose(1, 2)
        return torch.cat([tokens, torch.zeros(len(images), 2, 1)], 1)

    assert settled((4, 6), behind(image), image, behind, "behind") in ((4, 6), Picked((4, 6), tuple(range(24))))
