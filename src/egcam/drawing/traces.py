"""A signal over its heat: each channel as a line, and behind it the colours of what is important."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from torch import Tensor

from egcam.drawing.overlays import as_array, as_map, as_picture, legible
from egcam.drawing.palette import OPACITY, Pixels, heat_layer, is_signed
from egcam.drawing.text_layout import font
from egcam.errors import InputError

MOST_CHANNELS = 16

_INK, _FAINT = "#1a1c20", "#646a73"
_GAP, _AXIS, _NAMES, _TEXT = 8, 26, 90, 13
_FINER = 3  # lines are drawn this many times as large and then made smaller: PIL's own have steps


def trace(
    signal: npt.ArrayLike | Tensor | None,
    heat: npt.ArrayLike | Tensor,
    alpha: float = OPACITY,
    colormap: str | None = None,
    sharpness: float = 1.0,
    width: int = 900,
    signed: bool | None = None,
) -> Image.Image:
    """A signal with its heat map behind it, the number of the sample below.

    Args:
        signal: (C, L) or (L,), each channel drawn by itself from its least to its largest value; of more than 16 the
            first 16. None draws the map's own values.
        heat: (L,) values in [0, 1], or in [-1, 1] for a signed map.
        alpha: how opaque the most important place is; places of no importance are white.
        colormap: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        sharpness: an exponent of what is shown.
        width: of the picture, in pixels.
        signed: from -1 rather than from 0; None is where there are negative values.

    Example:
        >>> trace(np.sin(np.linspace(0, 20, 300)), np.linspace(0, 1, 300)).size
        (900, 176)
    """
    values = legible(as_map(heat, 1))
    lines = np.atleast_2d(values if signal is None else as_array(signal))
    if lines.ndim != 2 or lines.shape[1] != len(values) or not np.isfinite(lines).all():
        raise InputError(f"a signal to draw is (C, {len(values)}) finite numbers, not {lines.shape}")
    shown = lines[:MOST_CHANNELS]
    height = int(np.clip(480 // len(shown), 54, 150))
    left = _NAMES if len(lines) > 1 else 0
    signed = is_signed(values) if signed is None else signed
    band = _band(values, (width - left, height), alpha, colormap, sharpness, signed)
    page = Image.new("RGB", (width, len(shown) * (height + _GAP) - _GAP + _AXIS), "white")
    for number, line in enumerate(shown):
        above = number * (height + _GAP)
        page.paste(_with_line(band, line), (left, above))
        if left:
            middle = (left - 8, above + height // 2)
            ImageDraw.Draw(page).text(middle, f"channel {number}", _FAINT, font(_TEXT), anchor="rm")
    note = f"the first {len(shown)} of {len(lines)} channels" if len(lines) > len(shown) else ""
    _write_axis(page, left, len(values), note)
    return page


def _band(
    values: Pixels, size: tuple[int, int], alpha: float, colormap: str | None, sharpness: float, signed: bool
) -> Image.Image:
    """The colours of a map as a strip, on white."""
    width, height = size
    middles = (np.arange(width) + 0.5) / width * len(values) - 0.5
    columns = np.interp(middles, np.arange(len(values)), values).astype(np.float32)
    layer = heat_layer(columns[None], colormap, signed, alpha, sharpness)
    colors = 1 - layer[:, :, 3:] + layer[:, :, 3:] * layer[:, :, :3]
    return as_picture(np.repeat(colors, height, 0))


def _with_line(band: Image.Image, line: Pixels) -> Image.Image:
    large = band.resize((band.width * _FINER, band.height * _FINER), Image.Resampling.NEAREST)
    low, high = float(line.min()), float(line.max())
    shares = (line - low) / (high - low) if high > low else np.full_like(line, 0.5)
    across = (np.arange(len(line)) + 0.5) / len(line) * large.width
    margin = 0.1 * large.height
    down = large.height - margin - shares * (large.height - 2 * margin)
    draw = ImageDraw.Draw(large)
    draw.line(list(zip(across.tolist(), down.tolist(), strict=True)), _INK, width=_FINER + 1, joint="curve")
    return large.resize(band.size, Image.Resampling.LANCZOS)


def _write_axis(page: Image.Image, left: int, length: int, note: str) -> None:
    """Ticks with the numbers of samples, and a note at the right."""
    draw, top = ImageDraw.Draw(page), page.height - _AXIS
    letters = font(_TEXT)
    room = page.width - (letters.getlength(note) + 12 if note else 0)
    if note:
        draw.text((page.width - 4, top + 7), note, _FAINT, letters, anchor="ra")
    for tick in range(0, length, _tick_step(length)):
        across = left + (tick + 0.5) / length * (page.width - left)
        start = max(1.0, across - letters.getlength(str(tick)) / 2)
        if start + letters.getlength(str(tick)) < room:
            draw.line((across, top, across, top + 5), _FAINT)
            draw.text((start, top + 7), str(tick), _FAINT, letters)


def _tick_step(length: int) -> int:
    """A round number of samples, so that there are about eight ticks.

    >>> _tick_step(300), _tick_step(5000), _tick_step(6)
    (50, 1000, 1)
    """
    rough = max(1.0, length / 8)
    power = 10 ** int(np.floor(np.log10(rough)))
    return int(power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough))
