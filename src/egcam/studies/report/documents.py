"""The report as a web page in one file, as Markdown with its figures beside it, and as LaTeX tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from egcam.evaluation.printing import means_over
from egcam.metrics.registry import metric as metric_called
from egcam.pages import render
from egcam.studies.report import tables
from egcam.studies.report.figures import Drawing, classes_of
from egcam.studies.report.formatting import better, key, label_part, metric_label

if TYPE_CHECKING:
    from egcam.studies.report.view import Report


def document(
    template: str, report: Report, drawings: Sequence[Sequence[Drawing]] | None = None, overall: Drawing | None = None
) -> str:
    """The report in the form of a template: report.html, report.md, or report.tex, a file to \\input, with booktabs."""
    drawings = [[] for _ in report.sections] if drawings is None else drawings
    drawn: list[dict[str, Any]] = [{drawing.kind: drawing for drawing in some} for some in drawings]
    return render(
        template,
        title=report.title,
        report=report,
        sections=list(zip(report.sections, drawn, strict=True)),
        overall=overall,
        tables=tables,
        better=better,
        classes_of=classes_of,
        key=key,
        label_part=label_part,
        means_over=means_over,
        metric_name=lambda name: f"{metric_label(name)} {metric_called(name).arrow}",
        metric_label=metric_label,
    )
