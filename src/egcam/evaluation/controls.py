"""Which scores a map that knows nothing of the class would have had too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from egcam.attribution.registry import is_control
from egcam.evaluation.comparable import Values
from egcam.evaluation.stats import intervals, intervals_of, paired_difference
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    from egcam.evaluation.table import Table


def controls_of(table: Table) -> tuple[str, ...]:
    """The controls among a table's methods."""
    return tuple(method for method in table.methods if is_control(method))


def not_ahead_of_controls(table: Table, metric: str) -> frozenset[str]:
    """The methods whose lead over each of the table's controls is not shown by a metric.

    It is shown where the 95 % interval of the paired difference lies on the better side of 0. Without controls, and of
    methods that have no score or are not compared, nothing is said.
    """
    controls = controls_of(table)
    if not controls:
        return frozenset()
    if metric not in table.weak:
        table.weak[metric] = _not_ahead(table, metric, controls)
    return table.weak[metric]


def _not_ahead(table: Table, metric: str, controls: tuple[str, ...]) -> frozenset[str]:
    found = table.comparable(metric)
    counted = {name: place for place, name in enumerate(table.methods) if found.compared[place]}
    tested = [name for name in counted if name not in controls]
    rivals = [place for name, place in counted.items() if name in controls]
    if not tested or not rivals:
        return frozenset()
    scores = found.values[:, [counted[name] for name in tested]]
    # All methods at once: the draws of the intervals take most of the time.
    ends = intervals_of([paired_difference(scores, found.values[:, [rival]]) for rival in rivals])
    higher = metric_called(metric).higher_is_better
    shown = np.all([low > 0 if higher else high < 0 for low, high in ends], axis=0)
    return frozenset(name for name, is_shown in zip(tested, shown, strict=True) if not is_shown)


def shown_ahead(scores: Values, others: Values, higher_is_better: bool) -> bool:
    """Whether the 95 % interval of the paired difference of two methods lies on the better side of 0.

    Example:
        >>> shown_ahead(np.array([0.8, 0.9, 0.7]), np.array([0.1, 0.3, 0.2]), higher_is_better=True)
        True
    """
    low, high = intervals(paired_difference(scores, others)[:, None])
    return bool(low[0] > 0 if higher_is_better else high[0] < 0)
