"""Measure methods against each other: explain once, share what metrics share, and tabulate.

An image or a method that fails does not end the run: its scores are missing, the table says why, and a warning names
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from time import perf_counter
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from egcam.attribution import registry
from egcam.attribution.explanation import Explanation
from egcam.attribution.references import Normalisation
from egcam.attribution.registry import options_for
from egcam.errors import InputError, MethodError, near_misses
from egcam.evaluation.failures import Failure, Fault, fault_of, report
from egcam.evaluation.score import Score
from egcam.evaluation.table import Table
from egcam.imageops import size_of, upsampled
from egcam.metrics.case import AtLayer, Case
from egcam.metrics.explaining import Explainer, made_by, maps_in
from egcam.metrics.inputs import as_masks, as_tensor, chunks
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import Metric, MetricError, OfModel, Protocol, metric, records
from egcam.metrics.timing import synchronise
from egcam.metrics.undefined import Causes, causes_collected
from egcam.models.classifier import Classifier
from egcam.models.inputs import stacked
from egcam.models.layer_output import Reshape
from egcam.models.targets import Target, of_images

Method = str | Explainer
Options = Mapping[str, Any]
Maker = Callable[[nn.Module], Explainer]


def evaluate(
    model: nn.Module | Classifier,
    images: Any,
    methods: Sequence[Method] | Mapping[str, Method],
    metrics: Sequence[str] | None = None,
    target: Target = None,
    masks: Any = None,
    *,
    seed: int = 0,
    protocol: Protocol = "default",
    method_options: Mapping[str, Options] | None = None,
    metric_options: Mapping[str, Options] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Table:
    """Score methods on images with metrics, and tabulate.

    Each method explains every image once; the maps are in `Table.maps`. Metrics share what they can: the pass of the
    unaltered images, the curves of insertion and deletion, the perturbed explanations of the robustness metrics, the
    masked images of the confidence metrics, and infidelity's passes, for all methods. All methods get the same classes
    and the same noise, so that their scores are paired. If a method or metric raises an error, its score is NaN with
    the cause in the table, an `egcam.errors.FailedEvaluationWarning` names it, and the rest continues. To stop instead,
    turn the warning into an error.

    Args:
        model: the classifier. With an `egcam.zoo.Classifier` come its class names, its layer for methods by name, and
            how its images are normalised, for what is black, white or a photograph; otherwise each image's values
            decide that, and `Table.assumed` says how for metrics.
        images: (N, C, H, W), preprocessed as the model expects; a list of images for a model that takes lists;
            photographs, for a `Classifier`. Or a mapping from the names in the table to images; otherwise these are
            their numbers.
        methods: names of registered methods, explainers, or callables (images, target) -> maps; or a mapping from the
            names in the table to any of these.
        metrics: names of metrics; None is all of the paper's that the inputs allow.
        target: the classes to explain, or `egcam.targets`, one or one per image; None is the prediction.
        masks: (N, H, W) masks of the objects, for localization.
        seed: for methods by name and for metrics.
        protocol: "default", or "paper" for the paper's conventions in metrics.
        method_options: more options of methods by name, by method.
        metric_options: options of metrics, by metric.
        progress: called with a line when a method begins a metric.
        options: of the model and its images: batch_size, inputs, keywords, classes, dimensions, normalisation, see
            `egcam.metrics.Case`. All others are for those of the methods by name that take them: layer, reference,
            samples, reshape, …; a method that starts from a single image, such as black, keeps it where `reference` is
            a collection. With further inputs, a callable among the methods is called with
            (images, target, inputs=…, keywords=…).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
        >>> table = evaluate(net, torch.rand(2, 1, 8, 8), ["grad-cam", "layer-cam"], ["sparseness", "deletion"])
        >>> table.frame.shape
        (8, 5)
    """
    network = model.model if isinstance(model, Classifier) else model
    of_model = {name: options.pop(name) for name in OfModel.__annotations__ if name in options}
    shared = {"seed": seed, **options}
    if isinstance(model, Classifier):
        of_model = {"classes": model.classes, "normalisation": model.preprocessing.normalisation, **of_model}
        shared = {"layer": model.layer, **shared}
    case = Case(network, _as_batch(model, images), target=target, masks=masks, **of_model)
    chosen = _with_options(_chosen_metrics(metrics, masks), seed, protocol, metric_options or {})
    labels = list(images) if isinstance(images, Mapping) else list(range(len(case.images)))
    found = _named(methods)
    for method in found.values():
        _check_method(method)
    _check_options(options, found.values())
    # A wrong class or mask is a mistake in the call, not a metric that fails.
    case.run(lambda: case.classes)
    if masks is not None:
        as_masks(masks, case.images[:, 0])
    shared |= {name: of_model[name] for name in ("classes", "dimensions") if name in of_model}
    rows: list[Score] = []
    failures: list[Failure] = []
    curves: dict[tuple[str, str], Mapping[int | str, Curve]] = {}
    maps: dict[str, Tensor] = {}
    for name, method in found.items():
        maker = _maker(method, shared, (method_options or {}).get(name, {}), case.normalisation)
        measured = measure(case, name, maker, chosen, labels, progress or _silent, by_name=isinstance(method, str))
        rows += measured.rows
        failures += measured.failures
        if measured.maps is not None:
            maps[name] = measured.maps
        curves |= {(name, key): of_metric for key, of_metric in measured.curves.items()}
    report(failures)
    names = [one.name for one in chosen]
    return Table.of(rows, tuple(found), names, curves=curves, maps=maps, assumed=case.assumed)


def _as_batch(model: nn.Module | Classifier, images: Any) -> Any:
    """Tensors as they are, photographs as their network takes them."""
    listed = list(images.values()) if isinstance(images, Mapping) else images
    if isinstance(model, Classifier) and isinstance(listed, list) and any(isinstance(one, Image) for one in listed):
        return torch.cat([model.images(photo) for photo in listed])
    return stacked([as_tensor(one, "an image") for one in listed]) if isinstance(images, Mapping) else images


def _check_options(options: Options, methods: Iterable[Method]) -> None:
    """An option that nothing takes is a mistake, too."""
    taken = {name for method in methods if isinstance(method, str) for name in registry.takes(method)}
    for name, value in options.items():
        if value is not None and name not in taken:
            known = sorted(taken | set(OfModel.__annotations__))
            raise MethodError(f"no method here takes the option {name!r}; {near_misses(name, known)}")


def _silent(text: str) -> None:
    pass


def _chosen_metrics(wanted: Sequence[str] | None, masks: Any) -> list[type[Metric]]:
    if wanted is None:
        usual = [one for one in records() if one.paper]
        return [one for one in usual if masks is not None or "masks" not in one.needs]
    if isinstance(wanted, str):
        wanted = [wanted]
    chosen = [metric(name) for name in dict.fromkeys(wanted)]
    if not chosen:
        raise MetricError("no metrics are given; egcam.metrics.names() lists them")
    needing = [one.name for one in chosen if "masks" in one.needs]
    if needing and masks is None:
        raise InputError(f"{needing[0]} compares maps with the object's mask: pass masks=…")
    return chosen


def _with_options(
    chosen: Sequence[type[Metric]], seed: int, protocol: Protocol, given: Mapping[str, Options]
) -> list[Metric]:
    """The metrics as they will be computed: with the run's seed and protocol, and options of their own."""
    own = {metric(name): dict(values) for name, values in given.items()}
    for name in given:
        if metric(name) not in chosen:
            raise MetricError(f"options for {name!r}, which is not among the metrics asked for")
    return [one.made(**{"protocol": protocol, "run_seed": seed, **own.get(one, {})}) for one in chosen]


