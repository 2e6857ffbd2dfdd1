"""Which scores a map that ignores the class would have had too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from egcam.attribution.registry import is_control
from egcam.evaluation.comparable import Values
from egcam.evaluation.signs import SURE, holm, paired_difference, sign_p
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    from egcam.evaluation.table import Table


def controls_of(table: Table) -> tuple[str, ...]:
    """The controls among a table's methods."""
    return tuple(method for method in table.methods if is_control(method))


def not_ahead_of_controls(table: Table, metric: str) -> frozenset[str]:
    """The methods whose lead over each of the table's controls is not shown by a metric.

    It is shown where the method is better than each of them on so many images that `signs.sign_p`, corrected by Holm
    for the number of methods, is at most 5 %: at least six images are needed. Without controls, and of methods that
    have no score or are not compared, nothing is said.
    """
    if metric not in table.weak:
        found = table.comparable(metric)
        columns = zip(table.methods, found.values.T, found.compared, strict=True)
        compared = {name: scores for name, scores, counts in columns if counts}
        table.weak[metric] = not_ahead(
            compared, metric_called(metric).higher_is_better, metric_called(metric).many_ties
        )
    return table.weak[metric]


def not_ahead(scores: Mapping[str, Values], higher_is_better: bool, many_ties: bool = False) -> frozenset[str]:
    """Of (N,) scores by method, the methods that are not shown to be better than each control among them.

    A method is tested against the control it does least well against, so that controls are no further comparisons.

    Example:
        >>> random = np.array([0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.2])
        >>> good, poor = 0.9 - random, random[::-1] + 0.01
        >>> not_ahead({"good": good, "poor": poor, "random": random}, higher_is_better=True)
        frozenset({'poor'})
    """
    tested = [name for name in scores if not is_control(name)]
    rivals = [values[:, None] for name, values in scores.items() if is_control(name)]
    if not tested or not rivals:
        return frozenset()
    own = np.stack([scores[name] for name in tested], 1) * (1 if higher_is_better else -1)
    rival = np.concatenate(rivals, 1) * (1 if higher_is_better else -1)
    lead = paired_difference(own[:, :, None], rival[:, None])  # (N, methods, controls)
    p_values = sign_p(lead.reshape(len(lead), -1), many_ties).reshape(lead.shape[1:])
    p_values[(lead > 0).sum(0) <= (lead < 0).sum(0)] = 1.0
    # Without a common image there is no p-value, and nothing shown.
    shown = holm(np.nan_to_num(p_values, nan=1.0).max(1)) <= SURE
    return frozenset(name for name, is_shown in zip(tested, shown, strict=True) if not is_shown)
