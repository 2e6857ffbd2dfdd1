"""Perturbation curves: the score while pixels come or go, its mean over images and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egcam.drawing import text_layout
from egcam.errors import InputError
from egcam.evaluation.stats import intervals
from egcam.figures import style
from egcam.figures.sheet import MARGIN, Sheet
from egcam.figures.ticks import plain_numbers, these_numbers
from egcam.imageops import in_double
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import metric, names

Values = npt.NDArray[np.float64]

_AXES = {"insertion": "share of pixels inserted", "deletion": "share of pixels deleted"}


@dataclass(frozen=True)
class MeanCurve:
    """Curves of several images as one."""

    fractions: Values  # (K,) the share of pixels replaced
    mean: Values  # (K,) over images
    low: Values  # (K,) the lower edge of the interval of the mean; the mean itself with a single image
    high: Values  # (K,) the upper edge
    area: float  # the mean of the images' areas


def mean_curve(curve: Curve, level: float = 0.95, *, resamples: int = 2000, seed: int = 0) -> MeanCurve:
    """The mean over images at every point, with its percentile bootstrap interval over images, as tables have it.

    Such an interval never leaves the range of the scores: that of a probability stays between 0 and 1. Curves whose
    points differ between images are read off at the points of them all, by straight lines between.

    Example:
        >>> import torch
        >>> found = mean_curve(Curve(torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[0.0, 1.0], [0.5, 1.0]])))
        >>> found.mean.tolist(), found.area
        ([0.25, 1.0], 0.625)
    """
    if not 0 < level < 1:
        raise InputError(f"the level of an interval is between 0 and 1, such as 0.95; not {level}")
    single = curve.scores.ndim == 1
    fractions = curve.fractions[None] if single else curve.fractions
    scores = curve.scores[None] if single else curve.scores
    places, heights = in_double(fractions).numpy(), in_double(scores).numpy()
    common = places[0]
    if not (places == common).all():
        common = np.unique(places)
        heights = np.stack([np.interp(common, own, row) for own, row in zip(places, heights, strict=True)])
    mean = heights.mean(0)
    low, high = intervals(heights, level, resamples, seed) if len(heights) > 1 else (mean, mean)
    area = float(torch.trapezoid(in_double(scores), in_double(fractions), dim=1).mean())
    return MeanCurve(common, mean, low, high, area)


@style.context()
def perturbation_curves(
    curves: Mapping[str, Mapping[str, Curve | MeanCurve]],
    *,
    level: float = 0.95,
    score: str = "class probability",
    width: style.Width | float = "page",
    labels: Mapping[str, str] | None = None,
    looks: Mapping[str, style.LineStyle] | None = None,
) -> Figure:
    """Insertion, deletion or other curves of several methods: mean, interval, and the areas in the legend.

    The legend lists the methods from the best area in the first panel on (by the metric's direction where a panel is
    named after one), each with its areas in the order of the panels. All panels have one scale.

    Args:
        curves: by panel ("insertion", "deletion", …), then by method: what `insertion_curve` and the like return, or
            what `mean_curve` made of it.
        level: of the band around the mean; a single image has none.
        score: what the height of a curve is.
        width: "column", "page" or inches.
        labels: what to call the methods; `style.label` by default.
        looks: how to draw them; `style.lines` by default.

    Example:
        >>> import torch
        >>> curve = Curve(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]]))
        >>> figure = perturbation_curves({"insertion": {"grad-cam": curve}})
        >>> figure.legends[0].get_texts()[0].get_text()
        'Grad-CAM  0.500'
    """
    if not curves or not all(curves.values()):
        raise InputError("there is nothing to draw: pass curves by panel and method, {'insertion': {'grad-cam': …}}")
    panels = {
        name: {
            method: curve if isinstance(curve, MeanCurve) else mean_curve(curve, level)
            for method, curve in panel.items()
        }
        for name, panel in curves.items()
    }
    ranked = _ranked(panels)
    looks = looks or style.lines(ranked)
    called = {method: labels[method] if labels else style.label(method) for method in ranked}
    inches = style.width_in_inches(width)
    areas = {method: _areas(panels, method) for method in ranked}
    room = inches - 2 * MARGIN - 0.45 - max(text_layout.width_of(f"  {text}", style.SMALL) for text in areas.values())
    entries = {
        method: f"{text_layout.fitted(called[method], room, style.SMALL, 1)}  {areas[method]}" for method in ranked
    }
    room = inches - _LEFT - MARGIN - 0.06
    across = min(len(panels), max(1, int((room + _BETWEEN) / (_SMALLEST + _BETWEEN))))
    rows = -(-len(panels) // across)
    wide = min(3.4, (room - (across - 1) * _BETWEEN) / across)
    tall = min(0.85 * wide, 2.2)
    widest = max(text_layout.width_of(text, style.SMALL) for text in entries.values())
    columns = min(max(1, int((inches - 2 * MARGIN) / (widest + 0.45))), len(entries))
    legend = (-(-len(entries) // columns) + 1) * _LINE + 0.09
    sheet = Sheet(inches, rows * (_ABOVE + tall + _BELOW) + legend + MARGIN)
    start = _LEFT + (room - across * wide - (across - 1) * _BETWEEN) / 2
    low, high = _range(panels)
    for number, (name, panel) in enumerate(panels.items()):
        row, column = divmod(number, across)
        top = row * (_ABOVE + tall + _BELOW) + _ABOVE
        axes = sheet.axes(start + column * (wide + _BETWEEN), top, wide, tall)
        _draw(axes, name, {method: panel[method] for method in ranked if method in panel}, looks)
        axes.set_ylim(low, high)
        axes.tick_params(labelleft=column == 0)
        if column == 0:
            axes.set_ylabel(score)
    _draw_legend(sheet, entries, looks, list(panels), columns, legend)
    return sheet.page


_LEFT, _BETWEEN, _ABOVE, _BELOW, _SMALLEST, _LINE = 0.5, 0.16, 0.24, 0.4, 1.2, 0.124


def _range(panels: Mapping[str, Mapping[str, MeanCurve]]) -> tuple[float, float]:
    """The heights that hold every band, with some air."""
    low = min(float(curve.low.min()) for panel in panels.values() for curve in panel.values())
    high = max(float(curve.high.max()) for panel in panels.values() for curve in panel.values())
    air = 0.04 * ((high - low) or 1.0)
    return low - air, high + air


def _ranked(panels: Mapping[str, Mapping[str, MeanCurve]]) -> list[str]:
    """All methods, from the best in the first panel on."""
    name, first = next(iter(panels.items()))
    known = metric(name) if name in names() else None
    higher = known is None or known.higher_is_better
    ranked = sorted(first, key=lambda method: first[method].area, reverse=higher)
    return list(dict.fromkeys([*ranked, *(method for panel in panels.values() for method in panel)]))


def _areas(panels: Mapping[str, Mapping[str, MeanCurve]], method: str) -> str:
    found = [f"{panel[method].area:.3f}" if method in panel else "–" for panel in panels.values()]
    return " / ".join(found).replace("-", "−")


def _titled(name: str) -> str:
    known = metric(name) if name in names() else None
    return name.replace("-", " ") + (f" {known.arrow}" if known is not None else "")


def _draw(axes: Axes, name: str, panel: Mapping[str, MeanCurve], looks: Mapping[str, style.LineStyle]) -> None:
    for method, curve in panel.items():
        look = looks[method]
        axes.plot(curve.fractions, curve.mean, **look.options(marker=False))
        if (curve.high > curve.low).any():
            axes.fill_between(
                curve.fractions, curve.low, curve.high, color=look.color, alpha=0.13, linewidth=0, zorder=look.order - 1
            )
    axes.set_title(_titled(name).capitalize(), pad=3)
    axes.set_xlabel(_AXES.get(name, "share of pixels replaced"), labelpad=2)
    axes.set_xlim(0, 1)
    these_numbers(axes.xaxis, [0.0, 0.5, 1.0])
    plain_numbers(axes.yaxis, most=5)
    axes.grid(visible=True)
    axes.set_axisbelow(True)


def _draw_legend(
    sheet: Sheet,
    entries: Mapping[str, str],
    looks: Mapping[str, style.LineStyle],
    panels: list[str],
    columns: int,
    height: float,
) -> None:
    handles = [Line2D([], [], **looks[method].options(marker=False)) for method in entries]
    sheet.legend(
        handles,
        list(entries.values()),
        loc="upper center",
        bbox_to_anchor=(0.5, (height + MARGIN) / sheet.height),
        ncols=columns,
        title=f"area under the curve: {' / '.join(_titled(name) for name in panels)}",
        title_fontsize=style.SMALL,
        columnspacing=1.2,
    )
