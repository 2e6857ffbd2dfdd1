"""The demonstration: photographs that come along, a network that needs no download, and answers that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from egcam._version import __version__
from egcam.attribution.registry import method, records
from egcam.drawing.overlays import Tile, grid, overlay_image
from egcam.errors import require
from egcam.models.classifier import Classifier
from egcam.models.zoo import EMBEDDED, load
from egcam.pages import render
from egcam.pages.tables import Cell, Column, TextTable
from egcam.photos.comparison import Comparison, Result, compare
from egcam.progress import Progress, part_of
from egcam.truth.walls import walls_trial

INTRODUCTION = (
    "Each map shows which places made the network choose its class: yellow matters most, then green and blue; where "
    "the photograph shows through, nothing matters. Grad-CAM and SlopeCAM are each at their usual layer. The regions "
    "outlined on SlopeCAM's maps say how much of the class's score they add."
)
BEHIND_A_WALL = (
    "What the network finds in the dark part is erased before the rest of it reads on, so that nothing there can "
    "matter: all heat in the dark part is wrong. The number, 0 to 1, says how much there is. Both methods explain the "
    "same layer. HiResCAM and others that weigh place by place have none there, either."
)
KNOWN = (
    "Means over the images of each test. Walls: heat where the network cannot look; gridpg, patch, shapes: share of "
    "the heat where the answer is; unit+: evidence found, F1; cells: correlation with Shapley values. The last two "
    "rows ignore the class. egcam truth runs these tests."
)

_MAIN = ("grad-cam", "slope-cam")
_QUICK_SAMPLES = 8
_AT_THE_LAST_LAYER = ("cam",)  # by definition; with a linear head it is what every gradient CAM shows there


@dataclass(frozen=True)
class Photograph:
    """A photograph of scikit-image."""

    name: str
    shows: str
    note: str  # what to look at in its maps

    def read(self) -> Image.Image:
        """The photograph."""
        from skimage import data

        return Image.fromarray(getattr(data, self.name)())


PHOTOGRAPHS = (
    Photograph(
        "rocket",
        "a rocket on its launch pad",
        "A thin object in front of an empty sky. The last layer has 7 x 7 cells: Grad-CAM's map spills over the sky on "
        "both sides. The inner layer is twice as fine, and SlopeCAM marks the rocket's tip and the towers.",
    ),
    Photograph(
        "coffee",
        "a cup of coffee",
        "The class is the espresso, not the cup: a good map covers the coffee and the rim, but not the saucer and the "
        "table. At their usual layers both do; at the inner layer Grad-CAM's map lies on the table.",
    ),
    Photograph(
        "astronaut",
        "an astronaut",
        "ImageNet has no class for astronauts, so the network must be wrong, and it is not confident. The maps should "
        "show what it used: the helmet in the corner, not the woman.",
    ),
    Photograph(
        "chelsea",
        "a cat",
        "A face that fills the picture: there is hardly any background to mark wrongly, and the network is undecided "
        "between three kinds of cat.",
    ),
)


@dataclass(frozen=True)
class Section:
    """What is shown of one photograph.

    Attributes:
        photograph: which.
        found: Grad-CAM and SlopeCAM, each at its usual layer.
        walled: what a network sees that cannot see the lower part of it, and the same two methods on that.
        others: all other methods, if they ran.
    """

    photograph: Photograph
    found: Comparison
    walled: tuple[Tile, ...]
    others: Comparison | None = None

    def tiles(self) -> list[Tile]:
        """What is large, in the order of the page."""
        photograph = Tile(self.found.photograph, "photograph", f"why {self.found.target.name}?")
        return [photograph, *map(_large, self.found.results), *self.walled[1:]]


@dataclass(frozen=True)
class Demo:
    """What the demonstration made."""

    sections: tuple[Section, ...]
    gallery: Path
    web_page: Path


def run_demo(
    folder: Path,
    quick: bool = False,
    full: bool = False,
    progress: Progress | None = None,
    photographs: Sequence[Photograph] = PHOTOGRAPHS,
) -> Demo:
    """Explain the photographs, and write `gallery.png` and `index.html`.

    Args:
        folder: where to write.
        quick: average over fewer samples, and leave out the other methods.
        full: all other methods on every photograph with all their samples, not on the first alone with few.
        progress: called with the share of the work done, from 0 to 1.
        photographs: what to explain.
    """
    require("skimage", "demo", "the demonstration")
    classifier = load(EMBEDDED)
    options = {"seed": 0, "samples": _QUICK_SAMPLES if quick else None}
    # The embedded network has no attention. What takes hundreds of passes is no demonstration.
    names = [
        record.name for record in records() if not record.package and record.group != "attention" and not record.slow
    ]
    names = [name for name in names if name not in _MAIN]
    pictures = [photograph.read() for photograph in photographs]
    found = [
        compare(
            classifier,
            picture,
            _MAIN,
            f"{photograph.name}, {photograph.shows}",
            options=options,
            progress=part_of(progress, 0.3 * number / len(pictures), 0.3 * (number + 1) / len(pictures)),
        )
        for number, (photograph, picture) in enumerate(zip(photographs, pictures, strict=True))
    ]
    walled = _behind_a_wall(classifier, pictures, found, options)
    others: list[Comparison | None] = [None] * len(pictures)
    several = 0 if quick else len(pictures) if full else 1
    few = options if full else {"seed": 0, "samples": _QUICK_SAMPLES}
    for number in range(several):
        report = part_of(progress, 0.5 + 0.5 * number / several, 0.5 + 0.5 * (number + 1) / several)
        others[number] = _compared(classifier, pictures[number], names, found[number].title, few, report)
    sections = tuple(map(Section, photographs, found, walled, others))
    return Demo(sections, *_write(folder, sections))


def _compared(
    classifier: Classifier,
    image: Image.Image,
    methods: Sequence[str],
    title: str,
    options: Mapping[str, Any],
    progress: Progress,
) -> Comparison:
    """All methods at the same inner layer, those of the last one at theirs."""
    last = [name for name in methods if name in _AT_THE_LAST_LAYER]
    inner = [name for name in methods if name not in _AT_THE_LAST_LAYER]
    first = compare(classifier, image, last, title, options=options, skip=True)
    comparison = compare(
        classifier, image, inner, title, options={**options, "layer": "inner"}, skip=True, progress=progress
    )
    return replace(
        comparison, results=(*first.results, *comparison.results), skipped={**first.skipped, **comparison.skipped}
    )


def _behind_a_wall(
    classifier: Classifier, pictures: Sequence[Image.Image], found: Sequence[Comparison], options: Mapping[str, Any]
) -> list[tuple[Tile, ...]]:
    """The test of `egcam.truth.walls_trial` at SlopeCAM's layer, a third of whose rows is hidden."""
    slope = found[0].results[-1].explanation
    images = torch.cat([classifier.images(picture) for picture in pictures])
    trial = walls_trial(classifier.model, images, slope.layer, rows=slope.maps.shape[-2] // 3)
    walled = replace(classifier, model=trial.model, layer=trial.layer)
    tiles = []
    for comparison, truth in zip(found, trial.truth.cpu(), strict=True):
        mask = Image.fromarray((255 * truth.numpy()).astype(np.uint8)).resize(comparison.photograph.size)
        dark = comparison.photograph.point(lambda value: value // 3)
        tiles.append([Tile(Image.composite(comparison.photograph, dark, mask), "the network sees the upper part", "")])
    for name in _MAIN:
        explained = walled.explain(images, name, trial.targets, **walled.options_for(name, options))
        shares = trial.score(explained.maps.cpu()).tolist()
        for row, heat, share in zip(tiles, explained.heatmaps.cpu().numpy(), shares, strict=True):
            row.append(
                Tile(overlay_image(row[0].image, heat), method(name).label, f"heat in the dark part: {share:.2f}")
            )
    return [tuple(row) for row in tiles]


def known_answers() -> TextTable:
    """The table of known answers of README.md, kept with the package."""
    text = (resources.files("egcam") / "data" / "known_answers.md").read_text(encoding="utf-8")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    return TextTable(
        (Column("method"), *map(Column, head[1:])),
        tuple(tuple(Cell(cell.strip("*")) for cell in row) for row in rows),
        highlighted=frozenset(place for place, row in enumerate(rows) if row[0].startswith("**")),
    )


def _large(result: Result) -> Tile:
    """A map over the photograph, with its regions where it adds up."""
    picture = result.explanation.overlay(result.photograph, regions=True)[0]
    return Tile(picture, method(result.method).label, result.layer)


def _write(folder: Path, sections: Sequence[Section]) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    gallery, web_page = folder / "gallery.png", folder / "index.html"
    grid([tile for section in sections for tile in section.tiles()], columns=5, side=280).save(gallery)
    html = render(
        "gallery.html",
        title="What did the network look at?",
        introduction=INTRODUCTION,
        behind_a_wall=BEHIND_A_WALL,
        sections=sections,
        known=known_answers(),
        known_caption=KNOWN,
        footer=f"Made by egcam {__version__} with {EMBEDDED}. The photographs come with scikit-image.",
        highlight=[record.name for record in records() if record.highlight],
    )
    web_page.write_text(html, encoding="utf-8")
    return gallery, web_page
