"""The lines of a table against one baseline, with verdicts."""

from __future__ import annotations

from dataclasses import dataclass

from egcam.evaluation.stats import Line, summary_lines
from egcam.evaluation.table import Table


@dataclass(frozen=True)
class Summary:
    """All lines of a table against one baseline."""

    baseline: str
    lines: tuple[Line, ...]

    def line(self, metric: str, method: str) -> Line:
        """One of them."""
        return next(one for one in self.lines if one.metric == metric and one.method == method)

    def of(self, metric: str) -> list[Line]:
        """The lines of a metric, one for each method, in their order."""
        return [one for one in self.lines if one.metric == metric]


def summarised(table: Table, baseline: str) -> Summary:
    """A line for each metric and method of a table; the numbers are those of `table.summary(baseline)`."""
    return Summary(baseline, tuple(summary_lines(table, baseline)))
