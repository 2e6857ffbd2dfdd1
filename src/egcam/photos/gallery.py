"""A web page of comparisons in one file: pictures inside, no scripts, light and dark, wide screens and phones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from egcam.pages import render
from egcam.photos.comparison import Comparison


def page(
    title: str,
    introduction: str,
    comparisons: Sequence[Comparison],
    notes: Sequence[str] = (),
    footer: str = "",
    highlight: Sequence[str] = (),
) -> str:
    """The HTML of the whole page."""
    return render(
        "gallery.html",
        title=title,
        introduction=introduction,
        sections=list(zip_longest(comparisons, notes, fillvalue="")),
        footer=footer,
        highlight=highlight,
    )