def _named(methods: Sequence[Method] | Mapping[str, Method]) -> dict[str, Method]:
    if isinstance(methods, Mapping):
        named = dict(methods)
    else:
        listed = [methods] if isinstance(methods, str) or callable(methods) else list(methods)
        named = {}
        for one in listed:
            name = one if isinstance(one, str) else _name_of(one)
            if name in named:
                raise MethodError(f"two methods are called {name!r}: pass a mapping with a name of its own for each")
            named[name] = one
    if not named:
        raise MethodError("no methods are given; egcam.methods() lists them")
    return named


def _name_of(explainer: Explainer) -> str:
    for attribute in ("method", "name", "__name__"):
        name = getattr(explainer, attribute, None)
        if isinstance(name, str) and name:
            return name
    return type(explainer).__name__


def _check_method(method: Method) -> None:
    """An unknown name is a mistake in the call, not a method that fails."""
    if isinstance(method, str):
        registry.takes(method)
    elif not callable(method):
        raise MethodError(f"a method is a name or a callable (images, target) -> maps, not {type(method).__name__}")


def _maker(method: Method, shared: Options, options: Options, normalisation: Normalisation | None) -> Maker:
    """Makes the explainer for a model; one that is there already is of its own model, whatever the other."""

    def make(model: nn.Module) -> Explainer:
        if not isinstance(method, str):
            return method
        return registry.create(method, model, **options_for(method, shared, options, normalisation))

    return make


