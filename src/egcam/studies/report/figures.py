"""The report's figures as files: drawings for light and dark pages, and maps of example images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from egcam.drawing.overlays import Tile, grid
from egcam.evaluation.numbers import counted
from egcam.evaluation.ranking import Ranking
from egcam.figures import style
from egcam.studies.report import drawing
from egcam.studies.report.content import Content, Example, Part
from egcam.studies.report.words import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["ranks", "curves", "differences", "examples"]

_DPI = 200
_SIDE = 148
_ON_DARK = {drawing.PAPER: "#1e2127", style.INK: "#e8eaed", style.FAINT: "#a0a7b4", style.RULE: "#3a3f48"}


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
                rank_caption(ranks, part.model, content.labels),
                False,
                lambda: drawing.ranks_figure(content, ranks),
            )
        )
    if part.curves:
        caption = (
            f"Mean perturbation curves on {part.model} over {_curve_images(part)}, with pointwise 95 % intervals: the "
            "class's score as pixels are inserted or deleted, the most important first. Insertion should rise early, "
            "deletion fall early."
        )
        found.append(
            _drawing(f"curves-{part.file}", "curves", caption, False, lambda: drawing.curves_figure(content, part))
        )
    if len(part.table.methods) > 1:
        caption = (
            f"Paired differences to {content.labels[content.baseline]} on {part.model}, with 95 % intervals; to the "
            "right is better, whichever way the metric runs. Filled: the interval leaves out 0."
            + (" Without a dot: no score, or too few to compare." if _gaps(part) else "")
        )
        found.append(
            _drawing(
                f"differences-{part.file}",
                "differences",
                caption,
                True,
                lambda: drawing.differences_figure(content, part),
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
    caption = rank_caption(ranks, f"{len(content.parts)} models", content.labels)
    return _drawing("ranks-all", "ranks", caption, False, lambda: drawing.ranks_figure(content, ranks))


def _curve_images(part: Part) -> str:
    """How many images the curves are over: as many for all methods, but not always for insertion and deletion."""
    counts = sorted({band.images for bands in part.curves.values() for band in bands.values()})
    return counted(counts[0], "image") if len(counts) == 1 else f"{counts[0]:,} to {counted(counts[-1], 'image')}"


def _gaps(part: Part) -> bool:
    return any(line.verdict in ("no score", "not compared") for line in part.summary.lines)


def rank_caption(ranks: Ranking, where: str, labels: Mapping[str, str]) -> str:
    """What the rank plot shows, and which methods it does not."""
    left_out = [label for method, label in labels.items() if method not in ranks.methods]
    more = f" Not ranked, for want of scores: {listed(left_out)}." if left_out else ""
    return (
        f"Mean rank over {len(ranks.metrics)} metric{'s' * (len(ranks.metrics) != 1)} on {where}, 1 is best, with 95 % "
        "intervals over images. Methods are ranked image by image and metric by metric; running time does not count."
        + more
    )


def _drawing(name: str, kind: Kind, caption: str, wide: bool, draw: Callable[[], Figure]) -> Drawing:
    with style.context():
        figure = draw()
        png, svg = _saved(figure, "png"), _saved(figure, "svg")
    return Drawing(name, kind, caption, wide, png, svg, _darkened(svg))


def _darkened(svg: bytes) -> bytes:
    """The same drawing for a dark page: ink, rules and paper change, the methods' colours stay."""
    text = svg.decode()
    for light, dark in _ON_DARK.items():
        text = text.replace(light.lower(), dark)
    return text.encode()


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
        return f"{_class_name(example, example.target)}, as predicted"
    predicted = _class_name(example, example.prediction).removeprefix("class ")
    return f"{_class_name(example, example.target)}, predicted {predicted}"


def _class_name(example: Example, number: int) -> str:
    """The first of a class's names, as the command shows it, or its number."""
    if example.classes is None or not 0 <= number < len(example.classes):
        return f"class {number}"
    return example.classes[number].split(",")[0]
