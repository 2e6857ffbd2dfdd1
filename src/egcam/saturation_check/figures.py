"""The figure of the paper's study: what networks say, and how long their gradient is, as images come up from black."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from egcam.drawing.text_layout import fitted, width_of
from egcam.errors import InputError
from egcam.figures import style
from egcam.figures.page import Page
from egcam.figures.ticks import plain_numbers, these_numbers
from egcam.saturation_check.result import Quantity, Saturation

# Networks, not methods: colours of their own order, and line styles that survive a grey print.
_COLORS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.BLACK)
_STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
_PANELS: tuple[tuple[Quantity, str], ...] = (
    ("cosine", "Cosine to full image"),
    ("logit", "Logit (▲: 90%)"),
    ("probability", "Softmax score (▲: 90%)"),
    ("gradient", "Gradient length ÷ mean"),
)
_BOUNDS: dict[Quantity, tuple[float, float]] = {"cosine": (-1, 1), "probability": (0, 1), "gradient": (0, np.inf)}


def curves(measured: Mapping[str, Saturation], width: style.Width | float = "column") -> Page:
    """The four curves of one or more networks: the mean over images, and a band of two standard deviations.

    The panel of the gradient shows its length over its mean along each image's path, so that networks can be compared.
    Triangles mark the mean a from which on the output stays at or above 90 % of its way from black to the image. When
    there is one network, each image's own curve is drawn, thinly.

    Args:
        measured: what was measured, by the network's name.
        width: of the figure.

    Example:
        >>> import torch
        >>> line = torch.linspace(0, 1, 5)
        >>> flat = torch.ones(2, 5)
        >>> one = Saturation(line, flat, line.expand(2, 5), flat, flat, flat[:, 0], flat[:, 0].long(), "4", "even", 10)
        >>> len(curves({"small": one}).axes)
        4
    """
    if not measured:
        raise InputError("there is nothing to draw: pass at least one measured network")
    inches = style.width_in_inches(width)
    names = [fitted(f"{name}, {one.layer}", inches - 0.6, style.SMALL, 1) for name, one in measured.items()]
    columns = max(1, min(len(names), int(inches // (max(width_of(name, style.SMALL) for name in names) + 0.55))))
    legend = 0.04 + 0.145 * -(-len(names) // columns)
    height = 0.78 * inches + legend
    page = Page(
        inches, height, layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03, rect=(0, 0, 1, 1 - legend / height))
    )
    with style.context():
        panels = page.subplots(2, 2, sharex=True).ravel()
        for axes, (quantity, title) in zip(panels, _PANELS, strict=True):
            handles = [
                _draw_curve(axes, one, quantity, number, len(measured) == 1)
                for number, one in enumerate(measured.values())
            ]
            axes.set_title(title, fontsize=style.TEXT, pad=3)
            axes.set_xlim(0, 1)
            these_numbers(axes.xaxis, [0, 0.5, 1])
            _set_heights(axes, quantity)
        for axes in panels[2:]:
            axes.set_xlabel("pixel scale a", labelpad=2)
        page.legend(
            handles, names, loc="upper center", ncols=columns, borderaxespad=0.15, columnspacing=1.4, labelspacing=0.3
        )
    return page


def _draw_curve(axes: Axes, one: Saturation, quantity: Quantity, number: int, images: bool) -> Line2D:
    a = one.alphas.double()
    values = one.curve(quantity).double().cpu()
    if quantity == "gradient":
        along = torch.trapezoid(values, a, dim=1)[:, None]
        values = values / torch.where(along > 0, along, torch.nan)
    color = _COLORS[number % len(_COLORS)]
    middle = values.mean(0)
    if len(values) > 1:
        low, high = _BOUNDS.get(quantity, (-np.inf, np.inf))
        spread = 2 * values.std(0)
        # Two deviations know nothing of bounds: there is no score above 1 and no length below 0.
        below, above = (middle - spread).clamp(low, high), (middle + spread).clamp(low, high)
        axes.fill_between(a, below, above, facecolor=color, alpha=0.13, linewidth=0, zorder=1)
        for edge in (below, above):
            axes.plot(a, edge, color=color, alpha=0.4, linewidth=0.4, zorder=1.5)
        if images:
            axes.plot(a, values.T, color=color, linewidth=0.35, alpha=0.45, zorder=2)
    if quantity in ("logit", "probability"):
        reached = float(one.reach(of=quantity).nanmean())
        axes.plot([reached], [0.02], "^", markersize=3.5, color=color, transform=axes.get_xaxis_transform(), zorder=4)
    (line,) = axes.plot(a, middle, color=color, linestyle=_STYLES[number % len(_STYLES)], linewidth=1.4, zorder=3)
    return line


def _set_heights(axes: Axes, quantity: Quantity) -> None:
    low, high = axes.get_ylim()
    if quantity in ("cosine", "probability"):
        axes.set_ylim(min(0.0, low), 1.03)
        these_numbers(axes.yaxis, [0, 0.5, 1])
    elif quantity == "gradient":
        axes.set_ylim(0, max(1.5, min(high, 4.0)))
        axes.axhline(1, color=style.FAINT, linewidth=0.5, linestyle=(0, (2, 2)), zorder=0.5)
        plain_numbers(axes.yaxis)
    else:
        plain_numbers(axes.yaxis)
