"""Mean ranks, perturbation curves and paired differences, drawn at the size they are printed at.

Places are worked out in inches from the widths of the names: matplotlib's own layouts take seconds for a figure of
twenty panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from egcam.evaluation.ranking import Ranking
from egcam.figures import style
from egcam.figures.words import fitted, width_of
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.content import Content, Part
from egcam.studies.report.words import metric_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "#ffffff"

# Inches.
_LONGEST_NAME = 1.55
_ROW = 0.15
_GAP = 0.1
_TICKS = 0.24
_AXIS_NAME = 0.2
_ACROSS = 4


def ranks_figure(content: Content, ranks: Ranking) -> Figure:
    """A dot and an interval for each method, the best at the top."""
    left, row, below = _names_width(content, ranks.methods), 0.19, _TICKS + _AXIS_NAME
    height = row * len(ranks.methods) + below + _GAP / 2
    figure = _figure(style.COLUMN_WIDTH, height)
    axes = _axes(figure, left, below, style.COLUMN_WIDTH - left - _GAP, row * len(ranks.methods))
    for place, method in enumerate(ranks.methods):
        mean, low, high = float(ranks.mean[place]), float(ranks.low[place]), float(ranks.high[place])
        _interval(axes, mean, low, high, place, content.looks[method], filled=True)
        end = max(mean, high) if np.isfinite(high) else mean
        number: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": style.SMALL}
        axes.annotate(f"{mean:.1f}", (end, place), (5, 0), **number)
    known = np.concatenate([ranks.mean, ranks.low, ranks.high])
    first, last = int(np.floor(np.nanmin(known))), int(np.ceil(np.nanmax(known)))
    last = max(last, first + 1)
    # Room on the right for the last number.
    axes.set_xlim(first - 0.04 * (last - first), last + 0.16 * (last - first))
    axes.set_xticks(range(first, last + 1))
    axes.set_xlabel("mean rank (1 is best)")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    _name_rows(axes, content, ranks.methods)
    return figure


def curves_figure(content: Content, part: Part) -> Figure:
    """A panel for each kind of curve, the methods' names below."""
    shown = list(part.curves)
    methods = [method for method in part.table.methods if any(method in part.curves[metric] for metric in shown)]
    names = -(-len(methods) // 2) * 0.125 + _GAP
    below, above, high, left = names + _TICKS + _AXIS_NAME, 0.22, 1.3, 0.42
    figure = _figure(style.COLUMN_WIDTH, below + high + above)
    wide = (style.COLUMN_WIDTH - left - _GAP - 0.14 * (len(shown) - 1)) / len(shown)
    for number, metric in enumerate(shown):
        axes = _axes(figure, left + number * (wide + 0.14), below, wide, high)
        _curves_panel(axes, content, part, metric, methods)
        axes.tick_params(labelleft=number == 0)
    low = min(axes.get_ylim()[0] for axes in figure.axes)
    top = max(axes.get_ylim()[1] for axes in figure.axes)
    for axes in figure.axes:
        axes.set_ylim(low, top)
    figure.axes[0].set_ylabel("class score")
    _legend(figure, content, methods)
    return figure


def _curves_panel(axes: Axes, content: Content, part: Part, metric: str, methods: Sequence[str]) -> None:
    for method, band in part.curves[metric].items():
        look = content.looks[method]
        share = np.linspace(0, 1, len(band.mean))
        drawn = {**look.options(marker=False), "color": _ink(look)}
        axes.plot(share, band.mean, **drawn, **_markers(look, len(share), methods.index(method), len(methods)))
        if np.isfinite(band.low).all():
            strength = 0.2 if look.color == style.EMPHASIS else 0.08
            axes.fill_between(share, band.low, band.high, color=_ink(look), alpha=strength, linewidth=0, zorder=1)
    axes.set_title(f"{metric_label(metric)} {metric_called(metric).arrow}")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlabel("share of pixels")
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _markers(look: style.Line, points: int, number: int, methods: int) -> dict[str, Any]:
    """A few markers along a line, at other places for every method, so that they do not hide each other."""
    every = max(1, points // 4)
    return {"marker": look.marker, "markersize": 3.2, "markevery": (every * number // max(1, methods), every)}


def _legend(figure: Figure, content: Content, methods: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    looks = [content.looks[method] for method in methods]
    handles = [Line2D([], [], **{**look.options(), "color": _ink(look), "markersize": 3.2}) for look in looks]
    room = _legend_room(content, methods)
    names = [_name(content, method, room) for method in methods]
    placed: dict[str, Any] = {
        "loc": "lower center",
        "bbox_to_anchor": (0.5, 0.0),
        "borderaxespad": 0.1,
        "borderpad": 0.2,
    }
    legend = figure.legend(handles, names, ncols=2, columnspacing=1.0, labelspacing=0.25, **placed)
    for method, text in zip(methods, legend.get_texts(), strict=True):
        text.set_fontweight("bold" if method in content.expected else "normal")


def _legend_room(content: Content, methods: Sequence[str]) -> float:
    """How wide a name may be, in inches: as it is where both columns fit side by side, else half of what there is."""
    half = -(-len(methods) // 2)
    columns = [part for part in (methods[:half], methods[half:]) if part]
    # Beside each name stands its line.
    available = style.COLUMN_WIDTH - 0.36 * len(columns)
    needed = sum(_names_width(content, part) - _GAP for part in columns)
    return _LONGEST_NAME if needed <= available else available / 2


def differences_figure(content: Content, part: Part) -> Figure:
    """A panel for each metric, a row for each method: how far it is from the baseline, better to the right."""
    methods = tuple(method for method in part.table.methods if method != content.baseline)
    metrics = part.table.metrics
    across = min(_ACROSS, len(metrics))
    down = -(-len(metrics) // across)
    width = style.PAGE_WIDTH if across > 1 else style.COLUMN_WIDTH
    left = _names_width(content, methods)
    wide = (width - left - across * _GAP * 1.5) / across
    # The arrow stays with the last word.
    arrow = width_of(" ↑")
    titles = [f"{fitted(metric_label(one), wide + _GAP - arrow)} {metric_called(one).arrow}" for one in metrics]
    above = 0.34 if any("\n" in title for title in titles) else 0.22
    high = _ROW * len(methods)
    each = above + high + _TICKS
    figure = _figure(width, down * each + _AXIS_NAME)
    for number, metric in enumerate(metrics):
        row, column = divmod(number, across)
        bottom = _AXIS_NAME + (down - row - 1) * each + _TICKS
        axes = _axes(figure, left + column * (wide + 1.5 * _GAP), bottom, wide, high)
        _difference_panel(axes, content, part, metric, methods)
        axes.set_title(titles[number], fontsize=style.TEXT, pad=3)
        axes.tick_params(labelleft=column == 0)
    name = fitted(content.labels[content.baseline], width - 2.6, lines=1)
    text = f"difference to {name}, better to the right"
    figure.text((left + width) / 2 / width, 0.05 / figure.get_figheight(), text, ha="center", va="bottom")
    return figure


def _difference_panel(axes: Axes, content: Content, part: Part, metric: str, methods: tuple[str, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    upwards = metric_called(metric).higher_is_better
    axes.axvline(0, color=style.FAINT, linewidth=0.8, zorder=1)
    for row, method in enumerate(methods):
        line = part.summary.line(metric, method)
        low, middle, high = line.difference_low, line.difference, line.difference_high
        if not upwards:
            low, middle, high = -high, -middle, -low
        if np.isfinite(middle) and line.verdict != "not compared":
            settled = line.verdict in ("ahead", "behind")
            _interval(axes, middle, low, high, row, content.looks[method], filled=settled)
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    # What lies to the right is better; its sign is that of the plain difference.
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{(value if upwards else -value) + 0.0:.3g}"))
    _name_rows(axes, content, methods)


def _interval(
    axes: Axes, middle: float, low: float, high: float, row: float, look: style.Line, *, filled: bool
) -> None:
    color = _ink(look)
    if np.isfinite(low):
        width = 2.2 if look.color == style.EMPHASIS else 1.4
        axes.plot([low, high], [row, row], color=color, linewidth=width, solid_capstyle="butt", zorder=2)
    dot: dict[str, Any] = {
        "color": color,
        "markerfacecolor": color if filled else PAPER,
        "markersize": 3.8,
        "markeredgewidth": 1.0,
    }
    axes.plot([middle], [row], look.marker, zorder=3, **dot)


def _ink(look: style.Line) -> str:
    """Black is the ink of the page, which is light on a dark one."""
    return style.INK if look.color == style.BLACK else look.color


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def _axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches."""
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.patch.set_visible(False)
    return axes


def _name(content: Content, method: str, width: float = _LONGEST_NAME) -> str:
    return fitted(content.labels[method], width, style.SMALL, lines=1, bold=method in content.expected)


def _names_width(content: Content, methods: Sequence[str]) -> float:
    """The room the longest name takes, in inches."""
    widths = [width_of(_name(content, method), style.SMALL, method in content.expected) for method in methods]
    return max(widths) + _GAP


def _name_rows(axes: Axes, content: Content, methods: tuple[str, ...]) -> None:
    axes.set_yticks(range(len(methods)), [_name(content, method) for method in methods])
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for method, text in zip(methods, axes.get_yticklabels(), strict=True):
        text.set_fontweight("bold" if method in content.expected else "normal")
