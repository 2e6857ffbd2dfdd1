"""Tiles placed by inches: pictures of equal size in exact rows, with room for the words around them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.text import Text

from egcam.figures import style
from egcam.figures.page import Page

GAP = 0.05
MARGIN = 0.04
BAR = 0.08
# Room for a colour bar's numbers and its label, to the right of the bar.
BAR_WORDS = 0.28


class Sheet:
    """A page measured in inches from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.page = Page(width, height)
        self.width, self.height = width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes with this corner and size."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        return self.page.add_axes(box)

    def write(
        self,
        text: str,
        left: float,
        top: float,
        *,
        size: float = style.SMALL,
        across: str = "center",
        down: str = "top",
        bold: bool = False,
        color: str = style.INK,
        rotation: float = 0,
    ) -> Text:
        """A text at this place."""
        return self.page.text(
            left / self.width,
            1 - top / self.height,
            text,
            fontsize=size,
            ha=across,
            va=down,
            fontweight="bold" if bold else "normal",
            color=color,
            rotation=rotation,
            linespacing=1.1,
        )
