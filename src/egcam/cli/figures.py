"""`egcam figure`: a figure for a paper, from images. What a kind needs is computed here, and drawn elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from egcam._version import __version__
from egcam.attribution.explanation import Explanation
from egcam.attribution.registry import create, usual_methods
from egcam.cli.console import (
    DONE,
    SOME_FAILED,
    Share,
    complain,
    note,
    out,
    print_json,
    progress_bar,
    told_warnings,
)
from egcam.cli.inputs import read_classes, read_methods, read_reference, read_target
from egcam.cli.output import prediction_dict
from egcam.drawing.palette import checked_sharpness, heat_colors
from egcam.errors import EgcamError, InputError, near_misses
from egcam.models.zoo import Classifier, load
from egcam.photos.comparison import Prediction, applicable, chosen, predict
from egcam.photos.files import find_images, read_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from egcam.evaluation.table import Table

_OURS = "expected-grad-cam"
# A figure may show many images: the usual methods that take long are left out.
_MOST_COST = 12
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
class Wish:
    """What was asked for, read and checked."""

    classifier: Classifier
    photographs: tuple[Photograph, ...]
    saturated: tuple[Photograph, ...]
    methods: list[str]
    everything: bool
    options: Mapping[str, Any]
    contrast_with: str | None
    metrics: str | None
    step: int | None
    patches: int
    grid: int
    looks: Mapping[str, Any]
    share: Share

    def inputs(self, photographs: Sequence[Photograph] | None = None) -> tuple[Tensor, Tensor]:
        """(N, C, H, W) and (N,) the images and the classes to explain."""
        given = self.photographs if photographs is None else photographs
        images = torch.stack([one.input for one in given]).to(self.classifier.device)
        return images, torch.tensor([one.target.index for one in given], device=images.device)

    def explain(self, method: str, images: Tensor, targets: Tensor, share: Share) -> Explanation:
        """One method on all images."""

        def passes(done: int, total: int) -> None:
            share(done / max(total, 1))

        options = applicable(method, self.classifier, self.options)
        return create(method, self.classifier.model, **options)(images, targets, progress=passes)


@dataclass
class Made:
    """A figure and the numbers in it."""

    figure: Figure
    numbers: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of figure: how it is made, its usual methods and width, and whether it shows a single image or method."""

    make: Callable[[Wish], Made]
    methods: str | None = None
    width: str = "page"
    one_image: bool = False
    one_method: bool = False
    needs_mask: bool = False


def draw_figure(
    kind: str,
    paths: Sequence[Path],
    *,
    model: str,
    weights: str | None,
    classes: Path | None,
    device: str | None,
    methods: str | None,
    target: str | None,
    contrast_with: str | None,
    reference: str | None,
    options: Mapping[str, Any],
    masks: Sequence[Path],
    saturated: Sequence[Path],
    metrics: str | None,
    step: int | None,
    patches: int,
    grid: int,
    width: str | None,
    colors: str | None,
    sharpness: float,
    dpi: int,
    out: Sequence[Path],
    as_json: bool,
) -> int:
    """Draw the figure, print where it is, and give the exit code."""
    from egcam.figures.page import checked_path, save

    found = _kind(kind)
    # Whatever can be wrong is found before a network runs.
    targets = [checked_path(path) for path in out or [Path("egcam-out", f"{kind}.png")]]
    usual = found.methods or ",".join(usual_methods(_MOST_COST))
    names = read_methods(methods or usual)
    if found.one_method and len(names) > 1:
        raise InputError(f"a figure of kind {kind} shows one method, not {len(names)}: pass --methods {names[-1]}")
    looks = {"width": _width(width or found.width)} | _overlay_look(kind, colors, sharpness)
    files = find_images(paths)
    _check_images(kind, found, files, masks, saturated)
    classifier = load(model, weights, device, read_classes(classes))
    options = {**options, "reference": read_reference(reference, classifier)}
    wanted = read_target(target)
    photographs, failed = _read(classifier, files, wanted, list(masks))
    more, more_failed = _read(classifier, find_images(saturated) if saturated else [], wanted, [])
    failed |= more_failed
    if not photographs or (saturated and not more):
        if as_json:
            print_json({"error": "no image could be read", "exit_code": SOME_FAILED, "failed": _listed(failed)})
        return SOME_FAILED
    with (
        told_warnings(", ".join(str(one.file) for one in photographs[:2])),
        progress_bar(f"figure: {kind}", wanted=not as_json) as share,
    ):
        everything = (methods or "").strip() == "all"
        wish = Wish(
            classifier,
            photographs,
            more,
            names,
            everything,
            options,
            contrast_with,
            metrics,
            step,
            patches,
            grid,
            looks,
            share,
        )
        made = found.make(wish)
    for name, reason in made.skipped.items():
        note(f"{name} is left out: {reason}")
    written = save(made.figure, *targets, dpi=dpi)
    _report(kind, wish, made, written, failed, as_json)
    return SOME_FAILED if failed else DONE


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise InputError(f"there is no figure of kind {name!r}; {near_misses(name, KINDS)}; kinds: {', '.join(KINDS)}")
    return KINDS[name]


