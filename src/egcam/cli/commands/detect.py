"""`egcam detect`: the objects a detector finds, each explained."""

from __future__ import annotations

from typing import Annotated

import typer

from egcam.cli import options as opt


@opt.explaining
def detect(
    images: opt.Images,
    model: opt.Detector = None,
    method: opt.Method = opt.DEFAULT_METHOD,
    threshold: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="The lowest score of an object to explain, from 0 to 1.")
    ] = 0.5,
    most: opt.Most = 5,
    out: opt.Out = opt.OUT,
    sharpness: opt.Sharpness = 1.0,
    *,
    given: opt.Explaining,
) -> int:
    """Explain what a detector finds: one picture with the boxes and a map for each.

    Each image gets a folder below --out with objects.png, explanation.npz, explanation.json and result.json. The map
    explains the score of the box that overlaps most with the object.
    """
    from egcam.cli.found_objects import explain_found
    from egcam.photos.objects import detected

    return explain_found(
        images,
        "detection",
        model,
        lambda fitted, image: detected(fitted, image, threshold, most),
        f"no object is found with a score of at least {threshold:g}; --threshold sets another",
        method,
        out,
        sharpness,
        given,
    )
