"""Results as HTML: pictures with words for those who do not see them, tables, the progress bar.

The markup is in `pages/templates/web.html`, which escapes all text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from PIL import Image, ImageOps

from egcam.attribution.explanation import Explanation
from egcam.attribution.registry import is_highlighted
from egcam.drawing.overlays import heatmap_image
from egcam.evaluation.score import Score
from egcam.figures import style
from egcam.metrics.registry import metric
from egcam.models.classifier import Prediction
from egcam.pages import Cell, Column, TextTable, part
from egcam.pages.rendering import jpeg
from egcam.photos.comparison import Result
from egcam.saturation_check.result import Saturation
from egcam.web.session import CURVE_POINTS, METRICS, Photo

_TEMPLATE = "web.html"


def message(text: str, kind: str = "info") -> str:
    """A sentence: kind is "info" or "error"."""
    return part(_TEMPLATE, "message", text=text, kind=kind)


def progress(text: str, share: float) -> str:
    """How far the work is, in words and as a bar."""
    return part(_TEMPLATE, "progress", text=text, percent=round(100 * min(max(share, 0.0), 1.0)))


def photograph(photo: Photo) -> str:
    """The part of the photograph that the network sees."""
    return part(_TEMPLATE, "photograph", photo=photo)


def explained(photo: Photo, target: Prediction, result: Result) -> str:
    """The photograph, one method's overlay, and its map as it is."""
    explanation = result.explanation
    facts = [
        f"layer {explanation.layer}" if explanation.layer else "",
        f"reference {explanation.reference}" if explanation.reference else "",
        f"score {float(explanation.scores.reshape(-1)[0]):.2f}",
        f"hottest tenth {explanation.worth()}" if explanation.completeness else "",
    ]
    return part(
        _TEMPLATE,
        "explained",
        photo=photo,
        target=target,
        shown=_shown(result),
        coarse=_coarse(explanation),
        places=" × ".join(str(size) for size in explanation.maps.shape[-2:]),
        facts=" · ".join(fact for fact in facts if fact),
        hint=_hint(explanation),
    )


def compared(
    photo: Photo, target: Prediction, results: Sequence[Result], failed: Mapping[str, str], waiting: Sequence[str] = ()
) -> str:
    """Methods side by side, as far as they are done; a place is kept for those to come."""
    return part(
        _TEMPLATE,
        "compared",
        photo=photo,
        target=target,
        done=[_shown(result) for result in results],
        waiting=[style.label(name) for name in waiting],
        left_out={style.label(name): reason for name, reason in failed.items()},
    )


def measured(target: Prediction, rows: Mapping[str, Sequence[Score]], waiting: Sequence[str] = ()) -> str:
    """A table of methods by metrics, the best of each column in bold, and what each metric says."""
    best = _best(rows)
    heads = {name: f"{name.replace('-', ' ')} {metric(name).arrow}" for name in METRICS}
    columns = [Column(head, f"{metric(name).direction} is better") for name, head in heads.items()]
    lines = [(Cell(style.label(method)), *_cells(scores, best)) for method, scores in rows.items()]
    lines += [(Cell(style.label(name)), *[Cell("…")] * len(METRICS)) for name in waiting]
    causes = dict.fromkeys(
        f"{style.label(row.method)}, {row.metric}: {row.cause}"
        for scores in rows.values()
        for row in scores
        if row.cause
    )
    return part(
        _TEMPLATE,
        "measured",
        target=target,
        table=TextTable((Column("method"), *columns), tuple(lines)),
        causes=list(causes),
        points=CURVE_POINTS,
        meanings={head: metric(name).meaning for name, head in heads.items()},
    )


def saturated(target: Prediction, found: Saturation, drawn: bytes) -> str:
    """The verdict and the curves, an SVG on white."""
    answers = {"yes": "Yes", "no": "No", "with care": "With care", "unclear": "Unclear"}
    return part(
        _TEMPLATE,
        "saturated",
        answer=answers[found.verdict.trust],
        verdict=found.verdict.text,
        target=target,
        layer=found.layer,
        chart=drawn,
        dark=style.darkened(drawn),
    )


def descriptions(summaries: Mapping[str, str]) -> str:
    """What the methods do, in a line each."""
    return part(_TEMPLATE, "described", texts={style.label(name): text for name, text in summaries.items()})


def strongest(explanation: Explanation) -> str:
    """Where a map is strongest, in words.

    Example:
        >>> import torch
        >>> heat = torch.zeros(1, 9, 9)
        >>> heat[0, 0, 8] = 1
        >>> none = torch.zeros(1)
        >>> strongest(Explanation(heat, (9, 9), none, none, none, "layer", "grad-cam"))
        'strongest at the top right'
    """
    heat = explanation.heatmaps[0].float().cpu().numpy()
    if not np.abs(heat).max() > 0:
        return "zero everywhere: there is no evidence for the class here"
    row, column = np.unravel_index(int(np.abs(heat).argmax()), heat.shape)
    down = ("top", "", "bottom")[min(2, int(3 * row / heat.shape[0]))]
    across = ("left", "", "right")[min(2, int(3 * column / heat.shape[1]))]
    return f"strongest {'at the ' + ' '.join(filter(None, (down, across))) if down or across else 'in the middle'}"


def thumbnail(image: Image.Image, side: int) -> str:
    """A small square picture as a data URL."""
    return jpeg(ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.LANCZOS)).src


def _shown(result: Result) -> dict[str, object]:
    """What the page says of one method's overlay."""
    return {
        "image": result.overlay(),
        "name": style.label(result.method),
        "where": strongest(result.explanation),
        "cost": f"{result.layer}, {result.cost}",
        "ours": is_highlighted(result.method),
        "method": result.method,
    }


def _coarse(explanation: Explanation) -> Image.Image:
    """The map itself, its cells left sharp."""
    values = explanation.maps[0].float().cpu().numpy()
    picture = heatmap_image(values / max(float(np.abs(values).max()), 1e-30))
    return picture.resize((explanation.size[1], explanation.size[0]), Image.Resampling.NEAREST)


def _hint(explanation: Explanation) -> str:
    if not bool((explanation.maps != 0).any()):
        return "The map is zero everywhere: no evidence for the class at this layer. Try another layer or class."
    return "Yellow matters most, then green and blue; where the photograph shows through, it did not matter."


def _best(rows: Mapping[str, Sequence[Score]]) -> dict[str, float]:
    """The best score by each metric, where two methods or more have different ones."""
    found = {}
    for name in METRICS:
        values = {row.value for scores in rows.values() for row in scores if row.metric == name and isfinite(row.value)}
        if len(values) > 1:
            found[name] = max(values) if metric(name).higher_is_better else min(values)
    return found


def _cells(scores: Sequence[Score], best: Mapping[str, float]) -> list[Cell]:
    values = {row.metric: row.value for row in scores if isfinite(row.value)}
    return [
        Cell(f"{values[name]:.3f}", "best" if best.get(name) == values[name] else "") if name in values else Cell("–")
        for name in METRICS
    ]
