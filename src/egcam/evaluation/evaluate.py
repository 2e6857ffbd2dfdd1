"""Measure methods against each other: explain once, share what metrics have in common, and tabulate.

An image or a method that fails does not end the run: its scores are missing, the table says why, and a warning names
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from egcam.attribution import registry
from egcam.errors import InputError, MethodError, near_misses
from egcam.evaluation.failures import Failure, Fault, fault_of, report
from egcam.evaluation.table import Row, Table
from egcam.metrics import confidence, faithfulness, robustness
from egcam.metrics.explaining import Explainer, maps_of
from egcam.metrics.inputs import (
    Protocol,
    as_images,
    as_masks,
    check_protocol,
    chunks,
    resized,
)
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import Metric, MetricError, metric, names
from egcam.metrics.scoring import Scorer, fitting_batch, forward_only
from egcam.metrics.timing import synchronise
from egcam.metrics.undefined import Causes, causes_collected, settle
from egcam.models.targets import Target

Method = str | Explainer
Options = Mapping[str, Any]
Maker = Callable[[nn.Module], Explainer]

Drops = dict[int, Tensor]
"""By image: what infidelity finds out about the network, whatever the map (`egcam.metrics.patch_drops`)."""

_CURVES = ("insertion", "deletion", "insertion-deletion")
_SHARED_OPTIONS = {"step", "score", "batch_size"}
_CONFIDENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "average-drop": confidence.drop_of,
    "increase-in-confidence": confidence.increase_of,
    "average-gain": confidence.gain_of,
}


@dataclass(frozen=True)
class Family:
    """Metrics that share their expensive part.

    Attributes:
        names: the metrics.
        share: does that part for some of the images, given by number.
        finish: one metric's scores from it.
        whole_set: whether the images must stay together.
    """

    names: tuple[str, ...]
    share: Callable[[Tensor], Any]
    finish: Callable[[str, Any], Tensor]
    whole_set: bool = False


@dataclass(frozen=True)
class Work:
    """What a run is about, the same for every method."""

    model: nn.Module
    images: Tensor
    target: Target
    masks: Tensor | None
    seed: int
    protocol: Protocol
    batch_size: int
    options: Mapping[str, Options]
    drops: Drops
    curves: dict[str, dict[int, Curve]] | None = None

    def keep_curves(self, metric: str, rows: Tensor, curve: Curve) -> None:
        """Remember the curves of the images `rows`, where curves are wanted."""
        if self.curves is not None:
            of_metric = self.curves.setdefault(metric, {})
            for place, image in enumerate(rows.tolist()):
                of_metric[image] = Curve(curve.fractions[place].cpu(), curve.scores[place].cpu())

    def target_of(self, rows: Tensor) -> Target:
        """The targets of the images `rows`."""
        return self.target[rows] if isinstance(self.target, Tensor) else self.target

    def options_of(self, name: str) -> dict[str, Any]:
        """What a metric is called with: the run's seed, protocol and batch size where it takes them, and its own."""
        common = {"seed": self.seed, "protocol": self.protocol, "batch_size": self.batch_size}
        known = signature(metric(name).function).parameters
        return {key: value for key, value in common.items() if key in known} | dict(self.options.get(name, {}))


