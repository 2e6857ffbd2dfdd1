"""Tables of scores as text: cells, what their means are over, and why scores are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from egcam.evaluation.numbers import counted, figure
from egcam.evaluation.stats import ranks
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from egcam.evaluation.table import Table


@dataclass(frozen=True)
class Marks:
    """How cells are marked: patterns for the best mean, the second, and one over its own number of images."""

    best: str
    second: str
    own: str


MARKDOWN = Marks("**{}**", "<u>{}</u>", "{} (n = {})")
LATEX = Marks(r"\textbf{{{}}}", r"\underline{{{}}}", "{} ($n={}$)")
RICH = Marks("[bold]{}[/bold]", "[underline]{}[/underline]", "{} (n = {})")
HTML = Marks("<strong>{}</strong>", "<u>{}</u>", "{} <small>(n = {})</small>")

_LATEX_ARROWS = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
_ALIKE = "those that all compared methods have a score for"


def column(table: Table, metric: str, marks: Marks) -> list[str]:
    """The printed means of a metric, in the order of the methods; '-' where no image has a score.

    Means that are printed alike are marked alike: those of the best, or of the second, are all marked. A mean that is
    not compared with the others is marked with its number of images and nothing else.
    """
    found = table.comparable(metric)
    held = np.isfinite(found.values).sum(0)
    means = table.means(metric)
    placed = ranks(means, found.compared, metric_called(metric).higher_is_better)
    places = sorted({rank for rank in placed if isfinite(rank)})
    cells = []
    for number, (mean, rank) in enumerate(zip(means, placed, strict=True)):
        text = figure(mean)
        if isfinite(mean) and not found.compared[number]:
            text = marks.own.format(text, f"{held[number]:,}")
        elif len(places) > 1 and rank == places[0]:
            text = marks.best.format(text)
        elif len(places) > 1 and rank == places[1]:
            text = marks.second.format(text)
        cells.append(text)
    return cells


def rows(table: Table, marks: Marks) -> dict[str, list[str]]:
    """The cells of each method, in the order of the metrics."""
    columns = [column(table, metric, marks) for metric in table.metrics]
    return {method: [cells[place] for cells in columns] for place, method in enumerate(table.methods)}


def image_counts(table: Table) -> list[int]:
    """How many images the means of each metric are over; 0 where no method is compared."""
    return [table.comparable(metric).images for metric in table.metrics]


def image_cells(table: Table) -> list[str]:
    """A last row that says the number of images, for a table whose metrics differ in it; else nothing."""
    counts = image_counts(table)
    return [f"{count:,}" if count else "-" for count in counts] if len(set(counts)) > 1 else []


def means_over(table: Table) -> str:
    """What the means of a table are over, in words, to begin a caption with.

    Example:
        >>> from egcam.evaluation.table import Row, Table
        >>> scores = {"a": [0.1, 0.2, 0.3], "b": [0.4, 0.5, float("nan")]}
        >>> given = [Row(image, name, "deletion", scores[name][image], 0.0) for name in scores for image in range(3)]
        >>> means_over(Table(tuple(given), ("a", "b"), ("deletion",)))
        'means over 2 images, those that all compared methods have a score for'
    """
    counts = image_counts(table)
    different = sorted({count for count in counts if count})
    if not different:
        said = "no image has a score of all methods"
    elif len(set(counts)) > 1:
        said = f"means over as many images as the last row says, {_ALIKE}"
    else:
        said = f"means over {counted(different[0], 'image')}"
        said += f", {_ALIKE}" if different[0] < table.images else ""
    alone = any(_alone(table, metric) for metric in table.metrics)
    return f"{said}; a mean with its own n is over these n images alone and not compared" if alone else said


def _alone(table: Table, metric: str) -> bool:
    found = table.comparable(metric)
    return bool((np.isfinite(found.values).any(0) & ~found.compared).any())


def missing(table: Table, methods: Mapping[str, str], metric_label: Callable[[str], str]) -> list[str]:
    """Why scores are missing: a line for each method, with the metrics and how many images it concerns.

    Metrics that lack scores for other causes have a line of their own.

    Args:
        table: the scores.
        methods: what to call the methods.
        metric_label: what to call a metric.
    """
    causes: dict[tuple[str, str], Counter[str]] = {}
    for row in table.rows:
        if row.cause is not None:
            causes.setdefault((row.method, row.metric), Counter())[" ".join(row.cause.split())] += 1
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


def markdown_grid(table: Table) -> str:
    """Methods by metrics in Markdown."""
    heads = ["method", *(f"{metric_called(name).label} {metric_called(name).arrow}" for name in table.metrics)]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" + " ---: |" * len(table.metrics)]
    lines += [f"| {method} | " + " | ".join(cells) + " |" for method, cells in rows(table, MARKDOWN).items()]
    counts = image_cells(table)
    return "\n".join(lines + ([f"| *images* | {' | '.join(counts)} |"] if counts else [])) + "\n"


def latex_grid(table: Table) -> str:
    """Methods by metrics in LaTeX, with booktabs."""
    heads = [
        f"{latex_escaped(metric_called(name).label)} {_LATEX_ARROWS[metric_called(name).arrow]}"
        for name in table.metrics
    ]
    lines = [rf"\begin{{tabular}}{{l{'r' * len(table.metrics)}}}", r"\toprule"]
    lines += [" & ".join(["Method", *heads]) + r" \\", r"\midrule"]
    lines += [" & ".join([latex_escaped(method), *cells]) + r" \\" for method, cells in rows(table, LATEX).items()]
    counts = image_cells(table)
    lines += [r"\midrule", " & ".join(["images", *counts]) + r" \\"] if counts else []
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def rich_grid(table: Table) -> Grid:
    """Methods by metrics for a terminal."""
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, header_style="bold", pad_edge=False)
    grid.add_column("method")
    for name in table.metrics:
        grid.add_column(f"{metric_called(name).label} {metric_called(name).arrow}", justify="right")
    for method, cells in rows(table, RICH).items():
        grid.add_row(Text(method), *cells)
    counts = image_cells(table)
    if counts:
        grid.add_row("images", *counts)
    return grid


def latex_escaped(text: str) -> str:
    r"""Text without what LaTeX would take for a command.

    Example:
        >>> print(latex_escaped("a_b 5%"))
        a\_b 5\%
    """
    special: dict[str, str | int | None] = {character: "\\" + character for character in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return text.translate(str.maketrans(special))
