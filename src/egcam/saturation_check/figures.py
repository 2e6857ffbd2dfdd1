"""The saturation study's figures: curves, the images used, one image coming up from black, and where methods point.

All are as wide as a column of a paper and meant to be printed at that size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from egcam.drawing.overlays import overlay_image
from egcam.drawing.palette import Pixels
from egcam.drawing.text_layout import fitted, width_of
from egcam.errors import InputError
from egcam.figures import style
from egcam.figures.page import Page
from egcam.figures.pictures import as_rgb, draw_picture
from egcam.figures.sheet import Sheet
from egcam.figures.ticks import plain_numbers, these_numbers
from egcam.saturation_check.result import Quantity, Saturation
from egcam.saturation_check.study import ModelStudy

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
_GAP = 0.06
_LINE = 0.13


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


def samples(study: ModelStudy) -> Page:
    """The sample sheet: every image as the network sees it, with its label and the label's softmax score."""
    columns = max(1, min(5, len(study.pictures)))
    side = min((style.COLUMN_WIDTH - _GAP * (columns + 1)) / columns, 1.0)
    scores = study.measured.probability[:, -1].tolist()
    labels = [
        [*fitted(name, side, style.SMALL, 2).split("\n"), f"{score:.0%}"]
        for name, score in zip(study.classes, scores, strict=True)
    ]
    row_height = side + max(map(len, labels)) * _LINE + 0.1
    rows = -(-len(study.pictures) // columns)
    sheet = Sheet(columns * (side + _GAP) + _GAP, rows * row_height + _GAP)
    for index, (picture, lines) in enumerate(zip(study.pictures, labels, strict=True)):
        row, column = divmod(index, columns)
        left, top = _GAP + column * (side + _GAP), _GAP + row * row_height
        _place(sheet, as_rgb(picture), left, top, side)
        _write_lines(sheet, lines, left + side / 2, top + side)
    return sheet.page


def strip(studies: Sequence[ModelStudy]) -> Page:
    """The first image coming up from black, as the first network sees it; below it each network's softmax score."""
    inches, index = style.COLUMN_WIDTH, 0
    alphas = studies[0].measured.alphas.tolist()
    chosen = _spread_over(alphas, 10)
    columns = len(chosen) if len(chosen) <= 6 else -(-len(chosen) // 2)
    side = min((inches - _GAP * (columns + 1)) / columns, 1.0)
    header = _LINE * len(studies) + 0.04
    row_height = side + (1 + len(studies)) * _LINE + 0.1
    sheet = Sheet(inches, header + -(-len(chosen) // columns) * row_height + _GAP)
    for number, study in enumerate(studies):
        text = fitted(f"{study.label}: softmax score of “{study.classes[index]}”", inches - 2 * _GAP, style.SMALL, 1)
        _write_lines(sheet, [text], _GAP, number * _LINE - 0.02, across="left", color=_COLORS[number % len(_COLORS)])
    picture = as_rgb(studies[0].pictures[index])
    for place, step in enumerate(chosen):
        row, column = divmod(place, columns)
        left, top = _GAP + column * (side + _GAP), header + row * row_height
        _place(sheet, picture * np.float32(alphas[step]), left, top, side)
        _write_lines(sheet, [f"a = {alphas[step]:.2f}"], left + side / 2, top + side)
        for number, study in enumerate(studies):
            score = f"{float(study.measured.probability[index, step]):.3f}"
            below = top + side + (1 + number) * _LINE
            _write_lines(sheet, [score], left + side / 2, below, color=_COLORS[number % len(_COLORS)])
    return sheet.page


def _spread_over(alphas: Sequence[float], count: int) -> list[int]:
    """The steps nearest to `count` even values of a, each once."""
    wanted = np.linspace(0, 1, max(2, min(count, len(alphas))))
    return sorted({int(np.abs(np.asarray(alphas) - value).argmin()) for value in wanted})


def patches(study: ModelStudy, sharpness: float = 1.0) -> Page:
    """Where each method points, side by side: its map with the hottest patches framed, and what is shown of them.

    The numbers are softmax scores of the label: for the image, for the image blurred all over, and the insertion score,
    for the image blurred but for the patches. `sharpness` is an exponent of the overlays.
    """
    inches, count = style.COLUMN_WIDTH, min(2, len(study.pictures))
    columns = 1 + len(study.methods)
    side = (inches - _GAP * (columns + 1)) / columns
    header = 2 * _LINE + 0.06
    block = 2 * side + 2 * _GAP + _LINE + 0.06
    sheet = Sheet(inches, header + count * block)
    title = fitted(f"{study.label}, layer {study.measured.layer}", inches - 2 * _GAP, style.SMALL, 1)
    _write_lines(sheet, [title], _GAP, -0.02, across="left")
    for column, method in enumerate(study.methods):
        middle = _GAP + (column + 1) * (side + _GAP) + side / 2
        name = fitted(style.label(method), side, style.SMALL, 1)
        _write_lines(sheet, [name], middle, _LINE - 0.01, color=style.color(method))
    for index in range(count):
        _draw_pointed(sheet, study, index, side, header + index * block, sharpness)
    return sheet.page


def _draw_pointed(sheet: Sheet, study: ModelStudy, index: int, side: float, top: float, sharpness: float) -> None:
    picture = study.pictures[index]
    _place(sheet, as_rgb(picture), _GAP, top, side)
    first = next(iter(study.methods.values())).patches
    numbers = [f"image  {float(first.full[index]):.3f}", f"blurred  {float(first.background[index]):.3f}"]
    label = fitted(f"“{study.classes[index]}”", side, style.SMALL, 3).split("\n")
    _write_lines(sheet, [*label, *numbers], _GAP, top + side + _GAP, across="left")
    for column, (method, one) in enumerate(study.methods.items()):
        left = _GAP + (column + 1) * (side + _GAP)
        heat = one.explanation.heatmaps[index].float().cpu().numpy()
        lower = top + side + _GAP
        overlay = overlay_image(picture, heat, sharpness=sharpness)
        for shown, above in ((overlay, top), (one.pictures[index], lower)):
            axes = _place(sheet, as_rgb(shown), left, above, side)
            _frame_patches(axes, one.patches.boxes(index), style.color(method))
        score = f"{one.patches.cells.shape[1]} patches  {float(one.patches.scores[index]):.3f}"
        _write_lines(sheet, [score], left + side / 2, lower + side, color=style.color(method), bold=True)


def _frame_patches(axes: Axes, boxes: Sequence[tuple[float, float, float, float]], color: str) -> None:
    for left, top, right, bottom in boxes:
        # White below the colour: seen on dark and on light ground.
        for line, paint in ((2.0, "white"), (1.0, color)):
            axes.add_patch(
                Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=paint, linewidth=line)
            )


def _place(sheet: Sheet, pixels: Pixels, left: float, top: float, side: float) -> Axes:
    """A square picture, placed in inches."""
    axes = sheet.axes(left, top, side, side)
    draw_picture(axes, pixels)
    return axes


def _write_lines(
    sheet: Sheet,
    lines: Sequence[str],
    left: float,
    top: float,
    across: str = "center",
    color: str = style.INK,
    bold: bool = False,
) -> None:
    """Lines below `top`, each on its own base line: set as one text they would shift with their letters' tails."""
    for number, text in enumerate(lines):
        base = top + 0.02 + (number + 0.85) * _LINE
        sheet.write(text, left, base, across=across, down="baseline", color=color, bold=bold)
