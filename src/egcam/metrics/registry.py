"""What a metric is, and every metric by its name: a small frozen dataclass of its options, registered at the class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from torch import Tensor

from egcam.errors import EgcamError, check_known, near_misses
from egcam.metrics.noise import Noise
from egcam.metrics.scoring import forward_only
from egcam.metrics.undefined import settle

if TYPE_CHECKING:
    from egcam.metrics.case import Case

Group: TypeAlias = Literal[
    "faithfulness", "robustness", "complexity", "localization", "confidence", "sanity", "efficiency"
]
Direction: TypeAlias = Literal["higher", "lower"]
Protocol: TypeAlias = Literal["default", "paper"]
Need: TypeAlias = Literal["model", "heatmaps", "masks", "explainer"]

_ARROWS = {"higher": "↑", "lower": "↓"}


class MetricError(EgcamError):
    """An unknown metric, an option the metric does not take, or a metric that cannot be registered."""


@dataclass(frozen=True)
class Work:
    """A piece of a metric's work on one image.

    Attributes:
        key: metrics whose work has the same key share it: it is done once.
        passes: how many single-image passes through the network it takes.
        any_map: whether it does not depend on the map, so that all methods share it too.
    """

    key: Hashable
    passes: int
    any_map: bool = False


CLEAN = Work("clean", 1, any_map=True)
"""The pass of the unaltered image."""


def work_key(*parts: Any) -> Hashable:
    """A key made of numbers, texts and the like; with anything else, a tensor or a function, one equal to no other."""
    return parts if all(map(_is_plain, parts)) else object()


def _is_plain(part: Any) -> bool:
    if isinstance(part, tuple):
        return all(map(_is_plain, part))
    return isinstance(part, str | int | float | None | Noise)


def total_passes(metrics: Iterable[Metric], size: int, explanation: int, any_map: bool | None = None) -> int:
    """Single-image passes the metrics take for one map, each piece of work they share counted once.

    Args:
        metrics: with their options.
        size: the side of the image in pixels.
        explanation: passes one explanation takes.
        any_map: only work that does, or does not, depend on the map; None is all of it.

    Example:
        >>> chosen = [make("insertion"), make("deletion"), make("insertion-deletion")]
        >>> [total_passes([one], 224, 1) for one in chosen], total_passes(chosen, 224, 1)
        ([225, 225, 449], 449)
    """
    passes: dict[Hashable, int] = {}
    for one in metrics:
        for work in one.work(size, explanation):
            if any_map is None or work.any_map == any_map:
                passes[work.key] = max(work.passes, passes.get(work.key, 0))
    return sum(passes.values())


class Metric(ABC):
    """A measure of a map's quality: a frozen dataclass of its options that scores a `Case`.

    What `register` knows of it is on the class: `name`, `label` (a short heading), `title` (the name in words),
    `group`, `direction` and `higher_is_better`, `arrow`, `meaning` (a line for people), `needs` (what it is given, in
    order: "model" stands for the model and the images), `whole_set` (whether it compares images with each other, so
    that it must see all of them), `timed` (whether it measures time, so that nothing may run beside it),
    `many_ties` (whether two maps often have the same score), `paper` (whether it is one of the paper's nineteen
    estimators or its running time), `paper_options` (those of protocol="paper") and `function`, the same metric as a
    function.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    title: ClassVar[str]
    group: ClassVar[Group]
    direction: ClassVar[Direction]
    higher_is_better: ClassVar[bool]
    arrow: ClassVar[str]
    meaning: ClassVar[str]
    needs: ClassVar[tuple[Need, ...]]
    reuses_maps: ClassVar[bool] = False
    whole_set: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    many_ties: ClassVar[bool] = False
    paper: ClassVar[bool] = False
    paper_options: ClassVar[Mapping[str, Any]] = {}
    function: ClassVar[Callable[..., Tensor]]

    @abstractmethod
    def scores(self, case: Case) -> Tensor:
        """(N,) the scores, with the model in eval mode and without gradients; `case.undefined` marks missing ones."""

    def work(self, size: int, explanation: int) -> Sequence[Work]:
        """What it asks of the network for an image of `size` x `size` pixels; `explanation`: passes of one map."""
        return ()

    def foresee(self, case: Case) -> None:  # noqa: B027 - most metrics have nothing to tell
        """Tell the case what will be asked of it, where that lets metrics share more."""

    def __call__(self, case: Case) -> Tensor:
        """(N,) the scores; missing ones are NaN, named in a warning (or in `egcam.metrics.causes_collected`)."""
        case.causes.clear()
        with forward_only(*case.running):
            scores = self.scores(case)
        of_maps = case.unusable if self.reuses_maps or "heatmaps" in self.needs else {}
        return settle(self.name, scores, {**case.causes, **of_maps})

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def made(cls, protocol: str = "default", run_seed: int | None = None, **options: Any) -> Metric:
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