def _width(text: str) -> str | float:
    from egcam.figures.style import width_in_inches

    try:
        width: str | float = float(text)
    except ValueError:
        width = text
    width_in_inches(width)  # type: ignore[arg-type]
    return width


def _overlay_look(kind: str, colors: str | None, sharpness: float) -> dict[str, Any]:
    """What was asked for of the overlays, where the figure has any."""
    asked: dict[str, Any] = {}
    if colors is not None:
        heat_colors(colors)
        asked["colors"] = colors
    if checked_sharpness(sharpness) != 1.0:
        asked["sharpness"] = sharpness
    if kind in ("grid", "mask", "contrast", "convergence"):
        return asked
    for name in asked:
        note(f"a figure of kind {kind} has no heat map and no use for --{name}")
    return {}


def _check_images(
    kind: str, found: Kind, files: Sequence[Path], masks: Sequence[Path], saturated: Sequence[Path]
) -> None:
    if found.one_image and len(files) > 1:
        raise InputError(f"a figure of kind {kind} shows one image, not {len(files)}: call it for each")
    if found.needs_mask and not masks:
        raise InputError(f"a figure of kind {kind} needs the object's mask: pass --mask FILE, white on the object")
    if masks and len(masks) != len(files):
        raise InputError(f"{len(masks)} masks for {len(files)} image(s): pass --mask once for each image, in order")
    if saturated and kind != "grid":
        raise InputError(f"--saturated is for a figure of kind grid, not {kind}")


def _read(
    classifier: Classifier, files: Sequence[Path], target: int | str | None, masks: Sequence[Path]
) -> tuple[tuple[Photograph, ...], dict[str, str]]:
    """The photographs that can be read, and for the others why not."""
    read: list[Photograph] = []
    failed: dict[str, str] = {}
    for number, file in enumerate(files):
        try:
            image = read_image(file)
            mask = _read_mask(masks[number], image, classifier) if masks else None
        except InputError as error:
            failed[str(file)] = str(error)
            complain(error)
            continue
        inputs = classifier.preprocess(image)
        predictions = predict(classifier, inputs[None].to(classifier.device))
        wanted = chosen(predictions, target, classifier.classes)
        read.append(Photograph(file, classifier.crop(image), inputs, wanted, tuple(predictions[:5]), mask))
    return tuple(read), failed


def _read_mask(file: Path, image: Image, classifier: Classifier) -> Tensor:
    """(H, W) the mask as the network sees the image: resized and cut alike, without new values at the border."""
    picture = read_image(file)
    if picture.size != image.size:
        raise InputError(
            f"the mask {file} is {picture.size} and its image {image.size} (width, height): make them equal"
        )
    plain = replace(classifier.preprocessing, interpolation="nearest", mean=(0.0,) * 3, std=(1.0,) * 3)
    values = plain(picture).amax(0)
    inside = values > values.max() / 2
    if not inside.any():
        raise InputError(f"the mask {file} is black where the network looks: white marks the object")
    return inside


def _all_explained(
    wish: Wish, photographs: Sequence[Photograph], shares: tuple[float, float]
) -> tuple[dict[str, Explanation], dict[str, str]]:
    """Every method on the photographs; with --methods all, those that do not apply are left out, with the reason."""
    images, targets = wish.inputs(photographs)
    done: dict[str, Explanation] = {}
    skipped: dict[str, str] = {}
    start, end = shares
    for number, method in enumerate(wish.methods):
        low = start + (end - start) * number / len(wish.methods)
        high = start + (end - start) * (number + 1) / len(wish.methods)
        try:
            done[method] = wish.explain(method, images, targets, _within(wish.share, low, high))
        except InputError:
            raise
        except EgcamError as error:
            if not wish.everything:
                raise
            skipped[method] = str(error)
        wish.share(high)
    return done, skipped


def _within(share: Share, low: float, high: float) -> Share:
    return lambda part: share(low + (high - low) * min(part, 1.0))


def _caption(one: Photograph) -> str:
    return f"{one.target.name} {one.target.probability:.0%}"


