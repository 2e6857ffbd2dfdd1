"""How far every method is from the baseline, metric by metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from egcam.drawing.text_layout import fitted, width_of
from egcam.figures import style
from egcam.figures.sheet import Sheet, name_rows
from egcam.figures.ticks import number
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.formatting import metric_label

if TYPE_CHECKING:
    from egcam.studies.report.view import ModelSection, Report

# Inches.
_LONGEST_NAME = 1.55
_ROW = 0.15
_GAP = 0.1
_TICKS = 0.24
_AXIS_NAME = 0.2
_ACROSS = 4


@style.context()
def differences_figure(report: Report, section: ModelSection) -> Figure:
    """A panel for each metric, a row for each method: how far it is from the baseline, better to the right."""
    methods = tuple(method for method in section.table.methods if method != report.baseline)
    metrics = section.table.metrics
    across = min(_ACROSS, len(metrics))
    down = -(-len(metrics) // across)
    width = style.PAGE_WIDTH if across > 1 else style.COLUMN_WIDTH
    names = [report.labels[method] for method in methods]
    longest = min(_LONGEST_NAME, max(width_of(name, style.SMALL, bold=True) for name in names))
    left = longest + _GAP
    wide = (width - left - across * _GAP * 1.5) / across
    # The arrow stays with the last word.
    room = wide + _GAP - width_of(" ↑", style.TEXT)
    titles = [f"{fitted(metric_label(one), room, style.TEXT)} {metric_called(one).arrow}" for one in metrics]
    above = 0.34 if any("\n" in title for title in titles) else 0.22
    high = _ROW * len(methods)
    each = above + high + _TICKS
    sheet = Sheet(width, down * each + _AXIS_NAME)
    for place, metric in enumerate(metrics):
        row, column = divmod(place, across)
        axes = sheet.axes(left + column * (wide + 1.5 * _GAP), row * each + above, wide, high)
        axes.patch.set_visible(False)
        _draw(axes, report, section, metric, methods)
        axes.set_title(titles[place], fontsize=style.TEXT, pad=3)
        emphasised = [report.looks[method].color == style.EMPHASIS for method in methods]
        name_rows(axes, names if column == 0 else [""] * len(names), emphasised, longest)
    name = fitted(report.labels[report.baseline], width - 2.6, style.TEXT, lines=1)
    text = f"difference to {name}, better to the right"
    sheet.write(text, (left + width) / 2, sheet.height - 0.05, size=style.TEXT, down="bottom")
    return sheet.page


def _draw(axes: Axes, report: Report, section: ModelSection, metric: str, methods: tuple[str, ...]) -> None:
    upwards = metric_called(metric).higher_is_better
    axes.axvline(0, color=style.FAINT, linewidth=0.8, zorder=1)
    for row, method in enumerate(methods):
        line = section.summary.line(metric, method)
        low, middle, high = line.difference_low, line.difference, line.difference_high
        if not upwards:
            low, middle, high = -high, -middle, -low
        if np.isfinite(middle) and line.verdict != "not compared":
            settled = line.verdict in ("ahead", "behind")
            _draw_interval(axes, middle, low, high, row, report.looks[method], filled=settled)
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    # What lies to the right is better; its sign is that of the plain difference.
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: number(float(f"{(value if upwards else -value):.3g}") + 0.0))
    )


def _draw_interval(
    axes: Axes, middle: float, low: float, high: float, row: float, look: style.LineStyle, *, filled: bool
) -> None:
    if np.isfinite(low):
        width = 2.2 if look.color == style.EMPHASIS else 1.4
        axes.plot([low, high], [row, row], color=look.color, linewidth=width, solid_capstyle="butt", zorder=2)
    dot: dict[str, Any] = {
        "markerfacecolor": look.color if filled else style.PAPER,
        "markersize": 3.8,
        "markeredgewidth": 1.0,
    }
    axes.plot([middle], [row], look.marker, color=look.color, zorder=3, **dot)
