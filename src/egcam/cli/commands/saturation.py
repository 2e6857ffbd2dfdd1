"""`egcam saturation`: what networks say while images fade in from black, as a figure, numbers and a verdict."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from math import isfinite
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
from egcam.errors import LayerError, ModelError, check_known
from egcam.progress import piece_of

if TYPE_CHECKING:
    from egcam.models.classifier import Classifier
    from egcam.saturation_check.result import Saturation

_ENOUGH = 20  # images, below which a verdict may turn with one more
_NUMBERS = ("images", "a at 90%", "saturated", "gradient", "cosine")


def saturation(
    images: opt.Images,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME[,NAME]", help="One or more networks. See: egcam models")
    ] = opt.DEFAULT_MODEL,
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="The layer, one for all networks or one each; default: the one that SlopeCAM explains.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="How many values of a, from black to image.")] = 25,
    spacing: Annotated[
        str,
        typer.Option(metavar="KIND", help="How a is spaced: even, or uniform (drawn from U(0, 1) as in the paper)."),
    ] = "even",
    most: Annotated[int, typer.Option("--images", metavar="N", min=1, help="Measure at most this many images.")] = 25,
    target: opt.Target = None,
    device: opt.Device = None,
    out: opt.Out = opt.OUT,
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE[,FILE]", help="Saved state_dicts, in the order of --model; 'random': untrained."),
    ] = None,
    classes: opt.Classes = None,
    as_json: opt.Json = False,
) -> int:
    """Measure whether a network saturates and its plain gradient can be trusted.

    Each image is faded in from black: pixels times a, with a from 0 to 1. At each a, this measures the cosine of the
    layer's output to that of the full image, the top label's logit and softmax score, and the length of the gradient.
    Prints a verdict and writes saturation.png, .svg and .csv. The paper's study:
    --model vgg16,resnet50,alexnet --layer features.30,layer4,features.12 --spacing uniform
    """
    from egcam.cli.inputs import read_classes, read_target
    from egcam.models.zoo import load_for_photographs
    from egcam.photos.files import find_images, read_image
    from egcam.saturation_check.measure import SPACINGS

    check_known(spacing, SPACINGS, "spacing")
    asked = read_models(model, layer, weights)
    files = find_images(images)
    if len(files) > most:
        note(f"{most} of {len(files)} images, evenly spread, are measured; --images N takes more")
        files = [files[index * len(files) // most] for index in range(most)]
    failed: dict[str, str] = {}
    photographs = read_each(files, lambda file: (file, read_image(file)), failed)
    if not photographs:
        return none_read(failed, as_json)
    measured: list[tuple[Classifier, Saturation]] = []
    with progress_bar(f"scaling {len(photographs)} image(s)", wanted=not as_json) as share:
        for number, (name, at, file) in enumerate(asked):
            classifier = load_for_photographs(name, file, device, read_classes(classes))
            pixels = [classifier.images(photograph) for _, photograph in photographs]
            part = piece_of(share, number, len(asked))
            with short_warnings(name):
                found = _measured(classifier, pixels, at, steps, read_target(target), spacing, part)
            measured.append((classifier, found))
    labels = _labels([(classifier.name, found.layer) for classifier, found in measured])
    names = [str(file) for file, _ in photographs]
    by_label = {label: found for label, (_, found) in zip(labels, measured, strict=True)}
    written = [str(file) for file in _written(by_label, names, out)]
    if as_json:
        models = [
            {"label": label, **_summary(classifier, found, names)}
            for label, (classifier, found) in zip(labels, measured, strict=True)
        ]
        print_json({"egcam": __version__, "files": written, "models": models, "failed": failed_list(failed)})
    else:
        _print(by_label, written)
    return SOME_FAILED if failed else DONE


def _measured(
    classifier: Classifier,
    pixels: Sequence[Any],
    layer: str | None,
    steps: int,
    target: int | str | None,
    spacing: Any,
    share: Any,
) -> Saturation:
    import torch

    from egcam.saturation_check.measure import normalised_black, saturation

    seen = classifier.preprocessing
    return saturation(
        classifier.model,
        torch.cat(list(pixels)),
        layer or classifier.layer or "inner",
        steps,
        target,
        spacing=spacing,
        black=normalised_black(seen.mean, seen.std),
        classes=classifier.classes,
        progress=lambda done, total: share(done / max(1, total)),
    )


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


def _labels(networks: Sequence[tuple[str, str]]) -> list[str]:
    """What to call each network at its layer: where a network comes twice by its layer too, else also by a number.

    >>> _labels([("vgg16", "4"), ("resnet50", "layer4"), ("vgg16", "9"), ("vgg16", "9")])
    ['vgg16 at 4', 'resnet50', 'vgg16 at 9', 'vgg16 at 9 (2)']
    """
    names = [name for name, _ in networks]
    labels = [name if names.count(name) == 1 else f"{name} at {layer}" for name, layer in networks]
    again = [labels[:number].count(label) for number, label in enumerate(labels)]
    return [f"{label} ({before + 1})" if before else label for label, before in zip(labels, again, strict=True)]


def _summary(classifier: Classifier, found: Saturation, names: Sequence[str]) -> dict[str, Any]:
    """One network for JSON; numbers that are not defined are null."""
    verdict = found.verdict
    columns = {**found.numbers, "logit": found.logit[:, -1], "probability": found.probability[:, -1]}
    images = [
        {
            "image": name,
            "label": {"index": label, "name": classifier.class_name(label)},
            **{column: _number(float(values[row])) for column, values in columns.items()},
        }
        for row, (name, label) in enumerate(zip(names, found.targets.tolist(), strict=True))
    ]
    numbers = {name: _number(value) if isinstance(value, float) else value for name, value in vars(verdict).items()}
    return {
        "model": classifier.name,
        "layer": found.layer,
        "spacing": found.spacing,
        "alphas": [round(a, 7) for a in found.alphas.tolist()],
        "passes": found.passes,
        "verdict": {**numbers, "trust": verdict.trust, "text": verdict.text},
        "images": images,
    }


def _number(value: float) -> float | None:
    return round(value, 6) if isfinite(value) else None


def _written(measured: dict[str, Saturation], names: Sequence[str], folder: Path) -> list[Path]:
    """The figure and every measured number."""
    from egcam.figures.page import save
    from egcam.saturation_check.figures import curves
    from egcam.saturation_check.result import QUANTITIES

    files = save(curves(measured), folder / "saturation.png", folder / "saturation.svg")
    with (folder / "saturation.csv").open("w", encoding="utf-8", newline="") as opened:
        lines = csv.writer(opened, lineterminator="\n")
        lines.writerow(["model", "layer", "image", "a", *QUANTITIES])
        for label, one in measured.items():
            for row, name in enumerate(names):
                for step, a in enumerate(one.alphas.tolist()):
                    values = [float(one.curve(quantity)[row, step]) for quantity in QUANTITIES]
                    lines.writerow([label, one.layer, name, *(f"{value:.7g}" for value in (a, *values))])
    return [*files, folder / "saturation.csv"]


def _print(measured: dict[str, Saturation], files: Sequence[str]) -> None:
    say = console().print
    for label, one in measured.items():
        found = one.verdict
        shown = (f"{found.reach:.2f}", f"{found.saturated:.0%}", f"{found.gradient_size:.2f}", f"{found.agreement:.2f}")
        # Names have a line of their own: beside the numbers long ones would be broken at 80 columns.
        say(f"[bold]{escape(label)}[/bold] at {escape(one.layer)}")
        say(table((*_NUMBERS, "trust"), [(str(found.images), *shown, found.trust)], right=_NUMBERS, whole=_NUMBERS))
        say(f"{found.text}\n", markup=False)
    if any(len(one) < _ENOUGH for one in measured.values()):
        say(f"These are means over few images and rough; {_ENOUGH} or more settle them.", markup=False)
    say(f"written: {', '.join(files)}", markup=False)
