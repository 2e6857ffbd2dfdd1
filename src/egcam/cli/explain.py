"""`egcam explain`: image after image, the bad ones named, the others done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from egcam._version import __version__
from egcam.cli.console import DONE, SOME_FAILED, complain, note, print_json, progress_bar, told_warnings
from egcam.cli.inputs import check_method, read_classes, read_reference, read_target
from egcam.cli.output import Explained, own_folder, print_table
from egcam.drawing.palette import checked_sharpness
from egcam.errors import InputError
from egcam.models.zoo import Classifier, load
from egcam.photos.comparison import Prediction, Progress, Result, chosen, explain_one, predict, unused
from egcam.photos.files import find_images, read_image

# What is passed whether or not it was typed; a method without it needs no note.
_QUIET = {"seed", "score", "signed", "batch_size"}


def explain_files(
    paths: Sequence[Path],
    *,
    model: str,
    weights: str | None,
    classes: Path | None,
    device: str | None,
    method: str,
    target: str | None,
    reference: str | None,
    options: Mapping[str, Any],
    sharpness: float,
    out: Path,
    top: int,
    as_json: bool,
) -> int:
    """Explain every image, print what came out, and give the exit code."""
    check_method(method)
    checked_sharpness(sharpness)
    files = find_images(paths)
    classifier = load(model, weights, device, read_classes(classes))
    options = {**options, "reference": read_reference(reference, classifier)}
    _note_unused(method, options)
    explained: list[Explained] = []
    failed: dict[str, str] = {}
    taken: set[Path] = set()
    with progress_bar(f"explaining {len(files)} image(s)", wanted=not as_json) as share:
        for number, file in enumerate(files):
            progress = _within(share, number, len(files))
            try:
                with told_warnings(file) as warned:
                    wanted, predictions, result = _explain(
                        classifier, file, method, target, options, progress, sharpness
                    )
            except InputError as error:
                failed[str(file)] = str(error)
                complain(error)
            else:
                folder = own_folder(out, file, method, taken)
                explained.append(Explained(file, folder, wanted, predictions[:top], result, tuple(warned)))
                explained[-1].save()
            progress(1.0)
    if as_json:
        print_json(_document(classifier, method, options, explained, failed, out))
    elif explained:
        print_table(explained, out)
    return SOME_FAILED if failed else DONE


def _explain(
    classifier: Classifier,
    file: Path,
    method: str,
    target: str | None,
    options: Mapping[str, Any],
    progress: Progress,
    sharpness: float,
) -> tuple[Prediction, tuple[Prediction, ...], Result]:
    """The explained class, all predictions, and what the method said."""
    image = read_image(file)
    images = classifier.preprocess(image)[None].to(classifier.device)
    predictions = predict(classifier, images, multilabel=options.get("score") == "sigmoid")
    wanted = chosen(predictions, read_target(target), classifier.classes)
    photograph = classifier.crop(image)
    result = explain_one(classifier, images, photograph, method, wanted.index, options, progress, sharpness)
    return wanted, tuple(predictions), result


def _within(share: Progress, number: int, count: int) -> Progress:
    """Progress within one image, as progress within all of them."""
    return lambda part: share((number + part) / count)


def _note_unused(method: str, options: Mapping[str, Any]) -> None:
    """Say which options were typed that the method has no use for."""
    names = [f"--{name.replace('_', '-')}" for name in unused(method, options) if name not in _QUIET]
    if names:
        note(f"{method} has no use for {', '.join(names)}")


def _document(
    classifier: Classifier,
    method: str,
    options: Mapping[str, Any],
    explained: Sequence[Explained],
    failed: Mapping[str, str],
    out: Path,
) -> dict[str, Any]:
    return {
        "egcam": __version__,
        "model": classifier.name,
        "device": str(classifier.device),
        "method": method,
        "seed": options["seed"],
        "out": str(out),
        "images": [one.as_dict() for one in explained],
        "failed": [{"file": file, "error": error} for file, error in failed.items()],
    }
