"""From a photograph to what a network sees: resize, centre crop, normalise. Needs Pillow and torch only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Interpolation = Literal["bilinear", "bicubic", "nearest", "lanczos"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
}
_LARGEST_VIEW = 1024


@dataclass(frozen=True)
class Preprocessing:
    """How a network wants its images: the shorter side resized, the centre cut out, colours normalised.

    Args:
        size: (height, width) of the network's input.
        resize: the length the image's shorter side gets before the centre is cut out; None squeezes the whole
            image into `size`, whatever its shape.
        interpolation: how pixels are resampled.
        mean: subtracted from each colour, in the scale where white is 1.
        std: each colour is divided by it.

    Example:
        >>> seen = Preprocessing()(Image.new("RGB", (640, 480), "white"))
        >>> seen.shape, round(float(seen[0, 0, 0]), 3)
        (torch.Size([3, 224, 224]), 2.249)
    """

    size: tuple[int, int] = (224, 224)
    resize: int | None = 256
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __call__(self, image: Image.Image) -> Tensor:
        """(C, H, W) the network's input."""
        pixels = np.asarray(self._resized(image.convert("RGB")), dtype=np.float32) / 255
        normalized = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normalized.transpose(2, 0, 1)))

    def view(self, image: Image.Image) -> Image.Image:
        """The part of the photograph the network sees, as sharp as the photograph: to lay heat maps over."""
        height, width = self.size
        left, top, right, bottom = self._box(image)
        scale = max(1.0, (right - left) / width)
        scale = min(scale, max(1.0, _LARGEST_VIEW / max(height, width)))
        size = (round(width * scale), round(height * scale))
        return image.convert("RGB").resize(size, Image.Resampling.BICUBIC, box=(left, top, right, bottom))

    def _resized(self, image: Image.Image) -> Image.Image:
        height, width = self.size
        resampling = _RESAMPLING[self.interpolation]
        if self.resize is None:
            return image.resize((width, height), resampling)
        left, top = self._corner(image)
        return image.resize(self._whole(image), resampling).crop((left, top, left + width, top + height))

    def _whole(self, image: Image.Image) -> tuple[int, int]:
        """(width, height) of the image once its shorter side is `resize` long."""
        assert self.resize is not None
        short, long = sorted(image.size)
        other = int(self.resize * long / short)
        return (self.resize, other) if image.width <= image.height else (other, self.resize)

    def _corner(self, image: Image.Image) -> tuple[int, int]:
        """(left, top) of the centre part, in the resized image."""
        whole = self._whole(image)
        return round((whole[0] - self.size[1]) / 2), round((whole[1] - self.size[0]) / 2)

    def _box(self, image: Image.Image) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) of what the network sees, in the photograph's own pixels."""
        if self.resize is None:
            return 0, 0, image.width, image.height
        (left, top), whole = self._corner(image), self._whole(image)
        across, down = image.width / whole[0], image.height / whole[1]
        return (
            max(0.0, left * across),
            max(0.0, top * down),
            min(float(image.width), (left + self.size[1]) * across),
            min(float(image.height), (top + self.size[0]) * down),
        )