def evaluate(
    model: nn.Module,
    images: Any,
    methods: Sequence[Method] | Mapping[str, Method],
    metrics: Sequence[str] | None = None,
    target: Target = None,
    masks: Any = None,
    reference: Any = None,
    seed: int = 0,
    *,
    protocol: Protocol = "default",
    layer: Any = None,
    method_options: Mapping[str, Options] | None = None,
    metric_options: Mapping[str, Options] | None = None,
    image_names: Sequence[str] | None = None,
    batch_size: int | None = None,
    curves: bool = False,
    progress: Callable[[str], None] | None = None,
    drops: Drops | None = None,
) -> Table:
    """Score methods on images with metrics, and tabulate.

    Each method explains every image once; insertion and deletion share their curves, the robustness metrics their
    perturbed explanations, the confidence metrics their masked images, and all methods what infidelity finds out about
    the network. All methods are given the same classes and the same noise, so that their scores are paired. A method or
    metric that raises an error has NaN with the cause in the table, an `egcam.errors.FailedEvaluationWarning` names it,
    and the rest goes on. To stop instead, turn the warning into an error.

    Args:
        model: the classifier.
        images: (N, C, H, W), preprocessed as the model expects.
        methods: names of registered methods, explainers, or callables (images, target) -> maps; or a mapping from the
            names in the table to any of these.
        metrics: names of metrics; None is all of the paper's that the inputs allow.
        target: the classes to explain; None is the prediction.
        masks: (N, H, W) masks of the objects, for localization.
        reference: what Expected Grad-CAM's references are drawn from; goes to the named methods that take one.
        seed: of methods by name and of metrics.
        protocol: "default", or "paper" for its conventions in every metric that has them.
        layer: where methods by name explain; goes to those that take one.
        method_options: more options of methods by name, by method.
        metric_options: options of metrics, by metric.
        image_names: names of the images for the table; their numbers otherwise.
        batch_size: the most images in one pass or explained at once; None is 8 on a CPU and 32 elsewhere.
        curves: keep the insertion and deletion curves in `Table.curves`.
        progress: called with a line when a method begins a metric.
        drops: a dictionary that carries what infidelity found out about the network from one call to the next, of the
            same model, images, classes and options; begin with an empty one.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
        >>> table = evaluate(net, torch.rand(2, 1, 8, 8), ["grad-cam", "layer-cam"], ["sparseness", "deletion"])
        >>> table.frame.shape
        (8, 5)
    """
    images = as_images(images)
    check_protocol(protocol)
    chosen = _chosen_metrics(metrics, masks)
    options = _checked_options(chosen, metric_options)
    most = fitting_batch(batch_size, images.device)
    labels = list(image_names) if image_names is not None else list(range(len(images)))
    if len(labels) != len(images):
        raise InputError(f"{len(labels)} image names for {len(images)} image(s)")
    with forward_only(model, images.device):
        classes = Scorer(model, images, target, "logit", most).classes
    inside = None if masks is None else as_masks(masks, images[:, 0])
    fixed: Target = classes if classes is not None else target
    work = Work(model, images, fixed, inside, seed, protocol, most, options, {} if drops is None else drops)
    rows: list[Row] = []
    failures: list[Failure] = []
    found = _named(methods)
    common = {"reference": reference, "layer": layer, "seed": seed}
    for method in found.values():
        _check_method(method)
    kept: dict[tuple[str, str], dict[int | str, Curve]] = {}
    for name, method in found.items():
        own = (method_options or {}).get(name, {})
        of_method = replace(work, curves={} if curves else None)
        rows += _method_rows(of_method, name, method, chosen, labels, common, own, progress or _silent, failures)
        for of_metric, by_image in (of_method.curves or {}).items():
            kept[name, of_metric] = {labels[image]: by_image[image] for image in sorted(by_image)}
    report(failures)
    return Table(tuple(rows), tuple(found), tuple(one.name for one in chosen), kept)


def _silent(text: str) -> None:
    pass


def _chosen_metrics(wanted: Sequence[str] | None, masks: Any) -> list[Metric]:
    if wanted is None:
        usual = [one for one in names().values() if one.paper]
        return [one for one in usual if masks is not None or "masks" not in one.needs]
    if isinstance(wanted, str):
        wanted = [wanted]
    chosen = [metric(name) for name in dict.fromkeys(wanted)]
    if not chosen:
        raise MetricError("there are no metrics to compute; egcam.metrics.names() lists them")
    needing = [one.name for one in chosen if "masks" in one.needs]
    if needing and masks is None:
        raise InputError(f"{needing[0]} compares maps with the object's mask: pass masks=…")
    return chosen


