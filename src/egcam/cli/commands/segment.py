"""`egcam segment`: the classes a segmenter finds, each explained."""

from __future__ import annotations

from typing import Annotated

import typer

from egcam.cli import options as opt


@opt.explaining
def segment(
    images: opt.Images,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            "-c",
            metavar="NAME|INT",
            help="The class to explain; repeat for more. Default: all that are found.",
            show_default=False,
        ),
    ] = None,
    model: opt.Segmenter = None,
    method: opt.Method = opt.DEFAULT_METHOD,
    most: opt.Most = 5,
    out: opt.Out = opt.OUT,
    sharpness: opt.Sharpness = 1.0,
    *,
    given: opt.Explaining,
) -> int:
    """Explain what a segmenter finds: one picture with the outlines and a map for each class.

    Each image gets a folder below --out with objects.png, explanation.npz, explanation.json and result.json. The map
    explains the mean score of the class over its pixels.
    """
    from egcam.cli.found_objects import explain_found
    from egcam.cli.inputs import read_target
    from egcam.photos.objects import segmented

    labels = [label for name in wanted or [] if (label := read_target(name)) is not None]
    return explain_found(
        images,
        "segmentation",
        model,
        lambda fitted, image: segmented(fitted, image, labels, most),
        f"no pixel is classified as {' or '.join(wanted)}" if wanted else "only background is found",
        method,
        out,
        sharpness,
        given,
    )
