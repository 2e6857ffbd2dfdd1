"""Tiles placed by inches: pictures of equal size in exact rows, with room for the words around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Text

from egcam.drawing import text_layout
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
        box = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        return self.page.add_axes(box)

    def name_method(self, method: str, middle: float, bottom: float, width: float) -> None:
        """A method's name above its tile, in two lines at most; ours stands out."""
        ours = style.color(method) == style.EMPHASIS
        text = text_layout.fitted(style.label(method), width, style.SMALL, lines=2, bold=ours)
        self.write(text, middle, bottom, down="bottom", bold=ours, color=style.EMPHASIS if ours else style.INK)

    def legend(self, handles: Sequence[Any], labels: Sequence[str], **place: Any) -> None:
        """A legend of the whole page."""
        spacing: dict[str, Any] = {"columnspacing": 1.0, "handletextpad": 0.5, "labelspacing": 0.25, "borderaxespad": 0}
        self.page.legend(handles, labels, **{**spacing, **place})

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


def name_rows(
    axes: Axes, names: Sequence[str], emphasised: Sequence[bool], width: float, size: float = style.SMALL
) -> None:
    """Rows of equal height from top to bottom, each with its name to the left, cut to `width` inches."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for row, (name, bold) in enumerate(zip(names, emphasised, strict=True)):
        axes.annotate(
            text_layout.fitted(name, width, size, lines=1, bold=bold),
            (0, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-5, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=size,
            fontweight="bold" if bold else "normal",
            annotation_clip=False,
        )