@dataclass(frozen=True)
class Measured:
    """The outcome of one method.

    Attributes:
        rows: one for each metric and image, in this order.
        maps: (N, h, w) before they were enlarged, NaN for images that could not be explained; None if none could.
        curves: insertion and deletion curves, by metric and image.
        failures: what raised an error.
    """

    rows: list[Score]
    maps: Tensor | None
    curves: Mapping[str, Mapping[int | str, Curve]]
    failures: list[Failure]


def measure(
    case: Case,
    name: str,
    maker: Maker,
    metrics: Sequence[Metric],
    labels: Sequence[int | str],
    say: Callable[[str], None] = _silent,
    *,
    by_name: bool = False,
) -> Measured:
    """Explain the images of a case and score the maps.

    What is found out about the network stays with the case, for the next method to use.

    Args:
        case: model, images, classes and masks.
        name: the method's, for the table.
        maker: makes the explainer for a model.
        metrics: with their options.
        labels: what the images are called in the table.
        say: called with a line when a metric begins.
        by_name: whether the explainer can be made for another model too, which randomising one needs.
    """
    say(f"{name}: explain")
    try:
        explainer = maker(case.model)
        explained = _Explained(case, explainer, maker if by_name else None, metrics)
    except Exception as error:
        fault = fault_of(error)
        rows = [Score(label, name, one.name, nan, 0.0, fault.cause) for one in metrics for label in labels]
        return Measured(rows, None, {}, [Failure(name, None, None, fault)])
    failures = [Failure(name, None, image, fault) for image, fault in explained.faults.items()]
    rows = []
    for one in metrics:
        say(f"{name}: {one.name}")
        values, causes, seconds, faults = explained.scores(one)
        failures += [Failure(name, one.name, image, fault) for image, fault in faults.items()]
        rows += [
            Score(label, name, one.name, values.get(image, nan), seconds, causes.get(image))
            for image, label in enumerate(labels)
        ]
    return Measured(rows, explained.coarse, explained.curves(labels), failures)


