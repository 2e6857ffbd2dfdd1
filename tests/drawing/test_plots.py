"""Pictures of heat maps: the right colours in the right places, legible, and the same on every run."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from egcam.drawing.overlays import Tile, bars, grid, heatmap_image, legible, overlay_image, stack, to_pil
from egcam.errors import InputError

GREY = Image.new("RGB", (40, 30), (90, 90, 90))


def test_nothing_important_shows_the_bare_photograph() -> None:
    photograph = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    assert np.array_equal(np.asarray(overlay_image(photograph, np.zeros((7, 7)))), np.asarray(photograph))


def test_opacity_grows_with_importance() -> None:
    ramp = np.tile(np.linspace(0, 1, 40, dtype=np.float32), (30, 1))
    change = np.abs(np.asarray(overlay_image(GREY, ramp), float) - 90).sum(2)[15]
    assert change[0] == 0
    assert change[-1] > change[20] > change[5] > 0


def test_the_most_important_place_has_the_colour_at_the_given_opacity() -> None:
    full = np.ones((30, 40), np.float32)
    yellow = np.asarray(heatmap_image(full))[0, 0].astype(float)
    assert yellow.tolist() == [253, 231, 37]
    shown = np.asarray(overlay_image(GREY, full, alpha=0.4))[0, 0]
    assert np.abs(shown - (0.6 * 90 + 0.4 * yellow)).max() <= 1


def test_signed_maps_are_red_for_and_blue_against() -> None:
    halves = np.ones((30, 40), np.float32)
    halves[:, 20:] = -1
    red, blue = (np.asarray(overlay_image(GREY, halves, alpha=1.0))[5, x].tolist() for x in (5, 35))
    assert red[0] > 2 * red[2]
    assert blue[2] > 2 * blue[0]


def test_small_maps_are_stretched_over_the_photograph() -> None:
    corner = np.zeros((4, 4), np.float32)
    corner[0, 0] = 1
    change = np.abs(np.asarray(overlay_image(GREY, corner), float) - 90).sum(2)
    assert change[:10, :10].mean() > 50
    assert change[20:, 25:].max() == 0


def test_scattered_dots_are_made_legible_and_smooth_maps_left_alone() -> None:
    dots = np.zeros((224, 224), np.float32)
    rows, columns = np.random.default_rng(1).integers(50, 100, (2, 200))
    dots[rows, columns] = 0.1
    dots[3, 3] = 1
    shown = legible(dots)
    assert shown.max() == 1
    assert shown[50:100, 50:100].mean() > 0.3 > 20 * shown[120:].mean()
    smooth = np.outer(np.hanning(224), np.hanning(224)).astype(np.float32)
    assert np.array_equal(legible(smooth), smooth)
    assert not legible(np.zeros((8, 8), np.float32)).any()


@pytest.mark.parametrize("bad", [np.zeros(4), np.zeros((1, 4, 4)), np.full((4, 4), np.nan)])
def test_what_is_no_heat_map_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(InputError):
        heatmap_image(bad)


def test_wrong_colours_and_opacity_are_refused() -> None:
    with pytest.raises(InputError, match="unknown colour map 'rainbowish'"):
        heatmap_image(np.zeros((2, 2)), "rainbowish")
    with pytest.raises(InputError, match="from 0 to 1"):
        overlay_image(GREY, np.zeros((2, 2)), alpha=2)


def test_tensors_become_pictures() -> None:
    unit = torch.tensor([[[0.0, 0.5, 1.0]]])
    assert np.asarray(to_pil(unit)[0])[0].tolist() == [[0] * 3, [128] * 3, [255] * 3]
    normalized = torch.tensor([-2.0, 0.0, 2.0]).reshape(1, 1, 1, 3).expand(2, 3, 1, 3)
    assert [np.asarray(one)[0, :, 0].tolist() for one in to_pil(normalized)] == [[0, 128, 255]] * 2
    assert to_pil(torch.full((1, 5, 2, 3), 7.0, dtype=torch.bfloat16))[0].size == (3, 2)
    with pytest.raises(InputError, match=r"not \(4, 4\)"):
        to_pil(torch.zeros(4, 4))


def inked_columns(picture: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    dark = np.asarray(picture.crop(box).convert("L")) < 200
    return dark.any(0).nonzero()[0]


def test_long_labels_stay_inside_their_tile() -> None:
    blank = Image.new("RGB", (50, 50), "white")
    tiles = [Tile(blank, "a title that is far too long for a tile " * 3, "and details " * 20), Tile(blank, "", "")]
    picture = grid(tiles, columns=2, side=100)
    second = inked_columns(picture, (110, 0, picture.width, picture.height))
    assert len(second) == 0
    assert len(inked_columns(picture, (0, 0, 110, picture.height))) > 50


def test_grid_fits_pictures_of_any_shape_and_wraps_rows() -> None:
    shapes = [(10, 90), (90, 10), (300, 300)]
    picture = grid([Tile(Image.new("RGB", size, "red"), "x") for size in shapes], columns=2, side=90)
    red = (np.asarray(picture) == (255, 0, 0)).all(2)
    assert red.any(1).nonzero()[0][-1] < picture.height - 4
    assert abs(int(red.sum()) - (10 * 90 + 90 * 10 + 90 * 90)) < 300
    with pytest.raises(InputError):
        grid([], 3)


def test_bars_are_as_long_as_the_shares() -> None:
    chart = np.asarray(bars(["a", "b"], [1.0, 0.5], side=400))
    blue = (chart == (0x31, 0x68, 0x8E)).all(2)
    lengths = sorted({int(row.sum()) for row in blue if row.sum() > 50})
    assert lengths[-1] == pytest.approx(2 * max(length for length in lengths if length < 0.7 * lengths[-1]), rel=0.03)


def test_pictures_are_the_same_on_every_run() -> None:
    tiles = [Tile(overlay_image(GREY, np.eye(8)), "one", "two"), Tile(bars(["a"], [0.3], 60), "b")]
    first, second = (grid(tiles, 2, side=60, heading="h").tobytes() for _ in range(2))
    assert first == second


def test_stack_puts_pages_below_each_other() -> None:
    whole = stack([Image.new("RGB", (4, 2), "red"), Image.new("RGB", (2, 3), "blue")])
    assert whole.size == (4, 5)
    assert [whole.getpixel(at) for at in ((0, 0), (0, 4), (3, 4))] == [(255, 0, 0), (0, 0, 255), (255, 255, 255)]


def test_importing_plots_does_not_import_matplotlib() -> None:
    code = "import sys, egcam.drawing.overlays; print('matplotlib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