M = TypeVar("M", bound=type[Metric])
_metrics: dict[str, type[Metric]] = {}


def register(
    name: str,
    *,
    group: Group,
    better: Direction,
    label: str,
    meaning: str,
    needs: Sequence[Need] = ("model", "heatmaps"),
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
        needs: what it is given, in order; "model" means the model and the images.
        title: the full name; by default made from `name`.
        reuses_maps: of a metric that explains again: whether it can use maps that were made before.
        whole_set: whether it compares images with each other.
        timed: whether it measures time: a study then takes one worker.
        many_ties: whether two maps often have the same score, as with hit or miss: verdicts then compare on how many
            images either is better, not the median of the differences.
        paper: whether it is one of the paper's.
        paper_options: its options in protocol="paper".

    Example:
        >>> @register("peak", group="complexity", better="higher", label="Peak", meaning="The map's largest value.",
        ...           needs=["heatmaps"])
        ... @dataclass(frozen=True)
        ... class Peak(Metric):
        ...     def scores(self, case):
        ...         return case.maps.amax((1, 2))
        >>> import torch
        >>> metric("peak").function(torch.tensor([[[1.0, 3.0]]]))
        tensor([3.])
        >>> unregister("peak")
    """
    from egcam.metrics.functions import function_of

    def add(kind: M) -> M:
        if name in _metrics:
            raise MetricError(f"a metric called {name!r} is registered already")
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
        kind.needs, kind.reuses_maps, kind.whole_set = tuple(needs), reuses_maps, whole_set
        kind.timed, kind.many_ties = timed, many_ties
        kind.paper, kind.paper_options = paper, dict(paper_options or {})
        kind.function = staticmethod(function_of(kind))
        _metrics[name] = kind
        return kind

    return add


def _is_metric(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Metric) and is_dataclass(kind)


def unregister(name: str) -> None:
    """Take a metric out of the registry again."""
    del _metrics[metric(name).name]


def names() -> dict[str, type[Metric]]:
    """All metrics by name, the paper's first and then by group; iterate it for the names.

    Example:
        >>> found = names()["relevance-rank-accuracy"]
        >>> found.group, found.direction, found.needs
        ('localization', 'higher', ('heatmaps', 'masks'))
    """
    groups = get_args(Group)
    found = sorted(_metrics.values(), key=lambda one: (not one.paper, groups.index(one.group)))
    return {one.name: one for one in found}


def metric(name: str) -> type[Metric]:
    """The metric called `name`; underscores and case do not matter.

    Example:
        >>> metric("Pixel_Flipping").name
        'pixel-flipping'
    """
    plain = name.lower().replace("_", "-")
    if plain not in _metrics:
        raise MetricError(f"no metric is called {name!r}; {near_misses(plain, names())}")
    return _metrics[plain]


def make(name: str, protocol: str = "default", run_seed: int | None = None, **options: Any) -> Metric:
    """A metric by name, with options; those not given come from the protocol, and the seed from the run.

    Example:
        >>> make("pixel-flipping", "paper", baseline="white")
        PixelFlipping(step=224, baseline='white', score='probability', quantus=True)
    """
    return metric(name).made(protocol, run_seed, **options)
