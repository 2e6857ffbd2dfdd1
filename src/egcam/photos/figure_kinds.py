"""The figures that `egcam figure` makes of photographs: what a kind shows is computed here, egcam.figures draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from egcam import figures
from egcam.attribution.registry import usual_methods
from egcam.errors import InputError, near_misses
from egcam.models.classifier import Classifier, Prediction
from egcam.photos.comparison import explained_by_each
from egcam.photos.files import read_image
from egcam.progress import Progress, part_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from egcam.attribution.explanation import Explanation
    from egcam.evaluation.table import Table

_METRICS = "insertion,deletion,average-drop,complexity,sparseness"
_METRICS_WITH_MASK = f"{_METRICS},relevance-mass-accuracy"


@dataclass(frozen=True)
class Photograph:
    """An image file, what the network sees of it, and the class to explain."""

    file: Path
    view: Image
    pixels: Tensor  # (C, H, W) as the network takes it
    target: Prediction
    mask: Tensor | None = None

    @property
    def caption(self) -> str:
        """The class and how probable it is."""
        return f"{self.target.name} {self.target.probability:.0%}"


@dataclass(frozen=True)
class Request:
    """What to draw."""

    classifier: Classifier
    photographs: tuple[Photograph, ...]
    methods: list[str]
    everything: bool  # whether methods that cannot be applied are left out rather than refused
    options: Mapping[str, Any]  # of the methods, for those that take them
    contrast_with: int | str | None = None  # the other class of a contrast; None is the next most probable
    metrics: str | None = None  # comma-separated, of bars, ranks and masks; None is the usual ones
    step: int | None = None  # pixels changed at once in curves and their areas; None is one row's
    style: Mapping[str, Any] = field(default_factory=dict)  # width, and colours where there are overlays
    progress: Progress = lambda share: None

    @property
    def images(self) -> Tensor:
        """(N, C, H, W)."""
        return torch.stack([photograph.pixels for photograph in self.photographs]).to(self.classifier.device)

    @property
    def targets(self) -> Tensor:
        """(N,) the classes to explain."""
        indices = [photograph.target.index for photograph in self.photographs]
        return torch.tensor(indices, device=self.classifier.device)

    def explain(self, targets: Tensor | None = None) -> tuple[dict[str, Explanation], dict[str, str]]:
        """Every method on the photographs, and why a method is left out."""
        skipped: dict[str, str] = {}
        targets_here = self.targets if targets is None else targets
        explained = explained_by_each(
            *(self.classifier, self.images, self.methods, targets_here, self.options),
            skipped if self.everything else None,
            self.progress,
        )
        return {method: explanation for method, explanation, _ in explained}, skipped


@dataclass(frozen=True)
class Drawn:
    """A figure and the numbers in it."""

    figure: Figure
    numbers: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of figure: how it is made, its usual methods and width, and what it takes."""

    make: Callable[[Request], Drawn]
    usual: tuple[str, ...] | None = None
    width: str = "page"
    one_image: bool = False
    one_method: bool = False
    needs_mask: bool = False
    has_overlays: bool = False

    @property
    def methods(self) -> list[str]:
        """Those to show where nobody says which."""
        return usual_methods() if self.usual is None else list(self.usual)


def kind_of(name: str) -> Kind:
    """The kind of figure called `name`."""
    if name not in KINDS:
        raise InputError(f"there is no figure of kind {name!r}; {near_misses(name, KINDS)}; kinds: {', '.join(KINDS)}")
    return KINDS[name]


def read_photograph(
    classifier: Classifier, file: Path, target: int | str | None = None, mask: Path | None = None
) -> Photograph:
    """A photograph as the network sees it, with the class to explain and the object's mask if there is one."""
    image = read_image(file)
    inside = None if mask is None else _read_mask(mask, image, classifier)
    pixels = classifier.preprocess(image)
    prediction = classifier.chosen(classifier.predict(pixels), target)
    return Photograph(file, classifier.crop(image), pixels, prediction, inside)


def _read_mask(file: Path, image: Image, classifier: Classifier) -> Tensor:
    """(H, W) the mask as the network sees the image: resized and cut alike, without new values at the border."""
    picture = read_image(file)
    if picture.size != image.size:
        raise InputError(
            f"the mask {file} is {picture.size} and its image {image.size} (width, height): make them equal"
        )
    values = classifier.preprocessing.of_masks(picture).amax(0)
    inside = values > values.max() / 2
    if not inside.any():
        raise InputError(f"the mask {file} is black where the network looks: white marks the object")
    return inside


def _grid(request: Request) -> Drawn:
    explained, skipped = request.explain()
    photographs = request.photographs
    figure = figures.method_grid(
        explained,
        [photograph.view for photograph in photographs],
        captions=[photograph.caption for photograph in photographs],
        **request.style,
    )
    layers = {method: explanation.layer for method, explanation in explained.items()}
    return Drawn(figure, {"layers": layers}, skipped)


def _mask(request: Request) -> Drawn:
    (photograph,) = request.photographs
    explained, skipped = request.explain()
    assert photograph.mask is not None
    heat = {method: explanation.heatmaps[0] for method, explanation in explained.items()}
    measure = (request.metrics or "relevance-mass-accuracy").split(",")[0]
    scores = figures.mask_scores(photograph.mask, heat, measure)
    numbers = {"measure": measure, "scores": scores}
    look = {"caption": photograph.caption, **request.style}
    return Drawn(
        figures.mask_comparison(photograph.view, photograph.mask, heat, scores=scores, measure=measure, **look),
        numbers,
        skipped,
    )


