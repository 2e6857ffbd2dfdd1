"""Images far longer than wide: what the network sees of them is made without making the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from egcam.cli import app
from egcam.errors import InputError
from egcam.models import preprocessing as module
from egcam.models.preprocessing import Interpolation, Preprocessing
from egcam.studies.datasets import Picture
from egcam.studies.geometry import prepared

PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
SMOOTH: tuple[Interpolation, ...] = ("bilinear", "bicubic", "lanczos")
MOST = 20_000_000


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pixels of each image that is made by resizing; one that would take a lot of memory is not made."""
    sizes: list[int] = []
    resize = Image.Image.resize

    def counted(image: Image.Image, size: tuple[int, int], *more: Any, **options: Any) -> Image.Image:
        sizes.append(size[0] * size[1])
        assert sizes[-1] <= MOST, f"{size[0]} x {size[1]} pixels are made"
        return resize(image, size, *more, **options)

    monkeypatch.setattr(Image.Image, "resize", counted)
    return sizes


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def levels(image: torch.Tensor) -> np.ndarray:
    """(H, W, C) grey levels from 0 to 255."""
    return np.asarray(image.permute(1, 2, 0) * 255)


@pytest.mark.parametrize("length", [20_000, 60_000, 5_000_001])
@pytest.mark.parametrize("upright", [False, True])
def test_a_strip_is_interpolated_at_the_right_place(made: list[int], length: int, upright: bool) -> None:
    """Enlarged 256 times, output pixel x lies at (x + 1/2) / 256 - 1/2 in the strip's own pixels."""
    strip = noise(length, 1)
    own = np.asarray(strip, dtype=float)[0]
    places = (np.arange(224) + (256 * length - 224) // 2 + 0.5) / 256 - 0.5
    left = np.floor(places).astype(int)
    share = (places - left)[:, None]
    expected = own[left] * (1 - share) + own[left + 1] * share
    seen = levels(PLAIN(strip.transpose(Image.Transpose.TRANSPOSE) if upright else strip))
    if upright:
        seen = seen.transpose(1, 0, 2)
    assert np.abs(seen - expected[None]).max() <= 1
    assert max(made) == 224 * 224


@pytest.mark.parametrize("interpolation", SMOOTH)
@pytest.mark.parametrize("network", [PLAIN, replace(PLAIN, size=(96, 160), resize=160), replace(PLAIN, resize=100)])
def test_cut_before_resizing_is_cut_after_resizing(
    monkeypatch: pytest.MonkeyPatch, interpolation: Interpolation, network: Preprocessing
) -> None:
    """To one grey level, also for images that shrink, and where the network sees black beyond the image."""
    draw = np.random.default_rng(1)
    network = replace(network, interpolation=interpolation)
    for number in range(15):
        width, height = (int(side) for side in draw.integers(1, 700, 2))
        image = noise(width, height, number)
        usual = levels(network(image))
        with monkeypatch.context() as patch:
            patch.setattr(module, "_MOST_RESIZED", 0)
            strip = levels(network(image))
        assert np.abs(strip - usual).max() <= 1.001, (width, height)


def test_ordinary_images_are_resized_and_then_cut_to_the_pixel() -> None:
    draw = np.random.default_rng(2)
    for number in range(15):
        width, height = (int(side) for side in draw.integers(100, 700, 2))
        image = noise(width, height, number)
        whole = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
        left, top = round((whole[0] - 224) / 2), round((whole[1] - 224) / 2)
        cut = image.resize(whole, Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
        np.testing.assert_array_equal(levels(PLAIN(image)).round(), np.asarray(cut, dtype=float))


def test_the_mask_of_a_strip_lies_where_the_strip_is_white(made: list[int]) -> None:
    mask = np.zeros((1, 30_000), dtype=bool)
    mask[:, 15_000:] = True
    picture = Picture("strip", Image.fromarray(mask.astype(np.uint8) * 255).convert("RGB"), mask=mask)
    image, seen = prepared(picture, PLAIN)
    assert seen is not None
    # The middle of the strip is the middle of what is seen, and between two pixels.
    assert seen.tolist() == [[False] * 112 + [True] * 112] * 224
    np.testing.assert_array_equal((image[0] > 0.5).numpy(), seen.numpy())
    assert max(made) <= 224 * 224


def test_the_mask_of_a_strip_takes_pixels_as_they_are() -> None:
    """Nearest: output pixel x shows the strip's pixel floor((x + 1/2) / 256)."""
    mask = np.random.default_rng(3).random((1, 30_000)) < 0.5
    _, seen = prepared(Picture("strip", Image.new("RGB", (30_000, 1)), mask=mask), PLAIN)
    assert seen is not None
    places = np.floor((np.arange(224) + (256 * 30_000 - 224) // 2 + 0.5) / 256).astype(int)
    np.testing.assert_array_equal(seen.numpy(), np.broadcast_to(mask[:, places], (224, 224)))


@pytest.mark.parametrize("length", [20_000, 60_000, 5_000_001])
def test_the_view_of_a_strip_is_what_the_network_sees(made: list[int], length: int) -> None:
    strip = noise(length, 1)
    view = PLAIN.view(strip)
    seen = levels(replace(PLAIN, interpolation="bicubic")(strip))
    assert view.size == (224, 224)
    assert np.abs(np.asarray(view, dtype=float) - seen).max() <= 1
    assert max(made) <= 1024 * 1024


@pytest.mark.parametrize("use", [Preprocessing.__call__, Preprocessing.view])
def test_a_strip_too_long_to_be_squeezed_is_refused(use: Any) -> None:
    squeezing = replace(PLAIN, resize=None)
    assert use(squeezing, noise(60_000, 1)) is not None
    with pytest.raises(InputError, match=r"300000 x 1 pixels is too long to be squeezed into 224 x 224"):
        use(squeezing, noise(300_000, 1))


OWN = """
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

def small():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(4 * 222 * 222, 2))
    net[-1].weight.data.abs_()
    return Classifier(net, "small", ["cat", "dog"], Preprocessing())
"""


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "strip.png", "--method", "grad-cam"),
        ("compare", "strip.png", "--methods", "grad-cam,layer-cam"),
        ("figure", "grid", "strip.png", "--methods", "grad-cam,layer-cam"),
        ("saturation", "strip.png", "--steps", "3"),
    ],
    ids=lambda command: command[0],
)
def test_the_command_explains_a_strip(
    made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    noise(20_000, 1).save("strip.png")
    result = CliRunner().invoke(app, [*command, "--model", "own.py:small"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert made
