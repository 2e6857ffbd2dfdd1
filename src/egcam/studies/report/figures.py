"""The report's figures: mean ranks, perturbation curves, paired differences, and maps of example images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from egcam.figures import style
from egcam.metrics.registry import metric as metric_called
from egcam.plots import Tile, grid
from egcam.studies.report.content import Content, Example, Part
from egcam.studies.report.ranks import Ranking
from egcam.studies.report.words import metric_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["ranks", "curves", "differences", "examples"]
Theme = Literal["light", "dark"]

_DPI = 200
_ACROSS = 4
_SIDE = 148
# Letters; more would run into the next panel.
_TITLE_WIDTH = 20
_DARK: dict[Any, Any] = {
    "figure.facecolor": "#1e2127",
    "savefig.facecolor": "#1e2127",
    "axes.facecolor": "#1e2127",
    "text.color": "#e8eaed",
    "axes.labelcolor": "#e8eaed",
    "xtick.labelcolor": "#e8eaed",
    "ytick.labelcolor": "#e8eaed",
    "axes.edgecolor": "#a0a7b4",
    "xtick.color": "#a0a7b4",
    "ytick.color": "#a0a7b4",
    "grid.color": "#3a3f48",
}


@dataclass(frozen=True)
class Drawing:
    """A figure in the forms it is needed in.

    Attributes:
        name: of its files, without ending.
        kind: what it shows.
        caption: in a sentence, also for those who cannot see it.
        wide: whether it needs a page's width rather than a column's.
        png: on white.
        svg: on white, where it is a drawing and not photographs.
        dark: the same on a dark page.
    """

    name: str
    kind: Kind
    caption: str
    wide: bool
    png: bytes
    svg: bytes | None = None
    dark: bytes | None = None


def model_drawings(content: Content, part: Part) -> list[Drawing]:
    """The figures of one model."""
    found = []
    if part.ranking is not None:
        ranks = part.ranking
        found.append(
            _drawing(
                f"ranks-{part.file}",
                "ranks",
                rank_caption(ranks, part.model),
                False,
                lambda: ranks_figure(content, ranks),
            )
        )
    if part.curves:
        caption = (
            f"Mean perturbation curves on {part.model}, with pointwise 95 % intervals: the class's score as pixels are "
            "inserted or deleted, the most important first. Insertion should rise early, deletion fall early."
        )
        found.append(_drawing(f"curves-{part.file}", "curves", caption, False, lambda: curves_figure(content, part)))
    if len(part.table.methods) > 1:
        caption = (
            f"Paired differences to {content.labels[content.baseline]} on {part.model}, with 95 % intervals; to the "
            "right is better, whichever way the metric runs. Filled: the interval leaves out 0."
        )
        found.append(
            _drawing(
                f"differences-{part.file}", "differences", caption, True, lambda: differences_figure(content, part)
            )
        )
    if part.examples:
        caption = (
            f"Maps of the first {len(part.examples)} images on {part.model}: yellow matters most, then green, blue."
        )
        found.append(Drawing(f"examples-{part.file}", "examples", caption, True, _png(examples_picture(content, part))))
    return found


def overall_drawing(content: Content) -> Drawing | None:
    """The mean ranks over all models, where there are several."""
    ranks = content.ranking
    if ranks is None:
        return None
    caption = rank_caption(ranks, f"{len(content.parts)} models")
    return _drawing("ranks-all", "ranks", caption, False, lambda: ranks_figure(content, ranks))


def rank_caption(ranks: Ranking, where: str) -> str:
    """What the rank plot shows."""
    return (
        f"Mean rank over {len(ranks.metrics)} metric{'s' * (len(ranks.metrics) != 1)} on {where}, 1 is best, with 95 % "
        "intervals over images. Every metric counts once, running time not at all."
    )


def _drawing(name: str, kind: Kind, caption: str, wide: bool, draw: Callable[[], Figure]) -> Drawing:
    with _themed("light"):
        figure = draw()
        png, svg = _saved(figure, "png"), _saved(figure, "svg")
    with _themed("dark"):
        dark = _saved(draw(), "svg")
    return Drawing(name, kind, caption, wide, png, svg, dark)


@contextmanager
def _themed(theme: Theme) -> Iterator[None]:
    from matplotlib import rc_context

    with style.context(), rc_context(_DARK if theme == "dark" else {}):
        yield


def _saved(figure: Figure, kind: str) -> bytes:
    # Neither the day nor the version: the same results give the same bytes.
    anonymous: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=_DPI, metadata=anonymous)
    return buffer.getvalue()


def _png(picture: Image.Image) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _ink(look: style.Line) -> str:
    """Black lines are drawn in the ink of the page, which is light on a dark one."""
    from matplotlib import rcParams

    return str(rcParams["text.color"]) if look.color == style.BLACK else look.color


def ranks_figure(content: Content, ranks: Ranking) -> Figure:
    """A dot and an interval for each method, the best at the top."""
    count = len(ranks.methods)
    figure = _figure(style.COLUMN_WIDTH, 0.62 + 0.19 * count)
    axes = figure.subplots()
    for place, method in enumerate(ranks.methods):
        look = content.looks[method]
        _interval(axes, ranks.mean[place], ranks.low[place], ranks.high[place], place, look, filled=True)
        end = ranks.high[place] if np.isfinite(ranks.high[place]) else ranks.mean[place]
        axes.annotate(
            f"{ranks.mean[place]:.1f}",
            (max(end, ranks.mean[place]), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.SMALL,
        )
    _name_rows(axes, content, ranks.methods)
    known = np.concatenate([ranks.mean, ranks.low, ranks.high])
    first, last = int(np.floor(np.nanmin(known))), int(np.ceil(np.nanmax(known)))
    # Room on the right for the last number.
    axes.set_xlim(first - 0.04 * (last - first), last + 0.14 * (last - first))
    axes.set_xticks(range(first, last + 1))
    axes.set_xlabel("mean rank (1 is best)")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    return figure


def _name_rows(axes: Axes, content: Content, methods: tuple[str, ...]) -> None:
    axes.set_yticks(range(len(methods)), [content.labels[method] for method in methods])
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    # Panels that share their rows name them once.
    for method, text in zip(methods, axes.get_yticklabels(), strict=False):
        if method in content.expected:
            text.set_fontweight("bold")


def _interval(
    axes: Axes, middle: float, low: float, high: float, row: float, look: style.Line, *, filled: bool
) -> None:
    from matplotlib import rcParams

    color = _ink(look)
    wide = 2.2 if look.color == style.EMPHASIS else 1.4
    if np.isfinite(low):
        axes.plot([low, high], [row, row], color=color, linewidth=wide, solid_capstyle="butt", zorder=2)
    face = color if filled else str(rcParams["figure.facecolor"])
    axes.plot(
        [middle], [row], look.marker, color=color, markerfacecolor=face, markersize=3.8, markeredgewidth=1.0, zorder=3
    )


def curves_figure(content: Content, part: Part) -> Figure:
    """A panel for each kind of curve, the methods' names below."""
    shown = list(part.curves)
    methods = [method for method in part.table.methods if any(method in part.curves[metric] for metric in shown)]
    rows = -(-len(methods) // 2)
    figure = _figure(style.COLUMN_WIDTH, 1.75 + 0.155 * rows)
    for axes, metric in zip(np.atleast_1d(figure.subplots(1, len(shown), sharey=True)), shown, strict=True):
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
    figure.axes[0].set_ylabel("class score")
    handles = [_handle(content.looks[method]) for method in methods]
    legend = figure.legend(
        handles,
        [content.labels[method] for method in methods],
        loc="outside lower center",
        ncols=2,
        columnspacing=1.0,
        handlelength=2.4,
        labelspacing=0.25,
    )
    for method, text in zip(methods, legend.get_texts(), strict=True):
        if method in content.expected:
            text.set_fontweight("bold")
    return figure


def _markers(look: style.Line, points: int, number: int, methods: int) -> dict[str, Any]:
    """A few markers along a line, at other places for every method, so that they do not hide each other."""
    every = max(1, points // 4)
    return {"marker": look.marker, "markersize": 3.2, "markevery": (every * number // max(1, methods), every)}


def _handle(look: style.Line) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **{**look.options(), "color": _ink(look), "markersize": 3.2})


def differences_figure(content: Content, part: Part) -> Figure:
    """A panel for each metric, a row for each method: how far it is from the baseline, better to the right."""
    methods = tuple(method for method in part.table.methods if method != content.baseline)
    metrics = part.table.metrics
    across = min(_ACROSS, len(metrics))
    down = -(-len(metrics) // across)
    width = style.PAGE_WIDTH if across > 1 else style.COLUMN_WIDTH
    figure = _figure(width, down * (0.62 + 0.15 * len(methods)))
    panels = np.atleast_1d(figure.subplots(down, across, sharey=True)).ravel()
    for axes, metric in zip(panels, metrics, strict=False):
        _difference_panel(axes, content, part, metric, methods)
    for axes in panels[len(metrics) :]:
        axes.set_axis_off()
    figure.supxlabel(f"difference to {content.labels[content.baseline]}, better to the right", fontsize=style.TEXT)
    return figure


def _difference_panel(axes: Axes, content: Content, part: Part, metric: str, methods: tuple[str, ...]) -> None:
    from matplotlib import rcParams
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    upwards = metric_called(metric).higher_is_better
    axes.axvline(0, color=rcParams["xtick.color"], linewidth=0.8, zorder=1)
    for row, method in enumerate(methods):
        line = part.summary.line(metric, method)
        low, middle, high = line.difference_low, line.difference, line.difference_high
        if not upwards:
            low, middle, high = -high, -middle, -low
        settled = line.verdict in ("ahead", "behind")
        if np.isfinite(middle):
            _interval(axes, middle, low, high, row, content.looks[method], filled=settled)
    _name_rows(axes, content, methods)
    title = fill(metric_label(metric), _TITLE_WIDTH) + f" {metric_called(metric).arrow}"
    axes.set_title(title, fontsize=style.TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(3, symmetric=False))
    # What lies to the right is better; its sign is that of the plain difference.
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{(value if upwards else -value) + 0.0:.3g}"))
    axes.margins(x=0.08)


def examples_picture(content: Content, part: Part) -> Image.Image:
    """A row for each image: the photograph, then every method's map over it."""
    tiles = [tile for example in part.examples for tile in _tiles(content.labels, example)]
    return grid(tiles, columns=1 + len(content.labels), side=_SIDE)


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
        return f"class {example.target}, as predicted"
    return f"class {example.target}, predicted {example.prediction}"
