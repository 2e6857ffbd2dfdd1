"""`egcam compare`: several methods on one image, in one grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from egcam._version import __version__
from egcam.attribution.registry import usual_methods
from egcam.cli.console import DONE, SOME_FAILED, complain, note, out, print_json, progress_bar, readable, told_warnings
from egcam.cli.inputs import read_classes, read_methods, read_reference, read_target
from egcam.cli.output import fitting_name, prediction_dict
from egcam.drawing.palette import checked_sharpness
from egcam.errors import InputError
from egcam.models.zoo import load
from egcam.photos.comparison import Comparison
from egcam.photos.comparison import compare as run
from egcam.photos.files import read_image


def compare_methods(
    file: Path,
    *,
    model: str,
    weights: str | None,
    classes: Path | None,
    device: str | None,
    methods: str | None,
    target: str | None,
    reference: str | None,
    options: Mapping[str, Any],
    sharpness: float,
    out: Path,
    as_json: bool,
) -> int:
    """Draw the grid, print what came out, and give the exit code."""
    names = read_methods(methods) if methods else usual_methods()
    checked_sharpness(sharpness)
    try:
        image = read_image(file)
    except InputError as error:
        complain(error)
        if as_json:
            print_json({"error": str(error), "exit_code": SOME_FAILED})
        return SOME_FAILED
    classifier = load(model, weights, device, read_classes(classes))
    options = {**options, "reference": read_reference(reference, classifier)}
    everything = (methods or "").strip() == "all"
    with told_warnings(file), progress_bar(f"comparing {len(names)} methods", wanted=not as_json) as share:
        shown = readable(file.name)
        found = run(classifier, image, names, shown, read_target(target), options, everything, share, sharpness)
    for name, reason in found.skipped.items():
        note(f"{name} is left out: {reason}")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / fitting_name(file.stem, "-comparison.png")
    found.picture().save(picture)
    _report(file, found, picture, as_json)
    return DONE


def comparison_dict(found: Comparison) -> dict[str, Any]:
    """A comparison for JSON."""
    return {
        "title": found.title,
        "model": found.model,
        "target": prediction_dict(found.target),
        "predictions": [prediction_dict(prediction) for prediction in found.predictions],
        "methods": [
            {
                "method": result.method,
                "layer": result.explanation.layer,
                "seconds": round(result.seconds, 4),
                "passes": result.explanation.passes,
            }
            for result in found.results
        ],
        "skipped": dict(found.skipped),
    }


def _report(file: Path, found: Comparison, picture: Path, as_json: bool) -> None:
    if as_json:
        facts = {"egcam": __version__, "file": str(file), "picture": str(picture)}
        print_json({**facts, **comparison_dict(found)})
        return
    said = f"{found.target.name} ({found.target.probability:.1%})"
    seconds = sum(result.seconds for result in found.results)
    text = f"{file}: {said}, {len(found.results)} methods in {seconds:.1f} s; the grid is {picture}"
    out().print(readable(text), markup=False)
