"""What a metric is, and every metric by its name: a small frozen dataclass of its options, registered at the class.

What a metric is called with says its base class: `MapMetric(heatmaps)`, `MaskMetric(heatmaps, masks)`,
`ModelMetric(model, images, heatmaps, target)` or `ExplainerMetric(model, images, explainer, target)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_args

from torch import Tensor, nn

from egcam.errors import EgcamError, check_known, near_misses
from egcam.metrics.undefined import settle
from egcam.registry import Registry

if TYPE_CHECKING:
    from egcam.attribution.references import Normalisation
    from egcam.metrics.case import Case
    from egcam.metrics.explaining import Explainer
    from egcam.metrics.inputs import Maps
    from egcam.models.class_names import Classes
    from egcam.models.targets import Target

Group: TypeAlias = Literal[
    "faithfulness", "robustness", "complexity", "localization", "confidence", "sanity", "efficiency"
]
Direction: TypeAlias = Literal["higher", "lower"]
Protocol: TypeAlias = Literal["default", "paper"]
Need: TypeAlias = Literal["model", "heatmaps", "masks", "explainer"]

_ARROWS = {"higher": "↑", "lower": "↓"}


class MetricError(EgcamError):
    """An unknown metric, an option the metric does not take, or a metric that cannot be registered."""


class Metric(ABC):
    """A measure of a map's quality: a frozen dataclass of its options that scores a `Case`.

    Subclass one of the four kinds, which say what the metric is called with; or this one, with `needs` on the class,
    for a metric that is only ever scored `of` a case. What `register` knows of it is on the class: `name`, `label` (a
    short heading), `title` (the name in words), `group`, `direction` and `higher_is_better`, `arrow`, `meaning` (a line
    for people), `reuses_maps`, `whole_set`, `timed`, `many_ties`, `paper` and `paper_options`; see there.
    """

    needs: ClassVar[tuple[Need, ...]] = ()  # what it is given, in order; "model" is the model and the images
    name: ClassVar[str]
    label: ClassVar[str]
    title: ClassVar[str]
    group: ClassVar[Group]
    direction: ClassVar[Direction]
    higher_is_better: ClassVar[bool]
    arrow: ClassVar[str]
    meaning: ClassVar[str]
    reuses_maps: ClassVar[bool] = False
    whole_set: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    many_ties: ClassVar[bool] = False
    paper: ClassVar[bool] = False
    paper_options: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def scores(self, case: Case) -> Tensor:
        """(N,) the scores, with the model in eval mode and without gradients; `case.undefined` marks missing ones."""

    def foresee(self, case: Case) -> None:  # noqa: B027 - most metrics have nothing to tell
        """Tell the case what will be asked of it, where that lets metrics share more."""

    def of(self, case: Case) -> Tensor:
        """(N,) the scores; missing ones are NaN, named in a warning (or in `egcam.metrics.causes_collected`).

        Metrics of one case share what they can.
        """
        case.causes.clear()
        scores = case.run(lambda: self.scores(case))
        of_maps = case.unusable if self.reuses_maps or "heatmaps" in self.needs else {}
        return settle(self.name, scores, {**case.causes, **of_maps})

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def made(cls, protocol: str = "default", run_seed: int | None = None, **options: Any) -> Self:
        """The metric with some options; those not given are the protocol's, and the seed the run's where it draws."""
        check_known(protocol, get_args(Protocol), "protocol")
        preset = dict(cls.paper_options) if protocol == "paper" else {}
        if run_seed is not None and "seed" in cls.options():
            preset["seed"] = run_seed
        for key in options:
            if key not in cls.options():
                raise MetricError(f"{cls.name} has no option {key!r}; {near_misses(key, cls.options())}")
        values = {**preset, **options}
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


class OfModel(TypedDict, total=False):
    """What else may be said of a model and its images; see `Case`."""

    batch_size: int | None
    inputs: Sequence[Any]
    keywords: Mapping[str, Any] | None
    classes: Classes | None
    dimensions: int | None
    normalisation: Normalisation | None


def _case(*given: Any, **more: Any) -> Case:
    from egcam.metrics.case import Case  # only here, so that who looks up a metric's name needs no networks

    return Case(*given, **more)


class MapMetric(Metric):
    """A metric of maps alone."""

    needs: ClassVar[tuple[Need, ...]] = ("heatmaps",)

    def __call__(self, heatmaps: Maps) -> Tensor:
        """(N,) the scores of (N, H, W) maps, or of an explanation."""
        return self.of(_case(heatmaps=heatmaps))


class MaskMetric(Metric):
    """A metric that compares maps with masks of the objects."""

    needs: ClassVar[tuple[Need, ...]] = ("heatmaps", "masks")

    def __call__(self, heatmaps: Maps, masks: Any) -> Tensor:
        """(N,) the scores of (N, H, W) maps, or of an explanation.

        Args:
            heatmaps: the maps.
            masks: (N, H, W) booleans, whole numbers, or floats cut at one half.
        """
        return self.of(_case(heatmaps=heatmaps, masks=masks))


class ModelMetric(Metric):
    """A metric that runs the model."""

    needs: ClassVar[tuple[Need, ...]] = ("model", "heatmaps")

    def __call__(
        self, model: nn.Module, images: Any, heatmaps: Maps, target: Target = None, **more: Unpack[OfModel]
    ) -> Tensor:
        """(N,) the scores.

        Args:
            model: the classifier.
            images: (N, C, H, W).
            heatmaps: (N, H, W) maps or an explanation.
            target: the explained classes; None is the explanation's own, and the prediction for maps alone.
            more: batch_size, inputs, keywords, classes, dimensions, normalisation: see `Case`.
        """
        return self.of(_case(model, images, heatmaps, target, **more))


class ExplainerMetric(Metric):
    """A metric that explains again."""

    needs: ClassVar[tuple[Need, ...]] = ("model", "explainer")

    def __call__(
        self,
        model: nn.Module,
        images: Any,
        explainer: Explainer,
        target: Target = None,
        heatmaps: Maps | None = None,
        **more: Unpack[OfModel],
    ) -> Tensor:
        """(N,) the scores.

        Args:
            model: the classifier.
            images: (N, C, H, W).
            explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps
                count).
            target: the explained classes; None is those of `heatmaps` where that is an explanation, else the
                prediction.
            heatmaps: the explainer's maps of the images if you have them already.
            more: batch_size, inputs, keywords, classes, dimensions, normalisation: see `Case`.
        """
        return self.of(_case(model, images, heatmaps, target, explainer=explainer, **more))


M = TypeVar("M", bound=type[Metric])
_metrics = Registry[type[Metric]]("metric", MetricError)


def register(
    name: str,
    *,
    group: Group,
    better: Direction,
    label: str,
    meaning: str,
    title: str | None = None,
    reuses_maps: bool = False,
    whole_set: bool = False,
    timed: bool = False,
    many_ties: bool = False,
    paper: bool = False,
    paper_options: Mapping[str, Any] | None = None,
) -> Callable[[M], M]:
    """Make a metric known by its name: to `evaluate`, studies, reports, figures and the web page.

    Args:
        name: lower case, with hyphens.
        group: what kind of quality it measures.
        better: "higher" or "lower".
        label: a short heading for tables.
        meaning: one line on what it measures and how to read it.
        title: the full name; by default made from `name`.
        reuses_maps: of a metric that explains again: whether it can use maps that were made before.
        whole_set: whether it compares images with each other.
        timed: whether it measures time: a study then takes one worker.
        many_ties: whether two maps often have the same score, as with hit or miss: verdicts then compare on how many
            images either is better, not the median of the differences.
        paper: whether it is one of the paper's.
        paper_options: its options in protocol="paper".

    Example:
        >>> from dataclasses import dataclass
        >>> @register("peak", group="complexity", better="higher", label="Peak", meaning="The map's largest value.")
        ... @dataclass(frozen=True)
        ... class Peak(MapMetric):
        ...     def scores(self, case):
        ...         return case.maps.amax((1, 2))
        >>> import torch
        >>> Peak()(torch.tensor([[[1.0, 3.0]]]))
        tensor([3.])
        >>> unregister("peak")
    """

    def add(kind: M) -> M:
        if name != name.lower() or "_" in name:
            raise MetricError(f"a metric's name is lower case with hyphens, not {name!r}")
        if not _is_metric(kind):
            raise MetricError(f"{name} must be a dataclass that subclasses egcam.metrics.Metric")
        if group not in get_args(Group):
            raise MetricError(f"{name}: unknown group {group!r}; {near_misses(group, get_args(Group))}")
        if better not in _ARROWS:
            raise MetricError(f"{name}: better is 'higher' or 'lower', not {better!r}")
        kind.name, kind.label, kind.group, kind.meaning = name, label, group, meaning
        kind.title = title or name.replace("-", " ").capitalize()
        kind.direction, kind.higher_is_better, kind.arrow = better, better == "higher", _ARROWS[better]
        kind.reuses_maps, kind.whole_set, kind.timed, kind.many_ties = reuses_maps, whole_set, timed, many_ties
        kind.paper, kind.paper_options = paper, dict(paper_options or {})
        _metrics.register(name, kind)
        return kind

    return add


def _is_metric(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Metric) and is_dataclass(kind)


def unregister(name: str) -> None:
    """Take a metric out of the registry again."""
    _metrics.unregister(name)


def records() -> list[type[Metric]]:
    """All metrics, the paper's first and then by group.

    Example:
        >>> {metric.group for metric in records() if metric.needs == ("heatmaps", "masks")}
        {'localization'}
    """
    groups = get_args(Group)
    return sorted(_metrics, key=lambda kind: (not kind.paper, groups.index(kind.group)))


def names() -> list[str]:
    """The names of all metrics, the paper's first and then by group.

    Example:
        >>> names()[:3]
        ['faithfulness-estimate', 'pixel-flipping', 'insertion']
    """
    return [kind.name for kind in records()]


def metric(name: str) -> type[Metric]:
    """The metric called `name`; underscores and case do not matter.

    Example:
        >>> metric("Pixel_Flipping").name
        'pixel-flipping'
    """
    return _metrics.get(name.lower().replace("_", "-"))


def make(name: str, protocol: str = "default", run_seed: int | None = None, **options: Any) -> Metric:
    """A metric by name, with options; those not given come from the protocol, and the seed from the run.

    Example:
        >>> make("pixel-flipping", "paper", baseline="white")
        PixelFlipping(step=224, baseline='white', score='probability', quantus=True)
    """
    return metric(name).made(protocol, run_seed, **options)
