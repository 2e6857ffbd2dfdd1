"""The report as a web page in one file: figures inside, no scripts, light and dark, wide screens and phones."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO
from math import isfinite

from PIL import Image

from egcam.evaluation.printing import HTML, image_cells, means_over, rows
from egcam.evaluation.stats import Line
from egcam.metrics.registry import metric as metric_called
from egcam.page_frame import framed
from egcam.studies.report.content import Content, Example, Part
from egcam.studies.report.figures import Drawing, classes_of
from egcam.studies.report.stylesheet import STYLE
from egcam.studies.report.words import better, key, metric_label, spread

_BODY = """<a class="skip" href="#main">To the results</a>
<main id="main">
<h1>{title}</h1>
{body}
</main>"""


def as_html(content: Content, drawings: Sequence[Sequence[Drawing]], overall: Drawing | None) -> str:
    """The whole page; `drawings` are those of each model, in the order of the parts."""
    body = [f'<p class="warn"><strong>Note.</strong> {escape(warning)}</p>' for warning in content.warnings]
    body += [_facts(content), _contents(content, overall)]
    if overall is not None:
        body += ['<section id="all">', "<h2>All models</h2>", '<div class="plots">', _plot(overall), "</div></section>"]
    for number, (part, drawn) in enumerate(zip(content.parts, drawings, strict=True)):
        body.append(_section(content, part, drawn, number))
    body += [
        f"<section><h2>{escape(model)}</h2><p>No image is done by all methods yet.</p></section>"
        for model in content.unscored
    ]
    body.append(
        '<p class="faint">All scores are in scores.csv; means, intervals, differences and ranks in summary.csv.</p>'
    )
    return framed(content.title, STYLE, _BODY.format(title=escape(content.title), body="\n".join(body)))


def _facts(content: Content) -> str:
    pairs = "\n".join(f"<dt>{escape(word)}</dt><dd>{escape(said)}</dd>" for word, said in content.facts)
    return f"<dl>\n{pairs}\n</dl>"


def _contents(content: Content, overall: Drawing | None) -> str:
    links = ['<li><a href="#all">All models</a></li>'] if overall is not None else []
    links += [
        f'<li><a href="#model-{number}">{escape(part.model)}</a></li>' for number, part in enumerate(content.parts)
    ]
    return f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'


def _section(content: Content, part: Part, drawings: Sequence[Drawing], number: int) -> str:
    narrow = [_plot(drawing) for drawing in drawings if not drawing.wide]
    wide = [_plot(drawing) for drawing in drawings if drawing.wide and drawing.kind != "examples"]
    pieces = [
        f'<section id="model-{number}">',
        f"<h2>{escape(part.model)}</h2>",
        *(f'<p class="warn">{escape(caveat)}</p>' for caveat in part.caveats),
        _scores(content, part),
        _missing(part),
        _reading(content, part),
        f'<div class="plots">{"".join(narrow)}</div>' if narrow else "",
        *wide,
        _statements(content, part),
        _details(content, part),
        _examples(content, part),
        "</section>",
    ]
    return "\n".join(piece for piece in pieces if piece)


def _table(caption: str, heads: Sequence[str], lines: Sequence[str]) -> str:
    """A table that scrolls inside its own frame, by finger, wheel or arrow keys; cells come as HTML."""
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    named = escape(caption, quote=True)
    return (
        f'<div class="scroll" role="region" aria-label="{named}" tabindex="0">\n'
        f"<table>\n<caption><span>{named}</span></caption>\n"
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def _row(content: Content, method: str, cells: Sequence[str]) -> str:
    ours = ' class="ours"' if method in content.expected else ""
    return f'<tr{ours}><th scope="row">{escape(content.labels[method])}</th>{"".join(cells)}</tr>'


def _scores(content: Content, part: Part) -> str:
    heads = ["method"]
    for name in part.table.metrics:
        one = metric_called(name)
        heads.append(f'<abbr title="{metric_label(name)}, {better(name)}">{escape(one.label)}</abbr> {one.arrow}')
    lines = [
        _row(content, method, [f"<td>{cell}</td>" for cell in cells])
        for method, cells in rows(part.table, HTML).items()
    ]
    counts = image_cells(part.table)
    if counts:
        cells = "".join(f"<td>{count}</td>" for count in counts)
        lines.append(f'<tr class="counts"><th scope="row">images</th>{cells}</tr>')
    caption = f"{part.model}: {means_over(part.table)}; best in bold, second underlined, arrows point to better"
    return f'{_table(caption, heads, lines)}\n<p class="faint">{escape(key(part.table.metrics))}</p>'


def _missing(part: Part) -> str:
    return f"<h3>Missing scores</h3>\n{_list(part.missing)}" if part.missing else ""


def _list(lines: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>"


def _reading(content: Content, part: Part) -> str:
    told = [
        f"<p><strong>{escape(content.labels[method])}</strong></p>\n{_list(sentences)}"
        for method, sentences in content.readings(part)
    ]
    told = told or ["<p>The study has no Expected Grad-CAM.</p>"]
    said = "\n".join(["<h3>An honest reading</h3>", *told])
    return f'{said}\n<p class="note">{escape(content.caution(part))}</p>'


def _statements(content: Content, part: Part) -> str:
    pieces = []
    for method, statements in content.statements(part):
        pair = f"{content.labels[method]} against {content.labels[content.baseline]}"
        pieces.append(f"<h3>{escape(pair)}</h3>\n{_list(statements)}")
    return "\n".join(pieces)


def _details(content: Content, part: Part) -> str:
    against = escape(content.labels[content.baseline])
    heads = ["method", "mean", "images", f"difference to {against}", "pairs", "", "rank"]
    pieces = [f"<h3>Every metric on {escape(part.model)}, with 95 % intervals</h3>"]
    for metric in part.table.metrics:
        lines = [_row(content, line.method, _detail(line, content.baseline)) for line in part.summary.of(metric)]
        name = f"{metric_label(metric)} {metric_called(metric).arrow}"
        caption = f"{metric_label(metric)} on {part.model}, {better(metric)}"
        pieces.append(f"<details><summary>{name}</summary>\n{_table(caption, heads, lines)}\n</details>")
    return "\n".join(pieces)


def _detail(line: Line, baseline: str) -> list[str]:
    own = line.method == baseline
    apart = "" if own else spread(line.difference, line.difference_low, line.difference_high, sign=True)
    said = "" if own else line.verdict
    rank = f"{line.rank:.0f}" if isfinite(line.rank) else "-"
    kind = f" {said}" if said in ("ahead", "behind") else ""
    return [
        f"<td>{spread(line.mean, line.low, line.high)}</td>",
        f"<td>{line.images:,}</td>",
        f"<td>{apart}</td>",
        f"<td>{'' if own else f'{line.pairs:,}'}</td>",
        f'<td class="text{kind}">{said}</td>',
        f"<td>{rank}</td>",
    ]


def _plot(drawing: Drawing) -> str:
    """A drawing in the ink of the page: another one is inside for dark pages."""
    assert drawing.svg is not None
    assert drawing.dark is not None
    alternative = f'<source media="(prefers-color-scheme: dark)" srcset="{_data("svg+xml", drawing.dark)}">'
    plain = f'<img src="{_data("svg+xml", drawing.svg)}" alt="{escape(drawing.caption, quote=True)}">'
    scroll = ' class="sideways" role="region" tabindex="0" aria-label="figure"' if drawing.wide else ""
    return (
        f'<figure class="plot"><div{scroll}><picture>{alternative}{plain}</picture></div>'
        f"<figcaption>{escape(drawing.caption)}</figcaption></figure>"
    )


def _data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{b64encode(content).decode('ascii')}"


def _examples(content: Content, part: Part) -> str:
    if not part.examples:
        return ""
    pieces = [
        f"<h3>Example maps on {escape(part.model)}</h3>",
        '<p class="faint">Yellow matters most, then green and blue; where the photograph shows through, '
        "it did not matter. The framed ones are Expected Grad-CAM.</p>",
    ]
    return "\n".join([*pieces, *(_example(content, example) for example in part.examples)])


def _example(content: Content, example: Example) -> str:
    about = escape(classes_of(example))
    figures = [_map(example.photograph, example.name, f"photograph {example.name}", about, False)]
    for method, overlay in example.overlays.items():
        described = f"{content.labels[method]} on {example.name}"
        figures.append(_map(overlay, content.labels[method], described, "", method in content.expected))
    return f'<div class="maps">{"".join(figures)}</div>'


def _map(picture: Image.Image | None, name: str, described: str, detail: str, ours: bool) -> str:
    kind = ' class="ours"' if ours else ""
    shown = '<div class="blank">no map</div>' if picture is None else _photograph(picture, described)
    more = f"<span>{detail}</span>" if detail else ""
    return f"<figure{kind}>{shown}<figcaption>{escape(name)}{more}</figcaption></figure>\n"


def _photograph(picture: Image.Image, described: str, most: int = 280) -> str:
    small = picture.convert("RGB")
    small.thumbnail((most, most), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return (
        f'<img src="{_data("jpeg", buffer.getvalue())}" alt="{escape(described, quote=True)}" width="{small.width}" '
        f'height="{small.height}" loading="lazy">'
    )
