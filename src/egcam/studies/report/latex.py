r"""The report's tables for LaTeX: a file to \input, with booktabs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egcam.evaluation.printing import latex_grid, means_over
from egcam.evaluation.stats import Line
from egcam.evaluation.table import Table
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.content import Content, Part
from egcam.studies.report.markdown import renamed
from egcam.studies.report.words import key, metric_label, one_line, spread

_MOST_COLUMNS = 8
_SPECIAL: dict[str, str] = {
    **{character: "\\" + character for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "…": r"\ldots{}",
    "’": "'",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "−": r"$-$",
}


def escaped(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    Example:
        >>> print(escaped("50% of a_b & \\c"))
        50\% of a\_b \& \textbackslash{}c
    """
    return "".join(_SPECIAL.get(character, character) for character in one_line(text))


def as_latex(content: Content) -> str:
    """All tables, each in an environment of its own with caption and label."""
    lines = ["% " + one_line(content.title), *("% " + warning for warning in content.warnings)]
    lines += [r"% In the preamble: \usepackage{booktabs}", ""]
    for part in content.parts:
        for number, metrics in enumerate(_groups(part.table.metrics), 1):
            lines += _scores(content, part, metrics, number)
        for method, _ in content.statements(part):
            lines += _differences(content, part, method)
    return "\n".join(lines)


def _groups(metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A table a page can hold: all metrics if they are few, else those of neighbouring groups together."""
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


def _scores(content: Content, part: Part, metrics: tuple[str, ...], number: int) -> list[str]:
    table = part.table
    kept = tuple(row for row in table.rows if row.metric in metrics)
    names = {method: one_line(label) for method, label in content.labels.items()}
    some = renamed(type(table)(kept, table.methods, metrics), names)
    caption = f"{content.title}: {part.model}, {means_over(some)}. {key(metrics)}"
    return _environment(caption + _notes(part), f"{part.file}-{number}", _safe(some).splitlines())


def _safe(table: Table) -> str:
    """The grid takes care of its own special characters; the rest would need other fonts."""
    text = latex_grid(table)
    for character in "<>|":
        text = text.replace(character, _SPECIAL[character])
    # A bracket right after the end of a row would be taken for its height.
    return text.replace("\n[", "\n{}[")


def _notes(part: Part) -> str:
    return "".join(f" {caveat}" for caveat in part.caveats)


def _differences(content: Content, part: Part, method: str) -> list[str]:
    name, other = content.labels[method], content.labels[content.baseline]
    rows = [r"\begin{tabular}{lrrrl}", r"\toprule"]
    rows += [rf"Metric & {escaped(name)} & images & difference & \\", r"\midrule"]
    for metric in part.table.metrics:
        line = part.summary.line(metric, method)
        cells = [
            escaped(f"{metric_label(metric)} {metric_called(metric).arrow}"),
            _math(spread(line.mean, line.low, line.high)),
            f"{line.images:,}",
            _math(spread(line.difference, line.difference_low, line.difference_high, sign=True)) + _pairs(line),
            escaped(line.verdict),
        ]
        rows.append(" & ".join(cells) + r" \\")
    rows += [r"\bottomrule", r"\end{tabular}"]
    caption = (
        f"{content.title}: {name} against {other} on {part.model}; means and paired differences with "
        f"95 % bootstrap intervals, and how many images they are over.{_notes(part)}"
    )
    return _environment(caption, f"{part.file}-{_plain(method)}", rows)


def _pairs(line: Line) -> str:
    """How many images a difference is over, where it is over others than the mean."""
    return "" if line.pairs in (0, line.images) else f" ($n={line.pairs:,}$)"


def _math(text: str) -> str:
    """Numbers with a minus, not a hyphen; '-' alone is a missing score."""
    return text if text == "-" else f"${text}$"


def _plain(name: str) -> str:
    return "".join(character if character.isalnum() and character.isascii() else "-" for character in name)


def _environment(caption: str, label: str, rows: Sequence[str]) -> list[str]:
    lines = [r"\begin{table}", r"\centering", r"\small", rf"\caption{{{escaped(caption)}}}", rf"\label{{tab:{label}}}"]
    return [*lines, *rows, r"\end{table}", ""]