class _Explained:
    """The images of a case with the maps of one method, as far as it could explain them."""

    def __init__(self, case: Case, explainer: Explainer, maker: Maker | None, metrics: Sequence[Metric]) -> None:
        self._case, self._explainer, self._maker, self._metrics = case, explainer, maker, metrics
        halves = (torch.float16, torch.bfloat16)
        self._kind = torch.float32 if case.images.dtype in halves else case.images.dtype
        self._cases: dict[tuple[int, ...], Case] = {}
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._layer: str | None = None
        self._reshape: Reshape | None = None
        self.faults: dict[int, Fault] = {}
        for part in chunks(len(case.images), case.batch_size):
            rows = tuple(range(part.start, part.stop))
            self.faults |= _try_together(lambda some: case.run(lambda: self._explain(some)), rows)
        bad = Causes()
        for image, (maps, _) in self._made.items():
            if not maps.isfinite().all():
                bad[image] = "its map holds NaN or infinite values"
        self._without_map = bad | {image: fault.cause for image, fault in self.faults.items()}
        self._usable = tuple(image for image in range(len(case.images)) if image not in self._without_map)

    def _explain(self, rows: tuple[int, ...]) -> None:
        case, asked, images = self._case, self._case.asked, self._case.images[list(rows)]
        own = case.extra.part(torch.tensor(rows, device="cpu"))
        made = made_by(self._explainer, images, of_images(asked, rows), own, warn=True)
        maps = maps_in(made, images)
        coarse = getattr(made, "maps", maps)
        self._layer = getattr(made, "layer", None)
        self._reshape = made.reshape if isinstance(made, Explanation) else None
        self._made |= {row: (maps[place].to(self._kind), coarse[place].detach()) for place, row in enumerate(rows)}

    @property
    def coarse(self) -> Tensor | None:
        """(N, h, w) the maps before they were enlarged, on the CPU."""
        sizes = {coarse.shape for _, coarse in self._made.values()}
        if len(sizes) != 1:
            return None
        found = torch.full((len(self._case.images), *sizes.pop()), float("nan"))
        for row, (_, coarse) in self._made.items():
            found[row] = coarse.float().cpu()
        return found

    def _case_of(self, rows: tuple[int, ...]) -> Case:
        if rows not in self._cases:
            maps = [self._made[row][0] for row in rows]
            if len({one.shape for one in maps}) > 1:
                maps = [upsampled(one[None], size_of(self._case.images))[0] for one in maps]
            made = self._case.explained(torch.stack(maps), self._explainer, self._maker, rows, self._at_layer(rows))
            for one in self._metrics:
                try:
                    one.foresee(made)
                except InputError:
                    # Options that are wrong are that metric's failure, when it is computed.
                    continue
            self._cases[rows] = made
        return self._cases[rows]

    def _at_layer(self, rows: tuple[int, ...]) -> AtLayer | None:
        coarse = [self._made[row][1] for row in rows]
        same = len({one.shape for one in coarse}) == 1
        if not same:
            return None
        return AtLayer(torch.stack(coarse).to(self._case.images.device, self._kind), self._layer, self._reshape)

    def scores(self, one: Metric) -> tuple[dict[int, float], dict[int, str], float, dict[int, Fault]]:
        """Values and causes of missing values by image, seconds per image, and what failed; alone, if not together."""
        values: dict[int, float] = {}
        causes = dict(self._without_map)
        start = perf_counter()

        def attempt(rows: tuple[int, ...]) -> None:
            with causes_collected() as undefined:
                scores = one.of(self._case_of(rows)).tolist()
            values.update(zip(rows, scores, strict=True))
            causes.update({rows[place]: cause for place, cause in undefined.items()})

        faults = _try_together(attempt, self._usable, apart=not one.whole_set) if self._usable else {}
        causes.update({image: fault.cause for image, fault in faults.items()})
        synchronise(self._case.images.device)
        return values, causes, (perf_counter() - start) / max(1, len(self._usable)), faults

    def curves(self, labels: Sequence[int | str]) -> dict[str, dict[int | str, Curve]]:
        """The insertion and deletion curves, on the CPU."""
        found: dict[str, dict[int, Curve]] = {}
        for rows, case in self._cases.items():
            for key, curve in case.curves.items():
                shares, scores = curve.fractions.cpu(), curve.scores.cpu()
                found.setdefault(key, {}).update({row: Curve(shares[n], scores[n]) for n, row in enumerate(rows)})
        return {key: {labels[row]: by_row[row] for row in sorted(by_row)} for key, by_row in found.items()}


def _try_together(
    attempt: Callable[[tuple[int, ...]], None], rows: tuple[int, ...], *, apart: bool = True
) -> dict[int, Fault]:
    """Attempt all rows at once and, if that fails, each by itself; the faults of those that still fail."""
    try:
        attempt(rows)
        return {}
    except Exception as error:
        if len(rows) == 1 or not apart:
            return dict.fromkeys(rows, fault_of(error))
    faults: dict[int, Fault] = {}
    for row in rows:
        faults |= _try_together(attempt, (row,))
    return faults