def _contrast(request: Request) -> Drawn:
    (photograph,) = request.photographs
    (method,) = request.methods
    other = _other_class(request, photograph)
    progress = request.progress
    this, _ = replace(request, progress=part_of(progress, 0.0, 0.5)).explain()
    that, _ = replace(request, progress=part_of(progress, 0.5, 1.0)).explain(
        torch.full_like(request.targets, other.index)
    )
    caption = f"{photograph.caption}, {other.name} {other.probability:.0%}"
    names = (photograph.target.name, other.name)
    figure = figures.class_contrast(
        this[method], that[method], photograph.view, labels=names, caption=caption, **request.style
    )
    return Drawn(figure, {"contrast_with": other})


def _other_class(request: Request, photograph: Photograph) -> Prediction:
    """The class asked for with --contrast-with, else the most probable one that is not the target."""
    predictions = request.classifier.predict(photograph.pixels)
    if request.contrast_with is not None:
        other = request.classifier.chosen(predictions, request.contrast_with)
    else:
        other = next(prediction for prediction in predictions if prediction.index != photograph.target.index)
    if other.index == photograph.target.index:
        raise InputError(f"{other.name} is contrasted with itself: pass another class with --contrast-with")
    return other


def _evaluated(request: Request, metrics: str) -> tuple[Table, dict[str, str]]:
    """Scores of all methods on all images, and why a method has none."""
    from egcam.evaluation.evaluate import evaluate
    from egcam.metrics import metric

    classifier, methods = request.classifier, request.methods
    names = [metric(name.strip()).name for name in metrics.split(",") if name.strip()]
    stepped = [name for name in names if request.step and "step" in metric(name).options()]
    masks = [photograph.mask for photograph in request.photographs if photograph.mask is not None]

    def report(text: str) -> None:
        method = text.split(":")[0]
        if method in methods:
            request.progress(methods.index(method) / len(methods))

    files = [f"{number} {photograph.file}" for number, photograph in enumerate(request.photographs)]
    table = evaluate(
        classifier,
        dict(zip(files, request.images, strict=True)),
        methods,
        names,
        target=request.targets,
        masks=torch.stack(masks) if masks else None,
        seed=request.options.get("seed") or 0,
        method_options={name: classifier.options_for(name, request.options) for name in methods},
        metric_options={name: {"step": request.step} for name in stepped},
        batch_size=request.options.get("batch_size"),
        progress=report,
    )
    causes = table.cause.reshape(len(table.methods), -1).tolist()
    skipped = {name: listed[0] for name, listed in zip(table.methods, causes, strict=True) if None not in listed}
    if skipped and not request.everything:
        method, cause = next(iter(skipped.items()))
        raise InputError(f"{method} cannot be measured: {cause}")
    return table.only(methods=[method for method in table.methods if method not in skipped]), skipped


def _curves(request: Request) -> Drawn:
    from egcam.metrics import Curve

    panels = ("insertion", "deletion")
    table, skipped = _evaluated(request, ",".join(panels))
    curves: dict[str, dict[str, Curve]] = {panel: {} for panel in panels}
    for panel in panels:
        # As in tables: methods that can be compared, on the images that all of these have.
        are_compared = zip(table.methods, table.comparable(panel).compared, strict=True)
        kept = {method: table.curves[method, panel] for method, is_compared in are_compared if is_compared}
        common = sorted(set.intersection(*map(set, kept.values())), key=str) if kept else []
        for method, by_image in kept.items():
            shown = [by_image[image] for image in common]
            curves[panel][method] = Curve(
                torch.stack([curve.fractions for curve in shown]), torch.stack([curve.scores for curve in shown])
            )
    areas = {
        panel: {method: float(curve.area().mean()) for method, curve in by_method.items()}
        for panel, by_method in curves.items()
    }
    return Drawn(figures.perturbation_curves(curves, **request.style), {"areas": areas}, skipped)


def _scores(request: Request) -> tuple[Table, dict[str, Any], dict[str, str]]:
    """The table, its means for JSON, and why a method is left out."""
    is_masked = any(photograph.mask is not None for photograph in request.photographs)
    table, skipped = _evaluated(request, request.metrics or (_METRICS_WITH_MASK if is_masked else _METRICS))
    frame = table.summary()[["metric", "method", "better", "mean", "low", "high", "rank"]]
    lines: Any = frame.to_dict("records")
    means = [{key: None if value != value else value for key, value in line.items()} for line in lines]
    return table, {"scores": means}, skipped


def _bars(request: Request) -> Drawn:
    table, numbers, skipped = _scores(request)
    return Drawn(figures.metric_bars(table, **request.style), numbers, skipped)


def _ranks(request: Request) -> Drawn:
    table, numbers, skipped = _scores(request)
    ranks = [{"method": rank.method, "rank": rank.mean} for rank in figures.mean_ranks(table)[0]]
    return Drawn(figures.rank_plot(table, **request.style), {"ranks": ranks, **numbers}, skipped)


_OURS = ("slope-cam",)
KINDS = {
    "grid": Kind(_grid, has_overlays=True),
    "mask": Kind(_mask, ("grad-cam", *_OURS), one_image=True, needs_mask=True, has_overlays=True),
    "contrast": Kind(_contrast, _OURS, one_image=True, one_method=True, has_overlays=True),
    "curves": Kind(_curves),
    "bars": Kind(_bars),
    "ranks": Kind(_ranks, width="column"),
}
