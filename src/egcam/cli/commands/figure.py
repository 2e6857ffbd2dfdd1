"""`egcam figure`: a figure for a paper, from images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
)
from egcam.cli.console import out as console
from egcam.errors import InputError

if TYPE_CHECKING:
    from egcam.models.classifier import Classifier
    from egcam.photos.figure_kinds import Drawn, Kind, Photograph, Request


@opt.explaining
def figure(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="grid, mask, contrast, curves, bars or ranks.",
            show_default=False,
        ),
    ],
    images: opt.Images,
    methods: opt.Methods = None,
    model: opt.Model = opt.DEFAULT_MODEL,
    target: opt.Target = None,
    contrast_with: Annotated[
        str | None, typer.Option(metavar="NAME|INT", help="contrast: the other class; default: the next most probable.")
    ] = None,
    mask: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="The object, white on black, in its image's size; once per image."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="a,b,c", help="bars, ranks, mask: which quality metrics.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Pixels changed at once in curves and their areas; default: one row."),
    ] = None,
    texts: opt.Texts = None,
    width: Annotated[str | None, typer.Option(metavar="W", help="column (3.3 in), page (6.9 in), or inches.")] = None,
    colors: Annotated[
        str | None, typer.Option(metavar="NAME", help="A matplotlib colour map; default: viridis.")
    ] = None,
    dpi: Annotated[int, typer.Option(metavar="N", min=20, max=2400, help="Pixels per inch.")] = 300,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", metavar="FILE", help="FILE.png, .svg or .pdf; may be given twice."),
    ] = None,
    *,
    given: opt.Explaining,
) -> int:
    """Compute and draw a figure for a paper, as PNG, SVG or PDF.

    grid: image, coarse maps and overlays of several methods. mask: maps beside the object's mask, with scores.
    contrast: why this class rather than that. curves: insertion and deletion. bars, ranks: quality metrics.
    """
    from egcam.cli.inputs import read_methods, read_target
    from egcam.figures.page import checked_path, save
    from egcam.photos.figure_kinds import Request, kind_of
    from egcam.photos.files import find_images

    # Check everything before a network runs.
    wanted = kind_of(kind)
    targets = [checked_path(path) for path in out or [Path("egcam-out", f"{kind}.png")]]
    names = read_methods(methods) if methods else wanted.methods
    if wanted.one_method and len(names) > 1:
        raise InputError(f"a figure of kind {kind} shows one method, not {len(names)}: pass --methods {names[-1]}")
    style = {"width": _width(width or wanted.width)} | _overlay_style(kind, wanted, colors)
    files, masks = find_images(images), mask or []
    _check_images(kind, wanted, files, masks)
    classifier = given.classifier(model, texts)
    options = given.of_method(classifier)
    failed: dict[str, str] = {}
    photographs = _read(classifier, files, target, masks, failed)
    if not photographs:
        return none_read(failed, given.as_json)
    with (
        short_warnings(", ".join(str(photograph.file) for photograph in photographs[:2])),
        progress_bar(f"figure: {kind}", wanted=not given.as_json) as share,
    ):
        request = Request(
            classifier,
            photographs,
            names,
            everything=(methods or "").strip() == "all",
            options=options,
            contrast_with=read_target(contrast_with),
            metrics=metrics,
            step=step,
            style=style,
            progress=share,
        )
        drawn = wanted.make(request)
    for name, reason in drawn.skipped.items():
        note(f"{name} is left out: {reason}")
    written = save(drawn.figure, *targets, dpi=dpi)
    _report(kind, request, drawn, written, failed, given.as_json)
    return SOME_FAILED if failed else DONE


def _width(text: str) -> str | float:
    from egcam.figures.style import width_in_inches

    try:
        width: str | float = float(text)
    except ValueError:
        width = text
    width_in_inches(width)  # type: ignore[arg-type]
    return width


def _overlay_style(kind: str, wanted: Kind, colors: str | None) -> dict[str, Any]:
    """The colours that were asked for, where the figure has overlays."""
    from egcam.drawing.palette import heat_colors

    if colors is None:
        return {}
    heat_colors(colors)
    if wanted.has_overlays:
        return {"colors": colors}
    note(f"a figure of kind {kind} has no heat map and ignores --colors")
    return {}


def _check_images(kind: str, wanted: Kind, files: Sequence[Path], masks: Sequence[Path]) -> None:
    if wanted.one_image and len(files) > 1:
        raise InputError(f"a figure of kind {kind} shows one image, not {len(files)}: call it for each")
    if wanted.needs_mask and not masks:
        raise InputError(f"a figure of kind {kind} needs the object's mask: pass --mask FILE, white on the object")
    if masks and len(masks) != len(files):
        raise InputError(f"{len(masks)} masks for {len(files)} image(s): pass --mask once for each image, in order")


def _read(
    classifier: Classifier, files: Sequence[Path], target: str | None, masks: Sequence[Path], failed: dict[str, str]
) -> tuple[Photograph, ...]:
    """The photographs that can be read; for the others, `failed` says why not."""
    from egcam.cli.inputs import read_target
    from egcam.photos.figure_kinds import read_photograph

    mask_of = dict(zip(files, masks, strict=bool(masks)))
    wanted = read_target(target)
    return tuple(read_each(files, lambda file: read_photograph(classifier, file, wanted, mask_of.get(file)), failed))


def _report(
    kind: str, request: Request, drawn: Drawn, files: Sequence[Path], failed: Mapping[str, str], as_json: bool
) -> None:
    from egcam.cli.output import prediction_dict

    numbers = drawn.numbers
    if "contrast_with" in numbers:
        numbers = {**numbers, "contrast_with": prediction_dict(numbers["contrast_with"])}
    if as_json:
        document = {
            "egcam": __version__,
            "kind": kind,
            "files": [str(file) for file in files],
            "model": request.classifier.name,
            "methods": [method for method in request.methods if method not in drawn.skipped],
            "images": [
                {"file": str(photograph.file), "target": prediction_dict(photograph.target)}
                for photograph in request.photographs
            ],
            **numbers,
            "skipped": drawn.skipped,
            "failed": failed_list(failed),
        }
        print_json(document)
        return
    count = len(request.photographs)
    names = " and ".join(str(file) for file in files)
    console().print(
        f"{kind} of {count} image(s), {len(request.methods) - len(drawn.skipped)} method(s): {names}", markup=False
    )
