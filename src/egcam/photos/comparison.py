"""Several methods on one photograph, each timed: what `egcam compare` and `egcam demo` show."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch import Tensor

from egcam.attribution.registry import method as registered
from egcam.attribution.registry import takes
from egcam.drawing.overlays import Tile, bars, grid, overlay_image
from egcam.errors import EgcamError, InputError
from egcam.models.classifier import Classifier, Prediction, Progress

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation


@dataclass(frozen=True)
class Result:
    """What one method said about one photograph; `sharpness` is the overlay's."""

    method: str
    explanation: Explanation
    overlay: Image.Image
    seconds: float
    sharpness: float = 1.0

    @property
    def cost(self) -> str:
        """How long it took, and how many passes."""
        count = self.explanation.passes
        return f"{self.seconds:.2f} s, {count:,} {'pass' if count == 1 else 'passes'}"


@dataclass(frozen=True)
class Comparison:
    """One photograph explained by several methods.

    Args:
        title: what the photograph is called.
        photograph: the part of it that the network sees.
        model: the network's name.
        target: the explained class.
        predictions: the most probable classes, best first.
        results: one for each method that applies to the network.
        skipped: for each method that does not, why.
    """

    title: str
    photograph: Image.Image
    model: str
    target: Prediction
    predictions: tuple[Prediction, ...]
    results: tuple[Result, ...]
    skipped: Mapping[str, str]

    def tiles(self, side: int = 280) -> list[Tile]:
        """The photograph, every method's overlay and the predictions, labelled for a grid."""
        names = [prediction.name for prediction in self.predictions]
        shares = [prediction.probability for prediction in self.predictions]
        said = f"{self.target.name}, {self.target.probability:.1%}"
        overlays = [Tile(result.overlay, result.method, result.cost) for result in self.results]
        chart = Tile(bars(names, shares, side), f"top {len(names)} predictions", self.model)
        return [Tile(self.photograph, "photograph", said), *overlays, chart]

    def picture(self, columns: int | None = None, side: int = 280) -> Image.Image:
        """Everything in one labelled grid."""
        tiles = self.tiles(side)
        layer = next((result.explanation.layer for result in self.results), None)
        heading = f"{self.title}: why “{self.target.name}” ({self.target.probability:.1%})?   {self.model}"
        heading += f", layer {layer}" if layer else ""
        return grid(tiles, columns or _columns(len(tiles)), side, heading)


def compare(
    classifier: Classifier,
    image: Image.Image,
    methods: Sequence[str],
    title: str = "",
    target: int | str | None = None,
    options: Mapping[str, Any] | None = None,
    skip: bool = False,
    progress: Progress | None = None,
    sharpness: float = 1.0,
) -> Comparison:
    """Explain one photograph with several methods.

    Args:
        classifier: the network, with its preprocessing and class names.
        image: the photograph.
        methods: registered names.
        title: what to call the photograph.
        target: the class, by index or name; None explains the prediction.
        options: for the methods that take them: layer, reference, samples, seed, batch_size, …
        skip: leave out a method that cannot be applied to this network, and say why in `skipped`; else its
            error is raised.
        progress: called with the share of the work done, from 0 to 1.
        sharpness: an exponent of the overlays.
    """
    images = classifier.images(image)
    predictions = classifier.predict(images)
    wanted = classifier.chosen(predictions, target)
    photograph = classifier.crop(image)
    costs = [registered(method).cost for method in methods]
    results, skipped = [], {}
    for position, method in enumerate(methods):
        report = _part(progress, sum(costs[:position]), costs[position], sum(costs))
        try:
            found = explain_one(classifier, images, photograph, method, wanted.index, options, report, sharpness)
            results.append(found)
        except InputError:
            raise
        except EgcamError as error:
            if not skip:
                raise
            skipped[method] = str(error)
        report(1.0)
    return Comparison(
        title,
        photograph,
        classifier.name,
        wanted,
        tuple(predictions[:5]),
        tuple(results),
        skipped,
    )


def explain_one(
    classifier: Classifier,
    images: Tensor,
    photograph: Image.Image,
    method: str,
    target: int | str | None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    sharpness: float = 1.0,
) -> Result:
    """One method on one image, (1, C, H, W), with its overlay and how long the explanation took.

    Options that the method does not take are left out.
    """
    used = classifier.applicable(method, options or {})
    start = time.perf_counter()
    explanation = classifier.explain(images, method, target, progress=progress, **used)
    seconds = time.perf_counter() - start
    overlay = overlay_image(photograph, explanation.heatmaps[0].float().cpu().numpy(), sharpness=sharpness)
    return Result(method, explanation, overlay, seconds, sharpness)


def unused(method: str, options: Mapping[str, Any]) -> list[str]:
    """The names of the options given that the method ignores."""
    accepted = takes(method)
    useful = set(accepted)
    if "steps" in accepted:
        useful.add("samples")
    if "baseline" in accepted and not isinstance(options.get("reference"), Tensor):
        useful.add("reference")
    return [name for name, value in options.items() if value is not None and name not in useful]


def _part(progress: Progress | None, before: float, cost: float, total: float) -> Progress:
    """Progress within one method, as progress within all of them."""

    def report(share: float) -> None:
        if progress is not None:
            progress((before + cost * min(share, 1.0)) / total)

    return report


def _columns(count: int) -> int:
    """Columns that fill the last row where possible, and make the grid about half as wide again as high."""
    wide = range(max(1, round(count**0.5)), max(1, round((2.2 * count) ** 0.5)) + 1)
    return min(wide, key=lambda columns: (-count % columns, abs(columns**2 / count - 1.5)))
