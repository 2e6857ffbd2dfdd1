"""From a photograph to what a network sees: resize, centre crop, normalise. Needs Pillow and torch only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from egcam.errors import InputError
from egcam.models.crops import Box, Crop

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
# Pixels of a whole resized image: with the usual 256 for the shorter side, a longer one of 244 times that.
_MOST_RESIZED = 16_000_000
# Pixels along a side that is squeezed: resampling takes memory for each of them.
_LONGEST_SQUEEZED = 200_000


@dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for a network: the shorter side resized, the centre cropped, colours normalised.

    A strip that would have more than 16 million pixels after resizing is refused.

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
        pixels = self._ordered(np.asarray(self._resized(_in_rgb(image)), dtype=np.float32)) / 255
        normalized = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normalized.transpose(2, 0, 1)))

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and the standard deviation, as references and metrics take them."""
        return tuple(self.mean), tuple(self.std)

    def _ordered(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The colours in the order the network takes them in."""
        return pixels

    def colours(self, images: Tensor) -> Tensor:
        """(…, 3, H, W) the red, green and blue, in [0, 1], of what the network takes: normalisation undone."""
        columns = [images.new_tensor(values, dtype=torch.float32).reshape(-1, 1, 1) for values in (self.std, self.mean)]
        return (images.detach().float() * columns[0] + columns[1]).clamp(0, 1)

    @property
    def of_masks(self) -> Preprocessing:
        """The same resize and crop for a mask of the image: no new values at its border, and no colours."""
        return replace(self, interpolation="nearest", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))

    def crop(self, image: Image.Image) -> Crop:
        """Where in the photograph that part lies.

        Example:
            >>> Preprocessing((224, 224), 256).crop(Image.new("RGB", (512, 512)))
            Crop(box=(32.0, 32.0, 480.0, 480.0), size=(512, 512))
        """
        return Crop(self._box(image), image.size)

    def view(self, image: Image.Image) -> Image.Image:
        """The part of the photograph the network sees, as sharp as the photograph: to lay heat maps over."""
        height, width = self.size
        self._check_length(image)
        box = self._seen(image)
        scale = max(1.0, (box[2] - box[0]) / width)
        scale = min(scale, max(1.0, _LARGEST_VIEW / max(height, width)))
        # A part is never as large as the whole, so that a heat map knows which of them it is laid over.
        scale *= 2 if (round(width * scale), round(height * scale)) == image.size and box != (0, 0, *image.size) else 1
        size = (round(width * scale), round(height * scale))
        return _in_rgb(image).resize(size, Image.Resampling.BICUBIC, box=box)

    def _resized(self, image: Image.Image) -> Image.Image:
        self._check_length(image)
        height, width = self.size
        resampling = _RESAMPLING[self.interpolation]
        if self.resize is None:
            return image.resize((width, height), resampling)
        left, top = self._corner(image)
        return image.resize(self._whole(image), resampling).crop((left, top, left + width, top + height))

    def _check_length(self, image: Image.Image) -> None:
        if self.resize is None:
            is_too_long = max(image.size) > _LONGEST_SQUEEZED
        else:
            is_too_long = prod(self._whole(image)) > _MOST_RESIZED
        if is_too_long:
            raise InputError(
                f"an image of {image.width} x {image.height} pixels is too long for a network that sees "
                f"{self.size[1]} x {self.size[0]}: cut out what matters"
            )

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

    def _box(self, image: Image.Image) -> Box:
        """(left, top, right, bottom) of the input, in the photograph's own pixels; beyond it, the input is black."""
        if self.resize is None:
            return 0, 0, image.width, image.height
        (left, top), whole = self._corner(image), self._whole(image)
        across, down = image.width / whole[0], image.height / whole[1]
        return left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down

    def _seen(self, image: Image.Image) -> Box:
        """The same, as far as there is a photograph."""
        left, top, right, bottom = self._box(image)
        return max(0.0, left), max(0.0, top), min(float(image.width), right), min(float(image.height), bottom)


@dataclass(frozen=True)
class FlippedPreprocessing(Preprocessing):
    """The same for a network that takes blue, green, red; mean and std are in that order, too.

    Example:
        >>> FlippedPreprocessing((2, 2), 2, mean=(0,), std=(1,))(Image.new("RGB", (2, 2), "red"))[:, 0, 0]
        tensor([0., 0., 1.])
    """

    def _ordered(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return pixels[..., ::-1]

    def colours(self, images: Tensor) -> Tensor:
        """The same, with red first again."""
        return super().colours(images).flip(-3)


def _in_rgb(image: Image.Image) -> Image.Image:
    """The image itself where it is in RGB: a copy of a photograph is hundreds of megabytes."""
    return image if image.mode == "RGB" else image.convert("RGB")
