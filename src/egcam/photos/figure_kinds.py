"""The figures that `egcam figure` makes of photographs: what a kind shows is computed here, egcam.figures draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from egcam.attribution.explanation import Explanation
from egcam.attribution.registry import usual_methods
from egcam.errors import InputError, near_misses
from egcam.models.classifier import Classifier, Prediction
from egcam.photos.comparison import left_out
from egcam.photos.files import read_image
from egcam.progress import Progress, part_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from egcam.evaluation.table import Table

_DEFAULT = ("slope-cam",)
# A figure may show many images: the usual methods that take long are left out.
_METRICS = "insertion,deletion,average-drop,complexity,sparseness"
_METRICS_WITH_MASK = f"{_METRICS},relevance-mass-accuracy"


@dataclass(frozen=True)
class Photograph:
    """An image file, what the network sees of it, and the class to explain."""

    file: Path
    seen: Image
    input: Tensor
    target: Prediction
    predictions: tuple[Prediction, ...]
    mask: Tensor | None = None


@dataclass(frozen=True)
class Request:
    """What to draw.

    Attributes:
        classifier: the network.
        photographs: the images.
        saturated: for a grid, images with a saturated score, shown below.
        methods: by name.
        everything: whether methods that cannot be applied are left out rather than refused.
        options: of the methods, for those that take them.
        contrast_with: the other class of a contrast; None is the next most probable.
        metrics: comma-separated, of bars, ranks, radar and masks; None is the usual ones.
        step: pixels changed at once in curves and their areas; None is one row's.
        patches: how many cells of the grid.
        grid: cells along each side of the image.
        style: width, and colours and sharpness where there are overlays.
        progress: called with the share of the work done.
    """

    classifier: Classifier
    photographs: tuple[Photograph, ...]
    saturated: tuple[Photograph, ...]
    methods: list[str]
    everything: bool
    options: Mapping[str, Any]
    contrast_with: int | str | None = None
    metrics: str | None = None
    step: int | None = None
    patches: int = 4
    grid: int = 7
    style: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = lambda share: None

    def inputs(self, photographs: Sequence[Photograph] | None = None) -> tuple[Tensor, Tensor]:
        """(N, C, H, W) and (N,) the images and the classes to explain."""
        given = self.photographs if photographs is None else photographs
        images = torch.stack([one.input for one in given]).to(self.classifier.device)
        return images, torch.tensor([one.target.index for one in given], device=images.device)

    def explain(
        self, method: str, images: Tensor, targets: Tensor, part: tuple[float, float] = (0.0, 1.0)
    ) -> Explanation:
        """One method on all images; `part` of the whole work is this."""
        options = self.classifier.options_for(method, self.options)
        return self.classifier.explain(images, method, targets, progress=part_of(self.progress, *part), **options)


@dataclass
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
    inputs = classifier.preprocess(image)
    predictions = classifier.predict(inputs)
    wanted = classifier.chosen(predictions, target)
    return Photograph(file, classifier.crop(image), inputs, wanted, tuple(predictions[:5]), inside)


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


def _all_explained(
    request: Request, photographs: Sequence[Photograph], shares: tuple[float, float]
) -> tuple[dict[str, Explanation], dict[str, str]]:
    """Every method on the photographs; with --methods all, those that do not apply are left out, with the reason."""
    images, targets = request.inputs(photographs)
    done: dict[str, Explanation] = {}
    skipped: dict[str, str] = {}
    start, end = shares
    for number, method in enumerate(request.methods):
        low = start + (end - start) * number / len(request.methods)
        high = start + (end - start) * (number + 1) / len(request.methods)
        with left_out(method, skipped if request.everything else None):
            done[method] = request.explain(method, images, targets, (low, high))
        request.progress(high)
    return done, skipped


def _caption(one: Photograph) -> str:
    return f"{one.target.name} {one.target.probability:.0%}"


def _grid(request: Request) -> Drawn:
    from egcam.figures import method_grid

    first = 0.5 if request.saturated else 1.0
    explained, skipped = _all_explained(request, request.photographs, (0.0, first))
    shown = [*request.photographs, *request.saturated]
    more = None
    if request.saturated:
        request = replace(request, methods=list(explained))
        more, _ = _all_explained(request, request.saturated, (first, 1.0))
    figure = method_grid(
        explained,
        [one.seen for one in request.photographs],
        saturated=more,
        saturated_images=[one.seen for one in request.saturated],
        captions=[_caption(one) for one in shown],
        **request.style,
    )
    return Drawn(figure, {"layers": {name: one.layer for name, one in explained.items()}}, skipped)


def _mask(request: Request) -> Drawn:
    from egcam.figures import mask_comparison, mask_scores

    (photograph,) = request.photographs
    explained, skipped = _all_explained(request, request.photographs, (0.0, 1.0))
    assert photograph.mask is not None
    heat = {method: one.heatmaps[0] for method, one in explained.items()}
    measure = (request.metrics or "relevance-mass-accuracy").split(",")[0]
    scores = mask_scores(photograph.mask, heat, measure)
    figure = mask_comparison(
        photograph.seen,
        photograph.mask,
        heat,
        scores=scores,
        measure=measure,
        caption=_caption(photograph),
        **request.style,
    )
    return Drawn(figure, {"measure": measure, "scores": scores}, skipped)


def _patches(request: Request) -> Drawn:
    from egcam.figures import choose_patches, top_patches

    (photograph,) = request.photographs
    images, targets = request.inputs()
    heat = request.explain(request.methods[0], images, targets).heatmaps[0]
    figure = top_patches(
        photograph.seen, heat, request.patches, request.grid, caption=_caption(photograph), **request.style
    )
    chosen_ones = choose_patches(heat, request.patches, request.grid)
    keys = ("row", "column", "share")
    return Drawn(figure, {"patches": [{key: getattr(one, key) for key in keys} for one in chosen_ones]})


def _contrast(request: Request) -> Drawn:
    from egcam.figures import class_contrast

    (photograph,) = request.photographs
    images, targets = request.inputs()
    other = _other_class(request, photograph)
    this = request.explain(request.methods[0], images, targets, (0.0, 0.5))
    that = request.explain(request.methods[0], images, torch.full_like(targets, other.index), (0.5, 1.0))
    names = (photograph.target.name, other.name)
    caption = f"{_caption(photograph)}, {other.name} {other.probability:.0%}"
    figure = class_contrast(this, that, photograph.seen, labels=names, caption=caption, **request.style)
    return Drawn(figure, {"contrast_with": other})


def _other_class(request: Request, photograph: Photograph) -> Prediction:
    """The class asked for with --contrast-with, else the most probable one that is not the target."""
    predictions = request.classifier.predict(photograph.input)
    if request.contrast_with is not None:
        other = request.classifier.chosen(predictions, request.contrast_with)
    else:
        other = next(one for one in predictions if one.index != photograph.target.index)
    if other.index == photograph.target.index:
        raise InputError(f"{other.name} is contrasted with itself: pass another class with --contrast-with")
    return other


def _convergence(request: Request) -> Drawn:
    from egcam.figures import convergence, sampling_convergence

    (photograph,) = request.photographs
    options = request.classifier.options_for(request.methods[0], request.options)
    most = options.pop("samples", None) or 64
    counts = sorted({*(2**power for power in range(int(most).bit_length())), int(most)})
    data = sampling_convergence(
        request.classifier.model,
        photograph.input.to(request.classifier.device),
        counts,
        long=8 * counts[-1],
        runs=3,
        target=photograph.target.index,
        method=request.methods[0],
        progress=request.progress,
        **options,
    )
    numbers = {
        "samples": list(data.samples),
        "errors": data.errors.tolist(),
        "reported": [[None if value != value else value for value in run] for run in data.reported.tolist()],
        "long_samples": data.long_samples,
        "long_reported": data.long_reported,
    }
    return Drawn(convergence(data, photograph.seen, **request.style), numbers)


def _evaluated(request: Request, metrics: str, curves: bool = False) -> tuple[Table, dict[str, str]]:
    """Scores of all methods on all images, and why a method has none."""
    from egcam.evaluation.evaluate import evaluate
    from egcam.metrics import metric

    images, targets = request.inputs()
    names = [metric(name.strip()).name for name in metrics.split(",") if name.strip()]
    stepped = [name for name in names if request.step and "step" in metric(name).options()]
    masks = [one.mask for one in request.photographs if one.mask is not None]
    ahead = list(request.methods)

    def step(text: str) -> None:
        method = text.split(":")[0]
        if method in ahead:
            request.progress(ahead.index(method) / len(ahead))

    table = evaluate(
        request.classifier.model,
        images,
        request.methods,
        names,
        target=targets,
        masks=torch.stack(masks) if masks else None,
        seed=request.options.get("seed") or 0,
        method_options={name: request.classifier.options_for(name, request.options) for name in request.methods},
        metric_options={name: {"step": request.step} for name in stepped},
        image_names=[f"{number} {one.file}" for number, one in enumerate(request.photographs)],
        batch_size=request.options.get("batch_size"),
        progress=step,
        curves=curves,
        normalisation=request.classifier.preprocessing.normalisation,
    )
    skipped = {}
    for method in table.methods:
        rows = [row for row in table.rows if row.method == method]
        if all(row.cause is not None for row in rows):
            skipped[method] = str(rows[0].cause)
    if skipped and not request.everything:
        method, cause = next(iter(skipped.items()))
        raise InputError(f"{method} cannot be measured: {cause}")
    kept = tuple(method for method in table.methods if method not in skipped)
    rows_kept = tuple(row for row in table.rows if row.method in kept)
    return replace(table, rows=rows_kept, methods=kept), skipped


def _curves(request: Request) -> Drawn:
    from egcam.figures import perturbation_curves
    from egcam.metrics import Curve

    panels = ("insertion", "deletion")
    table, skipped = _evaluated(request, ",".join(panels), curves=True)
    curves: dict[str, dict[str, Curve]] = {panel: {} for panel in panels}
    for panel in panels:
        # As in tables: methods that can be compared, on the images that all of these have.
        are_compared = zip(table.methods, table.comparable(panel).compared, strict=True)
        kept = {method: table.curves[method, panel] for method, is_compared in are_compared if is_compared}
        common = sorted(set.intersection(*map(set, kept.values())), key=str) if kept else []
        for method, by_image in kept.items():
            own = [by_image[image] for image in common]
            curves[panel][method] = Curve(
                torch.stack([one.fractions for one in own]), torch.stack([one.scores for one in own])
            )
    areas = {
        panel: {method: float(curve.area().mean()) for method, curve in by_method.items()}
        for panel, by_method in curves.items()
    }
    return Drawn(perturbation_curves(curves, **request.style), {"areas": areas}, skipped)


def _scores(request: Request) -> tuple[Table, dict[str, str]]:
    masked = any(one.mask is not None for one in request.photographs)
    return _evaluated(request, request.metrics or (_METRICS_WITH_MASK if masked else _METRICS))


def _summary(table: Table) -> list[dict[str, Any]]:
    frame = table.summary()[["metric", "method", "better", "mean", "low", "high", "rank"]]
    lines: Any = frame.to_dict("records")
    return [{key: None if value != value else value for key, value in line.items()} for line in lines]


def _bars(request: Request) -> Drawn:
    from egcam.figures import metric_bars

    table, skipped = _scores(request)
    return Drawn(metric_bars(table, **request.style), {"scores": _summary(table)}, skipped)


def _ranks(request: Request) -> Drawn:
    from egcam.figures import mean_ranks, rank_plot

    table, skipped = _scores(request)
    ranks = [{"method": one.method, "rank": one.mean} for one in mean_ranks(table)[0]]
    return Drawn(rank_plot(table, **request.style), {"ranks": ranks, "scores": _summary(table)}, skipped)


def _radar(request: Request) -> Drawn:
    from egcam.figures import radar

    table, skipped = _scores(request)
    return Drawn(radar(table, **request.style), {"scores": _summary(table)}, skipped)


KINDS = {
    "grid": Kind(_grid, has_overlays=True),
    "mask": Kind(_mask, ("grad-cam", *_DEFAULT), one_image=True, needs_mask=True, has_overlays=True),
    "patches": Kind(_patches, _DEFAULT, "column", one_image=True, one_method=True),
    "contrast": Kind(_contrast, _DEFAULT, one_image=True, one_method=True, has_overlays=True),
    "convergence": Kind(_convergence, _DEFAULT, "column", one_image=True, one_method=True, has_overlays=True),
    "curves": Kind(_curves),
    "bars": Kind(_bars),
    "ranks": Kind(_ranks, width="column"),
    "radar": Kind(_radar, width="column"),
}
