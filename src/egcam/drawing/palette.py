"""The colours and the opacity of heat maps, the same in overlays, figures, reports and on the web page.

A map is drawn in viridis, a signed one from blue (-1) over near white (0) to red (1). Over a photograph it is

    alpha = opacity * |importance|

so that the most important place is covered by `OPACITY` and a place of no importance shows the bare photograph, which
loses its own colours as the map's come in.
Both are of the sharpened map, sign(v) |v|^sharpness: an exponent for the eye alone, 1 unless asked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from egcam.errors import InputError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

# matplotlib is imported inside functions only: `import egcam` must stay quick.

Pixels: TypeAlias = npt.NDArray[np.floating[Any]]

# Perceptually uniform. Most photographs are warm (skin, fur, wood): viridis stays apart from them.
INK = "#1a1c20"
# Told apart by people who do not see red and green (Okabe and Ito).
COLORS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#888888",
    "yellow": "#F0E442",
}
HEAT_COLORS = "viridis"
OPACITY = 0.8

# A diverging map whose lightness falls evenly on both sides of a near-white middle: blue is negative, red positive. The
# two ends have the same lightness, so neither side looks stronger (CIELAB: lightness, red-green, yellow-blue).
_MIDDLE_LIGHTNESS, _END_LIGHTNESS = 95.0, 35.0
_NEGATIVE, _POSITIVE = (8.0, -44.0), (48.0, 30.0)


def is_signed(*maps: Pixels) -> bool:
    """Whether any of the maps has negative values, so that all are drawn from -1 to 1."""
    return any(bool((values < 0).any()) for values in maps)


def checked_sharpness(sharpness: float) -> float:
    """The exponent itself, if it is one.

    >>> checked_sharpness(2)
    2.0
    """
    if isinstance(sharpness, bool) or not isinstance(sharpness, int | float) or not 1.0 <= sharpness < float("inf"):
        raise InputError(f"sharpness is an exponent of at least 1 (1 shows the map as it is), not {sharpness!r}")
    return float(sharpness)


def checked_opacity(opacity: float) -> float:
    """The opacity itself, if it is one."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity is a number from 0 to 1; not {opacity}")
    return opacity


def sharpened(values: Pixels, sharpness: float = 1.0) -> Pixels:
    """sign(v) |v|^sharpness: the order of the pixels stays, what is small is shown smaller.

    Example:
        >>> sharpened(np.array([-0.5, 0.5, 1.0]), 2).tolist()
        [-0.25, 0.25, 1.0]
    """
    exponent = checked_sharpness(sharpness)
    return values if exponent == 1.0 else np.sign(values) * np.abs(values) ** exponent


def heat_colors(name: str | None = None, signed: bool = False) -> Colormap:
    """The colours of a map: viridis by default, blue-white-red where it is signed, or a matplotlib map by name."""
    from matplotlib import colormaps

    if name is None and signed:
        return signed_colors()
    name = name or HEAT_COLORS
    if name not in colormaps:
        raise InputError(f"unknown colour map {name!r}; uniform ones are 'viridis', 'inferno', 'magma', 'cividis'")
    return colormaps[name]


def heat_layer(
    heat: Pixels, colors: str | None = None, signed: bool = False, opacity: float = OPACITY, sharpness: float = 1.0
) -> Pixels:
    """(H, W, 4) what lies over a photograph: the colours of a heat map, with alpha = opacity * |importance|.

    Args:
        heat: (H, W) in [0, 1], or in [-1, 1] where it is signed.
        colors: a matplotlib colour map; by default that of `heat_colors`.
        signed: from -1 rather than from 0.
        opacity: of the most important place.
        sharpness: the exponent; see `sharpened`.

    Example:
        >>> heat_layer(np.array([[0.0, 0.5, 1.0]]), opacity=0.8)[0, :, 3].tolist()
        [0.0, 0.4000000059604645, 0.800000011920929]
    """
    values = sharpened(np.clip(heat, -1 if signed else 0, 1), sharpness)
    layer = np.array(heat_colors(colors, signed)((values + 1) / 2 if signed else values), dtype=np.float32)
    layer[:, :, 3] = checked_opacity(opacity) * np.abs(values)
    return layer


@cache
def signed_colors() -> Colormap:
    """The diverging map of signed values: blue for -1, near white for 0, red for 1, uniform in lightness.

    Example:
        >>> red, _, blue, _ = signed_colors()(1.0)
        >>> bool(red > 3 * blue)
        True
    """
    from matplotlib.colors import ListedColormap

    position = np.linspace(-1, 1, 511)
    strength = np.abs(position)
    lightness = _MIDDLE_LIGHTNESS - (_MIDDLE_LIGHTNESS - _END_LIGHTNESS) * strength
    hue = np.where(position[:, None] < 0, np.array(_NEGATIVE), np.array(_POSITIVE))
    table = _rgb_from_lab(lightness, *(hue * strength[:, None]).T)
    return ListedColormap([tuple(entry) for entry in table], name="egcam_signed")


def _rgb_from_lab(lightness: Any, red_green: Any, yellow_blue: Any) -> np.ndarray[Any, Any]:
    """(n, 3) sRGB in [0, 1] from CIELAB under the D65 white; what is out of gamut is clipped."""
    height = (lightness + 16) / 116
    steps = np.stack([height + red_green / 500, height, height - yellow_blue / 200], -1)
    relative = np.where(steps > 6 / 29, steps**3, 3 * (6 / 29) ** 2 * (steps - 4 / 29))
    xyz = relative * np.array([0.95047, 1.0, 1.08883])
    matrix = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
    linear = np.clip(xyz @ matrix.T, 0, 1)
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))
