"""The demonstration: every method on photographs that come along, with a network that needs no download."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from egcam._version import __version__
from egcam.attribution.registry import is_highlighted, method, records, takes
from egcam.drawing.overlays import stack
from egcam.errors import require
from egcam.models.zoo import EMBEDDED, load
from egcam.photos.comparison import Comparison, compare
from egcam.photos.gallery import page

INTRODUCTION = (
    "Each picture shows where a method says the network looked for the class it named: yellow matters most, then "
    "green and blue; where the photograph shows through, it did not matter. The framed ones are Expected"
    " Grad-CAM, the default and as its paper writes it."
)
PATIENCE = 160.0

_QUICK_SAMPLES = 8
_ONCE = "too slow on this machine for every photograph; see the first one"
_COLUMNS = 9


@dataclass(frozen=True)
class Photograph:
    """A photograph of scikit-image, what it shows, what to look at in its maps, and the layer they are made at."""

    name: str
    shows: str
    note: str
    layer: str | None = None

    def read(self) -> Image.Image:
        """The photograph."""
        from skimage import data

        return Image.fromarray(getattr(data, self.name)())


PHOTOGRAPHS = (
    Photograph(
        "chelsea",
        "a cat",
        "The maps should lie on the face, and least of all on the blurred background. The methods at the input "
        "(input-gradient, smooth-grad, …) show single pixels: eyes, nose and whiskers.",
    ),
    Photograph(
        "chelsea",
        "the cat again, at an inner layer",
        "The network ends in pooling and one linear layer, so at its last layer the gradient is the same everywhere "
        "and the methods above agree. Inside the network they do not: Expected Grad-CAM keeps to the nose, the eyes "
        "and the whiskers, where Grad-CAM, Grad-CAM++ and XGrad-CAM light up the background, too.",
        layer="_blocks.10",
    ),
    Photograph(
        "coffee",
        "a cup of coffee",
        "The class is the espresso, not the cup: a good map covers the coffee and the rim, and spares the saucer "
        "and the table.",
    ),
    Photograph(
        "astronaut",
        "an astronaut",
        "ImageNet has no astronauts, so the network must be wrong, and it is not sure of itself. The maps show what "
        "it went by: the helmet in the corner, and not the woman.",
    ),
    Photograph(
        "rocket",
        "a rocket on its launch pad",
        "A thin object shows what a layer of 7 x 7 places cannot: its maps spill over the sky on both sides, while "
        "the methods at the pixels draw the rocket itself, and more noise.",
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
    progress: Callable[[float], None] | None = None,
    photographs: Sequence[Photograph] = PHOTOGRAPHS,
) -> Demo:
    """Explain the photographs with every method, and write `gallery.png` and `index.html`.

    Args:
        folder: where to write.
        quick: leave out the methods that take longest, and average the others over fewer samples.
        patience: seconds. Where the whole would take longer, the slowest methods are shown on the first photograph
            only.
        progress: called with the share of the work done, from 0 to 1.
        photographs: what to explain.
    """
    require("skimage", "demo", "the demonstration")
    classifier = load(EMBEDDED)
    names = [one.name for one in records() if not (quick and one.is_slow)]
    comparisons: list[Comparison] = []
    once: list[str] = []
    for number, photograph in enumerate(photographs):
        used = names_at_layer(names) if photograph.layer else [name for name in names if name not in once]
        options = {"seed": 0, "samples": _QUICK_SAMPLES if quick else None, "layer": photograph.layer}
        report = _within(progress, number, len(photographs))
        title = f"{photograph.name}, {photograph.shows}"
        found = compare(classifier, photograph.read(), used, title, options=options, skip=True, progress=report)
        if number == 0:
            once = too_slow({one.method: one.seconds for one in found.results}, len(photographs), patience)
        elif photograph.layer is None:
            found = replace(found, skipped={**found.skipped, **dict.fromkeys(once, _ONCE)})
        comparisons.append(found)
    return Demo(tuple(comparisons), *_write(folder, comparisons, photographs), tuple(once))


def names_at_layer(names: Sequence[str]) -> list[str]:
    """Of the methods, those that can be asked about an inner layer, without the slow ones."""
    return [name for name in names if "layer" in takes(name) and not method(name).is_slow and name != "cam"]


def too_slow(seconds: Mapping[str, float], photographs: int, patience: float) -> list[str]:
    """The methods to show on the first photograph only, slowest first, so that the whole takes `patience` seconds.

    The later photographs get a third of it in any case: on a slow machine the first one may have used it up. The
    method the demonstration is about is always shown.

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
        dropped.append(slowest)
        del left[slowest]
    return dropped


def _write(folder: Path, comparisons: Sequence[Comparison], photographs: Sequence[Photograph]) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    gallery, web_page = folder / "gallery.png", folder / "index.html"
    stack([one.picture(_COLUMNS, side=200) for one in comparisons]).save(gallery)
    notes = [photograph.note for photograph in photographs]
    footer = f"Made by egcam {__version__} with {EMBEDDED}. The photographs come with scikit-image."
    highlighted = [one.name for one in records() if one.highlight]
    html = page("What did the network look at?", INTRODUCTION, comparisons, notes, footer, highlighted)
    web_page.write_text(html, encoding="utf-8")
    return gallery, web_page


def _within(progress: Callable[[float], None] | None, number: int, count: int) -> Callable[[float], None] | None:
    if progress is None:
        return None
    return lambda part: progress((number + part) / count)
