"""Scores in a table: tidy, summarised with intervals and ranks, and printed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from egcam.errors import require
from egcam.evaluation.comparable import Comparable, Values, comparable
from egcam.evaluation.printing import means_over, missing, score_table
from egcam.evaluation.score import Score
from egcam.evaluation.stats import baseline_of, means, summarised
from egcam.metrics.registry import metric as metric_called
from egcam.pages.tables import as_latex, as_markdown, as_rich

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from egcam.metrics.perturb import Curve

Causes = np.ndarray[Any, np.dtype[np.object_]]

_SUMMARY = (
    *("metric", "method", "better", "mean", "low", "high", "images", "missing", "compared"),
    *("difference", "difference_low", "difference_high", "pairs", "p", "rank", "rough"),
)


@dataclass(frozen=True, eq=False)
class Table:
    """The scores of M methods by K metrics on N images: what `egcam.evaluate` returns.

    Attributes:
        scores: (M, K, N); NaN where there is none.
        methods: in the order they were given.
        metrics: likewise.
        names: (N,) the images' numbers or names.
        seconds: (M, K, N) how long each score took.
        cause: (M, K, N) why there is no score; None where there is.
        curves: where they were asked for, insertion and deletion curves by (method, metric) and then by image.
        maps: (N, h, w) the maps of each method, before they were enlarged; NaN for an image it could not explain.
        assumed: how the images were assumed to be normalised, where a metric needed to know it and nobody had said it.
    """

    scores: Values = field(repr=False)
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    names: tuple[int | str, ...]
    seconds: Values = field(repr=False)
    cause: Causes = field(repr=False)
    curves: Mapping[tuple[str, str], Mapping[int | str, Curve]] = field(default_factory=dict, repr=False)
    maps: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    assumed: str | None = None
    # By metric, what `egcam.evaluation.controls` found: a report asks for it in each of its forms.
    weak: dict[str, frozenset[str]] = field(default_factory=dict, repr=False, kw_only=True)

    @classmethod
    def of(cls, rows: Iterable[Score], methods: Sequence[str], metrics: Sequence[str], **more: Any) -> Table:
        """The table of single scores; each method and metric has them in the order of the images.

        Example:
            >>> rows = [Score(image, "a", "deletion", value, 0.0) for image, value in enumerate([0.1, 0.3])]
            >>> Table.of(rows, ["a"], ["deletion"]).scores.tolist()
            [[[0.1, 0.3]]]
        """
        grouped: dict[tuple[str, str], list[Score]] = {key: [] for key in product(methods, metrics)}
        for row in rows:
            grouped[row.method, row.metric].append(row)
        cells = list(grouped.values())
        images = len(cells[0]) if cells else 0
        shape = len(methods), len(metrics), images

        def column(name: str, kind: type) -> Any:
            found: Any = np.empty((len(cells), images), kind)
            for place, listed in enumerate(cells):
                found[place] = [getattr(row, name) for row in listed]
            return found.reshape(shape)

        names = tuple(row.image for row in cells[0]) if cells else ()
        arrays = column("value", float), column("seconds", float), column("cause", object)
        return cls(arrays[0], tuple(methods), tuple(metrics), names, *arrays[1:], **more)

    @property
    def rows(self) -> list[Score]:
        """Every score by itself: method by method, metric by metric, image by image."""
        keys = ((image, method, metric) for method, metric, image in product(self.methods, self.metrics, self.names))
        columns = (values.ravel().tolist() for values in (self.scores, self.seconds, self.cause))
        return [Score(*key, *found) for key, *found in zip(keys, *columns, strict=True)]

    @property
    def frame(self) -> pd.DataFrame:
        """A tidy frame: image, method, metric, value, and seconds spent per image.

        Work that metrics share counts for the first that needs it.
        """
        return self._frame(value=self.scores, seconds=self.seconds)

    @property
    def causes(self) -> pd.DataFrame:
        """Why scores are missing: image, method, metric, cause."""
        frame = self._frame(cause=self.cause)
        lacking: pd.DataFrame = frame[frame["cause"].notna()].reset_index(drop=True)
        return lacking

    def only(self, metrics: Collection[str] | None = None, methods: Collection[str] | None = None) -> Table:
        """The table of some of the metrics, or methods."""
        methods = tuple(self.methods if methods is None else methods)
        metrics = tuple(self.metrics if metrics is None else metrics)
        places = np.ix_([self.methods.index(name) for name in methods], [self.metrics.index(name) for name in metrics])
        arrays = {name: getattr(self, name)[places] for name in ("scores", "seconds", "cause")}
        return replace(self, methods=methods, metrics=metrics, weak={}, **arrays)

    def values(self, method: str, metric: str) -> Values:
        """(N,) the scores of a method by a metric, NaN for missing ones, in the order of the images."""
        return np.asarray(self.scores[self.methods.index(method), self.metrics.index(metric)])

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

    @property
    def images(self) -> int:
        """How many images there are, with scores or without."""
        return len(self.names)

    def comparable(self, metric: str) -> Comparable:
        """(N, M) the scores that count in the means of a metric, and which of the methods it compares.

        Means are over the images that all compared methods have a score for. A method that lacks more than half of
        the images that any method has a score for is not compared: it has its mean over its own images.
        """
        return comparable(self.scores[:, self.metrics.index(metric)].T)

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

    def _frame(self, **columns: Any) -> pd.DataFrame:
        pandas = _pandas()
        keys = pandas.MultiIndex.from_product((self.methods, self.metrics, range(self.images)))
        method, metric, image = (keys.get_level_values(level) for level in range(3))
        named = {"image": np.array([*self.names, None], object)[:-1][image], "method": method, "metric": metric}
        frame: pd.DataFrame = pandas.DataFrame({**named, **{name: values.ravel() for name, values in columns.items()}})
        return frame.infer_objects()

    def _notes(self) -> list[str]:
        over = means_over(self)
        names = {method: method for method in self.methods}
        assumed = [f"Black and white are those of images taken {self.assumed}"] if self.assumed else []
        return [over[0].upper() + over[1:], *assumed, *missing(self, names, lambda name: metric_called(name).label)]


def _pandas() -> Any:
    require("pandas", "study", "a table of scores")
    import pandas

    return pandas