def _checked_options(chosen: Sequence[Metric], given: Mapping[str, Options] | None) -> dict[str, Options]:
    options: dict[str, Options] = {}
    for name, values in (given or {}).items():
        known = metric(name)
        if known not in chosen:
            raise MetricError(f"options for {name!r}, which is not among the metrics asked for")
        takes = [key for key in signature(known.function).parameters if key not in _GIVEN]
        for key in values:
            if key not in takes:
                raise MetricError(f"{known.name} has no option {key!r}; {near_misses(key, takes)}")
        options[known.name] = dict(values)
    return options


_GIVEN = ("model", "images", "heatmaps", "masks", "explainer", "target", "drops")


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
        raise MethodError("there are no methods to evaluate; egcam.methods() lists them")
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


def _explainer(model: nn.Module, method: Method, common: Options, options: Options) -> Explainer:
    if not isinstance(method, str):
        return method
    takes = registry.takes(method)
    usual = {key: value for key, value in common.items() if value is not None and key in takes}
    return registry.create(method, model, **{**usual, **options})


def _method_rows(
    work: Work,
    name: str,
    method: Method,
    chosen: Sequence[Metric],
    labels: Sequence[Any],
    common: Options,
    options: Options,
    say: Callable[[str], None],
    failures: list[Failure],
) -> list[Row]:
    """The scores of one method, in the order of the metrics and then of the images; what fails joins `failures`."""
    count = len(work.images)
    say(f"{name}: explain")

    def make(model: nn.Module) -> Explainer:
        return _explainer(model, method, common, options)

    try:
        explainer = make(work.model)
        maps, bad, faults, native = _explained(work, explainer)
    except Exception as error:
        fault = fault_of(error)
        failures.append(Failure(name, None, None, fault))
        return [Row(label, name, one.name, float("nan"), 0.0, fault.cause) for one in chosen for label in labels]
    failures += [Failure(name, None, image, fault) for image, fault in faults.items()]
    without_map = {**bad, **_causes(faults)}
    usable = torch.tensor([image for image in range(count) if image not in without_map], dtype=torch.long)
    by_metric: dict[str, list[Row]] = {}
    # A method by name can be made anew for another model, which randomising one needs.
    maker = make if isinstance(method, str) else None
    for family in _families(work, explainer, maker, maps, native, chosen):
        say(f"{name}: {', '.join(family.names)}")
        scored, faults = _family_scores(family, usable)
        failures += [Failure(name, one, image, fault) for one in family.names for image, fault in faults.items()]
        for metric_name, values, seconds, causes in scored:
            everything = without_map | causes
            by_metric[metric_name] = [
                Row(label, name, metric_name, values.get(image, float("nan")), seconds, everything.get(image))
                for image, label in enumerate(labels)
            ]
    return [row for one in chosen for row in by_metric[one.name]]


def _explained(work: Work, explainer: Explainer) -> tuple[Tensor, dict[int, str], dict[int, Fault], bool]:
    """(N, H, W) maps at the images' size, why a map is no use, what failed, and whether that is the maps' own size.

    What fails together is tried one by one.
    """
    images = work.images
    maps = images.new_full((len(images), *images.shape[-2:]), float("nan"))
    maps = maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps
    faults: dict[int, Fault] = {}
    sizes = set()

    def explain(rows: Tensor) -> None:
        made = maps_of(explainer, images[rows], work.target_of(rows), warn=True)
        sizes.add(made.shape[1:])
        maps[rows] = resized(made, (images.shape[-2], images.shape[-1])).to(maps)

    with forward_only(work.model, images.device):
        for part in chunks(len(images), work.batch_size):
            rows = torch.arange(part.start, part.stop)
            faults |= _try_together(explain, rows)
    bad = Causes()
    bad.mark(~maps.flatten(1).isfinite().all(1), "its map holds NaN or infinite values")
    return maps, bad, faults, sizes == {images.shape[-2:]}


def _try_together(attempt: Callable[[Tensor], None], rows: Tensor) -> dict[int, Fault]:
    """Attempt all rows at once and, if that fails, each by itself; the faults of those that still fail."""
    try:
        attempt(rows)
        return {}
    except Exception as error:
        if len(rows) == 1:
            return {int(rows[0]): fault_of(error)}
    faults: dict[int, Fault] = {}
    for row in rows:
        faults |= _try_together(attempt, row[None])
    return faults


