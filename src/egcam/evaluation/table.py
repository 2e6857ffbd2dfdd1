"""Scores in a table: tidy, summarised with intervals and ranks, and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from egcam.errors import MethodError, near_misses, require
from egcam.evaluation.comparable import Comparable, Values, comparable, ranks
from egcam.evaluation.printing import latex_grid, markdown_grid, means_over, missing, rich_grid
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import metric as metric_called

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

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
        maps: (N, h, w) the maps of each method, before they were enlarged; NaN for an image it could not explain.
    """

    rows: tuple[Row, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    curves: Mapping[tuple[str, str], Mapping[int | str, Curve]] = field(default_factory=dict, repr=False)
    maps: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """A tidy frame: image, method, metric, value, and seconds spent per image.

        Work that metrics share counts for the first that needs it.
        """
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
        return self._scores.get((method, metric), np.array([]))

    @cached_property
    def _scores(self) -> dict[tuple[str, str], Values]:
        """Found without a search: studies have a hundred thousand rows and more."""
        found: dict[tuple[str, str], list[float]] = {}
        for row in self.rows:
            found.setdefault((row.method, row.metric), []).append(row.value)
        return {key: np.array(values) for key, values in found.items()}

    def summary(
        self, baseline: str | None = None, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
    ) -> pd.DataFrame:
        """Mean, bootstrap interval, paired difference to a baseline method, and rank; a line per metric and method.

        Means and differences are over the images that all compared methods have a score for (see `comparable`). A
        method that is not compared has its mean over its own images and no rank; its difference is over the images
        that count for both. Intervals are percentile bootstraps over images; every method is resampled with the same
        draws. Rank 1 is best, and means that are printed alike, to four digits, share a rank.

        "images" is the number a mean is over, "missing" how many images the method has no score for, "compared"
        whether it is compared, "pairs" the number its difference is over.

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
            found, means = self.comparable(name), self.means(name)
            baseline_scores = found.values[:, self.methods.index(against)]
            placed = ranks(means, found.compared, metric_called(name).higher_is_better)
            for place, method in enumerate(self.methods):
                scores = found.values[:, place]
                low, high = _interval(scores, level, resamples, seed)
                difference = paired_difference(scores, baseline_scores)
                difference_low, difference_high = _interval(difference, level, resamples, seed)
                lines.append(
                    {
                        "metric": name,
                        "method": method,
                        "better": metric_called(name).direction,
                        "mean": means[place],
                        "low": low,
                        "high": high,
                        "images": int(np.isfinite(scores).sum()),
                        "missing": int((~np.isfinite(self.values(method, name))).sum()),
                        "compared": bool(found.compared[place]),
                        "difference": _mean(difference),
                        "difference_low": difference_low,
                        "difference_high": difference_high,
                        "pairs": int(np.isfinite(difference).sum()),
                        "rank": placed[place],
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

    @cached_property
    def images(self) -> int:
        """How many images there are, with scores or without."""
        return len({row.image for row in self.rows})

    def comparable(self, metric: str) -> Comparable:
        """(N, M) the scores that count in the means of a metric, and which of the methods it compares.

        Means are over the images that all compared methods have a score for. A method that lacks more than half of
        the images that any method has a score for is not compared: it has its mean over its own images.
        """
        return comparable(np.stack([self.values(method, metric) for method in self.methods], 1))

    def means(self, metric: str) -> list[float]:
        """The means of the methods by a metric, over the images that count; NaN where a method has none."""
        return [_mean(column) for column in self.comparable(metric).values.T]

    def to_markdown(self) -> str:
        """Methods by metrics, best in bold, second underlined, '-' where no image has a score, notes below.

        A mean that is not compared (see `comparable`) is followed by its own number of images, "(n = 2)", and never
        marked. The notes say what the means are over, and why scores are missing.
        """
        return "\n".join([markdown_grid(self), *(f"- {note}" for note in self._notes())]) + "\n"

    def to_latex(self) -> str:
        r"""The same for LaTeX with booktabs: best \textbf, second \underline, notes as comments."""
        return latex_grid(self) + "".join(f"% {note}\n" for note in self._notes())

    def render(self) -> RenderableType:
        """The same for a terminal: rich prints it."""
        from rich.console import Group
        from rich.text import Text

        return Group(rich_grid(self), *(Text(f"- {note}") for note in self._notes()))

    def _notes(self) -> list[str]:
        over = means_over(self)
        names = {method: method for method in self.methods}
        return [over[0].upper() + over[1:], *missing(self, names, lambda name: metric_called(name).label)]


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