def _grid(wish: Wish) -> Made:
    from egcam.figures import method_grid

    first = 0.5 if wish.saturated else 1.0
    explained, skipped = _all_explained(wish, wish.photographs, (0.0, first))
    shown = [*wish.photographs, *wish.saturated]
    more = None
    if wish.saturated:
        wish = replace(wish, methods=list(explained))
        more, _ = _all_explained(wish, wish.saturated, (first, 1.0))
    figure = method_grid(
        explained,
        [one.seen for one in wish.photographs],
        saturated=more,
        saturated_images=[one.seen for one in wish.saturated],
        captions=[_caption(one) for one in shown],
        **wish.looks,
    )
    return Made(figure, {"layer": next(iter(explained.values())).layer}, skipped)


def _mask(wish: Wish) -> Made:
    from egcam.figures import mask_comparison, mask_scores

    (photograph,) = wish.photographs
    explained, skipped = _all_explained(wish, wish.photographs, (0.0, 1.0))
    assert photograph.mask is not None
    heat = {method: one.heatmaps[0] for method, one in explained.items()}
    measure = (wish.metrics or "relevance-mass-accuracy").split(",")[0]
    scores = mask_scores(photograph.mask, heat, measure)
    figure = mask_comparison(
        photograph.seen,
        photograph.mask,
        heat,
        scores=scores,
        measure=measure,
        caption=_caption(photograph),
        **wish.looks,
    )
    return Made(figure, {"measure": measure, "scores": scores}, skipped)


def _patches(wish: Wish) -> Made:
    from egcam.figures import choose_patches, top_patches

    (photograph,) = wish.photographs
    images, targets = wish.inputs()
    heat = wish.explain(wish.methods[0], images, targets, wish.share).heatmaps[0]
    figure = top_patches(photograph.seen, heat, wish.patches, wish.grid, caption=_caption(photograph), **wish.looks)
    chosen_ones = choose_patches(heat, wish.patches, wish.grid)
    keys = ("row", "column", "share")
    return Made(figure, {"patches": [{key: getattr(one, key) for key in keys} for one in chosen_ones]})


def _contrast(wish: Wish) -> Made:
    from egcam.figures import class_contrast

    (photograph,) = wish.photographs
    images, targets = wish.inputs()
    other = _other_class(wish, photograph)
    this = wish.explain(wish.methods[0], images, targets, _within(wish.share, 0.0, 0.5))
    that = wish.explain(wish.methods[0], images, torch.full_like(targets, other.index), _within(wish.share, 0.5, 1.0))
    names = (photograph.target.name, other.name)
    caption = f"{_caption(photograph)}, {other.name} {other.probability:.0%}"
    figure = class_contrast(this, that, photograph.seen, labels=names, caption=caption, **wish.looks)
    return Made(figure, {"contrast_with": prediction_dict(other)})


def _other_class(wish: Wish, photograph: Photograph) -> Prediction:
    """The class asked for with --contrast-with, else the most probable one that is not the target."""
    predictions = predict(wish.classifier, photograph.input[None].to(wish.classifier.device))
    if wish.contrast_with is not None:
        other = chosen(predictions, read_target(wish.contrast_with), wish.classifier.classes)
    else:
        other = next(one for one in predictions if one.index != photograph.target.index)
    if other.index == photograph.target.index:
        raise InputError(f"{other.name} is contrasted with itself: pass another class with --contrast-with")
    return other


def _convergence(wish: Wish) -> Made:
    from egcam.figures import convergence, sampling_convergence

    (photograph,) = wish.photographs
    options = applicable(wish.methods[0], wish.classifier, wish.options)
    most = options.pop("samples", None) or 64
    counts = sorted({*(2**power for power in range(int(most).bit_length())), int(most)})
    data = sampling_convergence(
        wish.classifier.model,
        photograph.input.to(wish.classifier.device),
        counts,
        long=8 * counts[-1],
        runs=3,
        target=photograph.target.index,
        method=wish.methods[0],
        progress=wish.share,
        **options,
    )
    numbers = {
        "samples": list(data.samples),
        "errors": data.errors.tolist(),
        "reported": [[None if value != value else value for value in run] for run in data.reported.tolist()],
        "long_samples": data.long_samples,
        "long_reported": data.long_reported,
    }
    return Made(convergence(data, photograph.seen, **wish.looks), numbers)


