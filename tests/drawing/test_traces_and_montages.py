"""Signals as traces, volumes as montages and animations: the right colours at the right places."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import egcam
from egcam.drawing.montages import animation, montage
from egcam.drawing.overlays import heatmap_image
from egcam.drawing.traces import trace
from egcam.errors import InputError

BLOCK = np.zeros(400, np.float32)
BLOCK[100:200] = 1


def test_the_colours_of_a_trace_lie_behind_the_important_samples() -> None:
    pixels = np.asarray(trace(np.sin(np.arange(400)), BLOCK, alpha=1.0), dtype=int)
    top = pixels[0]
    yellow = np.asarray(heatmap_image(np.ones((1, 1))))[0, 0]
    assert np.abs(top[230:445] - yellow).max() <= 3
    assert (top[:220] == 255).all()
    assert (top[455:] == 255).all()


def test_the_line_of_a_trace_is_the_signal() -> None:
    """Where the picture is darkest in each column is where the signal is, the largest value at the top."""
    ramp = np.linspace(-3, 5, 400)
    dark = np.asarray(trace(ramp, np.zeros(400)).convert("L"), dtype=int)[:150].argmin(0)
    wanted = 135 - np.linspace(0, 1, 900) * 120
    assert np.abs(dark - wanted)[5:-5].max() <= 2


def test_every_channel_has_a_row_and_many_are_counted() -> None:
    heights = [trace(np.random.default_rng(0).random((count, 50)), np.zeros(50)).height for count in (1, 2, 16, 40)]
    assert heights[0] < heights[1] < heights[2] == heights[3]


def test_signed_traces_are_blue_against_and_red_for() -> None:
    heat = np.concatenate([np.full(50, -1.0), np.full(50, 1.0)])
    pixels = np.asarray(trace(np.zeros(100), heat), dtype=int)
    assert pixels[5, 100, 2] > pixels[5, 100, 0] + 50
    assert pixels[5, 800, 0] > pixels[5, 800, 2] + 50


@pytest.mark.parametrize("signal", [np.zeros(30), np.zeros((2, 3, 400)), np.full(400, np.nan)])
def test_signals_that_cannot_be_drawn(signal: np.ndarray) -> None:
    with pytest.raises(InputError, match="a signal to draw"):
        trace(signal, BLOCK)


def slice_of(picture: Image.Image, number: int, side: int = 90) -> np.ndarray:
    """Tile `number` of a montage in one row."""
    left = 5 + number * (side + 5)
    return np.asarray(picture, dtype=int)[-side - 5 : -5, left : left + side]


def test_slices_have_one_contrast_and_their_own_heat() -> None:
    volume = torch.zeros(1, 3, 6, 6)
    volume[0, 1], volume[0, 2] = 1.0, 2.0  # outside [0, 1], so stretched, all by the same
    heat = np.zeros((3, 6, 6), np.float32)
    heat[2] = 1
    picture = montage(volume, heat, side=90, columns=3)
    assert picture.size == (290, 125)
    assert [int(slice_of(picture, number).mean().round()) for number in (0, 1)] == [0, 128]
    yellow = np.asarray(heatmap_image(np.ones((1, 1))), dtype=float)[0, 0]
    assert np.abs(slice_of(picture, 2) - (0.2 * 255 + 0.8 * yellow)).max() <= 2


def test_the_hottest_slice_is_among_those_shown() -> None:
    heat = np.zeros((40, 4, 4), np.float32)
    heat[17] = 1
    picture = montage(None, heat, count=3, columns=3, side=90)
    means = [slice_of(picture, number).mean((0, 1)) for number in range(3)]
    assert means[1][0] > 200 > means[0][0]
    assert means[2][0] < 100


def test_an_animation_shows_every_frame_in_order() -> None:
    video = torch.linspace(0, 1, 5).reshape(1, 5, 1, 1).expand(3, 5, 4, 4)
    gif = Image.open(BytesIO(animation(video, np.zeros((5, 4, 4)), seconds=0.2, side=32)))
    assert (gif.n_frames, gif.size, gif.info["duration"]) == (5, (32, 32), 200)
    shades = []
    for frame in range(5):
        gif.seek(frame)
        shades.append(np.asarray(gif.convert("L")).mean())
    assert np.abs(np.array(shades) - np.linspace(0, 255, 5)).max() <= 2


def test_volumes_that_do_not_fit_their_map() -> None:
    with pytest.raises(InputError, match="a volume to draw"):
        montage(torch.zeros(1, 3, 6, 6), np.zeros((3, 6, 5)))
    with pytest.raises(InputError, match="three"):
        montage(torch.zeros(1, 3, 6, 6), np.zeros((6, 5)))


def test_an_explanation_draws_what_it_explains() -> None:
    net = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(60, 2))
    signals = torch.rand(2, 2, 20)
    explained = egcam.explain(net, signals, "hires-cam", signed=True)
    heat = explained.heatmaps[1].numpy()
    assert np.array_equal(np.asarray(explained.overlay()[1]), np.asarray(trace(signals[1].numpy(), heat)))
    assert np.array_equal(np.asarray(explained.overlay(signals)[1]), np.asarray(explained.overlay()[1]))
    with pytest.raises(InputError, match=r"a tensor \(2, C, 20\), not \(2, 2, 19\)"):
        explained.overlay(signals[..., 1:])
    with pytest.raises(InputError, match="not Image"):
        explained.overlay(Image.new("RGB", (4, 4)))
    assert explained._repr_png_()[:4] == b"\x89PNG"
