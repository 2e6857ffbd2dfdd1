"""Perturbation curves: the score while pixels come or go, its mean over images and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egcam.errors import InputError
from egcam.figures import style, words
from egcam.figures.page import Page
from egcam.figures.ticks import plain_numbers
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import names

Values = npt.NDArray[np.float64]

_AXES = {"insertion": "pixels inserted (share)", "deletion": "pixels deleted (share)"}


@dataclass(frozen=True)
class MeanCurve:
    """Curves of several images as one.

    Attributes:
        fractions: (K,) the share of pixels replaced.
        mean: (K,) over images.
        low: (K,) the lower edge of the interval of the mean; the mean itself with a single image.
        high: (K,) the upper edge.
        area: the mean of the images' areas.
    """

    fractions: Values
    mean: Values
    low: Values
    high: Values
    area: float


def mean_curve(curve: Curve, level: float = 0.95) -> MeanCurve:
    """The mean over images at every point, with its normal interval: mean ± z s / sqrt(N), s the sample's deviation.

    Curves whose points differ between images are read off at the points of them all, by straight lines between.

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
    places, heights = fractions.double().cpu().numpy(), scores.double().cpu().numpy()
    common = places[0]
    if not (places == common).all():
        common = np.unique(places)
        heights = np.stack([np.interp(common, own, row) for own, row in zip(places, heights, strict=True)])
    mean = heights.mean(0)
    error = heights.std(0, ddof=1) / len(heights) ** 0.5 if len(heights) > 1 else np.zeros_like(mean)
    reach = NormalDist().inv_cdf((1 + level) / 2) * error
    area = float(torch.trapezoid(scores.double(), fractions.double(), dim=1).mean())
    return MeanCurve(common, mean, mean - reach, mean + reach, area)


@style.context()
def perturbation_curves(
    curves: Mapping[str, Mapping[str, Curve]],
    *,
    level: float = 0.95,
    score: str = "class probability",
    width: style.Width | float = "page",
) -> Figure:
    """Insertion, deletion or other curves of several methods: mean, interval, and the area in the legend.

    Legends list the best area first, by the metric's direction where a panel is named after a metric. Panels stand
    side by side, and below each other in a column.

    Args:
        curves: by panel ("insertion", "deletion", …), then by method: what `insertion_curve` and the like return.
        level: of the band around the mean; a single image has none.
        score: what the height of a curve is.
        width: "column", "page" or inches.

    Example:
        >>> import torch
        >>> curve = Curve(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]]))
        >>> figure = perturbation_curves({"insertion": {"grad-cam": curve}})
        >>> figure.axes[0].get_legend().get_texts()[0].get_text()
        'Grad-CAM 0.500'
    """
    if not curves or not all(curves.values()):
        raise InputError("there is nothing to draw: pass curves by panel and method, {'insertion': {'grad-cam': …}}")
    inches = style.width_in_inches(width)
    most = max(len(panel) for panel in curves.values())
    beside = inches / len(curves) >= 2.2
    wide = inches / len(curves) if beside else inches
    columns = 2 if wide >= 3 and most > 2 else 1
    legend = -(-most // columns) * words.height_of("x", style.SMALL) * 1.35 + 0.15
    tall = 0.6 * min(wide, 3.5) + 0.45 + legend
    across = len(curves) if beside else 1
    page = Page(inches, tall * (1 if beside else len(curves)), layout="constrained")
    looks = style.lines(dict.fromkeys(method for panel in curves.values() for method in panel))
    # Kinds of curve may share their score's scale, and then their heights can be compared across panels.
    grid: Any = page.subplots(-(-len(curves) // across), across, squeeze=False, sharey=beside)
    for number, (axes, (name, panel)) in enumerate(zip(grid.flat, curves.items(), strict=True)):
        _draw(axes, name, {method: mean_curve(curve, level) for method, curve in panel.items()}, looks, columns)
        if number == 0 or not beside:
            axes.set_ylabel(score)
    return page


def _draw(axes: Axes, name: str, panel: Mapping[str, MeanCurve], looks: Mapping[str, style.Line], columns: int) -> None:
    metric = names().get(name)
    higher = metric is None or metric.higher_is_better
    ranked = sorted(panel, key=lambda method: panel[method].area, reverse=higher)
    for method in ranked:
        curve, look = panel[method], looks[method]
        text = f"{style.label(method)} {curve.area:.3f}".replace("-0.", "−0.")
        axes.plot(curve.fractions, curve.mean, label=text, **look.options(marker=False))
        if (curve.high > curve.low).any():
            axes.fill_between(
                curve.fractions, curve.low, curve.high, color=look.color, alpha=0.13, linewidth=0, zorder=look.order - 1
            )
    axes.set_title(name.capitalize() + (f" {metric.arrow}" if metric is not None else ""))
    axes.set_xlabel(_AXES.get(name, "pixels replaced (share)"))
    axes.set_xlim(0, 1)
    plain_numbers(axes.xaxis, most=5)
    plain_numbers(axes.yaxis, most=5)
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.45, -0.26),
        ncols=columns,
        title="area",
        alignment="left",
        title_fontsize=style.SMALL,
        columnspacing=1.0,
        handletextpad=0.5,
        labelspacing=0.25,
        borderaxespad=0,
    )
