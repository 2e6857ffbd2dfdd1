"""Where the object is: masks from boxes and from mask files, in the coordinates of the upright image."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from egcam.imagefiles import opened
from egcam.studies.datasets.dataset import DataError, Mask

_ORIENTATION = 0x0112
# The turns of a camera held upright, by the number EXIF has for them; the others keep width and height.
_TURNS = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LOSSY = {".jpg", ".jpeg", ".jpe", ".jfif"}


class Box(NamedTuple):
    """A rectangle in pixels: x from `left` up to `right`, y from `top` down to `bottom`."""

    left: float
    top: float
    right: float
    bottom: float


def from_boxes(boxes: Sequence[Box], width: int, height: int, where: str) -> Mask:
    """(height, width) the union of boxes: the pixels whose centre is in one of them.

    Example:
        >>> from_boxes([Box(1, 0, 3, 1), Box(0, 1, 1, 2)], 4, 2, "a.jpg").astype(int)
        array([[0, 1, 1, 0],
               [1, 0, 0, 0]])
    """
    mask = np.zeros((height, width), dtype=bool)
    for box in boxes:
        left, top, right, bottom = box
        # Annotators' boxes end on the last pixel or just behind it: one pixel over the edge is no mistake.
        if not (-1 <= left < right <= width + 1 and -1 <= top < bottom <= height + 1):
            raise DataError(
                f"{where}: the box {_plain(box)} is not a box in an image of {width} x {height} pixels; boxes are "
                "x1 y1 x2 y2 in the pixels of the stored image (was the image resized after it was annotated?)"
            )
        mask[_pixels(top, bottom, height), _pixels(left, right, width)] = True
    return mask


def scaled(boxes: Sequence[Box], across: float, down: float) -> list[Box]:
    """The boxes in an image whose width and height were multiplied by `across` and `down`."""
    return [Box(box.left * across, box.top * down, box.right * across, box.bottom * down) for box in boxes]


def from_file(path: Path, values: Sequence[int] = ()) -> Mask:
    """The mask in an image file: where a pixel has one of `values`, or any value but 0.

    Palette images are read by the palette's numbers, not their colours; of colours any that is not black counts. In a
    JPEG, which blurs values, those above 127 count.

    Raises:
        DataError: when no pixel is 0 and no `values` are given, as in a trimap (1 object, 2 background, 3 border):
            which values mean the object must then be said.
    """
    numbers = _numbers(path)
    if values:
        return np.isin(numbers, list(values))
    if path.suffix.lower() in _LOSSY:
        return np.asarray(numbers > 127)
    found = np.unique(numbers)
    if len(found) > 1 and found[0] != 0:
        shown = ", ".join(str(value) for value in found[:6])
        raise DataError(
            f"{path} has the values {shown} and no 0 for the background; say which of them mean the object with "
            "mask_values, e.g. mask_values = [1] for a trimap of 1 object, 2 background, 3 border"
        )
    return np.asarray(numbers != 0)


def fitted(mask: Mask, image: Image.Image, file: Path, where: str) -> Mask:
    """The mask in the coordinates of the upright image; an error where the two have different sizes.

    Masks are drawn on pixels as stored or as shown. Where the camera was held upright the two differ in shape, and a
    mask of the stored shape is turned as the image was.
    """
    if mask.shape == (image.height, image.width):
        return mask
    if mask.shape == (image.width, image.height):
        turn = _TURNS.get(_orientation(file))
        if turn is not None:
            return np.asarray(Image.fromarray(mask.astype(np.uint8)).transpose(turn), dtype=bool)
    raise DataError(
        f"{where} is {mask.shape[1]} x {mask.shape[0]} pixels, its image {file} is {image.width} x {image.height}: "
        "a mask must have the size of its image"
    )


def _pixels(start: float, end: float, length: int) -> slice:
    first = min(max(ceil(start - 0.5), 0), length - 1)
    return slice(first, max(min(ceil(end - 0.5), length), first + 1))


def _plain(box: Box) -> str:
    return " ".join(f"{number:g}" for number in box)


def _numbers(path: Path) -> np.ndarray[Any, Any]:
    with opened(path) as image:
        values = np.asarray(image)
        with_alpha = image.mode in ("LA", "RGBA", "PA")
    if values.ndim == 3:
        values = (values[..., :-1] if with_alpha else values).max(axis=2)
    return values


def _orientation(file: Path) -> int:
    with opened(file) as image:
        return int(image.getexif().get(_ORIENTATION, 1))
