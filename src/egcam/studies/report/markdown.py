"""The report as Markdown, with its figures beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from egcam.evaluation.printing import markdown_grid, means_over
from egcam.evaluation.table import Row, Table
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.content import Content, Part
from egcam.studies.report.figures import Drawing
from egcam.studies.report.words import better, key, metric_label, spread

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def escaped(text: str) -> str:
    r"""Text that Markdown shows as it is, also inside a table.

    Example:
        >>> print(escaped("a|b <i> *c*"))
        a\|b &lt;i&gt; \*c\*
    """
    plain = " ".join(str(text).split()).replace("&", "&amp;")
    # Signs of HTML as entities: not every reader takes a backslash before them.
    return _SPECIAL.sub(r"\\\1", plain).replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def as_markdown(content: Content, drawings: Sequence[Sequence[Drawing]], overall: Drawing | None) -> str:
    """The whole text; `drawings` are those of each model, in the order of the parts."""
    lines = [f"# {escaped(content.title)}", ""]
    for warning in content.warnings:
        lines += [f"> **Note.** {escaped(warning)}", ""]
    lines += ["| what was run | |", "| --- | --- |"]
    lines += [f"| {escaped(word)} | {escaped(said)} |" for word, said in content.facts]
    lines += ["", *_overall(content, overall)]
    for part, drawn in zip(content.parts, drawings, strict=True):
        lines += _part(content, part, drawn)
    for model in content.unscored:
        lines += [f"## {escaped(model)}", "", "No image is done by all methods yet.", ""]
    lines += [
        "All scores: [scores.csv](scores.csv). Means, intervals, differences and ranks: [summary.csv](summary.csv)."
    ]
    return "\n".join(lines) + "\n"


def _overall(content: Content, overall: Drawing | None) -> list[str]:
    return [] if overall is None else ["## All models", "", *_picture(overall)]


def _picture(drawing: Drawing) -> list[str]:
    caption = escaped(drawing.caption)
    return [f"![{caption}](figures/{drawing.name}.png)", "", f"*{caption}*", ""]


def _part(content: Content, part: Part, drawings: Sequence[Drawing]) -> list[str]:
    by_kind = {drawing.kind: drawing for drawing in drawings}
    lines = [f"## {escaped(part.model)}", ""]
    for caveat in part.caveats:
        lines += [f"> {escaped(caveat)}", ""]
    over = means_over(part.table)
    lines += [f"{over[0].upper()}{over[1:]}; best in bold, second underlined, arrows point to better.", ""]
    lines += [scores_table(content, part), escaped(key(part.table.metrics)), "", *_missing(part)]
    lines += _reading(content, part)
    for kind in ("ranks", "curves", "differences"):
        lines += _picture(by_kind[kind]) if kind in by_kind else []
    lines += _statements(content, part)
    lines += _picture(by_kind["examples"]) if "examples" in by_kind else []
    return lines + _details(content, part)


def scores_table(content: Content, part: Part) -> str:
    """Methods by metrics, as `Table.to_markdown` has them above its notes, with methods' names as people write them."""
    named = renamed(part.table, {method: escaped(label) for method, label in content.labels.items()})
    return markdown_grid(named)


def renamed(table: Table, names: dict[str, str]) -> Table:
    """The table with other names for its methods, and without causes: the report says them in its own place."""
    rows = tuple(Row(row.image, names[row.method], row.metric, row.value, row.seconds) for row in table.rows)
    return type(table)(rows, tuple(names[method] for method in table.methods), table.metrics)


def _missing(part: Part) -> list[str]:
    if not part.missing:
        return []
    return ["Missing scores:", "", *(f"- {escaped(line)}" for line in part.missing), ""]


def _reading(content: Content, part: Part) -> list[str]:
    lines = ["### An honest reading", ""]
    if not part.readings:
        lines += ["The study has no Expected Grad-CAM.", ""]
    for method, sentences in content.readings(part):
        lines += [
            f"**{escaped(content.labels[method])}**",
            "",
            *(f"- {escaped(sentence)}" for sentence in sentences),
            "",
        ]
    return [*lines, escaped(content.caution(part)), ""]


def _statements(content: Content, part: Part) -> list[str]:
    lines: list[str] = []
    for method, statements in content.statements(part):
        lines += [f"### {escaped(content.labels[method])} against {escaped(content.labels[content.baseline])}", ""]
        lines += [*(f"- {escaped(statement)}" for statement in statements), ""]
    return lines


def _details(content: Content, part: Part) -> list[str]:
    lines = [f"### Every metric on {escaped(part.model)}, with 95 % intervals", ""]
    for metric in part.table.metrics:
        lines += [
            f"#### {metric_label(metric)} {metric_called(metric).arrow}",
            "",
            f"{better(metric).capitalize()}.",
            "",
        ]
        lines += [
            f"| method | mean | images | difference to {escaped(content.labels[content.baseline])} | pairs | | rank |"
        ]
        lines += ["| --- | ---: | ---: | ---: | ---: | --- | ---: |"]
        for line in part.summary.of(metric):
            own = line.method == content.baseline
            apart = "" if own else spread(line.difference, line.difference_low, line.difference_high, sign=True)
            cells = [
                escaped(content.labels[line.method]),
                spread(line.mean, line.low, line.high),
                f"{line.images:,}",
                apart,
                "" if own else f"{line.pairs:,}",
                "" if own else line.verdict,
                f"{line.rank:.0f}" if isfinite(line.rank) else "-",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return lines
