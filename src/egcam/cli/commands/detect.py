"""`egcam detect`: the objects a detector finds, each explained."""

from __future__ import annotations

from typing import Annotated

import typer

from egcam.cli import options as opt


@opt.explaining
def detect(
    images: opt.Images,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="One of torchvision's detectors, or your own: path/to/file.py:function. Default: "
            "fasterrcnn_mobilenet_v3_large_320_fpn.",
            show_default=False,
        ),
    ] = None,
    method: opt.Method = opt.DEFAULT_METHOD,
    threshold: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="The lowest score of an object to explain, from 0 to 1.")
    ] = 0.5,
    most: opt.Most = 5,
    out: opt.Out = opt.OUT,
    *,
    given: opt.Explaining,
) -> int:
    """Explain what a detector finds: one picture with the boxes and a map for each.

    Each image gets a folder below --out with objects.png, explanation.npz, explanation.json and result.json. The map
    explains the score of the box that overlaps most with the object.
    """
    from egcam.cli.found_objects import explain_found
    from egcam.cli.inputs import check_method, read_classes
    from egcam.models.place_zoo import load
    from egcam.photos.objects import detected

    check_method(method)
    given.check()
    network = load("detection", model, given.weights, given.device, read_classes(given.classes))
    return explain_found(
        images,
        network,
        "detection",
        lambda fitted, image: detected(fitted, image, threshold, most),
        f"no object is found with a score of at least {threshold:g}; --threshold sets another",
        method,
        out,
        given,
    )
