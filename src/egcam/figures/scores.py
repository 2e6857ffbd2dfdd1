"""The numbers that bars and ranks are drawn from, out of a table of scores or its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from egcam.errors import InputError
from egcam.evaluation.numbers import figure
from egcam.evaluation.ranking import MeanRank
from egcam.evaluation.ranking import mean_ranks as ranked
from egcam.evaluation.stats import Mean, baseline_of, summarised
from egcam.evaluation.table import Table
from egcam.metrics.registry import metric

if TYPE_CHECKING:
    import pandas as pd


def scores_of(source: Table | pd.DataFrame | Iterable[Mapping[str, Any]]) -> list[Mean]:
    """Means and intervals from a table (its `summary()`), from such a summary, or from mappings with these keys.

    Example:
        >>> scores_of([{"metric": "insertion", "method": "grad-cam", "mean": 0.5}])[0].mean
        0.5
    """
    if isinstance(source, Table):
        source = [vars(line) for line in summarised(source, baseline_of(source.methods), tested=False).lines]
    lines: Any = source.to_dict("records") if hasattr(source, "to_dict") else list(source)
    try:
        found = [
            Mean(
                metric(str(line["metric"])).name,
                str(line["method"]),
                # A mean over too few images to be compared is not drawn beside the others.
                *((float(line["mean"]), *_ends(line)) if line.get("compared", True) else (float("nan"),)),
            )
            for line in lines
        ]
    except KeyError as error:
        raise InputError(f"a summary has the columns metric, method, mean, low and high; {error} is missing") from error
    if not found:
        raise InputError("there are no scores to draw")
    return found


def _ends(line: Mapping[str, Any]) -> tuple[float, float]:
    return float(line.get("low", float("nan"))), float(line.get("high", float("nan")))


def by_metric(scores: Iterable[Mean]) -> dict[str, dict[str, Mean]]:
    """The scores of each metric by method, in the order given."""
    found: dict[str, dict[str, Mean]] = {}
    for score in scores:
        found.setdefault(score.metric, {})[score.method] = score
    return found


def best_of(panel: Mapping[str, Mean], higher_is_better: bool) -> set[str]:
    """The methods with the best mean of a metric, as printed; none if all are the same or only one has a score."""
    means = {method: float(figure(score.mean)) for method, score in panel.items() if isfinite(score.mean)}
    if len(set(means.values())) < 2:
        return set()
    best = max(means.values()) if higher_is_better else min(means.values())
    return {method for method, mean in means.items() if mean == best}


def needs_log(panel: Iterable[Mean]) -> bool:
    """Whether bars need a logarithmic axis: all means positive, and the largest over 100 times the smallest.

    Example:
        >>> needs_log([Mean("infidelity", "a", 0.01), Mean("infidelity", "b", 2.0)])
        True
        >>> needs_log([Mean("infidelity", "a", 0.02), Mean("infidelity", "b", 2.0)])
        False
    """
    means = [score.mean for score in panel if isfinite(score.mean)]
    return bool(means) and min(means) > 0 and max(means) > 100 * min(means)


def mean_ranks(
    table: Table, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[list[MeanRank], int]:
    """Mean ranks of the methods of a table, the best first, and on how many images they rest.

    The definition is that of `egcam.evaluation.ranking`. The interval is a percentile bootstrap over images, NaN for a
    single one.

    Example:
        >>> from egcam.evaluation.score import Score
        >>> rows = [Score(0, name, "deletion", value, 0.0) for name, value in (("a", 0.1), ("b", 0.3), ("c", 0.1))]
        >>> found, images = mean_ranks(Table.of(rows, ("a", "b", "c"), ("deletion",)))
        >>> [(one.method, one.mean) for one in found], images
        ([('a', 1.5), ('c', 1.5), ('b', 3.0)], 1)
    """
    found = ranked([table], level=level, resamples=resamples, seed=seed)
    if found is None:
        raise InputError("no image has a score by every method for any metric: there is nothing to rank")
    return found.ranks, found.images
