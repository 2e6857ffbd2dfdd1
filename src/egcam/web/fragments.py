"""Results as HTML: pictures with words for those who do not see them, tables, the progress bar. All text is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from math import isfinite

import numpy as np
from PIL import Image

from egcam.attribution.explanation import Explanation
from egcam.drawing.overlays import heatmap_image
from egcam.evaluation.table import Row
from egcam.figures import style
from egcam.metrics.registry import metric
from egcam.photos.comparison import Prediction, Result
from egcam.saturation_check.result import Saturation
from egcam.web.session import CURVE_POINTS, METRICS, Photo

_SIDE = 448
_OURS = "expected-grad-cam"


def message(text: str, kind: str = "info") -> str:
    """A sentence: kind is "info" or "error"."""
    role = ' role="alert"' if kind == "error" else ""
    return f'<p class="eg-message eg-{kind}"{role}>{escape(text)}</p>'


def progress(text: str, share: float) -> str:
    """How far the work is, in words and as a bar."""
    percent = round(100 * min(max(share, 0.0), 1.0))
    return (
        f'<p class="eg-message eg-info">{escape(text)} <span class="eg-faint">{percent}%</span></p>'
        f'<div class="eg-track" role="progressbar" aria-label="{escape(text)}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent}"><div style="width:{percent}%"></div></div>'
    )


def photograph(photo: Photo) -> str:
    """The part of the photograph that the network sees."""
    described = f"{photo.name}, as the network sees it"
    return f'<div class="eg-seen">{_figure(photo.seen, described, photo.name, "what the network sees")}</div>'


def explained(photo: Photo, target: Prediction, result: Result) -> str:
    """The photograph, one method's overlay, and its map as it is."""
    explanation = result.explanation
    places = " × ".join(str(size) for size in explanation.maps.shape[-2:])
    name, where = style.label(result.method), strongest(explanation)
    coarse = _figure(_coarse(explanation), f"the map alone: {where}", "the map alone", f"{places} places")
    over = _figure(
        result.overlay, f"{name} for “{target.name}” on {photo.name}: {where}", name, _cost(result), result.method
    )
    seen = _figure(photo.seen, f"{photo.name}, as the network sees it", photo.name, "what the network sees")
    facts = [
        f"layer {explanation.layer}" if explanation.layer else "",
        _reference(explanation),
        f"score {_score(explanation)}",
    ]
    line = " · ".join(escape(fact) for fact in facts if fact)
    return (
        f'{_why(target)}<div class="eg-maps eg-few">{seen}{over}{coarse}</div>'
        f'<p class="eg-faint">{line}. {escape(_reading(explanation))}</p>'
    )


def compared(
    photo: Photo, target: Prediction, results: Sequence[Result], failed: Mapping[str, str], waiting: Sequence[str] = ()
) -> str:
    """Methods side by side, as far as they are done; a place is kept for those to come."""
    cards = [_figure(photo.seen, f"{photo.name}, as the network sees it", photo.name, "what the network sees")]
    for result in results:
        described = f"{style.label(result.method)} for “{target.name}” on {photo.name}: {strongest(result.explanation)}"
        cards.append(_figure(result.overlay, described, style.label(result.method), _cost(result), result.method))
    cards += [
        f'<figure class="eg-empty"><div></div><figcaption><strong>{escape(style.label(name))}</strong>'
        "<span>to come</span></figcaption></figure>"
        for name in waiting
    ]
    left_out = "".join(
        f'<p class="eg-faint">{escape(style.label(name))} is left out: {escape(why)}</p>'
        for name, why in failed.items()
    )
    return f'{_why(target)}<div class="eg-maps">{"".join(cards)}</div>{left_out}'


def measured(target: Prediction, rows: Mapping[str, Sequence[Row]], waiting: Sequence[str] = ()) -> str:
    """A table of methods by metrics, the best of each column in bold, and what each metric says."""
    best = _best(rows)
    heads = "".join(
        f'<th scope="col">{escape(name.replace("-", " "))} <span aria-label="{metric(name).direction} is better">'
        f"{metric(name).arrow}</span></th>"
        for name in METRICS
    )
    lines = [_line(method, scores, best) for method, scores in rows.items()]
    lines += [
        f'<tr><th scope="row">{escape(style.label(name))}</th>{"<td>…</td>" * len(METRICS)}</tr>' for name in waiting
    ]
    causes = dict.fromkeys(
        f"{style.label(row.method)}, {row.metric}: {row.cause}"
        for scores in rows.values()
        for row in scores
        if row.cause
    )
    meanings = "".join(
        f"<dt>{escape(name.replace('-', ' '))} {metric(name).arrow}</dt><dd>{escape(metric(name).meaning)}</dd>"
        for name in METRICS
    )
    return (
        f"<h3>How well do the maps explain “{escape(target.name)}”?</h3>"
        '<div class="eg-wide" tabindex="0" role="region" aria-label="scores by method and metric">'
        f'<table class="eg-scores"><thead><tr><th scope="col">method</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        + "".join(f'<p class="eg-faint">{escape(cause)}</p>' for cause in causes)
        + '<p class="eg-faint">↑ more is better, ↓ less is better; the best of each column is in bold. Insertion and '
        f"deletion follow {CURVE_POINTS} points here, to be quick; egcam.evaluate follows more. One image proves "
        f'little: a study over many tells methods apart.</p><dl class="eg-meanings">{meanings}</dl>'
    )


def saturated(target: Prediction, found: Saturation, drawn: bytes) -> str:
    """The verdict and the curves."""
    verdict = found.verdict
    answers = {"yes": "Yes", "no": "No", "with care": "With care", "unclear": "Unclear"}
    data = b64encode(drawn).decode("ascii")
    described = (
        "four curves from black to the photograph: cosine of the layer's embedding, logit, softmax score and length of "
        "the gradient"
    )
    return (
        f"<h3>Can the plain gradient be trusted here? {answers[verdict.trust]}.</h3>"
        f'<p class="eg-verdict">{escape(verdict.text)}</p>'
        f'<figure class="eg-chart"><img src="data:image/png;base64,{data}" alt="{escape(described)}">'
        f"<figcaption>“{escape(target.name)}” at layer {escape(found.layer)}, while the photograph is scaled up from "
        "black (a = 0) to itself (a = 1)</figcaption></figure>"
    )


def descriptions(summaries: Mapping[str, str]) -> str:
    """What the methods do, in a line each."""
    lines = "".join(
        f"<dt>{escape(style.label(name))}</dt><dd>{escape(summary)}</dd>" for name, summary in summaries.items()
    )
    return f'<dl class="eg-meanings">{lines}</dl>'


def strongest(explanation: Explanation) -> str:
    """Where a map is strongest, in words.

    Example:
        >>> import torch
        >>> heat = torch.zeros(1, 9, 9)
        >>> heat[0, 0, 8] = 1
        >>> none = torch.zeros(1)
        >>> strongest(Explanation(heat, (9, 9), none, none, none, "layer", "grad-cam"))
        'strongest at the upper right'
    """
    heat = explanation.heatmaps[0].float().cpu().numpy()
    if not np.abs(heat).max() > 0:
        return "zero everywhere: nothing here speaks for the class"
    row, column = np.unravel_index(int(np.abs(heat).argmax()), heat.shape)
    down = ("upper", "", "lower")[min(2, int(3 * row / heat.shape[0]))]
    across = ("left", "", "right")[min(2, int(3 * column / heat.shape[1]))]
    return f"strongest {('at the ' + ' '.join(filter(None, (down, across)))) if down or across else 'in the middle'}"


def thumbnail(image: Image.Image, side: int) -> str:
    """A small square picture as a data URL."""
    square = image.convert("RGB")
    edge = min(square.size)
    left, top = (square.width - edge) // 2, (square.height - edge) // 2
    return _url(square.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.LANCZOS))


def _why(target: Prediction) -> str:
    return f"<h3>Why “{escape(target.name)}” ({target.probability:.1%})?</h3>"


def _figure(image: Image.Image, described: str, title: str, detail: str, method: str = "") -> str:
    ours = ' class="eg-ours"' if method == _OURS else ""
    return (
        f'<figure{ours}><img src="{_url(image)}" alt="{escape(described)}" data-method="{escape(method)}">'
        f"<figcaption><strong>{escape(title)}</strong><span>{escape(detail)}</span></figcaption></figure>"
    )


def _url(image: Image.Image) -> str:
    shown = image.convert("RGB")
    shown.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    shown.save(buffer, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode('ascii')}"


def _coarse(explanation: Explanation) -> Image.Image:
    """The map itself, its cells left sharp."""
    values = explanation.maps[0].float().cpu().numpy()
    picture = heatmap_image(values / max(float(np.abs(values).max()), 1e-30))
    return picture.resize((explanation.size[1], explanation.size[0]), Image.Resampling.NEAREST)


def _cost(result: Result) -> str:
    count = result.explanation.passes
    return f"{result.seconds:.1f} s, {count:,} {'pass' if count == 1 else 'passes'}"


def _reference(explanation: Explanation) -> str:
    return f"reference {explanation.reference}" if explanation.reference else ""


def _score(explanation: Explanation) -> str:
    return f"{float(explanation.scores.reshape(-1)[0]):.2f}"


def _reading(explanation: Explanation) -> str:
    if not bool((explanation.maps != 0).any()):
        return "The map is zero everywhere: at this layer nothing speaks for the class. Try another layer or class."
    return "Yellow matters most, then green and blue; where the photograph shows through, it did not matter."


def _best(rows: Mapping[str, Sequence[Row]]) -> dict[str, float]:
    """The best score by each metric, where two methods or more have different ones."""
    found = {}
    for name in METRICS:
        values = {row.value for scores in rows.values() for row in scores if row.metric == name and isfinite(row.value)}
        if len(values) > 1:
            found[name] = max(values) if metric(name).higher_is_better else min(values)
    return found


def _line(method: str, scores: Sequence[Row], best: Mapping[str, float]) -> str:
    cells = []
    for name in METRICS:
        value = next((row.value for row in scores if row.metric == name), float("nan"))
        text = f"{value:.3f}" if isfinite(value) else "–"
        cells.append(f"<td>{f'<strong>{text}</strong>' if best.get(name) == value else text}</td>")
    return f'<tr><th scope="row">{escape(style.label(method))}</th>{"".join(cells)}</tr>'
