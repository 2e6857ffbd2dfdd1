"""A web page of comparisons in one file: pictures inside, no scripts, light and dark, wide screens and phones."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO

from PIL import Image

from egcam.models.classifier import Prediction
from egcam.page_frame import framed
from egcam.photos.comparison import Comparison, Result

_STYLE = """
:root { color-scheme: light dark; --page: #fafafa; --card: #ffffff; --ink: #1a1c20; --faint: #5c6370;
        --line: #e2e5ea; --bar: #31688e; --track: #e8eaee; --note: #eef4f8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14161a; --card: #1e2127; --ink: #e8eaed; --faint: #a0a7b4; --line: #31353d; --bar: #5ec4b6;
          --track: #31353d; --note: #1f2b33; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .25rem; }
p { margin: .25rem 0 1rem; max-width: 46rem; }
.note { background: var(--note); border-left: 4px solid var(--bar); padding: .6rem .9rem; border-radius: 4px; }
.top { display: grid; grid-template-columns: minmax(180px, 300px) minmax(220px, 1fr); gap: 1rem; margin-bottom: 1rem; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: .75rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
figure.ours { outline: 3px solid var(--bar); outline-offset: -1px; }
img { display: block; width: 100%; height: auto; }
figcaption { padding: .4rem .6rem .5rem; font-size: .875rem; line-height: 1.3; overflow-wrap: anywhere; }
figcaption span, .faint { color: var(--faint); font-size: .8125rem; }
figcaption span { display: block; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; }
td { padding: .2rem .4rem .2rem 0; vertical-align: middle; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; width: 4.5rem; }
td.bar { width: 45%; }
td.bar div { background: var(--track); border-radius: 5px; }
td.bar div div { background: var(--bar); height: 10px; min-width: 3px; }
@media (max-width: 34rem) {
  .top { grid-template-columns: 1fr; }
  .maps { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .5rem; } }
"""

_BODY = """<main>
<h1>{title}</h1>
{introduction}
{sections}
<p class="faint">{footer}</p>
</main>"""


def page(
    title: str,
    introduction: str,
    comparisons: Sequence[Comparison],
    notes: Sequence[str] = (),
    footer: str = "",
    highlight: Sequence[str] = (),
) -> str:
    """The HTML of the whole page.

    Args:
        title: the page's heading.
        introduction: a paragraph under it.
        comparisons: one section for each.
        notes: for each comparison, what to look at.
        footer: the last line.
        highlight: methods whose pictures get a frame.
    """
    notes = [*notes, *[""] * (len(comparisons) - len(notes))]
    sections = [_section(one, note, highlight) for one, note in zip(comparisons, notes, strict=True)]
    body = _BODY.format(
        title=escape(title),
        introduction=f"<p>{escape(introduction)}</p>",
        sections="\n".join(sections),
        footer=escape(footer),
    )
    return framed(title, _STYLE, body)


def _section(comparison: Comparison, note: str, highlight: Sequence[str]) -> str:
    target = comparison.target
    heading = f"{comparison.title}: why “{target.name}” ({target.probability:.1%})?"
    photograph = f"the photograph {comparison.title}, as the network sees it"
    figures = [_figure(result, comparison, result.method in highlight) for result in comparison.results]
    left_out = "".join(
        f'<p class="faint">{escape(method)} is left out: {escape(reason)}</p>'
        for method, reason in comparison.skipped.items()
    )
    return f"""<section>
<h2>{escape(heading)}</h2>
{f'<p class="note">{escape(note)}</p>' if note else ""}
<div class="top">
<figure>{_img(comparison.photograph, photograph)}
<figcaption>photograph<span>what the network sees</span></figcaption></figure>
<div><strong>Top {len(comparison.predictions)} predictions</strong>
<span class="faint">{escape(comparison.model)}</span>
{_predictions(comparison.predictions)}</div>
</div>
<div class="maps">
{"".join(figures)}
</div>
{left_out}
</section>"""


def _figure(result: Result, comparison: Comparison, ours: bool) -> str:
    described = f"{result.method} for {comparison.target.name} on {comparison.title}"
    count = result.explanation.passes
    cost = f"{result.seconds:.2f} s, {count:,} {'pass' if count == 1 else 'passes'}"
    kind = ' class="ours"' if ours else ""
    caption = f"<figcaption><strong>{escape(result.method)}</strong><span>{cost}</span></figcaption>"
    return f"<figure{kind}>{_img(result.overlay, described)}{caption}</figure>\n"


def _predictions(predictions: Sequence[Prediction]) -> str:
    rows = [
        f"<tr><td>{escape(one.name)}</td>"
        f'<td class="bar"><div><div style="width:{100 * one.probability:.1f}%"></div></div></td>'
        f'<td class="number">{one.probability:.1%}</td></tr>'
        for one in predictions
    ]
    return f"<table>{''.join(rows)}</table>"


def _img(image: Image.Image, described: str, most: int = 448) -> str:
    shown = image.convert("RGB")
    shown.thumbnail((most, most), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    shown.save(buffer, "JPEG", quality=88)
    data = b64encode(buffer.getvalue()).decode("ascii")
    return (
        f'<img src="data:image/jpeg;base64,{data}" alt="{escape(described)}" width="{shown.width}" '
        f'height="{shown.height}" loading="lazy">'
    )
