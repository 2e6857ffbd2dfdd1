"""Several methods on one photograph, each timed: what `egcam compare` and `egcam demo` show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch import Tensor

from egcam.drawing.overlays import Tile, bars, grid, overlay_image
from egcam.errors import EgcamError, InputError
from egcam.models.classifier import Classifier, Prediction
from egcam.models.layers import INPUT
from egcam.progress import Progress, piece_of

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation


@dataclass(frozen=True)
class Result:
    """What one method said about one photograph."""

    method: str
    explanation: Explanation
    photograph: Image.Image  # the part of it that the network sees
    seconds: float

    def overlay(self, sharpness: float = 1.0) -> Image.Image:
        """The map over the photograph."""
        heat = self.explanation.heatmaps[0].float().cpu().numpy()
        return overlay_image(self.photograph, heat, sharpness=sharpness)

    @property
    def cost(self) -> str:
        """How long it took, and how many passes."""
        count = self.explanation.passes
        return f"{self.seconds:.2f} s, {count:,} {'pass' if count == 1 else 'passes'}"

    @property
    def layer(self) -> str:
        """Where the map was made, in words."""
        name = self.explanation.layer
        return "at the pixels" if name == INPUT.name else f"at {name}"


@dataclass(frozen=True)
class Comparison:
    """One photograph explained by several methods."""

    title: str
    photograph: Image.Image  # the part of it that the network sees
    model: str
    target: Prediction
    predictions: tuple[Prediction, ...]  # the most probable classes, best first
    results: tuple[Result, ...]  # one for each method that applies to the network
    skipped: Mapping[str, str]  # for each method that does not, why

    @property
    def several_layers(self) -> bool:
        """Whether the methods looked at different layers, each at its usual one."""
        return len({result.explanation.layer for result in self.results}) > 1

    def tiles(self, side: int = 280, sharpness: float = 1.0) -> list[Tile]:
        """The photograph, every method's overlay and the predictions, labelled for a grid."""
        names = [prediction.name for prediction in self.predictions]
        shares = [prediction.probability for prediction in self.predictions]
        name = f"{self.target.name}, {self.target.probability:.1%}"
        overlays = [
            Tile(
                result.overlay(sharpness),
                result.method,
                f"{result.cost}, {result.layer}" if self.several_layers else result.cost,
            )
            for result in self.results
        ]
        chart = Tile(bars(names, shares, side), f"top {len(names)} predictions", self.model)
        return [Tile(self.photograph, "photograph", name), *overlays, chart]

    def picture(self, columns: int | None = None, side: int = 280, sharpness: float = 1.0) -> Image.Image:
        """Everything in one labelled grid; `sharpness` is an exponent of the overlays."""
        tiles = self.tiles(side, sharpness)
        heading = f"{self.title}: why “{self.target.name}” ({self.target.probability:.1%})? {self.model}"
        if self.results and not self.several_layers:
            heading += f", {self.results[0].layer}"
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
    """
    images = classifier.images(image)
    predictions = classifier.predict(images)
    prediction = classifier.chosen(predictions, target)
    photograph = classifier.crop(image)
    skipped: dict[str, str] = {}
    explained = explained_by_each(
        classifier, images, methods, prediction.index, options, skipped if skip else None, progress
    )
    results = tuple(Result(method, explanation, photograph, seconds) for method, explanation, seconds in explained)
    return Comparison(title, photograph, classifier.name, prediction, tuple(predictions[:5]), results, skipped)


def explained_by_each(
    classifier: Classifier,
    images: Tensor,
    methods: Sequence[str],
    target: Any,
    options: Mapping[str, Any] | None = None,
    skipped: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[str, Explanation, float]]:
    """Each method's name, its explanation of the images (N, C, H, W), and the seconds it took.

    Options that a method does not take are left out. Where `skipped` is given, it is noted there why a method cannot
    be applied to the network, instead of raising that.
    """
    for position, method in enumerate(methods):
        report = piece_of(progress, position, len(methods))
        start = time.perf_counter()
        try:
            fitting = classifier.options_for(method, options or {})
            explanation = classifier.explain(images, method, target, progress=report, **fitting)
        except EgcamError as error:
            if skipped is None or isinstance(error, InputError):
                raise
            skipped[method] = str(error)
        else:
            yield method, explanation, time.perf_counter() - start
        report(1.0)


def explain_one(
    classifier: Classifier,
    images: Tensor,
    photograph: Image.Image,
    method: str,
    target: int | str | None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Result:
    """One method on one image, (1, C, H, W), and how long the explanation took."""
    ((_, explanation, seconds),) = explained_by_each(classifier, images, [method], target, options, progress=progress)
    return Result(method, explanation, photograph, seconds)


def _columns(count: int) -> int:
    """Columns that fill the last row where possible, and make the grid about half as wide again as high."""
    wide = range(max(1, round(count**0.5)), max(1, round((2.2 * count) ** 0.5)) + 1)
    return min(wide, key=lambda columns: (-count % columns, abs(columns**2 / count - 1.5)))
