"""Boxes and outlines over pictures, each in a colour of its own, with a label that can be read on anything."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from egcam.drawing.palette import COLORS
from egcam.drawing.text_layout import fitted, font

# None of viridis's colours.
_COLORS = [COLORS[name] for name in ("orange", "sky", "vermillion", "yellow", "purple", "blue")]
_DARK, _LIGHT = "#14161a", "#ffffff"


def mark_color(number: int) -> str:
    """The colour of mark `number`; after the last one they start again."""
    return _COLORS[number % len(_COLORS)]


def with_box(picture: Image.Image, box: tuple[float, float, float, float], color: str, label: str = "") -> Image.Image:
    """The picture with a box (left, top, right, bottom) and its label.

    Example:
        >>> with_box(Image.new("RGB", (40, 30)), (5, 5, 35, 25), "#ffffff").getpixel((20, 5))
        (255, 255, 255)
    """
    marked = picture.convert("RGB")
    draw = ImageDraw.Draw(marked)
    thick = _thickness(picture)
    corners = _inside(box, marked.size)
    draw.rectangle(_grown(corners, thick // 2 + 1), outline=_DARK, width=thick + 2)
    draw.rectangle(_grown(corners, thick // 2), outline=color, width=thick)
    _write_label(draw, label, corners, marked.size, color)
    return marked


def with_outline(
    picture: Image.Image, mask: npt.ArrayLike, color: str, label: str = "", below: bool = False
) -> Image.Image:
    """The picture with the outline of a mask, of any size, and its label above it or `below`.

    Example:
        >>> mask = np.zeros((30, 40), bool); mask[10:20, 10:30] = True
        >>> with_outline(Image.new("RGB", (40, 30)), mask, "#ffffff").getpixel((20, 10))
        (255, 255, 255)
    """
    marked = picture.convert("RGB")
    area = Image.fromarray(np.asarray(mask, dtype=np.uint8) * 255).resize(marked.size, Image.Resampling.BICUBIC)
    enlarged = max(marked.size) / max(np.shape(mask))
    area = area.filter(ImageFilter.GaussianBlur(2 * enlarged)) if enlarged > 1 else area
    area = area.point(lambda value: 255 * (value > 127))
    # At least 1: Pillow crashes on a filter of a single pixel.
    reach = max(1, _thickness(picture) // 2)
    for around, ink in ((reach + 1, _DARK), (reach, color)):
        larger = np.asarray(area.filter(ImageFilter.MaxFilter(2 * around + 1))) > 0
        smaller = np.asarray(area.filter(ImageFilter.MinFilter(2 * around + 1))) > 0
        marked.paste(ink, mask=Image.fromarray((larger & ~smaller).astype(np.uint8) * 255))
    bounds = area.getbbox()
    if bounds is not None:
        _write_label(ImageDraw.Draw(marked), label, bounds, marked.size, color, below)
    return marked


def _thickness(picture: Image.Image) -> int:
    return max(1, round(max(picture.size) / 160))


def _inside(box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The box in whole pixels of the picture."""
    left, right = (int(np.clip(round(side), 0, size[0] - 1)) for side in (box[0], box[2]))
    top, bottom = (int(np.clip(round(side), 0, size[1] - 1)) for side in (box[1], box[3]))
    return left, top, max(left, right), max(top, bottom)


def _grown(box: tuple[int, int, int, int], by: int) -> tuple[int, int, int, int]:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _write_label(
    draw: ImageDraw.ImageDraw,
    label: str,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    color: str,
    below: bool = False,
) -> None:
    """The label on a plate of its mark's colour, above (or below) the box where there is room, else inside it."""
    if not label:
        return
    letters = max(9, round(max(size) / 34))
    text = fitted(label, (size[0] - 2 * letters) / 72, letters, 1, bold=True)
    kind = font(letters, bold=True)
    width, height = round(kind.getlength(text)) + letters, round(1.5 * letters)
    left = max(0, min(box[0] - _border(size), size[0] - width))
    top = box[1] - height - _border(size)
    top = top if top >= 0 else min(box[1] + _border(size), size[1] - height)
    top = min(box[3] + _border(size), size[1] - height - 1) if below else top
    draw.rectangle((left, top, left + width, top + height), fill=color)
    ink = _DARK if _lightness(color) > 0.4 else _LIGHT
    draw.text((left + letters // 2, top + height / 2), text, ink, kind, anchor="lm")


def _border(size: tuple[int, int]) -> int:
    return max(1, round(max(size) / 320)) + 1


def _lightness(color: str) -> float:
    """From 0 (black) to 1 (white), of "#rrggbb" (Rec. 601)."""
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue
