"""Which scores a map that ignores the class would have had too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from egcam.attribution.registry import is_control
from egcam.evaluation.comparable import Values
from egcam.evaluation.stats import intervals, paired_difference
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
    found = table.comparable(metric)
    columns = zip(table.methods, found.values.T, found.compared, strict=True)
    compared = {name: scores for name, scores, counts in columns if counts}
    return not_ahead(compared, metric_called(metric).higher_is_better)


def not_ahead(scores: Mapping[str, Values], higher_is_better: bool) -> frozenset[str]:
    """Of (N,) scores by method, the methods that are not shown to be better than each control among them."""
    rivals = [values for name, values in scores.items() if is_control(name)]
    return frozenset(
        name
        for name, values in scores.items()
        if not is_control(name) and not all(shown_ahead(values, other, higher_is_better) for other in rivals)
    )


def shown_ahead(scores: Values, others: Values, higher_is_better: bool) -> bool:
    """Whether the 95 % interval of the paired difference of two methods lies on the better side of 0.

    Example:
        >>> import numpy as np
        >>> shown_ahead(np.array([0.8, 0.9, 0.7]), np.array([0.1, 0.3, 0.2]), higher_is_better=True)
        True
    """
    low, high = intervals(paired_difference(scores, others)[:, None])
    return bool(low[0] > 0 if higher_is_better else high[0] < 0)
