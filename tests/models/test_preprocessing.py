"""From photographs to what a network sees, pixel by pixel; what is too long for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from egcam.errors import InputError
from egcam.models.preprocessing import Preprocessing

PLAIN = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def levels(image: torch.Tensor) -> np.ndarray:
    """(H, W, C) grey levels from 0 to 255."""
    return np.asarray(image.permute(1, 2, 0) * 255)


def test_ordinary_images_are_resized_and_then_cut_to_the_pixel() -> None:
    draw = np.random.default_rng(2)
    for number in range(15):
        width, height = (int(side) for side in draw.integers(100, 700, 2))
        image = noise(width, height, number)
        whole = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
        left, top = round((whole[0] - 224) / 2), round((whole[1] - 224) / 2)
        cut = image.resize(whole, Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
        np.testing.assert_array_equal(levels(PLAIN(image)).round(), np.asarray(cut, dtype=float))


@pytest.mark.parametrize("use", [Preprocessing.__call__, Preprocessing.view])
def test_a_strip_that_would_fill_the_memory_is_refused(use: Any) -> None:
    squeezing = replace(PLAIN, resize=None)
    assert use(squeezing, noise(60_000, 1)) is not None
    assert use(PLAIN, noise(240, 1)) is not None
    for network, length in ((squeezing, 300_000), (PLAIN, 250)):
        with pytest.raises(InputError, match=rf"{length} x 1 pixels is too long for a network that sees 224 x 224"):
            use(network, noise(length, 1))
