"""Scores in a table: tidy, summarised with intervals and ranks, and printed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from egcam.errors import require
from egcam.evaluation.comparable import Comparable, Values, comparable
from egcam.evaluation.printing import means_over, missing, score_table
from egcam.evaluation.score import Coded, Score, Scores
from egcam.evaluation.stats import baseline_of, means, summarised
from egcam.metrics.registry import metric as metric_called
from egcam.pages.tables import as_latex, as_markdown, as_rich

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from egcam.metrics.perturb import Curve

_SUMMARY = (
    *("metric", "method", "better", "mean", "low", "high", "images", "missing", "compared"),
    *("difference", "difference_low", "difference_high", "pairs", "p", "rank", "rough"),
)


@dataclass(frozen=True)
class Table:
    """The scores of methods on images: what `egcam.evaluate` returns.

    Attributes:
        rows: one for each method, metric and image; a study's are kept in columns.
        methods: in the order they were given.
        metrics: likewise.
        curves: where they were asked for, insertion and deletion curves by (method, metric) and then by image.
        maps: (N, h, w) the maps of each method, before they were enlarged; NaN for an image it could not explain.
        assumed: how the images were assumed to be normalised, where a metric needed to know it and nobody had said it.
    """

    rows: Sequence[Score]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    curves: Mapping[tuple[str, str], Mapping[int | str, Curve]] = field(default_factory=dict, repr=False)
    maps: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    assumed: str | None = None
    # By metric, what `egcam.evaluation.controls` found: a report asks for it in each of its forms.
    weak: dict[str, frozenset[str]] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    @property
    def frame(self) -> pd.DataFrame:
        """A tidy frame: image, method, metric, value, and seconds spent per image.

        Work that metrics share counts for the first that needs it.
        """
        return self._frame("value", "seconds")

    @property
    def causes(self) -> pd.DataFrame:
        """Why scores are missing: image, method, metric, cause."""
        lacking = self.scores.cause.codes >= 0
        return replace(self, rows=self.scores[lacking])._frame("cause")

    @cached_property
    def scores(self) -> Scores:
        """The rows in columns."""
        return Scores.of(self.rows)

    def only(self, metrics: Collection[str]) -> Table:
        """The table of some of the metrics."""
        rows = self.scores[self.scores.metric.placed(metrics) >= 0]
        return replace(self, rows=rows, metrics=tuple(metrics))

    def values(self, method: str, metric: str) -> Values:
        """(N,) the scores of a method by a metric, NaN for missing ones, in the order of the images."""
        return self._scores.get((method, metric), np.array([]))

    @cached_property
    def _scores(self) -> dict[tuple[str, str], Values]:
        """Found without a search; and without a copy where the rows come method by method and metric by metric."""
        method, metric = self.scores.method, self.scores.metric
        group = method.codes.astype(np.int64) * len(metric.names) + metric.codes
        values = self.scores.value
        if (np.diff(group) < 0).any():
            order = np.argsort(group, kind="stable")
            group, values = group[order], values[order]
        keys = [(one, other) for one in method.names for other in metric.names]
        ends = np.searchsorted(group, np.arange(len(keys) + 1))
        return {key: values[start:end] for key, (start, end) in zip(keys, pairwise(ends), strict=True) if start < end}

    def summary(
        self, baseline: str | None = None, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
    ) -> pd.DataFrame:
        """Mean with its interval, median difference to a baseline method, and rank; a line per metric and method.

        Means and differences are over the images that all compared methods have a score for (see `comparable`). A
        method that is not compared has its mean over its own images and no rank; its difference is over the images
        that count for both. Rank 1 is best, and means that are printed alike, to four digits, share a rank.

        Compared are medians, because no test of means holds for skewed differences: "difference" is the median of the
        paired differences, of a metric with many ties the share of images with a higher score less that with a lower
        one. "p" is its p-value by the signs of the images' differences, corrected by Holm over all methods and metrics.
        The interval of a mean is a bootstrap over images, every method with the same draws; "rough" says that it is too
        narrow, because images are few or scores skewed.

        "images" is the number a mean is over, "missing" how many images the method has no score for, "compared"
        whether it is compared, "pairs" the number its difference is over.

        Args:
            baseline: the method others are compared with; None is "grad-cam" if present, else the first.
            level: of the intervals.
            resamples: of the bootstrap.
            seed: of the bootstrap.
        """
        lines = summarised(self, baseline_of(self.methods, baseline), level, resamples, seed).lines
        found = [{**vars(line), "better": metric_called(line.metric).direction} for line in lines]
        frame: pd.DataFrame = _pandas().DataFrame(found, columns=_SUMMARY)
        return frame

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """The tidy frame as CSV: written to `path`, or returned."""
        text: str | None = self.frame.to_csv(path, index=False)
        return text

    @cached_property
    def images(self) -> int:
        """How many images there are, with scores or without."""
        return len(np.unique(self.scores.image.codes))

    def comparable(self, metric: str) -> Comparable:
        """(N, M) the scores that count in the means of a metric, and which of the methods it compares.

        Means are over the images that all compared methods have a score for. A method that lacks more than half of
        the images that any method has a score for is not compared: it has its mean over its own images.
        """
        return comparable(np.stack([self.values(method, metric) for method in self.methods], 1))

    def means(self, metric: str) -> list[float]:
        """The means of the methods by a metric, over the images that count; NaN if a method has none."""
        return [float(mean) for mean in means(self.comparable(metric).values)]

    def to_markdown(self) -> str:
        """Methods by metrics, best in bold, second underlined, '-' where no image has a score, notes below.

        A mean that is not compared (see `comparable`) is followed by its own number of images, "(n = 2)", and never
        marked. The notes say what the means are over, and why scores are missing.
        """
        return "\n".join([as_markdown(score_table(self)), *(f"- {note}" for note in self._notes())]) + "\n"

    def to_latex(self) -> str:
        r"""The same for LaTeX with booktabs: best \textbf, second \underline, notes as comments."""
        return as_latex(score_table(self)) + "".join(f"% {note}\n" for note in self._notes())

    def render(self) -> RenderableType:
        """The same for a terminal: rich prints it."""
        from rich.console import Group
        from rich.text import Text

        return Group(as_rich(score_table(self)), *(Text(f"- {note}") for note in self._notes()))

    def _frame(self, *columns: str) -> pd.DataFrame:
        found = {name: getattr(self.scores, name) for name in ("image", "method", "metric", *columns)}
        listed = {name: one.listed() if isinstance(one, Coded) else one for name, one in found.items()}
        frame: pd.DataFrame = _pandas().DataFrame(listed)
        return frame

    def _notes(self) -> list[str]:
        over = means_over(self)
        names = {method: method for method in self.methods}
        assumed = [f"Black and white are those of images taken {self.assumed}"] if self.assumed else []
        return [over[0].upper() + over[1:], *assumed, *missing(self, names, lambda name: metric_called(name).label)]


def _pandas() -> Any:
    require("pandas", "study", "a table of scores")
    import pandas

    return pandas
