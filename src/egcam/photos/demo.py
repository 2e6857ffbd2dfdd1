"""The demonstration: every method on photographs that come along, with a network that needs no download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from egcam._version import __version__
from egcam.attribution.registry import is_highlighted, records
from egcam.drawing.overlays import stack
from egcam.errors import require
from egcam.models.classifier import Classifier
from egcam.models.zoo import EMBEDDED, load
from egcam.pages import render
from egcam.photos.comparison import Comparison, compare, scored
from egcam.progress import Progress, piece_of

INTRODUCTION = (
    "Each picture shows which places made the network choose its class, according to one method: yellow matters most, "
    "then green and blue; where the photograph shows through, nothing matters. All methods explain the same inner "
    "layer, where they differ; cam shows the last layer, where most of them agree, and methods at the input show "
    "single pixels. The number is insertion minus deletion, how well the map finds what the network uses; higher is "
    "better. Frames mark SlopeCAM: the default, and the paper's form."
)
PATIENCE = 160.0

_QUICK_SAMPLES = 8
_ONCE = "too slow on this machine for every photograph; shown on the first one"
_COLUMNS = 7
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
        "A thin object in front of an empty sky. The last layer has 7 x 7 cells: its map (cam) spills over the sky on "
        "both sides. The inner layer is twice as fine, and SlopeCAM marks the rocket's tip and the towers.",
    ),
    Photograph(
        "coffee",
        "a cup of coffee",
        "The class is the espresso, not the cup: a good map covers the coffee and the rim, but not the saucer "
        "and the table. Grad-CAM's map at the inner layer lies on the table.",
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
        "A face that fills the picture: there is hardly any background to mark wrongly, the network is undecided "
        "between three kinds of cat, and the numbers of all methods are close to zero.",
    ),
)


@dataclass(frozen=True)
class Demo:
    """What the demonstration made; `once` are the methods too slow to repeat, shown on the first photograph only."""

    comparisons: tuple[Comparison, ...]
    gallery: Path
    web_page: Path
    once: tuple[str, ...] = ()


def run_demo(
    folder: Path,
    quick: bool = False,
    patience: float = PATIENCE,
    progress: Progress | None = None,
    photographs: Sequence[Photograph] = PHOTOGRAPHS,
) -> Demo:
    """Explain the photographs with every method, and write `gallery.png` and `index.html`.

    Args:
        folder: where to write.
        quick: average over fewer samples, and do not score the maps.
        patience: seconds. Where the whole would take longer, the slowest methods are shown on the first photograph
            only.
        progress: called with the share of the work done, from 0 to 1.
        photographs: what to explain.
    """
    require("skimage", "demo", "the demonstration")
    classifier = load(EMBEDDED)
    # The embedded network has no attention. What takes hundreds of passes is no demonstration.
    own = [one for one in records() if not one.package and one.group != "attention" and not one.slow]
    names = [one.name for one in own]
    comparisons: list[Comparison] = []
    once: list[str] = []
    for number, photograph in enumerate(photographs):
        used = [name for name in names if name not in once]
        options = {"seed": 0, "samples": _QUICK_SAMPLES if quick else None}
        report = piece_of(progress, number, len(photographs))
        title = f"{photograph.name}, {photograph.shows}"
        found = _compared(classifier, photograph.read(), used, title, options, report)
        if number == 0:
            once = too_slow({one.method: one.seconds for one in found.results}, len(photographs), patience)
        else:
            found = replace(found, skipped={**found.skipped, **dict.fromkeys(once, _ONCE)})
        if not quick:
            found = scored(found, classifier, photograph.read())
        comparisons.append(found)
    return Demo(tuple(comparisons), *_write(folder, comparisons, photographs), tuple(once))


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
    found = compare(
        classifier, image, inner, title, options={**options, "layer": "inner"}, skip=True, progress=progress
    )
    return replace(found, results=(*first.results, *found.results), skipped={**first.skipped, **found.skipped})


def too_slow(seconds: Mapping[str, float], photographs: int, patience: float) -> list[str]:
    """The methods to show on the first photograph only, slowest first, so that the whole takes `patience` seconds.

    The later photographs get a third of it in any case: on a slow machine the first one may have used it up. The
    method the demonstration is about is always shown, and so is what takes less than a fiftieth.

    Example:
        >>> too_slow({"quick": 1.0, "slow": 60.0}, photographs=4, patience=100.0)
        ['slow']
    """
    left = {name: taken for name, taken in seconds.items() if not is_highlighted(name)}
    dropped: list[str] = []
    later = max(patience - sum(seconds.values()), patience / 3)
    always = sum(seconds.values()) - sum(left.values())
    while left and (photographs - 1) * (always + sum(left.values())) > later:
        slowest = max(left, key=lambda name: left[name])
        if left[slowest] <= patience / 50:  # what is quick saves no time
            break
        dropped.append(slowest)
        del left[slowest]
    return dropped


def _write(folder: Path, comparisons: Sequence[Comparison], photographs: Sequence[Photograph]) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    gallery, web_page = folder / "gallery.png", folder / "index.html"
    stack([one.picture(_COLUMNS, side=200) for one in comparisons]).save(gallery)
    html = render(
        "gallery.html",
        title="What did the network look at?",
        introduction=INTRODUCTION,
        sections=[(one, photograph.note) for one, photograph in zip(comparisons, photographs, strict=True)],
        footer=f"Made by egcam {__version__} with {EMBEDDED}. The photographs come with scikit-image.",
        highlight=[one.name for one in records() if one.highlight],
    )
    web_page.write_text(html, encoding="utf-8")
    return gallery, web_page
