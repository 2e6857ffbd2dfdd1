"""The report's figures as files: drawings for light and dark pages, and maps of example images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from egcam.drawing.overlays import Tile, grid
from egcam.drawing.text_layout import fitted, width_of
from egcam.evaluation.numbers import counted
from egcam.figures import perturbation_curves, rank_plot, style
from egcam.figures.page import encoded
from egcam.figures.sheet import Sheet, name_rows
from egcam.figures.ticks import number
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.formatting import listed, metric_label

if TYPE_CHECKING:
    from egcam.evaluation.ranking import Ranking
    from egcam.studies.report.view import Example, ModelSection, Report


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


Kind = Literal["ranks", "curves", "differences", "examples"]

_DPI = 200
_SIDE = 148


@dataclass(frozen=True)
class Drawing:
    """A figure in the forms it is needed in."""

    name: str  # of its files, without ending
    kind: Kind  # what it shows
    caption: str  # in a sentence, also for those who cannot see it
    wide: bool  # whether it needs a page's width rather than a column's
    png: bytes  # on white
    svg: bytes | None = None  # on white, where it is a drawing and not photographs
    dark: bytes | None = None  # the same on a dark page


def model_drawings(report: Report, section: ModelSection) -> list[Drawing]:
    """The figures of one model."""
    found = []
    if section.ranking is not None:
        found.append(_ranks(report, section.ranking, section.file, section.model))
    if section.curves:
        found.append(_curves(report, section))
    if len(section.table.methods) > 1:
        found.append(_differences(report, section))
    if section.examples:
        caption = (
            f"Maps of the first {len(section.examples)} images on {section.model}: yellow matters most, then green, "
            "then blue."
        )
        picture = _png(examples_picture(report, section))
        found.append(Drawing(f"examples-{section.file}", "examples", caption, True, picture))
    return found


def overall_drawing(report: Report) -> Drawing | None:
    """The mean ranks over all models, where there are several."""
    if report.ranking is None:
        return None
    return _ranks(report, report.ranking, "all", f"{len(report.sections)} models")


def _ranks(report: Report, ranks: Ranking, file: str, where: str) -> Drawing:
    figure = rank_plot(ranks.ranks, labels=report.labels, looks=report.looks)
    return _drawing(f"ranks-{file}", "ranks", rank_caption(ranks, where, report.labels), False, figure)


def _curves(report: Report, section: ModelSection) -> Drawing:
    caption = (
        f"Mean perturbation curves on {section.model} over {_curve_images(section)}, with pointwise 95 % intervals: "
        "the class's score as pixels are inserted or deleted, the most important first. Insertion should rise early, "
        "deletion fall early."
    )
    figure = perturbation_curves(
        section.curves, score="class score", width="column", labels=report.labels, looks=report.looks
    )
    return _drawing(f"curves-{section.file}", "curves", caption, False, figure)


def _differences(report: Report, section: ModelSection) -> Drawing:
    caption = (
        f"Median differences to {report.labels[report.baseline]} on {section.model}, with 95 % intervals; to the "
        "right is better, whichever way the metric runs. Filled: ahead or behind, by the test above."
        + (" Without a dot: no score, or too few to compare." if _gaps(section) else "")
    )
    figure = differences_figure(report, section)
    return _drawing(f"differences-{section.file}", "differences", caption, True, figure)


def _curve_images(section: ModelSection) -> str:
    """How many images the curves are over: as many for all methods, but not always for insertion and deletion."""
    counts = sorted(set(section.curve_images.values()))
    return counted(counts[0], "image") if len(counts) == 1 else f"{counts[0]:,} to {counted(counts[-1], 'image')}"


def _gaps(section: ModelSection) -> bool:
    return any(line.verdict in ("no score", "not compared") for line in section.summary.lines)


def rank_caption(ranks: Ranking, where: str, labels: Mapping[str, str]) -> str:
    """What the rank plot shows, and which methods it does not."""
    left_out = [label for method, label in labels.items() if method not in ranks.methods]
    more = f" Not ranked, because scores are missing: {listed(left_out)}." if left_out else ""
    return (
        f"Mean rank over {len(ranks.metrics)} metric{'s' * (len(ranks.metrics) != 1)} on {where}, 1 is best, with 95 % "
        "intervals over images. Methods are ranked image by image and metric by metric; running time does not count."
        + more
    )


def _drawing(name: str, kind: Kind, caption: str, wide: bool, figure: Figure) -> Drawing:
    png, svg = (encoded(figure, form, _DPI) for form in ("png", "svg"))
    return Drawing(name, kind, caption, wide, png, svg, style.darkened(svg))


def _png(picture: Image.Image) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def examples_picture(report: Report, section: ModelSection) -> Image.Image:
    """A row for each image: the photograph, then every method's map over it."""
    tiles = [tile for example in section.examples for tile in _tiles(report.labels, example)]
    return grid(tiles, columns=1 + len(report.labels), side=_SIDE)


def _tiles(labels: Mapping[str, str], example: Example) -> list[Tile]:
    blank = Image.new("RGB", example.photograph.size, "#e8eaee")
    found = [Tile(example.photograph, example.name, classes_of(example))]
    for method, overlay in example.overlays.items():
        found.append(Tile(overlay or blank, labels[method], "" if overlay else "no map"))
    return found


def classes_of(example: Example) -> str:
    """The explained and the predicted class of an example, in words."""
    if example.target < 0:
        return "class unknown"
    if example.target == example.prediction:
        return f"{_class_name(example, example.target)}, as predicted"
    predicted = _class_name(example, example.prediction).removeprefix("class ")
    return f"{_class_name(example, example.target)}, predicted {predicted}"


def _class_name(example: Example, number: int) -> str:
    """The first of a class's names, as the command shows it, or its number."""
    if example.classes is None or not 0 <= number < len(example.classes):
        return f"class {number}"
    return example.classes[number].split(",")[0]
