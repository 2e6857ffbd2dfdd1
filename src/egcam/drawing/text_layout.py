"""Texts that fit: measured, broken into lines, cut only when nothing else helps.

Widths are in inches and sizes in points; for pictures whose letters are `size` pixels high, pass `size` as points and
widths in pixels / 72.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from PIL import ImageFont

_MEASURE = 100


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as matplotlib brings it along: the same letters on every machine."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)


def width_of(text: str, points: float, bold: bool = False) -> float:
    """The width of the widest line, in inches.

    Example:
        >>> 0.5 < width_of("Grad-CAM", 8) < 0.65
        True
    """
    return max(float(font(_MEASURE, bold).getlength(line)) for line in text.split("\n")) / _MEASURE * points / 72


def height_of(text: str, points: float) -> float:
    """The height of all lines, in inches."""
    return (text.count("\n") + 1) * 1.2 * points / 72


def fitted(text: str, width: float, points: float, lines: int = 2, bold: bool = False) -> str:
    """The text in at most `lines` lines no wider than `width` inches, broken at spaces and cut with an ellipsis.

    Example:
        >>> fitted("Integrated Grad-CAM", 0.8, points=7)
        'Integrated\\nGrad-CAM'
        >>> fitted("a/very/long/file/name.png", 0.5, points=7, lines=1)
        'a/very/l…'
    """
    words = " ".join(text.split()).split(" ")
    made: list[str] = []
    while words and len(made) < lines:
        taken = 1
        while taken < len(words) and width_of(" ".join(words[: taken + 1]), points, bold) <= width:
            taken += 1
        if len(made) == lines - 1:
            taken = len(words)
        made.append(_cut(" ".join(words[:taken]), width, points, bold))
        words = words[taken:]
    return "\n".join(made)


def _cut(text: str, width: float, points: float, bold: bool) -> str:
    if width_of(text, points, bold) <= width:
        return text
    while text and width_of(text + "…", points, bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"
