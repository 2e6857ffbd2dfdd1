"""Which part of a photograph a model sees, whatever prepares the photograph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from egcam.errors import InputError

Box: TypeAlias = tuple[float, float, float, float]
Numbers: TypeAlias = npt.NDArray[np.float64]

# A random transform that is run so many times gives the same picture each time in 1 of 256 cases at most.
_RUNS = 8
# How far, as a share of a side, a place may lie from where resizing and cropping alone would put it: 8 bits hold a
# place to 1/255, and resampling rounds once more.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Crop:
    """The part of a photograph that a model sees.

    Attributes:
        box: (left, top, right, bottom) in pixels of the photograph; beyond its edges where it was padded.
        size: (width, height) of the photograph.
    """

    box: Box
    size: tuple[int, int]

    def of_size(self, size: tuple[int, int]) -> Box:
        """The box in a copy of the photograph that is (width, height) large."""
        across, down = size[0] / self.size[0], size[1] / self.size[1]
        left, top, right, bottom = self.box
        return left * across, top * down, right * across, bottom * down


def crop(transform: Callable[[Image.Image], Any], photograph: Image.Image) -> Crop:
    """The part of a photograph that is left by `transform`: for `explanation.overlay(photograph, crop=…)`.

    It is measured: pictures of the photograph's size that get lighter from left to right, and from top to bottom, show
    where each pixel of the result comes from. So any transform will do that resizes, crops, pads and normalises:
    torchvision's, timm's, your own. One that is random, mirrors or turns is refused.

    Args:
        transform: from a photograph to the model's input, a tensor or array (C, H, W), or to another picture.
        photograph: the photograph.

    Example:
        >>> crop(lambda picture: picture.resize((320, 240)).crop((40, 0, 280, 240)), Image.new("RGB", (640, 480))).size
        (640, 480)
    """
    width, height = photograph.size
    ramps = [(np.arange(side) + 0.5) / side for side in (width, height)]
    black, white = (_after(transform, np.full((height, width), value)) for value in (0.0, 1.0))
    contrast = white - black
    # Padding is the same whatever the picture.
    inside = np.abs(contrast) > 0.5 * np.abs(contrast).max(initial=0)
    if not inside.any():
        raise InputError("the transform gives the same for a black and a white picture, so it shows no part of either")
    lines = []
    for axis, picture in enumerate((ramps[0][None].repeat(height, 0), ramps[1][:, None].repeat(width, 1))):
        runs = [_after(transform, picture) for _ in range(_RUNS)]
        if any(run.shape != black.shape or not np.array_equal(run, runs[0]) for run in runs):
            raise InputError(
                "the transform gives another result each time, as those for training do: pass the one without random "
                "steps with which the explained images were made"
            )
        places = np.where(inside, (runs[0] - black) / np.where(inside, contrast, 1), np.nan)
        lines.append(_ends(places if axis == 0 else places.T, 1 / photograph.size[axis]))
    (left, right), (top, bottom) = lines
    return Crop((left * width, top * height, right * width, bottom * height), photograph.size)


def _after(transform: Callable[[Image.Image], Any], values: Numbers) -> Numbers:
    """(H, W) what becomes of a grey picture, the mean over its channels."""
    # Rounded up or down at random, by how near it is: the mean over rows then holds a value more finely than 8 bits do.
    noise = np.random.default_rng(0).random(values.shape)
    picture = Image.fromarray(np.floor(values * 255 + noise).clip(0, 255).astype(np.uint8)).convert("RGB")
    result = transform(picture)
    array = np.asarray(result.detach().float().cpu() if isinstance(result, Tensor) else result, dtype=np.float64)
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    if array.ndim not in (2, 3):
        raise InputError(
            f"the transform returned {type(result).__name__} {array.shape}: it must return one image, (C, H, W), or a "
            "picture"
        )
    is_last = array.ndim == 3 and array.shape[2] in (1, 3, 4) and array.shape[0] not in (1, 3, 4)
    return array if array.ndim == 2 else array.mean(2 if is_last else 0)


def _ends(places: Numbers, pixel: float) -> tuple[float, float]:
    """Where the first column of (H, W) places begins and the last one ends, as shares of the photograph.

    A line through the inner columns: at the edges of a picture resampling averages over one side only.
    """
    columns = np.flatnonzero(np.isfinite(places).any(0))
    spare = -(-len(columns) // 5)
    inner = columns[spare : len(columns) - spare]
    if len(inner) < 2:
        raise InputError(
            "the transform leaves fewer than four pixels along a side: which part it shows cannot be measured"
        )
    means = np.nanmean(places[:, inner], axis=0)
    slope, start = np.polyfit(inner + 0.5, means, 1)
    miss = np.nanmax(np.abs(places[:, inner] - (slope * (inner + 0.5) + start)))
    if slope <= 0 or miss > _TOLERANCE + pixel:
        raise InputError(
            "the transform does more than resize, crop, pad and normalise (it mirrors, turns or distorts): which part "
            "of the photograph the model sees is no box"
        )
    return float(start), float(start + slope * places.shape[1])


def boxes_of_maps(
    pictures: Sequence[tuple[int, int]], size: tuple[int, ...], given: Crop | Sequence[Crop] | None, known: Crop | None
) -> list[Box | None]:
    """Where in pictures of (width, height) the maps of images lie; None is the whole of a picture.

    Args:
        pictures: their sizes.
        size: (height, width) of the explained images.
        given: the part of its photograph that each image is, if the user says so.
        known: the same of all, if a classifier prepared the photograph.
    """
    if given is not None:
        crops = [given] * len(pictures) if isinstance(given, Crop) else list(given)
        if len(crops) != len(pictures):
            raise InputError(f"{len(crops)} crops for {len(pictures)} images: pass one, or one for each image")
        return [_box_in(picture, crop) for picture, crop in zip(pictures, crops, strict=True)]
    explained = size[1], size[0]
    boxes: list[Box | None] = []
    for picture in pictures:
        is_part = _are_alike(picture, explained)
        if known is not None and (picture == known.size or not is_part):
            boxes.append(_box_in(picture, known))
        elif is_part:
            boxes.append(None)
        else:
            raise InputError(
                f"the picture is {picture[0]} x {picture[1]} and the explained image {size[1]} x {size[0]}, of other "
                "proportions: say which part of the picture the model saw, explanation.overlay(picture, "
                "crop=egcam.crop(transform, picture)) with the transform that made the explained image"
            )
    return boxes


def _box_in(picture: tuple[int, int], part: Crop) -> Box | None:
    if not _are_alike(picture, part.size):
        raise InputError(
            f"the picture is {picture[0]} x {picture[1]}, and the model saw a part of a photograph of {part.size[0]} x "
            f"{part.size[1]}: pass that photograph"
        )
    return None if part.box == (0, 0, *part.size) else part.of_size(picture)


def _are_alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two (width, height) have the same proportions, but for a pixel that was rounded off."""
    pairs = ((one, other), (other, one))
    return any(abs(first[0] * second[1] / first[1] - second[0]) <= 1 for first, second in pairs)