def _causes(faults: Mapping[int, Fault]) -> dict[int, str]:
    return {image: fault.cause for image, fault in faults.items()}


def _families(
    work: Work,
    explainer: Explainer,
    maker: Maker | None,
    maps: Tensor,
    native: bool,
    chosen: Sequence[Metric],
) -> list[Family]:
    """The metrics sorted into those that share work and those that stand alone, cheap to set up."""
    wanted = [one.name for one in chosen]
    # Maps in the explainer's own resolution need not be made again where it is compared with itself.
    own = maps if native else None
    families = _robustness_families(work, explainer, own, [name for name in wanted if name in robustness.RECIPES])
    for shared, make in ((_CURVES, _curves_family), (tuple(_CONFIDENCES), _confidence_family)):
        for together, options in _alike(work, [name for name in wanted if name in shared]):
            families.append(make(work, maps, together, options))
    done = {name for family in families for name in family.names}
    for one in chosen:
        # A function given as baseline may draw, so what it led to belongs to its map.
        if one.name == "infidelity" and not callable(work.options_of("infidelity").get("baseline")):
            families.append(_infidelity_family(work, maps))
        elif one.name not in done:
            again = maker if maker is not None and one.name == "model-randomization" else explainer
            families.append(_single_family(work, again, maps, own, one))
    return families


