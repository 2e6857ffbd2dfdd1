"""Write a study's report: Markdown, LaTeX, CSV, one web page, and the figures."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from egcam.evaluation.numbers import counted
from egcam.evaluation.printing import means_over
from egcam.metrics.registry import metric as metric_called
from egcam.pages import render
from egcam.pages.escaping import in_csv
from egcam.progress import Progress, part_of
from egcam.studies.report import tables
from egcam.studies.report.figures import Drawing, classes_of, model_drawings, overall_drawing
from egcam.studies.report.formatting import better, key, label_part, metric_label
from egcam.studies.report.interpretation import told
from egcam.studies.report.view import Report, gather
from egcam.studies.results import COLUMNS, Results, Sourced

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


SUMMARY_COLUMNS = (
    *("model", "metric", "method", "better", "mean", "low", "high", "images", "missing", "compared"),
    *("baseline", "difference", "difference_low", "difference_high", "pairs", "p", "verdict", "rank", "rough"),
)

# How far a report is when it has read, computed and drawn.
_READ, _COMPUTED, _DRAWN = 0.1, 0.6, 0.8


def write_report(
    source: Sourced,
    out: str | Path,
    *,
    baseline: str | None = None,
    sharpness: float = 1.0,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write report.md, report.tex, report.html, scores.csv, summary.csv and figures/ into a folder.

    The same results give the same bytes: the only date in it is that of the study's beginning. A study that is not
    finished can be reported, too; the report says so at its top, and is over the images that all methods have finished.

    Args:
        source: the results, or the folder they are in.
        out: the folder to write to; it is made where missing, and files of an earlier report are replaced.
        baseline: the method others are compared with; None is "grad-cam" where present, else the first.
        sharpness: an exponent of the example maps as they are shown; no number depends on it.
        say: called with what is done next: millions of scores take minutes.
        progress: called with the share that is done, from 0 to 1.

    Returns:
        The files written.

    Example:
        >>> write_report("results/", "results/report")                        # doctest: +SKIP
    """
    say("reading the results")
    results = Results.of(source, part_of(progress, 0.0, _READ))
    say(f"{counted(len(results.done), 'unit')}: computing tables and intervals")
    report = gather(results, baseline, sharpness, part_of(progress, _READ, _COMPUTED))
    say("drawing figures")
    drawings = [model_drawings(report, section) for section in report.sections]
    overall = overall_drawing(report)
    files: dict[str, bytes] = {
        "report.md": document("report.md", report, drawings, overall).encode(),
        "report.tex": document("report.tex", report).encode(),
        "report.html": document("report.html", report, drawings, overall).encode(),
        "summary.csv": as_csv(SUMMARY_COLUMNS, summary_rows(report)).encode(),
    }
    for drawing in [*(one for drawn in drawings for one in drawn), *([overall] if overall else [])]:
        files |= _figure_files(drawing)
    written = [_written(Path(out) / name, text) for name, text in files.items()]
    part_of(progress, _COMPUTED, _DRAWN)(1.0)
    say("writing scores.csv")
    scores = Path(out) / "scores.csv"
    with scores.open("w", encoding="utf-8", newline="") as file:
        write_scores(file, results, part_of(progress, _DRAWN, 1.0))
    return [*written, scores]


def _figure_files(drawing: Drawing) -> dict[str, bytes]:
    files = {f"figures/{drawing.name}.png": drawing.png}
    return files if drawing.svg is None else {**files, f"figures/{drawing.name}.svg": drawing.svg}


def _written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def summary_rows(report: Report) -> list[tuple[Any, ...]]:
    """The rows of summary.csv: a line for each model, metric and method."""
    rows = []
    for section in report.sections:
        for line in section.summary.lines:
            better = metric_called(line.metric).direction
            known = {**vars(line), "verdict": told(line), "model": section.model, "better": better}
            known["baseline"] = report.baseline
            rows.append(tuple(known[column] for column in SUMMARY_COLUMNS))
    return rows


def write_scores(file: TextIO, results: Results, progress: Progress | None = None) -> None:
    """Every score as CSV, a block of the results at a time: there may be millions. Texts are no formulas."""
    done, count = 0, max(1, len(results.scores))
    for block in results.blocks():
        for name in block.columns[block.dtypes == "category"]:
            # Each distinct text once.
            block[name] = block[name].cat.rename_categories(_text)
        block["value"] = block["value"].where(np.isfinite(block["value"]))
        block.to_csv(file, index=False, header=not done, lineterminator="\n")
        done += len(block)
        part_of(progress, 0.0, 1.0)(done / count)
    if not done:
        file.write(",".join(COLUMNS) + "\n")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, numbers to the last digit, an empty field where there is none; texts are no formulas.

    Example:
        >>> as_csv(["a", "b"], [(0.1, float("nan")), ("x,y", None), ("=1", -1)])
        'a,b\\n0.1,\\n"x,y",\\n\\'=1,-1\\n'
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """What is written of a value."""
    if isinstance(value, str):
        return _text(value)
    return "" if isinstance(value, float) and not isfinite(value) else value


def _text(text: str) -> str:
    # A carriage return would end the line: it is not quoted.
    return in_csv(text).replace("\r", "\n")
