"""Scores in a table: tidy, summarised with intervals and ranks, and printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from egcam.errors import MethodError, near_misses, require
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

Values = np.ndarray[Any, np.dtype[np.float64]]

ROUNDING = 1e-6
_DRAWN_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Row:
    """One score. `value` is NaN where there is none, and `cause` says why."""

    image: int | str
    method: str
    metric: str
    value: float
    seconds: float
    cause: str | None = None


@dataclass(frozen=True)
class Table:
    """The scores of methods on images: what `egcam.evaluate` returns.

    Attributes:
        rows: one for each method, metric and image.
        methods: in the order they were given.
        metrics: likewise.
        curves: where they were asked for, insertion and deletion curves by (method, metric) and then by image.
    """

    rows: tuple[Row, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    curves: Mapping[tuple[str, str], Mapping[int | str, Curve]] = field(default_factory=dict, repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """A tidy frame: image, method, metric, value, and seconds spent per image (shared work is split evenly)."""
        pandas = _pandas()
        columns = ["image", "method", "metric", "value", "seconds"]
        frame: pd.DataFrame = pandas.DataFrame(
            [[getattr(row, key) for key in columns] for row in self.rows], columns=columns
        )
        return frame

    @property
    def causes(self) -> pd.DataFrame:
        """Why scores are missing: image, method, metric, cause."""
        pandas = _pandas()
        columns = ["image", "method", "metric", "cause"]
        missing = [row for row in self.rows if row.cause is not None]
        frame: pd.DataFrame = pandas.DataFrame(
            [[getattr(row, key) for key in columns] for row in missing], columns=columns
        )
        return frame

    def values(self, method: str, metric: str) -> Values:
        """(N,) the scores of a method by a metric, NaN where there is none, in the order of the images."""
        return np.array([row.value for row in self.rows if row.method == method and row.metric == metric])

    def summary(
        self, baseline: str | None = None, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
    ) -> pd.DataFrame:
        """Mean, bootstrap interval, paired difference to a baseline method, and rank; a line per metric and method.

        Means are over the images that have a score, differences over those where both methods have one. Intervals
        are percentile bootstraps over images; every method is resampled with the same draws. Rank 1 is best.

        Args:
            baseline: the method others are compared with; None is "grad-cam" where present, else the first.
            level: of the intervals.
            resamples: of the bootstrap.
            seed: of the bootstrap.
        """
        pandas = _pandas()
        against = self._baseline(baseline)
        lines: list[dict[str, Any]] = []
        for name in self.metrics:
            scores = {method: self.values(method, name) for method in self.methods}
            ranks = _ranks([_mean(scores[method]) for method in self.methods], metric_called(name).higher_is_better)
            for method, rank in zip(self.methods, ranks, strict=True):
                low, high = _interval(scores[method], level, resamples, seed)
                difference = paired_difference(scores[method], scores[against])
                difference_low, difference_high = _interval(difference, level, resamples, seed)
                lines.append(
                    {
                        "metric": name,
                        "method": method,
                        "better": metric_called(name).direction,
                        "mean": _mean(scores[method]),
                        "low": low,
                        "high": high,
                        "images": int(np.isfinite(scores[method]).sum()),
                        "missing": int((~np.isfinite(scores[method])).sum()),
                        "difference": _mean(difference),
                        "difference_low": difference_low,
                        "difference_high": difference_high,
                        "rank": rank,
                    }
                )
        frame: pd.DataFrame = pandas.DataFrame(lines)
        return frame

    def _baseline(self, baseline: str | None) -> str:
        if baseline is None:
            return "grad-cam" if "grad-cam" in self.methods else self.methods[0]
        if baseline not in self.methods:
            raise MethodError(f"no method of this table is called {baseline!r}; {near_misses(baseline, self.methods)}")
        return baseline

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """The tidy frame as CSV: written to `path`, or returned."""
        text: str | None = self.frame.to_csv(path, index=False)
        return text

    def to_markdown(self) -> str:
        """Methods by metrics, best in bold, second underlined, '-' where no image has a score, causes below."""
        heads = ["method", *(f"{metric_called(name).label} {metric_called(name).arrow}" for name in self.metrics)]
        lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" + " ---: |" * len(self.metrics)]
        cells = self._cells(bold="**{}**", underlined="<u>{}</u>")
        lines += [f"| {method} | " + " | ".join(cells[method]) + " |" for method in self.methods]
        notes = self._notes()
        return "\n".join(lines + ([""] + [f"- {note}" for note in notes] if notes else [])) + "\n"

    def to_latex(self) -> str:
        r"""The same for LaTeX with booktabs: best \textbf, second \underline, causes as comments."""
        arrows = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
        heads = [f"{_latex(metric_called(name).label)} {arrows[metric_called(name).arrow]}" for name in self.metrics]
        cells = self._cells(bold=r"\textbf{{{}}}", underlined=r"\underline{{{}}}")
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.metrics)}}}", r"\toprule"]
        lines += [" & ".join(["Method", *heads]) + r" \\", r"\midrule"]
        lines += [" & ".join([_latex(method), *cells[method]]) + r" \\" for method in self.methods]
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines + [f"% {note}" for note in self._notes()]) + "\n"

    def render(self) -> RenderableType:
        """The same for a terminal: rich prints it."""
        from rich.console import Group
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=None, header_style="bold", pad_edge=False)
        grid.add_column("method")
        for name in self.metrics:
            grid.add_column(f"{metric_called(name).label} {metric_called(name).arrow}", justify="right")
        cells = self._cells(bold="[bold]{}[/bold]", underlined="[underline]{}[/underline]")
        for method in self.methods:
            grid.add_row(Text(method), *cells[method])
        return Group(grid, *(Text(f"- {note}") for note in self._notes()))

    def _cells(self, bold: str, underlined: str) -> dict[str, list[str]]:
        """The printed means of each method, in the order of the metrics."""
        cells: dict[str, list[str]] = {method: [] for method in self.methods}
        for name in self.metrics:
            means = [_mean(self.values(method, name)) for method in self.methods]
            ranks = _ranks(means, metric_called(name).higher_is_better)
            placed = sorted({rank for rank in ranks if isfinite(rank)})
            for method, mean, rank in zip(self.methods, means, ranks, strict=True):
                text = _figure(mean)
                if len(placed) > 1 and rank == placed[0]:
                    text = bold.format(text)
                elif len(placed) > 1 and rank == placed[1]:
                    text = underlined.format(text)
                cells[method].append(text)
        return cells

    def _notes(self) -> list[str]:
        """One line for each method and cause of missing scores, with the metrics and how many images it concerns."""
        missing = Counter((row.method, row.cause, row.metric) for row in self.rows if row.cause is not None)
        images = len({row.image for row in self.rows})
        merged: dict[tuple[str, str, int], list[str]] = {}
        for (method, cause, name), count in missing.items():
            merged.setdefault((method, str(cause), count), []).append(metric_called(name).label)
        return [
            f"{method}, {', '.join(labels)}: no score for {count} of {images} image(s): {cause}"
            for (method, cause, count), labels in merged.items()
        ]


def _pandas() -> Any:
    require("pandas", "study", "a table of scores")
    import pandas

    return pandas


def _mean(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else nan


def _interval(values: Values, level: float, resamples: int, seed: int) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean; none for fewer than two values."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return nan, nan
    source = np.random.default_rng(seed)
    # A few at a time: all draws of a large study at once would fill the memory.
    step = max(1, _DRAWN_AT_ONCE // len(finite))
    sizes = [min(step, resamples - done) for done in range(0, resamples, step)]
    means = np.concatenate([finite[source.integers(0, len(finite), (size, len(finite)))].mean(1) for size in sizes])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(scores: Values, others: Values) -> Values:
    """(N,) scores less others; 0 where they differ by no more than rounding, a millionth of the larger.

    Two methods that are the same by mathematics, such as Grad-CAM and HiRes-CAM before a linear head, add up the same
    numbers in another order; however sure, a difference of 1e-8 is none.

    Example:
        >>> paired_difference(np.array([0.5, 0.3]), np.array([0.5 + 1e-8, 0.2])).round(3).tolist()
        [0.0, 0.1]
    """
    difference = scores - others
    return np.where(np.abs(difference) <= ROUNDING * np.maximum(np.abs(scores), np.abs(others)), 0.0, difference)


def significant(values: Values) -> Values:
    """Values to six significant digits: what is equal then shares a rank.

    Example:
        >>> significant(np.array([0.12345678, np.nan, 0.0, 12345678.0])).tolist()
        [0.123457, nan, 0.0, 12345700.0]
    """
    return np.array([float(f"{value:.6g}") for value in np.ravel(values)]).reshape(np.shape(values))


def _ranks(means: Iterable[float], higher_is_better: bool) -> list[float]:
    """1 for the best; means that are equal but for rounding share a rank; NaN for a missing one."""
    listed = significant(np.array(list(means)))
    signed = [-mean if higher_is_better else mean for mean in listed.tolist()]
    return [1.0 + sum(other < own for other in signed) if isfinite(own) else nan for own in signed]


def _figure(value: float) -> str:
    """Four significant digits, '-' for a missing value."""
    if not isfinite(value):
        return "-"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:#.4g}".rstrip(".")


def _latex(text: str) -> str:
    special: dict[str, str | int | None] = {character: "\\" + character for character in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return text.translate(str.maketrans(special))
