"""A table described once, and written as Markdown, LaTeX or for a terminal; web pages have a macro for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from egcam.pages.escaping import in_latex, in_markdown, number_in_latex

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Mark = Literal["", "best", "second", "ahead", "behind"]


@dataclass(frozen=True)
class Cell:
    """One cell: its text, how it is marked, the number of images it is over where that is its own, a sign behind it."""

    text: str
    mark: Mark = ""
    images: int | None = None
    sign: str = ""


@dataclass(frozen=True)
class Column:
    """A column: its heading, what that stands for, and whether it is text, set to the left."""

    head: str
    title: str = ""
    text: bool = False


@dataclass(frozen=True)
class TextTable:
    """Cells in rows; the first column names the rows.

    Example:
        >>> table = TextTable((Column("method"), Column("score ↑")), ((Cell("a|b"), Cell("0.5", "best")),))
        >>> print(as_markdown(table), end="")
        | method | score ↑ |
        | --- | ---: |
        | a\\|b | **0.5** |
    """

    columns: tuple[Column, ...]  # from left to right
    rows: tuple[tuple[Cell, ...], ...]  # one cell for each column
    highlighted: frozenset[int] = frozenset()  # the numbers of rows that stand out on a web page
    foot: tuple[str, ...] = ()  # a last row set apart, or nothing


def as_markdown(table: TextTable) -> str:
    """Best in bold, second underlined."""
    marks = {"best": "**{}**", "second": "<u>{}</u>"}
    lines = [[in_markdown(column.head) for column in table.columns]]
    lines += [["---" if column.text or not place else "---:" for place, column in enumerate(table.columns)]]
    lines += [[_marked(cell, in_markdown, marks, " (n = {:,})") for cell in row] for row in table.rows]
    if table.foot:
        lines.append([f"*{table.foot[0]}*", *table.foot[1:]])
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def as_latex(table: TextTable) -> str:
    r"""A tabular with booktabs: best \textbf, second \underline."""
    marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    aligned = "".join("l" if column.text or not place else "r" for place, column in enumerate(table.columns))
    heads = [in_latex(column.head) for column in table.columns]
    lines = [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule"]
    lines += [_latex_row([heads[0][:1].upper() + heads[0][1:], *heads[1:]]), r"\midrule"]
    for name, *cells in table.rows:
        numbers = [_marked(cell, number_in_latex, marks, " ($n={:,}$)") for cell in cells]
        lines.append(_latex_row([in_latex(name.text), *numbers]))
    lines += [r"\midrule", _latex_row(list(table.foot))] if table.foot else []
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(cells: list[str]) -> str:
    row = " & ".join(cells) + r" \\"
    # A bracket right after the end of a row would be taken for its height.
    return "{}" + row if row.startswith("[") else row


def as_rich(table: TextTable) -> RichTable:
    """For a terminal: best in bold, second underlined."""
    from rich.table import Table as RichTable
    from rich.text import Text

    styles = {"best": "bold", "second": "underline"}
    shown = RichTable(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(table.columns):
        shown.add_column(Text(column.head), justify="left" if column.text or not place else "right")
    for row in table.rows:
        shown.add_row(*(Text(_marked(cell, str, {}, " (n = {:,})"), styles.get(cell.mark, "")) for cell in row))
    if table.foot:
        shown.add_row(*table.foot)
    return shown


def _marked(cell: Cell, written: Callable[[str], str], marks: dict[str, str], own: str) -> str:
    marked = marks.get(cell.mark, "{}").format(written(cell.text)) + written(cell.sign)
    return marked if cell.images is None else marked + own.format(cell.images)
