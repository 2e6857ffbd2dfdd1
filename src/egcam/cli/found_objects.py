"""What `egcam detect` and `egcam segment` have in common: photograph after photograph, each object explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egcam._version import __version__
from egcam.cli.console import (
    DONE,
    SOME_FAILED,
    explained_each,
    failed_list,
    note,
    print_json,
    readable,
    table,
)
from egcam.cli.console import out as console
from egcam.cli.options import Explaining
from egcam.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from egcam.models.classifier import Classifier
    from egcam.models.place_zoo import Kind
    from egcam.photos.objects import ExplainedObjects, FoundObject


def explain_found(
    images: list[Path],
    kind: Kind,
    model: str | None,
    find: Callable[[Classifier, Tensor], list[FoundObject]],
    nothing: str,
    method: str,
    out: Path,
    sharpness: float,
    given: Explaining,
) -> int:
    """Find the objects of each photograph, explain them, and write one picture with all of them.

    Args:
        images: files and folders.
        kind: by a detector or a segmenter.
        model: which; None is the usual one.
        find: the objects in an image that is prepared for the network.
        nothing: what to say of a photograph without any.
        method: how to explain.
        out: where the files go.
        sharpness: an exponent of the overlays.
        given: the options of the command.
    """
    from egcam.cli.inputs import check_method, read_classes
    from egcam.cli.output import own_folder
    from egcam.drawing.palette import checked_sharpness
    from egcam.models.place_zoo import fitted_to, load
    from egcam.photos.files import find_images, read_image
    from egcam.photos.objects import explain_objects

    check_method(method)
    checked_sharpness(sharpness)
    network = load(kind, model, given.weights, given.device, read_classes(given.classes))
    files = find_images(images)
    done: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    taken: set[Path] = set()

    def explain(file: Path, progress: Progress) -> ExplainedObjects:
        photograph = read_image(file)
        fitted = fitted_to(network, photograph, kind)
        objects = find(fitted, fitted.images(photograph)[0])
        options, title = given.of_method(fitted), readable(file.name)
        return explain_objects(fitted, photograph, objects, method, title, options, progress)

    for file, found, warned in explained_each(files, explain, failed, given.as_json):
        if not found.objects:
            note(f"{file}: {nothing}")
        folder = own_folder(out, file, f"{kind}-{method}", taken)
        done.append(_saved(found, file, folder, method, sharpness, warned))
    if given.as_json:
        facts = {"egcam": __version__, "model": network.name, "device": str(network.device), "method": method}
        print_json({**facts, "out": str(out), "images": done, "failed": failed_list(failed)})
    elif done:
        _print(done, out)
    return SOME_FAILED if failed else DONE


def _saved(
    found: ExplainedObjects, file: Path, folder: Path, method: str, sharpness: float, warned: list[str]
) -> dict[str, Any]:
    """Write the picture, the maps and the record into the photograph's folder; the record."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "objects.png"
    found.picture(sharpness).save(picture)
    explanation = found.explanation
    if explanation is not None:
        explanation.save(folder, pictures=False)
    record = {
        "file": str(file),
        "objects": [one.as_dict() for one in found.objects],
        "method": method,
        "layer": None if explanation is None else explanation.layer,
        "passes": 0 if explanation is None else explanation.passes,
        "seconds": round(found.seconds, 4),
        "warnings": list(warned),
        "folder": str(folder),
        "picture": str(picture),
    }
    text = readable(json.dumps(record, indent=2, ensure_ascii=False))
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    return record


def _print(done: list[dict[str, Any]], folder: Path) -> None:
    rows = [
        (
            readable(record["file"]),
            one["name"],
            f"{one['score']:.1%}",
            f"{record['seconds'] / len(record['objects']):.2f}",
        )
        for record in done
        for one in record["objects"]
    ]
    if rows:
        console().print(table(("file", "object", "score", "seconds"), rows, right={"score", "seconds"}))
    text = f"{len(rows)} object(s) in {len(done)} image(s) explained; pictures are in {folder}"
    console().print(readable(text), markup=False)
