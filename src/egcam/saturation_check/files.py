"""The saturation study on disk: every number as CSV, what follows from them as JSON, and the figures."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from egcam.saturation_check.result import QUANTITIES
from egcam.saturation_check.study import ModelStudy


def write_study(studies: Sequence[ModelStudy], folder: Path, sharpness: float = 1.0) -> list[Path]:
    """Write the CSV files and, as PNG and SVG, the figures; return the files.

    saturation.csv: image, model, layer, label, a, and what was measured there. saturation-mean.csv: the means over
    the images and two standard deviations. patches.csv: each method's hottest patches and their insertion scores.
    curves, samples, strip, and for each network patches-NAME: the figures. `sharpness` is an exponent of the overlays.
    """
    from egcam.figures.page import save
    from egcam.saturation_check import figures

    folder.mkdir(parents=True, exist_ok=True)
    tables = {"saturation": _points(studies), "saturation-mean": _means(studies), "patches": _patches(studies)}
    files = [_write_csv(folder / f"{name}.csv", rows) for name, rows in tables.items()]
    drawn = {
        "curves": figures.curves({study.label: study.measured for study in studies}),
        "samples": figures.samples(studies[0]),
        "strip": figures.strip(studies),
        **{
            f"patches-{name}": figures.patches(study, sharpness=sharpness)
            for name, study in zip(_file_names(studies), studies, strict=True)
        },
    }
    for name, figure in drawn.items():
        files += save(figure, folder / f"{name}.png", folder / f"{name}.svg")
    return files


def study_dict(study: ModelStudy) -> dict[str, Any]:
    """One network's part of the summary, for JSON; numbers that are not defined are null."""
    measured, verdict = study.measured, study.measured.verdict
    return {
        "label": study.label,
        "model": study.model,
        "layer": measured.layer,
        "spacing": measured.spacing,
        "alphas": _numbers(measured.alphas),
        "passes": measured.passes,
        "verdict": {**_plain(asdict(verdict)), "trust": verdict.trust, "text": verdict.text},
        "insertion": {**_plain(study.insertion), "background": study.background, "image": study.full},
        "images": [_image_dict(study, index) for index in range(len(study.names))],
    }


def write_json(document: dict[str, Any], file: Path) -> Path:
    """Write a document as JSON, indented."""
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def _image_dict(study: ModelStudy, index: int) -> dict[str, Any]:
    measured = study.measured
    values = {
        "reach": measured.reach()[index],
        "saturated": measured.saturated_share[index],
        "score_reach": measured.reach(of="probability")[index],
        "score_saturated": measured.share_within(of="probability")[index],
        "gradient_size": measured.gradient_size[index],
        "agreement": measured.agreement[index],
        "logit": measured.logit[index, -1],
        "probability": measured.probability[index, -1],
    }
    label = {"index": int(measured.targets[index]), "name": study.classes[index]}
    return {"image": study.names[index], "label": label, **_plain({key: float(v) for key, v in values.items()})}


def _points(studies: Sequence[ModelStudy]) -> Iterable[dict[str, Any]]:
    for study in studies:
        curves: dict[str, list[list[float]]] = {name: study.measured.curve(name).tolist() for name in QUANTITIES}
        for index, image in enumerate(study.names):
            for step, a in enumerate(study.measured.alphas.tolist()):
                found = {name: _short(curve[index][step]) for name, curve in curves.items()}
                yield {**_head(study), "image": image, "label": study.classes[index], "a": _short(a), **found}


def _means(studies: Sequence[ModelStudy]) -> Iterable[dict[str, Any]]:
    for study in studies:
        columns: dict[str, Tensor] = {}
        for name in QUANTITIES:
            columns[f"{name}_mean"] = study.measured.mean(name)
            columns[f"{name}_2sd"] = study.measured.spread(name)
        for step, a in enumerate(study.measured.alphas.tolist()):
            found = {name: _short(float(column[step])) for name, column in columns.items()}
            yield {**_head(study), "images": len(study.names), "a": _short(a), **found}


def _patches(studies: Sequence[ModelStudy]) -> Iterable[dict[str, Any]]:
    for study in studies:
        for method, found in study.methods.items():
            patches = found.patches
            for index, image in enumerate(study.names):
                yield {
                    **_head(study),
                    "method": method,
                    "image": image,
                    "label": study.classes[index],
                    "grid": patches.grid,
                    "patches": " ".join(map(str, patches.cells[index].tolist())),
                    "insertion": _short(float(patches.scores[index])),
                    "background": _short(float(patches.background[index])),
                    "image_score": _short(float(patches.full[index])),
                }


def _head(study: ModelStudy) -> dict[str, Any]:
    return {"model": study.label, "layer": study.measured.layer}


def _write_csv(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    listed = list(rows)
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
    return file


def _file_names(studies: Sequence[ModelStudy]) -> list[str]:
    """A part of a file name for each network, no two alike."""
    names: list[str] = []
    for study in studies:
        plain = re.sub(r"[^\w.-]+", "-", study.label).strip("-.") or "model"
        number = sum(name == plain or name.startswith(f"{plain}-again") for name in names)
        names.append(f"{plain}-again{number}" if number else plain)
    return names


def _short(value: float) -> str:
    return f"{value:.7g}"


def _numbers(values: Tensor) -> list[float]:
    return [round(value, 7) for value in values.tolist()]


def _plain(numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers JSON can hold: NaN is null, and the rest is rounded."""
    return {
        key: (round(value, 6) if isfinite(value) else None) if isinstance(value, float) else value
        for key, value in numbers.items()
    }