def _alike(work: Work, wanted: Sequence[str]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Metrics of a family grouped by equal options; one with options that others read otherwise stands alone."""
    groups: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for name in wanted:
        options = dict(work.options.get(name, {}))
        if not set(options) <= _SHARED_OPTIONS:
            continue
        for place, (names_so_far, known) in enumerate(groups):
            if known == options:
                groups[place] = ((*names_so_far, name), known)
                break
        else:
            groups.append(((name,), options))
    return groups


def _curves_family(work: Work, maps: Tensor, together: tuple[str, ...], options: Options) -> Family:
    curve_of = {"insertion": faithfulness.insertion_curve, "deletion": faithfulness.deletion_curve}
    needed = [name for name in curve_of if name in together or "insertion-deletion" in together]
    call_options = {"batch_size": work.batch_size, **options}

    def share(rows: Tensor) -> dict[str, Tensor]:
        call = (work.model, work.images[rows], maps[rows], work.target_of(rows))
        curves = {name: curve_of[name](*call, **call_options) for name in needed}
        for name, curve in curves.items():
            work.keep_curves(name, rows, curve)
        return {name: curve.area() for name, curve in curves.items()}

    def finish(name: str, areas: dict[str, Tensor]) -> Tensor:
        score = areas["insertion"] - areas["deletion"] if name == "insertion-deletion" else areas[name]
        return settle(name, score, {})

    return Family(together, share, finish)


def _confidence_family(work: Work, maps: Tensor, together: tuple[str, ...], options: Options) -> Family:
    call_options = {"batch_size": work.batch_size, **options}

    def share(rows: Tensor) -> tuple[Tensor, Tensor]:
        call = (work.model, work.images[rows], maps[rows], work.target_of(rows))
        return confidence.masked_confidence(*call, **call_options)

    return Family(together, share, lambda name, scores: settle(name, _CONFIDENCES[name](*scores), {}))


def _infidelity_family(work: Work, maps: Tensor) -> Family:
    options = work.options_of("infidelity")
    of_network = {key: value for key, value in options.items() if key in signature(faithfulness.patch_drops).parameters}

    def share(rows: Tensor) -> tuple[Tensor, Tensor]:
        unknown = torch.tensor([row for row in rows.tolist() if row not in work.drops], dtype=torch.long)
        if len(unknown):
            found = faithfulness.patch_drops(work.model, work.images[unknown], work.target_of(unknown), **of_network)
            work.drops.update(zip(unknown.tolist(), found, strict=True))
        return rows, torch.stack([work.drops[row] for row in rows.tolist()])

    def finish(_: str, shared: tuple[Tensor, Tensor]) -> Tensor:
        rows, drops = shared
        call = (work.model, work.images[rows], maps[rows], work.target_of(rows))
        return faithfulness.infidelity(*call, **{**options, "drops": drops})

    return Family(("infidelity",), share, finish)


def _robustness_families(work: Work, explainer: Explainer, own: Tensor | None, wanted: Sequence[str]) -> list[Family]:
    """One family for each kind of noise: a metric with fewer perturbations uses the first of the larger set."""
    paper = work.protocol == "paper"
    settings = {}
    for name in wanted:
        options = work.options_of(name)
        noise, samples = robustness.RECIPES[name].setting(paper, options.get("noise"), options.get("samples"))
        settings[name] = (noise, options["seed"], options["batch_size"]), samples

    def family(key: Any, together: tuple[str, ...]) -> Family:
        noise, seed, batch_size = key

        def share(rows: Tensor) -> robustness.Perturbed:
            return robustness.perturbed_explanations(
                work.model,
                work.images[rows],
                explainer,
                work.target_of(rows),
                noise=noise,
                samples=max(settings[name][1] for name in together),
                outputs=any(robustness.RECIPES[name].outputs for name in together),
                heatmaps=None if own is None else own[rows],
                seed=seed,
                exact_zeros=paper,
                batch_size=batch_size,
            )

        def finish(name: str, seen: robustness.Perturbed) -> Tensor:
            return robustness.RECIPES[name].reduce(seen.first(settings[name][1]), paper)

        return Family(together, share, finish)

    keys = dict.fromkeys(key for key, _ in settings.values())
    return [family(key, tuple(name for name in wanted if settings[name][0] == key)) for key in keys]


def _single_family(work: Work, explainer: Explainer, maps: Tensor, own: Tensor | None, one: Metric) -> Family:
    options = work.options_of(one.name)
    takes_maps = "explainer" in one.needs and "heatmaps" in signature(one.function).parameters

    def share(rows: Tensor) -> Callable[[], Tensor]:
        arguments: list[Any] = []
        for need in one.needs:
            if need == "model":
                arguments += [work.model, work.images[rows]]
            elif need == "heatmaps":
                arguments.append(maps[rows])
            elif need == "masks":
                assert work.masks is not None
                arguments.append(work.masks[rows])
            else:
                arguments.append(explainer)
        if "model" in one.needs:
            arguments.append(work.target_of(rows))
        known = {"heatmaps": own[rows]} if takes_maps and own is not None else {}
        return lambda: one.function(*arguments, **options, **known)

    return Family((one.name,), share, lambda _, call: call(), one.whole_set)


Scores = tuple[str, dict[int, float], float, dict[int, str]]


def _family_scores(family: Family, usable: Tensor) -> tuple[list[Scores], dict[int, Fault]]:
    """For each metric: values by image, seconds per image, and causes of missing values by image; and what failed."""
    faults: dict[int, Fault] = {}
    values: dict[str, dict[int, float]] = {name: {} for name in family.names}
    causes: dict[str, dict[int, str]] = {name: {} for name in family.names}
    spent = dict.fromkeys(family.names, 0.0)

    def attempt(rows: Tensor) -> None:
        synchronise(rows.device)
        start = perf_counter()
        shared = family.share(rows)
        common = (perf_counter() - start) / len(family.names)
        for name in family.names:
            start = perf_counter()
            with causes_collected() as undefined:
                scores = family.finish(name, shared).tolist()
            spent[name] += common + perf_counter() - start
            for place, image in enumerate(rows.tolist()):
                values[name][image] = scores[place]
                if place in undefined:
                    causes[name][image] = undefined[place]

    if len(usable):
        if family.whole_set:
            try:
                attempt(usable)
            except Exception as error:
                faults = dict.fromkeys(usable.tolist(), fault_of(error))
        else:
            faults = _try_together(attempt, usable)
        for name in family.names:
            for image, fault in faults.items():
                values[name].pop(image, None)
                causes[name][image] = fault.cause
    each = max(1, len(usable))
    return [(name, values[name], spent[name] / each, causes[name]) for name in family.names], faults