def _evaluated(wish: Wish, metrics: str, curves: bool = False) -> tuple[Table, dict[str, str]]:
    """Scores of all methods on all images, and why a method has none."""
    from egcam.evaluation.evaluate import evaluate
    from egcam.metrics import metric

    images, targets = wish.inputs()
    names = [metric(name.strip()).name for name in metrics.split(",") if name.strip()]
    stepped = [name for name in names if wish.step and "step" in signature(metric(name).function).parameters]
    masks = [one.mask for one in wish.photographs if one.mask is not None]
    ahead = list(wish.methods)

    def step(text: str) -> None:
        method = text.split(":")[0]
        if method in ahead:
            wish.share(ahead.index(method) / len(ahead))

    table = evaluate(
        wish.classifier.model,
        images,
        wish.methods,
        names,
        target=targets,
        masks=torch.stack(masks) if masks else None,
        seed=wish.options.get("seed") or 0,
        method_options={name: applicable(name, wish.classifier, wish.options) for name in wish.methods},
        metric_options={name: {"step": wish.step} for name in stepped},
        image_names=[f"{number} {one.file}" for number, one in enumerate(wish.photographs)],
        batch_size=wish.options.get("batch_size"),
        progress=step,
        curves=curves,
    )
    skipped = {}
    for method in table.methods:
        rows = [row for row in table.rows if row.method == method]
        if all(row.cause is not None for row in rows):
            skipped[method] = str(rows[0].cause)
    if skipped and not wish.everything:
        method, cause = next(iter(skipped.items()))
        raise InputError(f"{method} cannot be measured: {cause}")
    kept = tuple(method for method in table.methods if method not in skipped)
    rows_kept = tuple(row for row in table.rows if row.method in kept)
    return replace(table, rows=rows_kept, methods=kept), skipped


def _curves(wish: Wish) -> Made:
    from egcam.figures import perturbation_curves
    from egcam.metrics import Curve

    panels = ("insertion", "deletion")
    table, skipped = _evaluated(wish, ",".join(panels), curves=True)
    curves: dict[str, dict[str, Curve]] = {panel: {} for panel in panels}
    for panel in panels:
        for method in table.methods:
            own = list(table.curves[method, panel].values())
            curves[panel][method] = Curve(
                torch.stack([one.fractions for one in own]), torch.stack([one.scores for one in own])
            )
    areas = {
        panel: {method: float(curve.area().mean()) for method, curve in by_method.items()}
        for panel, by_method in curves.items()
    }
    return Made(perturbation_curves(curves, **wish.looks), {"areas": areas}, skipped)


def _scores(wish: Wish) -> tuple[Table, dict[str, str]]:
    masked = any(one.mask is not None for one in wish.photographs)
    return _evaluated(wish, wish.metrics or (_METRICS_WITH_MASK if masked else _METRICS))


def _summary(table: Table) -> list[dict[str, Any]]:
    frame = table.summary()[["metric", "method", "better", "mean", "low", "high", "rank"]]
    lines: Any = frame.to_dict("records")
    return [{key: None if value != value else value for key, value in line.items()} for line in lines]


def _bars(wish: Wish) -> Made:
    from egcam.figures import metric_bars

    table, skipped = _scores(wish)
    return Made(metric_bars(table, **wish.looks), {"scores": _summary(table)}, skipped)


def _ranks(wish: Wish) -> Made:
    from egcam.figures import mean_ranks, rank_plot

    table, skipped = _scores(wish)
    ranks = [{"method": one.method, "rank": one.mean} for one in mean_ranks(table)[0]]
    return Made(rank_plot(table, **wish.looks), {"ranks": ranks, "scores": _summary(table)}, skipped)


def _radar(wish: Wish) -> Made:
    from egcam.figures import radar

    table, skipped = _scores(wish)
    return Made(radar(table, **wish.looks), {"scores": _summary(table)}, skipped)


KINDS = {
    "grid": Kind(_grid),
    "mask": Kind(_mask, f"grad-cam,{_OURS}", one_image=True, needs_mask=True),
    "patches": Kind(_patches, _OURS, "column", one_image=True, one_method=True),
    "contrast": Kind(_contrast, _OURS, one_image=True, one_method=True),
    "convergence": Kind(_convergence, _OURS, "column", one_image=True, one_method=True),
    "curves": Kind(_curves),
    "bars": Kind(_bars),
    "ranks": Kind(_ranks, width="column"),
    "radar": Kind(_radar, width="column"),
}


def _listed(failed: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"file": file, "error": error} for file, error in failed.items()]


def _report(kind: str, wish: Wish, made: Made, files: Sequence[Path], failed: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        document = {
            "egcam": __version__,
            "kind": kind,
            "files": [str(file) for file in files],
            "model": wish.classifier.name,
            "methods": [method for method in wish.methods if method not in made.skipped],
            "images": [
                {"file": str(one.file), "target": prediction_dict(one.target)}
                for one in (*wish.photographs, *wish.saturated)
            ],
            **made.numbers,
            "skipped": made.skipped,
            "failed": _listed(failed),
        }
        print_json(document)
        return
    count = len(wish.photographs) + len(wish.saturated)
    names = " and ".join(str(file) for file in files)
    out().print(f"{kind} of {count} image(s), {len(wish.methods) - len(made.skipped)} method(s): {names}", markup=False)
