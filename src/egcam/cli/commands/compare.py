"""`egcam compare`: several methods on one image, in one grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egcam._version import __version__
from egcam.cli import options as opt
from egcam.cli.console import DONE, SOME_FAILED, note, print_error, print_json, progress_bar, readable, short_warnings
from egcam.cli.console import out as console


@opt.explaining
def compare(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.", show_default=False)],
    methods: opt.Methods = None,
    model: opt.Model = opt.DEFAULT_MODEL,
    target: opt.Target = None,
    out: opt.Out = opt.OUT,
    texts: opt.Texts = None,
    sharpness: opt.Sharpness = 1.0,
    *,
    given: opt.Explaining,
) -> int:
    """Compare methods on one image: a labelled grid with the image, each method and the top-5 predictions."""
    from egcam.attribution.registry import usual_methods
    from egcam.cli.inputs import read_methods, read_target
    from egcam.cli.output import comparison_dict, fitting_name
    from egcam.drawing.palette import checked_sharpness
    from egcam.errors import InputError
    from egcam.photos.comparison import compare as run
    from egcam.photos.files import read_image

    names = read_methods(methods) if methods else usual_methods()
    checked_sharpness(sharpness)
    try:
        photograph = read_image(image)
    except InputError as error:
        print_error(error)
        if given.as_json:
            print_json({"error": str(error), "exit_code": SOME_FAILED})
        return SOME_FAILED
    classifier = given.classifier(model, texts)
    options = given.of_method(classifier)
    wanted, everything = read_target(target), (methods or "").strip() == "all"
    with short_warnings(image), progress_bar(f"comparing {len(names)} methods", wanted=not given.as_json) as share:
        title = readable(image.name)
        found = run(classifier, photograph, names, title, wanted, options, everything, share)
    for name, reason in found.skipped.items():
        note(f"{name} is left out: {reason}")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / fitting_name(image.stem, "-comparison.png")
    found.picture(sharpness=sharpness).save(picture)
    if given.as_json:
        print_json({"egcam": __version__, "file": str(image), "picture": str(picture), **comparison_dict(found)})
    else:
        said = f"{found.target.name} ({found.target.probability:.1%})"
        seconds = sum(result.seconds for result in found.results)
        text = f"{image}: {said}, {len(found.results)} methods in {seconds:.1f} s; the grid is {picture}"
        console().print(readable(text), markup=False)
    return DONE
