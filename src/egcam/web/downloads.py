"""Results as files: PNG and SVG figures, raw maps and curves, scores. Gradio copies them into its own folder."""

from __future__ import annotations

import csv
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from egcam._version import __version__
from egcam.errors import InputError
from egcam.evaluation.score import Score
from egcam.figures import method_grid, save, style
from egcam.figures.page import encoded
from egcam.models.classifier import Prediction
from egcam.pages.escaping import in_csv
from egcam.photos.comparison import Result
from egcam.saturation_check import figures as saturation_figures
from egcam.saturation_check.result import Saturation
from egcam.web.session import Photo

KINDS = ("png", "svg", "npz")
_DPI = 200


def maps_file(folder: Path, kind: str, photo: Photo, target: Prediction, results: Sequence[Result], model: str) -> Path:
    """The maps of some methods: a figure (png, svg), or the numbers and facts (npz).

    The npz holds, for each method, `maps/METHOD` (h, w) at the layer's resolution and `heatmaps/METHOD` (H, W) in
    [0, 1], `photograph` (H, W, 3), and `facts`, a JSON text. `numpy.load` reads it without pickle.
    """
    if not results:
        raise InputError("there is nothing to download yet: explain an image first")
    file = _new_file(folder, f"{photo.name} {target.name}", _checked(kind))
    if kind == "npz":
        _write_maps(file, photo, target, results, model)
    else:
        explanations = {result.method: result.explanation for result in results}
        width: style.Width = "column" if len(results) == 1 else "page"
        save(method_grid(explanations, [photo.seen], width=width), file, dpi=_DPI)
    return file


def scores_file(folder: Path, photo: Photo, rows: Mapping[str, Sequence[Score]]) -> Path:
    """The scores as CSV; a text that a spreadsheet would compute gets an apostrophe before it."""
    if not rows:
        raise InputError("there is nothing to download yet: measure the methods first")
    file = _new_file(folder, f"{photo.name} metrics", "csv")
    with file.open("w", newline="", encoding="utf-8") as text:
        table = csv.writer(text)
        table.writerow(["image", "method", "metric", "value", "seconds", "cause"])
        for row in (row for scores in rows.values() for row in scores):
            texts = [in_csv(text) for text in (photo.name, row.method, row.metric)]
            table.writerow([*texts, row.value, row.seconds, in_csv(row.cause or "")])
    return file


def saturation_drawing(model: str, found: Saturation) -> bytes:
    """The saturation curves as an SVG, for showing."""
    return encoded(saturation_figures.curves({model: found}, width=5.0), "svg", _DPI)


def _checked(kind: str) -> str:
    if kind not in KINDS:
        raise InputError(f"a result is downloaded as {', '.join(KINDS)}, not {kind!r}")
    return kind


def _new_file(folder: Path, title: str, suffix: str) -> Path:
    """A file with a telling name, in a folder nobody can guess."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", re.sub(r"\.\w{2,4}(?= )", "", title)).strip("-")[:80].lower() or "image"
    place = folder.parent / "made" / secrets.token_hex(16)
    place.mkdir(parents=True)
    return place / f"egcam-{stem}.{suffix}"


def _write_maps(file: Path, photo: Photo, target: Prediction, results: Sequence[Result], model: str) -> None:
    arrays: dict[str, Any] = {"photograph": np.asarray(photo.seen.convert("RGB"))}
    facts: dict[str, Any] = {"egcam": __version__, "model": model, "photograph": photo.name}
    facts["target"] = {"index": target.index, "name": target.name, "probability": target.probability}
    facts["methods"] = {}
    for result in results:
        explanation = result.explanation
        arrays[f"maps/{result.method}"] = explanation.maps[0].float().cpu().numpy()
        arrays[f"heatmaps/{result.method}"] = explanation.heatmaps[0].float().cpu().numpy()
        facts["methods"][result.method] = {
            "layer": explanation.layer,
            "reference": explanation.reference,
            "passes": explanation.passes,
            "seconds": round(result.seconds, 4),
            "options": explanation.options,
        }
    arrays["facts"] = np.array(json.dumps(facts, ensure_ascii=False))
    np.savez_compressed(file, **arrays)
