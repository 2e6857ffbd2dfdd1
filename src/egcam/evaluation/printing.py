"""Tables of scores as text: cells, what their means are over, and why scores are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from egcam.evaluation.controls import controls_of, not_ahead_of_controls
from egcam.evaluation.numbers import counted, figure
from egcam.evaluation.stats import is_compared, ranks
from egcam.metrics.registry import metric as metric_called
from egcam.pages.tables import Cell, Column, Mark, TextTable

if TYPE_CHECKING:
    from egcam.evaluation.table import Table


NO_BETTER = "°"
"""Behind a mean that does not beat the controls."""
_ALIKE = "those that all compared methods have a score for"


def score_table(
    table: Table, labels: Mapping[str, str] | None = None, titles: Callable[[str], str] | None = None
) -> TextTable:
    """Methods by metrics: the printed means, '-' where no image has a score.

    Means that are printed alike are marked alike: those of the best, or of the second, are all marked. A mean that is
    not compared with the others has its number of images beside it and no mark. Where metrics are over different
    numbers of images, a last row says how many.
    """
    columns = [_cells(table, metric) for metric in table.metrics]
    heads = [
        Column(f"{metric_called(name).label} {metric_called(name).arrow}", titles(name) if titles else "")
        for name in table.metrics
    ]
    counts = image_counts(table)
    return TextTable(
        (Column("method"), *heads),
        tuple(
            (Cell(labels[method] if labels else method), *(cells[place] for cells in columns))
            for place, method in enumerate(table.methods)
        ),
        foot=("images", *(f"{count:,}" if count else "-" for count in counts)) if len(set(counts)) > 1 else (),
    )


def _cells(table: Table, metric: str) -> list[Cell]:
    """The means of a metric, in the order of the methods."""
    found = table.comparable(metric)
    held = np.isfinite(found.values).sum(0)
    means = table.means(metric)
    placed = ranks(means, found.compared, metric_called(metric).higher_is_better)
    places = sorted({rank for rank in placed if isfinite(rank)})
    marks: dict[float, Mark] = dict(zip(places, ("best", "second"), strict=False)) if len(places) > 1 else {}
    weak = not_ahead_of_controls(table, metric)
    return [
        Cell(
            figure(mean),
            marks.get(rank, ""),
            int(count) if isfinite(mean) and not compared else None,
            NO_BETTER if method in weak else "",
        )
        for method, mean, rank, count, compared in zip(table.methods, means, placed, held, found.compared, strict=True)
    ]


def image_counts(table: Table) -> list[int]:
    """How many images the means of each metric are over; 0 where no method is compared."""
    return [table.comparable(metric).images for metric in table.metrics]


def means_over(table: Table) -> str:
    """What the means of a table are over, in words, to begin a caption with.

    Example:
        >>> from egcam.evaluation.score import Score
        >>> from egcam.evaluation.table import Table
        >>> scores = {"a": [0.1, 0.2, 0.3], "b": [0.4, 0.5, float("nan")]}
        >>> rows = [Score(n, name, "deletion", scores[name][n], 0.0) for name in scores for n in range(3)]
        >>> means_over(Table.of(rows, ("a", "b"), ("deletion",)))
        'means over 2 images, those that all compared methods have a score for'
    """
    counts = image_counts(table)
    different = sorted({count for count in counts if count})
    if not different:
        said = "no image has a score for all methods"
    elif len(set(counts)) > 1:
        said = f"means over as many images as the last row says, {_ALIKE}"
    else:
        said = f"means over {counted(different[0], 'image')}"
        said += f", {_ALIKE}" if different[0] < table.images else ""
    alone = any(_alone(table, metric) for metric in table.metrics)
    said += "; a mean with its own n is over these n images alone and not compared" if alone else ""
    controls = [name for name in controls_of(table) if any(is_compared(table, one, name) for one in table.metrics)]
    if len(controls) < len(table.methods) and controls:
        said += f"; {NO_BETTER} is not shown to be better than each control ({', '.join(controls)})"
    return said


def _alone(table: Table, metric: str) -> bool:
    found = table.comparable(metric)
    return bool((np.isfinite(found.values).any(0) & ~found.compared).any())


def missing(table: Table, methods: Mapping[str, str], metric_label: Callable[[str], str]) -> list[str]:
    """Why scores are missing: a line for each method, with the metrics and how many images it concerns.

    Metrics that lack scores for other causes have a line of their own.
    """
    causes: dict[tuple[str, str], Counter[str]] = {}
    for place, metric in np.ndindex(table.cause.shape[:2]):
        for cause, count in Counter(filter(None, table.cause[place, metric].tolist())).items():
            counts = causes.setdefault((table.methods[place], table.metrics[metric]), Counter())
            counts[" ".join(cause.split())] += count
    merged: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = {}
    for (method, metric), counts in causes.items():
        merged.setdefault((method, tuple(counts.most_common())), []).append(metric)
    return [
        f"{methods[method]}, {_metrics(metrics, table, metric_label)}: no score for "
        f"{sum(count for _, count in counts):,} of {counted(table.images, 'image')}: {_causes(counts)}"
        for (method, counts), metrics in merged.items()
    ]


def _metrics(metrics: list[str], table: Table, label: Callable[[str], str]) -> str:
    if len(metrics) == len(table.metrics) > 1:
        return "all metrics"
    return ", ".join(label(metric) for metric in metrics)


def _causes(counts: tuple[tuple[str, int], ...]) -> str:
    """The cause, or the most frequent one and how many others there are: a cause may name the image."""
    (cause, count), *others = counts
    if not others:
        return cause
    return f"{cause} ({counted(count, 'image')}) and {counted(len(others), 'other cause')}"
