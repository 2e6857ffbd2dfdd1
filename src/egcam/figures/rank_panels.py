"""Mean ranks of methods, with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egcam.drawing import text_layout
from egcam.errors import InputError
from egcam.evaluation.ranking import MeanRank
from egcam.evaluation.table import Table
from egcam.figures import style
from egcam.figures.scores import mean_ranks
from egcam.figures.sheet import MARGIN, Sheet, name_rows
from egcam.figures.ticks import these_numbers
from egcam.metrics.registry import metric

_ROW = 0.17


@style.context()
def rank_plot(
    source: Table | Iterable[MeanRank],
    *,
    width: style.Width | float = "column",
    level: float = 0.95,
    note: str = "",
    labels: Mapping[str, str] | None = None,
    looks: Mapping[str, style.LineStyle] | None = None,
) -> Figure:
    """Mean rank of every method over metrics and images, the best on top, with its interval.

    Args:
        source: a table of scores, or what `mean_ranks` returned.
        width: "column", "page" or inches.
        level: of the intervals, where they are computed here.
        note: a line under the axis; by default what the ranks are of.
        labels: what to call the methods; `style.label` by default.
        looks: how to draw them; `style.lines` by default.

    Example:
        >>> figure = rank_plot([MeanRank("grad-cam", 2.0, 1.5, 2.5), MeanRank("slope-cam", 1.0, 1.0, 1.5)])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['SlopeCAM (egcam)', 'Grad-CAM', '1.00', '2.00']
    """
    if isinstance(source, Table):
        ranks, images = mean_ranks(source, level=level)
        count = sum(metric(name).group != "efficiency" for name in source.metrics)
        counted = f"{images} image{'s' if images > 1 else ''}"
        note = note or f"mean rank over {count} metric{'s' if count > 1 else ''} and {counted} (1 is best)"
    else:
        ranks = sorted(source, key=lambda one: one.mean)
    if not ranks:
        raise InputError("there are no ranks to draw")
    note = note or "mean rank (1 is best)"
    inches = style.width_in_inches(width)
    looks = looks or style.lines(one.method for one in ranks)
    called = [labels[one.method] if labels else style.label(one.method) for one in ranks]
    widest = max(text_layout.width_of(name, style.TEXT, bold=True) for name in called)
    names = min(widest, 0.45 * inches) + 0.08
    numbers = 0.32
    tall = len(ranks) * _ROW + 0.06
    wide = inches - 2 * MARGIN - names - numbers
    note = text_layout.fitted(note, inches - 2 * MARGIN, style.TEXT, lines=2)
    foot = 0.2 + text_layout.height_of(note, style.TEXT)
    sheet = Sheet(inches, MARGIN + tall + foot + MARGIN)
    axes = sheet.axes(MARGIN + names, MARGIN, wide, tall)
    emphasised = [looks[one.method].color == style.EMPHASIS for one in ranks]
    name_rows(axes, called, emphasised, names - 0.08, style.TEXT)
    for place, one in enumerate(ranks):
        _draw_rank(axes, place, one, looks[one.method])
    highs = [one.high if isfinite(one.high) else one.mean for one in ranks]
    last = max(2, len(ranks), max(highs))
    axes.set_xlim(0.8, last + 0.2)
    step = 1 if last <= 8 else 2 if last <= 16 else 5
    these_numbers(axes.xaxis, [float(tick) for tick in range(1, int(last) + 1, step)])
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
    sheet.write(note, inches / 2, MARGIN + tall + 0.2, size=style.TEXT)
    return sheet.page


def _draw_rank(axes: Axes, place: int, one: MeanRank, look: style.LineStyle) -> None:
    if isfinite(one.low) and isfinite(one.high):
        axes.plot(
            [one.low, one.high], [place, place], color=look.color, linewidth=2.4, alpha=0.5, solid_capstyle="butt"
        )
    axes.plot([one.mean], [place], color=look.color, marker=look.marker, markersize=4.2, linestyle="none", zorder=3)
    axes.annotate(
        f"{one.mean:.2f}",
        (1, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=style.SMALL,
        fontweight="bold" if look.color == style.EMPHASIS else "normal",
        annotation_clip=False,
    )
