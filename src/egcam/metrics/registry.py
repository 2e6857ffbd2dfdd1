"""Every metric by its name: its group, which way is better, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, TypeAlias

from torch import Tensor

from egcam.errors import EgcamError, near_misses

Group: TypeAlias = Literal[
    "faithfulness", "robustness", "complexity", "localization", "confidence", "sanity", "efficiency"
]
Direction: TypeAlias = Literal["higher", "lower"]
Need: TypeAlias = Literal["model", "heatmaps", "masks", "explainer"]

_ARROWS = {"higher": "↑", "lower": "↓"}


class MetricError(EgcamError):
    """An unknown metric or an option the metric does not take."""


@dataclass(frozen=True)
class Metric:
    """What is known of a metric.

    Attributes:
        name: its name, with hyphens.
        group: what kind of quality it measures.
        direction: which way is better.
        needs: what it is given, in order: "model" stands for the model and the images.
        module: the module of `egcam.metrics` its function is in.
        paper: whether it is one of the paper's nineteen estimators or its running time.
        label: a short heading for tables.
        whole_set: whether it compares images with each other, so that it must see all of them.
    """

    name: str
    group: Group
    direction: Direction
    needs: tuple[Need, ...]
    module: str
    paper: bool
    label: str
    whole_set: bool = False

    @property
    def function(self) -> Callable[..., Tensor]:
        """The function itself."""
        module = import_module(f"egcam.metrics.{self.module}")
        found: Callable[..., Tensor] = getattr(module, self.name.replace("-", "_"))
        return found

    @property
    def arrow(self) -> str:
        """↑ or ↓."""
        return _ARROWS[self.direction]

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is the better one."""
        return self.direction == "higher"


_OF_MAPS: tuple[Need, ...] = ("model", "heatmaps")
_OF_EXPLAINER: tuple[Need, ...] = ("model", "explainer")
_OF_MASKS: tuple[Need, ...] = ("heatmaps", "masks")

_ALL = (
    Metric("faithfulness-estimate", "faithfulness", "higher", _OF_MAPS, "faithfulness", True, "FE"),
    Metric("pixel-flipping", "faithfulness", "lower", _OF_MAPS, "faithfulness", True, "PF"),
    Metric("insertion", "faithfulness", "higher", _OF_MAPS, "faithfulness", True, "Ins"),
    Metric("deletion", "faithfulness", "lower", _OF_MAPS, "faithfulness", True, "Del"),
    Metric("insertion-deletion", "faithfulness", "higher", _OF_MAPS, "faithfulness", True, "Ins-Del"),
    Metric("irof", "faithfulness", "higher", _OF_MAPS, "faithfulness", True, "IROF"),
    Metric("sufficiency", "faithfulness", "higher", _OF_MAPS, "faithfulness", True, "Suff", whole_set=True),
    Metric("infidelity", "faithfulness", "lower", _OF_MAPS, "faithfulness", True, "Inf"),
    Metric("local-lipschitz", "robustness", "lower", _OF_EXPLAINER, "robustness", True, "LLE"),
    Metric("max-sensitivity", "robustness", "lower", _OF_EXPLAINER, "robustness", True, "MaxSens"),
    Metric("avg-sensitivity", "robustness", "lower", _OF_EXPLAINER, "robustness", True, "AvgSens"),
    Metric("relative-input-stability", "robustness", "lower", _OF_EXPLAINER, "robustness", True, "RIS"),
    Metric("relative-output-stability", "robustness", "lower", _OF_EXPLAINER, "robustness", True, "ROS"),
    Metric("complexity", "complexity", "lower", ("heatmaps",), "complexity", True, "CP"),
    Metric("sparseness", "complexity", "higher", ("heatmaps",), "complexity", True, "SP"),
    Metric("attribution-localization", "localization", "higher", _OF_MASKS, "localization", True, "AL"),
    Metric("top-k-intersection", "localization", "higher", _OF_MASKS, "localization", True, "TKI"),
    Metric("relevance-rank-accuracy", "localization", "higher", _OF_MASKS, "localization", True, "RRA"),
    Metric("relevance-mass-accuracy", "localization", "higher", _OF_MASKS, "localization", True, "RMA"),
    Metric("running-time", "efficiency", "lower", _OF_EXPLAINER, "timing", True, "s/img"),
    Metric("average-drop", "confidence", "lower", _OF_MAPS, "confidence", False, "AD"),
    Metric("increase-in-confidence", "confidence", "higher", _OF_MAPS, "confidence", False, "IC"),
    Metric("average-gain", "confidence", "higher", _OF_MAPS, "confidence", False, "AG"),
    Metric("adcc", "confidence", "higher", _OF_EXPLAINER, "confidence", False, "ADCC"),
    Metric("road", "faithfulness", "lower", _OF_MAPS, "imputation", False, "ROAD"),
    Metric("pointing-game", "localization", "higher", _OF_MASKS, "localization", False, "PG"),
    Metric("energy-pointing-game", "localization", "higher", _OF_MASKS, "localization", False, "EBPG"),
    Metric("model-randomization", "sanity", "lower", _OF_EXPLAINER, "sanity", False, "MPRT"),
    Metric("random-logit", "sanity", "lower", _OF_EXPLAINER, "sanity", False, "RL"),
    Metric("sensitivity-n", "faithfulness", "higher", _OF_MAPS, "faithfulness", False, "Sens-n"),
    Metric("monotonicity", "faithfulness", "higher", _OF_MAPS, "faithfulness", False, "Mono"),
)
_BY_NAME = {metric.name: metric for metric in _ALL}


def names() -> dict[str, Metric]:
    """All metrics by name, with group, direction and needs; iterate it for the names.

    Example:
        >>> found = names()["relevance-rank-accuracy"]
        >>> found.group, found.direction, found.needs
        ('localization', 'higher', ('heatmaps', 'masks'))
    """
    return dict(_BY_NAME)


def metric(name: str) -> Metric:
    """The metric called `name`; underscores and case do not matter.

    Example:
        >>> metric("Pixel_Flipping").name
        'pixel-flipping'
    """
    plain = name.lower().replace("_", "-")
    if plain not in _BY_NAME:
        raise MetricError(f"no metric is called {name!r}; {near_misses(plain, _BY_NAME)}")
    return _BY_NAME[plain]
