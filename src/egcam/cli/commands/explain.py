"""`egcam explain`: image after image, the bad ones named, the others done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from egcam._version import __version__
from egcam.cli import options as opt
from egcam.cli.console import (
    DONE,
    SOME_FAILED,
    failed_list,
    note,
    part_of,
    print_error,
    print_json,
    progress_bar,
    short_warnings,
)

# What is passed whether or not it was typed; a method without it needs no note.
_QUIET = {"seed", "score", "signed", "batch_size"}


def explain(
    images: opt.Images,
    model: opt.Model = opt.DEFAULT_MODEL,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="How to explain; see: egcam methods")
    ] = opt.DEFAULT_METHOD,
    target: opt.Target = None,
    layer: opt.Layer = None,
    reference: opt.Reference = None,
    samples: opt.Samples = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    batch_size: opt.BatchSize = None,
    out: opt.Out = opt.OUT,
    weights: opt.Weights = None,
    classes: opt.Classes = None,
    score: Annotated[
        str,
        typer.Option(metavar="KIND", help="What is explained: logit, probability, or sigmoid (multi-label)."),
    ] = "logit",
    signed: opt.Signed = False,
    sharpness: opt.Sharpness = 1.0,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many predictions --json lists.")] = 5,
    as_json: opt.Json = False,
) -> int:
    """Explain images: an overlay, a heat map and the numbers for each.

    Each image gets a folder below --out with overlay.png, heatmap.png, explanation.npz and explanation.json. An image
    that cannot be read is named, and the others are still done.
    """
    from egcam.cli.inputs import check_method, read_classes, read_reference, read_target
    from egcam.cli.output import Explained, own_folder, print_table
    from egcam.drawing.palette import checked_sharpness
    from egcam.errors import InputError
    from egcam.models.zoo import load
    from egcam.photos.comparison import explain_one
    from egcam.photos.files import find_images, read_image

    check_method(method)
    checked_sharpness(sharpness)
    files = find_images(images)
    classifier = load(model, weights, device, read_classes(classes))
    options = {
        "layer": layer,
        "samples": samples,
        "seed": seed,
        "batch_size": batch_size,
        "score": score,
        "signed": signed,
        "reference": read_reference(reference, classifier),
    }
    _note_unused(method, options)
    explained: list[Explained] = []
    failed: dict[str, str] = {}
    taken: set[Path] = set()
    with progress_bar(f"explaining {len(files)} image(s)", wanted=not as_json) as share:
        for number, file in enumerate(files):
            progress = part_of(share, number, len(files))
            try:
                with short_warnings(file) as warned:
                    photograph = read_image(file)
                    result = explain_one(
                        classifier,
                        classifier.images(photograph),
                        classifier.crop(photograph),
                        method,
                        read_target(target),
                        options,
                        progress,
                        sharpness,
                    )
            except InputError as error:
                failed[str(file)] = str(error)
                print_error(error)
            else:
                assert result.explanation.outputs is not None
                predictions = classifier.predictions(result.explanation.outputs, multilabel=score == "sigmoid")
                said = classifier.explained_class(result.explanation, predictions)
                folder = own_folder(out, file, method, taken)
                explained.append(Explained(file, folder, said, tuple(predictions[:top]), result, tuple(warned)))
                explained[-1].save()
            progress(1.0)
    if as_json:
        print_json(
            {
                "egcam": __version__,
                "model": classifier.name,
                "device": str(classifier.device),
                "method": method,
                "seed": seed,
                "out": str(out),
                "images": [one.as_dict() for one in explained],
                "failed": failed_list(failed),
            }
        )
    elif explained:
        print_table(explained, out)
    return SOME_FAILED if failed else DONE


def _note_unused(method: str, options: Mapping[str, Any]) -> None:
    """Say which options were typed that the method ignores."""
    from egcam.photos.comparison import unused

    names = [f"--{name.replace('_', '-')}" for name in unused(method, options) if name not in _QUIET]
    if names:
        note(f"{method} ignores {', '.join(names)}")
