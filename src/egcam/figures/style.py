"""How every figure looks: sizes, letters, colours, and one look for each method, the same in all figures.

Whatever draws methods (the figures here, the reports of studies) asks `color`, `line` and `label`, so that a method has
the same colour, line and name wherever it is met: those it was registered with. Colours are those of Okabe and Ito,
which colour-blind readers can tell apart; methods that share one differ in line style and marker. SlopeCAM has
the emphasised colour, which no other method has, and a heavier line. The colours of heat maps are those of
`egcam.drawing.palette`.

Nothing here touches matplotlib's global state: `context()` holds for the length of a `with` block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

from egcam.attribution.registry import method as record
from egcam.attribution.registry import methods
from egcam.drawing import palette
from egcam.errors import InputError

Width = Literal["column", "page"]

# Inches, at which the figure is printed: no scaling, so a point is a point.
COLUMN_WIDTH = 3.3
PAGE_WIDTH = 6.9
# Points. No letter is smaller than SMALL.
SMALL = 7.0
TEXT = 7.5
TITLE = 8.0
DPI = 300

INK = palette.INK
FAINT = "#5c6370"
RULE = "#d5d8de"
PAPER = "#ffffff"
_ON_DARK = {PAPER: "#1e2127", INK: "#e8eaed", FAINT: "#a0a7b4", RULE: "#3a3f48"}

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY, *_ = palette.COLORS.values()
EMPHASIS = VERMILLION


@dataclass(frozen=True)
class LineStyle:
    """The look of one method in a plot."""

    color: str
    style: str
    marker: str
    width: float = 1.1
    order: float = 2.0

    def options(self, marker: bool = True) -> dict[str, Any]:
        """Keywords for `Axes.plot`."""
        drawn = {"color": self.color, "linestyle": self.style, "linewidth": self.width, "zorder": self.order}
        return {**drawn, "marker": self.marker, "markersize": 3.5} if marker else drawn


_OTHERS = tuple(
    LineStyle(color, style, marker)
    for style, marker in (("-.", "s"), (":", "^"), ("--", "D"), ("-", "v"))
    for color in (BLUE, GREEN, PURPLE, SKY, ORANGE, GREY, BLACK)
)


def label(method: str) -> str:
    """A method's name as people write it; a name that is not known stays as it is.

    Example:
        >>> label("slope-cam"), label("my-cam")
        ('SlopeCAM (egcam)', 'my-cam')
    """
    return record(method).label if method in methods(controls=True) else method


def line(method: str) -> LineStyle:
    """A method's colour, line style, marker and width: always the same for the same name.

    A method that is not known gets a look by its name; `lines` sees to it that no two methods of a figure share one.

    Example:
        >>> line("slope-cam").color == EMPHASIS, line("my-cam") == line("my-cam")
        (True, True)
    """
    given = record(method).line if method in methods(controls=True) else None
    if given is None:
        return _OTHERS[crc32(method.encode()) % len(_OTHERS)]
    name, dashes, marker = given
    drawn = palette.COLORS.get(name, name)
    return LineStyle(drawn, dashes, marker, 2.0, 3.0) if drawn == EMPHASIS else LineStyle(drawn, dashes, marker)


def color(method: str) -> str:
    """A method's colour.

    Example:
        >>> color("slope-cam")
        '#D55E00'
    """
    return line(method).color


def lines(shown: Iterable[str]) -> dict[str, LineStyle]:
    """The looks of all methods of one figure, no two alike (up to 28 methods that are not known).

    Example:
        >>> looks = lines(["grad-cam", "mine", "yours", "theirs"])
        >>> len(set(looks.values()))
        4
    """
    found: dict[str, LineStyle] = {}
    for method in shown:
        look = line(method)
        if look in found.values():
            look = next((other for other in _OTHERS if other not in found.values()), look)
        found[method] = look
    return found


def width_in_inches(width: Width | float) -> float:
    """The width of a figure: "column" (3.3 in), "page" (6.9 in), or inches.

    Example:
        >>> width_in_inches("column"), width_in_inches(5)
        (3.3, 5.0)
    """
    if isinstance(width, str):
        known = {"column": COLUMN_WIDTH, "page": PAGE_WIDTH}
        if width not in known:
            raise InputError(f"unknown width {width!r}: pass 'column' (3.3 in), 'page' (6.9 in), or a number of inches")
        return known[width]
    if not 1 <= width <= 50:
        raise InputError(f"the width of a figure is in inches, from 1 to 50; not {width}")
    return float(width)


def _settings() -> dict[str, Any]:
    return {
        "font.family": ["DejaVu Sans"],
        "font.size": TEXT,
        "axes.titlesize": TITLE,
        "axes.labelsize": TEXT,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "legend.fontsize": SMALL,
        "figure.titlesize": TITLE,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "grid.color": RULE,
        "grid.linewidth": 0.5,
        "legend.frameon": False,
        "legend.handlelength": 2.2,
        # Labels are names of methods, classes and files: a dollar sign is a dollar sign.
        "text.parse_math": False,
        "text.usetex": False,
        # Letters as outlines look the same in every viewer; with a fixed salt the same figure is the same file.
        "svg.fonttype": "path",
        "svg.hashsalt": "egcam",
        # TrueType, which journals ask for.
        "pdf.fonttype": 42,
    }


@contextmanager
def context() -> Iterator[None]:
    """Draw in this style for the length of a `with` block, whatever the user's own settings are."""
    from matplotlib import rc_context, rcParamsDefault

    settings: dict[Any, Any] = {
        name: value for name, value in rcParamsDefault.items() if name.split(".")[0] not in _KEPT
    }
    settings |= _settings()
    with rc_context(settings):
        yield


def darkened(svg: bytes) -> bytes:
    """The same drawing for a dark page: ink, rules and paper change, the methods' colours stay.

    >>> darkened(b'<path style="fill: #ffffff; stroke: #d55e00"/>')
    b'<path style="fill: #1e2127; stroke: #d55e00"/>'
    """
    text = svg.decode()
    for light, dark in _ON_DARK.items():
        text = text.replace(light.lower(), dark)
    return text.encode()


# Setting these starts or ends something outside the figure.
_KEPT = {"backend", "backend_fallback", "interactive", "toolbar", "webagg", "tk", "macosx", "keymap"}
