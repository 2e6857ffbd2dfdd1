"""All that a report holds, gathered once for every form it is written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from egcam.attribution.registry import is_control, is_highlighted
from egcam.drawing.overlays import overlay_image
from egcam.drawing.palette import checked_sharpness
from egcam.evaluation.comparable import Values, comparable
from egcam.evaluation.ranking import Ranking, mean_ranks
from egcam.evaluation.stats import Summary, baseline_of, intervals, means, reliability, summarised
from egcam.figures.curve_panels import MeanCurve
from egcam.imageops import heatmaps
from egcam.metrics.registry import metric as metric_called
from egcam.progress import Progress, piece_of
from egcam.studies.geometry import shown
from egcam.studies.report import provenance
from egcam.studies.report.formatting import file_names, looks, method_labels
from egcam.studies.report.interpretation import Interpretation, caution, interpret, sentences, statement
from egcam.studies.report.provenance import class_names
from egcam.studies.results import Results, ResultsError

if TYPE_CHECKING:
    from egcam.evaluation.table import Table
    from egcam.figures.style import LineStyle

CURVES = ("insertion", "deletion")


@dataclass(frozen=True)
class Example:
    """An image and what each method made of it; None where a method has no map."""

    name: str  # the image's
    target: int  # the class explained; -1 where unknown
    prediction: int  # the class predicted
    photograph: Image.Image  # what the model saw
    overlays: Mapping[str, Image.Image | None]  # the methods' maps over it
    # The names of the classes, in the order of the model's outputs; None where unknown.
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class ModelSection:
    """What there is to say of one model."""

    model: str  # its label
    file: str  # the same for file names
    images: int  # how many every method has finished, with scores or without
    table: Table  # their scores
    summary: Summary  # against the baseline
    reliability: Mapping[str, float]  # of each metric
    interpretations: tuple[Interpretation, ...]  # of each form of SlopeCAM
    ranking: Ranking | None  # mean ranks over metrics
    curves: Mapping[str, Mapping[str, MeanCurve]]  # mean perturbation curves, by metric and method
    curve_images: Mapping[str, int]  # how many images the curves of a metric are over
    examples: tuple[Example, ...]  # images with maps
    missing: tuple[str, ...]  # why scores are missing
    caveats: tuple[str, ...]  # what a reader of its tables must know


@dataclass(frozen=True)
class Report:
    """The whole report, before it takes a form."""

    title: str  # of the report
    facts: tuple[tuple[str, str], ...]  # what was run
    warnings: tuple[str, ...]  # what must be known first
    labels: Mapping[str, str]  # what methods are called
    looks: Mapping[str, LineStyle]  # how methods are drawn
    expected: tuple[str, ...]  # the names of SlopeCAM, in its forms
    baseline: str  # the method that others are compared with
    sections: tuple[ModelSection, ...]  # one for each model
    unscored: tuple[str, ...]  # models without an image that all methods have finished
    ranking: Ranking | None  # mean ranks over metrics and models, where there are several
    primary: str | None = None  # the metric that decides, if one was named

    def statements(self, section: ModelSection) -> list[tuple[str, list[str]]]:
        """For each form of SlopeCAM (all methods, in a study without), how it stands to the baseline."""
        methods = self.expected or tuple(self.labels)
        return [
            (
                method,
                [
                    statement(section.summary.line(metric, method), self.baseline, self.labels)
                    for metric in section.table.metrics
                ],
            )
            for method in methods
            if method != self.baseline
        ]

    def interpretations(self, section: ModelSection) -> list[tuple[str, list[str]]]:
        """What the numbers of a model say of each form of SlopeCAM."""
        return [(found.method, sentences(found, self.labels)) for found in section.interpretations]

    def caution(self, section: ModelSection) -> str:
        """How far the intervals and verdicts of a model can be trusted."""
        return caution(section.summary, self.primary)


def gather(
    results: Results, baseline: str | None = None, sharpness: float = 1.0, progress: Progress | None = None
) -> Report:
    """The content of a report; an error that says how far the study is when there is nothing to report yet."""
    checked_sharpness(sharpness)
    against = baseline_of(results.methods, baseline)
    if not results.tables:
        raise ResultsError(
            f"there is nothing to report yet: {len(results.done):,} of {results.units:,} units are done, and no "
            f"image by all {len(results.methods)} methods; resume the study and report again"
        )
    files = file_names(results.models)
    expected = tuple(one.name for one in results.study.methods if is_highlighted(one.method))
    sections = []
    for place, model in enumerate(results.tables):
        sections.append(_section(results, model, files[model], against, expected, sharpness))
        piece_of(progress, place, len(results.tables))(1.0)
    return Report(
        provenance.heading(results),
        tuple(provenance.facts(results)),
        tuple(provenance.warnings(results)),
        method_labels(results.study.methods),
        looks(results.study.methods),
        expected,
        against,
        tuple(sections),
        tuple(model for model in results.models if model not in results.tables),
        _ranking(list(results.tables.values())) if len(sections) > 1 else None,
        results.study.primary,
    )


def _section(
    results: Results, model: str, file: str, baseline: str, expected: tuple[str, ...], sharpness: float
) -> ModelSection:
    table = results.table(model)
    curves = {metric: _mean_curves(results, model, metric) for metric in CURVES}
    return ModelSection(
        model,
        file,
        len(results.images(model)),
        table,
        summarised(table, baseline, primary=results.study.primary),
        _reliability(table),
        tuple(interpret(table, method, results.study.primary) for method in expected),
        _ranking([table]),
        {metric: found for metric, (found, _) in curves.items() if found},
        {metric: images for metric, (found, images) in curves.items() if found},
        _examples(results, model, sharpness),
        tuple(provenance.missing(results, model)),
        tuple(provenance.caveats(results, model)),
    )


def _reliability(table: Table) -> dict[str, float]:
    """Of each metric, controls aside: they would make any look reliable."""
    found = {}
    for metric in table.metrics:
        if metric_called(metric).group != "efficiency":
            scores = table.comparable(metric)
            methods = zip(table.methods, scores.compared, strict=True)
            kept = [bool(counts) and not is_control(name) for name, counts in methods]
            found[metric] = reliability(scores.values[:, kept])
    return found


def _ranking(tables: Sequence[Table]) -> Ranking | None:
    """One method alone has no rank."""
    found = mean_ranks(tables)
    return found if found is not None and len(found.methods) > 1 else None


def _mean_curves(results: Results, model: str, metric: str) -> tuple[dict[str, MeanCurve], int]:
    """Mean curves over the images that all compared methods have one of, and how many these are."""
    images = results.images(model)
    kept = results.source.curves(model, metric)
    held = np.array(
        [
            [1.0 if _is_drawn(kept.get(method, {}).get(image)) else np.nan
             for method in results.methods]
            for image in images
        ]
    )  # fmt: skip
    found = comparable(held)
    curves = {method: kept[method] for method, drawn in zip(results.methods, found.compared, strict=True) if drawn}
    if not curves:
        return {}, 0
    common = [bool(np.isfinite(row).all()) for row in found.values[:, found.compared]]
    shared = [image for image, counts in zip(images, common, strict=True) if counts]
    points = max((len(by_image[image]) for by_image in curves.values() for image in shared), default=0)
    if not shared:
        return {}, 0
    drawn = {}
    for method, by_image in curves.items():
        rows = np.stack([_at(by_image[image], points) for image in shared])
        mean, (low, high) = means(rows), intervals(rows)
        if len(shared) < 2:
            low = high = mean
        fractions = np.linspace(0, 1, points)
        drawn[method] = MeanCurve(fractions, mean, low, high, float((mean[1:] + mean[:-1]).mean() / 2))
    return drawn, len(shared)


def _is_drawn(curve: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None) -> bool:
    return curve is not None and len(curve) > 1 and bool(np.isfinite(curve).all())


def _at(curve: np.ndarray[tuple[int, ...], np.dtype[np.float32]], points: int) -> Values:
    """The curve at that many evenly spaced shares."""
    values = np.asarray(curve, np.float64)
    if len(values) == points:
        return values
    return np.asarray(np.interp(np.linspace(0, 1, points), np.linspace(0, 1, len(values)), values))


def _examples(results: Results, model: str, sharpness: float) -> tuple[Example, ...]:
    pictures = results.source.pictures(model)
    chosen = [image for image in results.images(model) if image in pictures][: results.study.examples]
    if not chosen:
        return ()
    maps = results.source.maps(model, images=chosen)
    classes = class_names(results.study, next(one for one in results.study.models if one.label == model))
    found = []
    for image in chosen:
        photograph = shown(pictures[image], f"the picture of image {image}")
        outcomes = [results.classes(model, method, image) for method in results.methods]
        # A method that failed may not know the classes; the others do.
        name, target, prediction = next((one for one in outcomes if one[1] >= 0), outcomes[0])
        own = {method: maps.get(method, {}).get(image) for method in results.methods}
        overlays = {method: _overlay(photograph, coarse, sharpness) for method, coarse in own.items()}
        if any(overlay is not None for overlay in overlays.values()):
            found.append(Example(name or f"image {image}", target, prediction, photograph, overlays, classes))
    return tuple(found)


def _overlay(
    photograph: Image.Image, coarse: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None, sharpness: float
) -> Image.Image | None:
    if coarse is None or not np.isfinite(coarse).all():
        return None
    size = photograph.height, photograph.width
    heat = heatmaps(torch.from_numpy(np.array(coarse, np.float32))[None], size)[0].numpy()
    return overlay_image(photograph, heat, sharpness=sharpness)
