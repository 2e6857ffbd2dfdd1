"""The tables of a report, described once for every form it is written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from egcam.attribution.registry import is_control
from egcam.evaluation.printing import score_table
from egcam.evaluation.stats import Line, agreement_of_metrics
from egcam.metrics.registry import metric as metric_called
from egcam.pages import Cell, Column, TextTable
from egcam.studies.report.formatting import better, difference_of, metric_label, spread
from egcam.studies.report.interpretation import told

if TYPE_CHECKING:
    from egcam.evaluation.comparable import Values
from egcam.studies.report.view import ModelSection, Report

_MOST_COLUMNS = 8


def scores(report: Report, section: ModelSection) -> TextTable:
    """Methods by metrics."""
    described = score_table(section.table, report.labels, lambda name: f"{metric_label(name)}, {better(name)}")
    return replace(described, highlighted=_expected(report, section.table.methods))


def details(report: Report, section: ModelSection, metric: str) -> TextTable:
    """Every method by one metric: mean, and what is compared with the baseline, with intervals, verdict and rank."""
    columns = (
        *(Column(head) for head in ("method", "mean", "images")),
        Column(f"{difference_of(metric)} to {report.labels[report.baseline]}"),
        Column("pairs"),
        Column("", text=True),
        Column("rank"),
    )
    lines = section.summary.of(metric)
    rows = tuple(_detail(report, line) for line in lines)
    return TextTable(columns, rows, _expected(report, [line.method for line in lines]))


def _detail(report: Report, line: Line) -> tuple[Cell, ...]:
    other = line.method != report.baseline
    return (
        Cell(report.labels[line.method]),
        Cell(spread(line.mean, line.low, line.high)),
        Cell(f"{line.images:,}"),
        Cell(_difference(line) if other else ""),
        Cell(f"{line.pairs:,}" if other else ""),
        _verdict(line) if other else Cell(""),
        Cell(f"{line.rank:.0f}" if isfinite(line.rank) else "-"),
    )


def differences(report: Report, section: ModelSection, method: str) -> TextTable:
    """Every metric of one method against the baseline."""
    columns = (
        *(Column(head) for head in ("metric", report.labels[method], "images", "difference")),
        Column("", text=True),
    )
    lines = [section.summary.line(metric, method) for metric in section.table.metrics]
    rows = tuple(
        (
            Cell(f"{metric_label(line.metric)} {metric_called(line.metric).arrow}"),
            Cell(spread(line.mean, line.low, line.high)),
            Cell(f"{line.images:,}"),
            # Its own number of images, where that is not the mean's.
            Cell(_difference(line), images=None if line.pairs in (0, line.images) else line.pairs),
            _verdict(line),
        )
        for line in lines
    )
    return TextTable(columns, rows)


def reliability(section: ModelSection) -> TextTable | None:
    """How far each metric can be trusted on these images; None where there is too little to say it.

    How far other images would give the same means of the methods, and which other metric puts the methods in an order
    most and least like its own.
    """
    table = section.table
    names, found = list(section.reliability), list(section.reliability.values())
    if len(names) < 2:
        return None
    means = np.array([np.where(table.comparable(name).compared, table.means(name), np.nan) for name in names])
    kept = [place for place, method in enumerate(table.methods) if not is_control(method)]
    agreement = agreement_of_metrics(means[:, kept].T, [metric_called(name).higher_is_better for name in names])
    np.fill_diagonal(agreement, np.nan)
    if not np.isfinite(found).any():
        return None
    columns = ("metric", "reliability", "agrees most with", "least with")
    return TextTable(
        tuple(Column(head) for head in columns),
        tuple(
            (Cell(metric_label(name)), Cell(_number(own)), *(_partner(row, names, sign) for sign in (1, -1)))
            for name, own, row in zip(names, found, agreement, strict=True)
        ),
    )


def _number(value: float) -> str:
    return f"{value:.2f}" if isfinite(value) else "-"


def _partner(row: Values, names: Sequence[str], sign: int) -> Cell:
    if not np.isfinite(row).any():
        return Cell("-")
    place = int(np.nanargmax(sign * row))
    return Cell(f"{metric_label(names[place])} ({row[place]:.2f})")


def _difference(line: Line) -> str:
    return spread(line.difference, line.difference_low, line.difference_high, sign=True)


def _verdict(line: Line) -> Cell:
    return Cell(told(line), line.verdict if line.verdict in ("ahead", "behind") else "")


def _expected(report: Report, methods: Sequence[str]) -> frozenset[int]:
    return frozenset(place for place, method in enumerate(methods) if method in report.expected)


def narrow(section: ModelSection) -> list[ModelSection]:
    """The section's scores in tables that a printed page can hold: some of its metrics each."""
    return [replace(section, table=section.table.only(metrics)) for metrics in _groups(section.table.metrics)]


def _groups(metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All metrics if they are few, else those of neighbouring groups together."""
    taken: list[str] = []
    groups: dict[str, list[str]] = {}
    for metric in metrics:
        groups.setdefault(metric_called(metric).group, []).append(metric)
    whole = [list(metrics)] if len(metrics) <= _MOST_COLUMNS else list(groups.values())
    for piece in (piece for group in whole for piece in _pieces(group)):
        if taken and len(taken) + len(piece) > _MOST_COLUMNS:
            yield tuple(taken)
            taken = []
        taken += piece
    if taken:
        yield tuple(taken)


def _pieces(group: Sequence[str]) -> Iterator[Sequence[str]]:
    """A group in pieces of about the same size that a page can hold."""
    count = -(-len(group) // _MOST_COLUMNS)
    size = -(-len(group) // count)
    for start in range(0, len(group), size):
        yield group[start : start + size]
