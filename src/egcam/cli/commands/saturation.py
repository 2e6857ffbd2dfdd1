"""`egcam saturation`: networks' outputs while images fade in from black, as figures, tables and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from egcam._version import __version__
from egcam.cli import options as opt
from egcam.cli.console import (
    DONE,
    SOME_FAILED,
    failed_list,
    none_read,
    note,
    print_json,
    progress_bar,
    read_each,
    short_warnings,
    table,
)
from egcam.cli.console import out as console
from egcam.errors import InputError, LayerError, ModelError, near_misses
from egcam.progress import piece_of

if TYPE_CHECKING:
    from egcam.saturation_check.measure import Spacing
    from egcam.saturation_check.study import ModelStudy, Photograph

_ENOUGH = 20  # images, below which means of two methods' patches are not shown side by side


def saturation(
    images: opt.Images,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME[,NAME]", help="One or more networks. See: egcam models")
    ] = opt.DEFAULT_MODEL,
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]", help="The layer, one for all networks or one each; default: egcam finds one."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="How many values of a, from black to image.")] = 25,
    spacing: Annotated[
        str,
        typer.Option(metavar="KIND", help="How a is spaced: even, or uniform (drawn from U(0, 1) as in the paper)."),
    ] = "even",
    most: Annotated[int, typer.Option("--images", metavar="N", min=1, help="Measure at most this many images.")] = 25,
    target: opt.Target = None,
    reference: opt.Reference = None,
    samples: opt.Samples = None,
    grid: Annotated[
        int, typer.Option(metavar="N", min=2, help="Cells along each side of the image; each is a patch.")
    ] = 4,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    batch_size: opt.BatchSize = None,
    out: opt.Out = Path("egcam-saturation"),
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE[,FILE]", help="Saved state_dicts, in the order of --model; 'random': untrained."),
    ] = None,
    classes: opt.Classes = None,
    sharpness: opt.Sharpness = 1.0,
    as_json: opt.Json = False,
) -> int:
    """Measure whether a network saturates and its plain gradient can be trusted.

    Each image is faded in from black: pixels times a, with a from 0 to 1. At each a, this measures the cosine of the
    layer's output to that of the full image, the top label's logit and softmax score, and the length of the gradient.
    Writes figures (PNG, SVG), CSV and summary.json, and ends with a verdict and with Grad-CAM and SlopeCAM
    side by side. The paper's study:
    --model vgg16,resnet50,alexnet --layer features.30,layer4,features.12 --spacing uniform
    """
    from egcam.cli.inputs import read_classes, read_reference, read_target
    from egcam.drawing.palette import checked_sharpness
    from egcam.models.zoo import load_for_photographs
    from egcam.saturation_check.files import write_json, write_study
    from egcam.saturation_check.study import study_model

    chosen = read_spacing(spacing)
    checked_sharpness(sharpness)
    asked = read_models(model, layer, weights)
    photographs, failed = _read_photographs(images, most)
    if not photographs:
        return none_read(failed, as_json)
    studies: list[ModelStudy] = []
    with progress_bar(f"scaling {len(photographs)} image(s)", wanted=not as_json) as share:
        for number, (name, at, file) in enumerate(asked):
            classifier = load_for_photographs(name, file, device, read_classes(classes))
            options = {"reference": read_reference(reference, classifier), "samples": samples}
            with short_warnings(name):
                study = study_model(
                    classifier,
                    photographs,
                    layer=at,
                    steps=steps,
                    target=read_target(target),
                    spacing=chosen,
                    seed=seed,
                    grid=grid,
                    options=options,
                    batch_size=batch_size,
                    progress=piece_of(share, number, len(asked)),
                )
            studies.append(study)
    studies = with_distinct_labels(studies)
    files = write_study(studies, out, sharpness)
    document = _document(studies, failed, [*files, out / "summary.json"], out)
    write_json(document, out / "summary.json")
    if as_json:
        print_json(document)
    else:
        _print(studies, out)
    return SOME_FAILED if failed else DONE


def read_spacing(text: str) -> Spacing:
    """How values of a are chosen, by name.

    Example:
        >>> read_spacing("uniform")
        'uniform'
    """
    from egcam.saturation_check.measure import SPACINGS

    for spacing in SPACINGS:
        if text == spacing:
            return spacing
    raise InputError(f"unknown spacing {text!r}; {near_misses(text, SPACINGS)}")


def read_models(models: str, layers: str | None, weights: str | None) -> list[tuple[str, str | None, str | None]]:
    """Name, layer and weights of each network from comma-separated lists; an empty entry leaves the choice to egcam.

    One layer is for all networks. Weights go to the networks in order; those beyond the list get their published ones.

    Example:
        >>> read_models("resnet50,vgg16", "layer4,features.30", "mine.pth")
        [('resnet50', 'layer4', 'mine.pth'), ('vgg16', 'features.30', None)]
    """
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise ModelError("no model is named: pass --model NAME or --model NAME,NAME; `egcam models` lists them")
    at = _entries(layers)
    at = at * len(names) if len(at) == 1 else at
    if at and len(at) != len(names):
        raise LayerError(f"{len(at)} layers for {len(names)} model(s): pass one --layer for all, or one for each")
    files = _entries(weights)
    if len(files) > len(names):
        raise ModelError(f"{len(files)} weights for {len(names)} model(s): pass one for each, in the order of --model")
    rest = [None] * len(names)
    return list(zip(names, at or rest, [*files, *rest], strict=False))


def _entries(text: str | None) -> list[str | None]:
    return [] if text is None else [part.strip() or None for part in text.split(",")]


def with_distinct_labels(studies: Sequence[ModelStudy]) -> list[ModelStudy]:
    """The studies with labels that differ: where a network comes twice, by its layer, else by a number."""
    labels: list[str] = []
    models = [study.label for study in studies]
    for study in studies:
        label = study.label if models.count(study.label) == 1 else f"{study.label} at {study.measured.layer}"
        again = sum(other == label or other.startswith(f"{label} (") for other in labels)
        labels.append(f"{label} ({again + 1})" if again else label)
    return [replace(study, label=label) for study, label in zip(studies, labels, strict=True)]


def _read_photographs(paths: Sequence[Path], most: int) -> tuple[list[Photograph], dict[str, str]]:
    """The images, at most `most`, and those that could not be read, with the reason."""
    from egcam.photos.files import find_images, read_image
    from egcam.saturation_check.study import Photograph

    files = find_images(paths)
    if len(files) > most:
        note(f"{most} of {len(files)} images, evenly spread, are measured; --images N takes more")
        files = [files[index * len(files) // most] for index in range(most)]
    failed: dict[str, str] = {}
    return read_each(files, lambda file: Photograph(str(file), read_image(file)), failed), failed


def _document(
    studies: Sequence[ModelStudy], failed: Mapping[str, str], files: Sequence[Path], folder: Path
) -> dict[str, Any]:
    from egcam.saturation_check.files import study_dict

    return {
        "egcam": __version__,
        "out": str(folder),
        "files": [str(file) for file in files],
        "models": [study_dict(study) for study in studies],
        "failed": failed_list(failed),
    }


def _print(studies: Sequence[ModelStudy], folder: Path) -> None:
    numbers = ("images", "a at 90%", "saturated", "gradient", "cosine")
    say = console().print
    for study in studies:
        found = study.measured.verdict
        shown = (f"{found.reach:.2f}", f"{found.saturated:.0%}", f"{found.gradient_size:.2f}", f"{found.agreement:.2f}")
        # Names have a line of their own: beside the numbers long ones would be broken at 80 columns.
        say(f"[bold]{escape(study.label)}[/bold] at {escape(study.measured.layer)}")
        say(table((*numbers, "trust"), [(str(found.images), *shown, found.trust)], right=numbers, whole=numbers))
    for study in studies:
        say(f"\n{study.label}: {study.measured.verdict.text}\n{patch_line(study)}".rstrip(), markup=False)
    if any(study.measured.verdict.images < _ENOUGH for study in studies):
        say(f"\nThese are means over few images and rough; {_ENOUGH} or more settle them.", markup=False)
    say(f"\nfigures, tables and summary.json are in {folder}", markup=False)


def patch_line(study: ModelStudy) -> str:
    """The insertion scores of the patches, in one line; nothing if there are too few images to compare methods."""
    from egcam.figures.style import label

    if study.measured.verdict.images < _ENOUGH:
        return ""

    first = next(iter(study.methods.values())).patches
    said = ", ".join(f"{label(method)} {score:.3f}" for method, score in study.insertion.items())
    return (
        f"Insertion score of the top {first.cells.shape[1]} of {first.grid**2} patches: {said} "
        f"(blurred image alone {study.background:.3f}, whole image {study.full:.3f})."
    )
