"""`egcam explain`: image after image; unreadable ones are reported and skipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from egcam._version import __version__
from egcam.cli import options as opt
from egcam.cli.console import DONE, SOME_FAILED, explained_each, failed_list, note, print_json
from egcam.progress import Progress

if TYPE_CHECKING:
    from egcam.photos.comparison import Result

# Passed whether or not the user set them; no note if a method does not take them.
_QUIET = {"seed", "score", "signed", "batch_size"}


@opt.explaining
def explain(
    images: opt.Images,
    model: opt.Model = opt.DEFAULT_MODEL,
    method: opt.Method = opt.DEFAULT_METHOD,
    target: opt.Target = None,
    tolerance: opt.Tolerance = None,
    reshape: opt.Reshape = None,
    out: opt.Out = opt.OUT,
    texts: opt.Texts = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What is explained: logit, probability, or sigmoid (multi-label); default: the method's own.",
        ),
    ] = None,
    sharpness: opt.Sharpness = 1.0,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many predictions --json lists.")] = 5,
    *,
    given: opt.Explaining,
) -> int:
    """Explain images: an overlay, a heat map and the numbers for each.

    Each image gets a folder below --out with overlay.png, heatmap.png, explanation.npz and explanation.json. Images
    that cannot be read are reported and skipped.
    """
    from egcam.cli.inputs import check_folder, check_method, read_reshape, read_target
    from egcam.cli.output import Explained, own_folder, print_table
    from egcam.drawing.palette import checked_sharpness
    from egcam.photos.comparison import explain_one
    from egcam.photos.files import find_images, read_image

    check_method(method)
    check_folder(out)
    checked_sharpness(sharpness)
    files = find_images(images)
    classifier = given.classifier(model, texts)
    options = {
        **given.of_method(classifier),
        "tolerance": tolerance,
        "reshape": read_reshape(reshape),
        "score": score,
    }
    _note_unused(method, options)
    explained: list[Explained] = []
    failed: dict[str, str] = {}
    taken: set[Path] = set()

    def explain_file(file: Path, progress: Progress) -> Result:
        photograph = read_image(file)
        images, crop = classifier.images(photograph), classifier.crop(photograph)
        wanted = read_target(target)
        return explain_one(classifier, images, crop, method, wanted, options, progress)

    for file, result, warned in explained_each(files, explain_file, failed, given.as_json):
        assert result.explanation.outputs is not None
        predictions = classifier.predictions(result.explanation.outputs, multilabel=score == "sigmoid")
        said = classifier.explained_class(result.explanation, predictions)
        folder = own_folder(out, file, method, taken)
        explained.append(Explained(file, folder, said, tuple(predictions[:top]), result, sharpness, tuple(warned)))
        explained[-1].save()
    if given.as_json:
        print_json(
            {
                "egcam": __version__,
                "model": classifier.name,
                "device": str(classifier.device),
                "method": method,
                "seed": given.seed,
                "out": str(out),
                "images": [one.as_dict() for one in explained],
                "failed": failed_list(failed),
            }
        )
    elif explained:
        print_table(explained, out)
    return SOME_FAILED if failed else DONE


def _note_unused(method: str, options: Mapping[str, Any]) -> None:
    """Note which options the user set that the method ignores."""
    from egcam.attribution.registry import ignored

    names = [f"--{name.replace('_', '-')}" for name in ignored(method, options) if name not in _QUIET]
    if names:
        note(f"{method} ignores {', '.join(names)}")
