"""Mean ranks with their intervals, and radars: all metrics at a glance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import cos, isfinite, pi, sin
from typing import TYPE_CHECKING, Any, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egcam.drawing import text_layout
from egcam.errors import InputError
from egcam.evaluation.ranking import MeanRank
from egcam.evaluation.table import Table
from egcam.figures import style
from egcam.figures.scores import by_metric, mean_ranks, normalised, normalised_intervals, scores_of
from egcam.figures.sheet import MARGIN, Sheet, name_rows
from egcam.figures.ticks import these_numbers
from egcam.metrics.registry import metric

if TYPE_CHECKING:
    import pandas as pd

_ROW = 0.17
# Where "worst" lies on a spoke: at the very centre the corners of all methods would meet.
_HOLE = 0.2
_RINGS = "outer ring: best of these methods; inner: worst"
# Where intervals are cut, as lengths on a spoke: the centre, and not far beyond the outer ring.
_CENTRE, _EDGE = -_HOLE / (1 - _HOLE), 1.35
# Between the bars of one spoke, in radii of the outer ring.
_ASIDE = 0.025
# Inches between a drawing and the words under it.
_BREATH = 0.05
_WIDEST = 3.6
_SHARE_ABOVE = {"bottom": 1.0, "center": 0.5, "top": 0.0}


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
        ['SlopeCAM', 'Grad-CAM', '1.00', '2.00']
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


@style.context()
def radar(
    source: Table | pd.DataFrame | Iterable[Mapping[str, Any]], *, width: style.Width | float = "column"
) -> Figure:
    """A spoke for each metric, a closed line for each method: outside is best, whichever way the metric counts.

        length = (mean - worst) / (best - worst)     over the methods shown, so in [0, 1]

    Lengths tell the order and the relative distance of these methods, not how large differences are: `metric_bars`
    does. A method without a score has a gap. Bars along the spokes are the intervals, where the source has them.

    Args:
        source: a table of scores, its `summary()`, or mappings with metric, method and mean (and low, high); three
            metrics or more.
        width: "column", "page" or inches.

    Example:
        >>> lines = [{"metric": name, "method": "grad-cam", "mean": 1.0} for name in ("insertion", "irof", "deletion")]
        >>> len(radar(lines).axes)
        1
    """
    panels = by_metric(scores_of(source))
    if len(panels) < 3:
        raise InputError(f"a radar needs three metrics or more, not {len(panels)}; metric_bars shows fewer")
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    lengths = {name: normalised(panel, metric(name).higher_is_better) for name, panel in panels.items()}
    intervals = {name: normalised_intervals(panel, metric(name).higher_is_better) for name, panel in panels.items()}
    inches = style.width_in_inches(width)
    beside = inches >= 5
    names = max(text_layout.width_of(style.label(method), style.SMALL) for method in methods) + 0.5
    web = _Web.fitting([f"{metric(name).label} {metric(name).arrow}" for name in panels], intervals.values(), inches)
    columns = 1 if beside else max(1, min(2, int(inches / names)))
    legend = 0.0 if beside else -(-len(methods) // columns) * 0.13
    note = text_layout.fitted(_note(intervals.values()), inches - 2 * MARGIN, style.SMALL, lines=2)
    foot = _BREATH + text_layout.height_of(note, style.SMALL) + _BREATH
    sheet = Sheet(inches, MARGIN + web.tall + foot + legend + MARGIN)
    left = (inches - web.wide - (names if beside else 0)) / 2
    axes = sheet.axes(left, MARGIN, web.wide, web.tall)
    web.draw(axes)
    for number, (method, look) in enumerate(style.lines(methods).items()):
        _draw_method(axes, method, [lengths[name].get(method, float("nan")) for name in panels], look)
        aside = _ASIDE * (number - (len(methods) - 1) / 2)
        _draw_intervals(axes, [intervals[name].get(method) for name in panels], look, aside)
    sheet.write(note, left + web.wide / 2, MARGIN + web.tall + _BREATH, color=style.FAINT)
    handles, labels = axes.get_legend_handles_labels()
    if beside:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": ((left + web.wide) / inches, 0.5)}
    else:
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, MARGIN / sheet.height), "ncols": columns}
    sheet.legend(handles, labels, **place)
    return sheet.page


def _note(intervals: Iterable[Mapping[str, tuple[float, float]]]) -> str:
    """What rings and bars are."""
    ends = [end for of_metric in intervals for pair in of_metric.values() for end in pair]
    if not ends:
        return _RINGS
    is_cut = min(ends) < _CENTRE or max(ends) > _EDGE
    return f"{_RINGS}; thin bars: intervals{', cut at centre and edge' if is_cut else ''}"


def _spoke(number: int, count: int, length: float) -> tuple[float, float]:
    """A point on a spoke: the first stands upright, the others follow clockwise."""
    angle = pi / 2 - 2 * pi * number / count
    reach = _HOLE + (1 - _HOLE) * length
    return reach * cos(angle), reach * sin(angle)


@dataclass(frozen=True)
class _Web:
    """Rings and spokes with their words, on no more paper than they take.

    Args:
        words: one for each spoke.
        ends: where the words stand, as lengths on the spokes: beyond the intervals.
        unit: the inches of the outer ring's radius.
        wide: inches, words included.
        above: inches from the centre up, words included.
        below: inches from the centre down.
    """

    words: tuple[str, ...]
    ends: tuple[float, ...]
    unit: float
    wide: float
    above: float
    below: float

    @classmethod
    def fitting(
        cls, words: Iterable[str], intervals: Iterable[Mapping[str, tuple[float, float]]], inches: float
    ) -> Self:
        """As large as a column allows, and no larger on a page."""
        words = tuple(words)
        highs = [max([1.0, *(high for _, high in of_metric.values())]) for of_metric in intervals]
        ends = tuple(min(high, _EDGE) + 0.09 for high in highs)
        spots = [_spoke(number, len(words), end) for number, end in enumerate(ends)]
        widths = [text_layout.width_of(word, style.TEXT) for word in words]
        high = text_layout.height_of(words[0], style.TEXT)
        room = min(inches, _WIDEST) / 2 - MARGIN
        beside = [(abs(x), width) for (x, _), width in zip(spots, widths, strict=True) if _across(x) != "center"]
        unit = min((room - width) / x for x, width in beside)
        wide = 2 * max(x * unit + width for x, width in beside)
        above = max(y * unit + high * _SHARE_ABOVE[_up(y)] for _, y in spots)
        below = max(-y * unit + high * (1 - _SHARE_ABOVE[_up(y)]) for _, y in spots)
        return cls(words, ends, unit, wide, above, below)

    @property
    def tall(self) -> float:
        """Inches, words included."""
        return self.above + self.below

    def draw(self, axes: Axes) -> None:
        """Rings, spokes and words."""
        count = len(self.words)
        for length in (0.0, 0.5, 1.0):
            ring = [_spoke(number, count, length) for number in [*range(count), 0]]
            axes.plot(*zip(*ring, strict=True), color=style.RULE, linewidth=0.6, zorder=1)
        for number, word in enumerate(self.words):
            start, end = _spoke(number, count, 0), _spoke(number, count, 1)
            axes.plot([start[0], end[0]], [start[1], end[1]], color=style.RULE, linewidth=0.6, zorder=1)
            x, y = _spoke(number, count, self.ends[number])
            axes.text(x, y, word, ha=_across(x), va=_up(y))
        axes.set_xlim(-self.wide / 2 / self.unit, self.wide / 2 / self.unit)
        axes.set_ylim(-self.below / self.unit, self.above / self.unit)
        axes.axis("off")


def _across(x: float) -> str:
    """How a word stands at the end of a spoke, sideways."""
    return "center" if abs(x) < 0.15 else "left" if x > 0 else "right"


def _up(y: float) -> str:
    """How a word stands at the end of a spoke, upright."""
    return "bottom" if y > 0.9 else "top" if y < -0.9 else "center"


def _draw_method(axes: Axes, method: str, lengths: list[float], look: style.LineStyle) -> None:
    around = [_spoke(number, len(lengths), length) for number, length in enumerate(lengths)]
    closed = [*around, around[0]]
    xs, ys = zip(*closed, strict=True)
    axes.plot(xs, ys, label=style.label(method), **look.options())


def _draw_intervals(
    axes: Axes, intervals: list[tuple[float, float] | None], look: style.LineStyle, aside: float
) -> None:
    """Bars along the spokes, each method's a little aside, lest they cover each other."""
    count = len(intervals)
    for number, interval in enumerate(intervals):
        if interval is None:
            continue
        angle = pi / 2 - 2 * pi * number / count
        ends = [_spoke(number, count, min(max(end, _CENTRE), _EDGE)) for end in interval]
        xs, ys = zip(*((x - aside * sin(angle), y + aside * cos(angle)) for x, y in ends), strict=True)
        axes.plot(xs, ys, color=look.color, linewidth=1.2, alpha=0.55, solid_capstyle="butt", zorder=2)
