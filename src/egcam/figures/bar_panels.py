"""Metric bars: a panel for each metric, a bar for each method, intervals as whiskers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egcam.drawing import text_layout
from egcam.evaluation.stats import Mean
from egcam.evaluation.table import Table
from egcam.figures import style
from egcam.figures.scores import best_of, by_metric, needs_log, scores_of
from egcam.figures.sheet import MARGIN, Sheet, name_rows
from egcam.figures.ticks import plain_numbers, powers_of_ten
from egcam.metrics.registry import metric

if TYPE_CHECKING:
    import pandas as pd

_ROW = 0.15
_NUMBERS = 0.5
_SMALLEST_BARS = 0.75
_BETWEEN = 0.1
_STAR = "★"


@style.context()
def metric_bars(
    source: Table | pd.DataFrame | Iterable[Mapping[str, Any]],
    *,
    width: style.Width | float = "page",
    columns: int | None = None,
) -> Figure:
    """Means of every method by every metric, with intervals; the best of each metric is bold and has a star.

    An arrow tells which way is better. An axis is logarithmic exactly where all means are positive and the largest is
    over 100 times the smallest; bars begin at 0 on the others.

    Args:
        source: a table of scores, its `summary()`, or mappings with metric, method, mean, low and high.
        width: "column", "page" or inches.
        columns: panels in a row; as many as fit by default.

    Example:
        >>> figure = metric_bars([{"metric": "insertion", "method": name, "mean": mean}
        ...                       for name, mean in (("grad-cam", 0.4), ("slope-cam", 0.5))])
        >>> [float(bar.get_width()) for bar in figure.axes[0].patches]
        [0.4, 0.5]
    """
    panels = by_metric(scores_of(source))
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    inches = style.width_in_inches(width)
    widest = max(text_layout.width_of(style.label(method), style.SMALL, bold=True) for method in methods)
    names = min(widest, 0.42 * inches) + 0.07
    room = inches - 2 * MARGIN - names
    most = max(1, int((room + _BETWEEN) / (_SMALLEST_BARS + _NUMBERS + _BETWEEN)))
    columns = min(len(panels), most if columns is None else max(1, columns))
    # Fill the rows evenly rather than leave one panel alone in the last.
    columns = -(-len(panels) // -(-len(panels) // columns))
    bars = (room - (columns - 1) * _BETWEEN) / columns - _NUMBERS
    tall, above, below = len(methods) * _ROW + 0.04, 0.2, 0.24
    rows = -(-len(panels) // columns)
    sheet = Sheet(inches, 2 * MARGIN + rows * (above + tall + below))
    looks = style.lines(methods)
    for place, (name, panel) in enumerate(panels.items()):
        row, column = divmod(place, columns)
        left = MARGIN + names + column * (bars + _NUMBERS + _BETWEEN)
        axes = sheet.axes(left, MARGIN + above + row * (above + tall + below), bars, tall)
        _draw(axes, name, panel, methods, looks)
        if column == 0:
            emphasised = [looks[method].color == style.EMPHASIS for method in methods]
            name_rows(axes, [style.label(method) for method in methods], emphasised, names - 0.07)
    return sheet.page


def _draw(
    axes: Axes, name: str, panel: Mapping[str, Mean], methods: list[str], looks: Mapping[str, style.LineStyle]
) -> None:
    found = metric(name)
    best = best_of(panel, found.higher_is_better)
    logarithmic = needs_log(panel.values())
    if logarithmic:
        axes.set_xscale("log")
    for place, method in enumerate(methods):
        score = panel.get(method)
        if score is None or not isfinite(score.mean):
            axes.text(1.04, place, "–", transform=axes.get_yaxis_transform(), va="center", fontsize=style.SMALL)
            continue
        axes.barh(place, score.mean, height=0.7, color=looks[method].color, linewidth=0, zorder=2)
        if isfinite(score.low) and isfinite(score.high):
            reach = [[max(0.0, score.mean - score.low)], [max(0.0, score.high - score.mean)]]
            axes.errorbar(
                score.mean, place, xerr=reach, fmt="none", ecolor=style.FAINT, elinewidth=0.9, capsize=1.6, zorder=3
            )
        text = _short(score.mean) + (f" {_STAR}" if method in best else "")
        axes.text(
            1.04,
            place,
            text,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=style.SMALL,
            fontweight="bold" if method in best else "normal",
        )
    axes.set_title(f"{found.name.replace('-', ' ').capitalize()} {found.arrow}", fontsize=style.TEXT, pad=3, loc="left")
    _settle(axes, len(methods), logarithmic)
    if logarithmic:
        shown = [score for score in panel.values() if isfinite(score.mean)]
        highest = max(max(score.mean, score.high) if isfinite(score.high) else score.mean for score in shown)
        # Bars on a logarithmic axis have no natural foot; half a decade below the smallest keeps that one visible.
        axes.set_xlim(min(score.mean for score in shown) / 10**0.5, highest * 1.3)


def _settle(axes: Axes, count: int, logarithmic: bool) -> None:
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if logarithmic:
        powers_of_ten(axes.xaxis, most=3)
    else:
        plain_numbers(axes.xaxis, most=3)
        axes.axvline(0, color=style.FAINT, linewidth=0.6, zorder=4)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)


def _short(value: float) -> str:
    """Three significant digits."""
    if value and not 1e-3 <= abs(value) < 1e4:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    if abs(value) >= 1000:
        return f"{value:.0f}".replace("-", "−")
    return f"{value:#.3g}".rstrip(".").replace("-", "−")
