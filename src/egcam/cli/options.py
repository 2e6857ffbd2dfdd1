"""The options that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from egcam.models.classifier import Classifier

DEFAULT_MODEL = "efficientnet-lite0"
DEFAULT_METHOD = "slope-cam"
OUT = Path("egcam-out")

Images = Annotated[
    list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.", show_default=False)
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Built-in, torchvision, timm (timm/NAME), Hugging Face (hf:NAME or a folder), or your own: "
        "path/to/file.py:function. See: egcam models",
    ),
]


def _of_kind(networks: str, default: str) -> Any:
    said = f"One of torchvision's {networks}, or your own: path/to/file.py:function. Default: {default}."
    return typer.Option("--model", "-m", metavar="NAME", help=said, show_default=False)


Detector = Annotated[str | None, _of_kind("detectors", "fasterrcnn_mobilenet_v3_large_320_fpn")]
Segmenter = Annotated[str | None, _of_kind("segmenters", "lraspp_mobilenet_v3_large")]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A saved state_dict, read without running code; 'random' for untrained weights."),
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Class names, one per line or in JSON, if egcam does not know them."),
]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="For CLIP and SigLIP: a text to compare images with; repeat for more."),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="NAME|INT", help="The class to explain; default: the predicted one."),
]
Method = Annotated[str, typer.Option("--method", metavar="NAME", help="How to explain; see: egcam methods")]
Most = Annotated[int, typer.Option(metavar="N", min=1, help="Explain at most this many objects per image.")]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="a,b,c|all",
        help="Which methods; default: the usual ones. all: every method that can be applied.",
    ),
]
Layer = Annotated[str | None, typer.Option(metavar="NAME", help="The layer's dotted name; default: egcam finds one.")]
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|NAME",
        help="What the image is compared with: a folder of other images (best: from the same data), or "
        "mixed, photographs, blurred, colours, noise, uniform, constant, black, white.",
    ),
]
Samples = Annotated[int | None, typer.Option(metavar="N", min=1, help="How many samples a sampling method takes.")]
Tolerance = Annotated[
    float | None,
    typer.Option(metavar="T", help="Stop sampling once the map's relative standard error is at most T, such as 0.1."),
]
Reshape = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="What the layer outputs: tokens, 14x14 (their grid), channels-first or -last."),
]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same result.")]
Device = Annotated[
    str | None, typer.Option(metavar="D", help="cpu, cuda, cuda:1, mps; default: a GPU if there is one.")
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Most images per pass; default: as many as memory allows.")
]
Signed = Annotated[bool, typer.Option("--signed", help="Show negative evidence, too (no ReLU).")]
Sharpness = Annotated[
    float,
    typer.Option(metavar="P", min=1, help="Raise heat maps to the power of P in pictures, which fades small values."),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write the files.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout and nothing else.")]


@dataclass(frozen=True)
class Explaining:
    """The options of every command that explains images; see `explaining`."""

    layer: Layer = None
    reference: Reference = None
    samples: Samples = None
    seed: Seed = 0
    device: Device = None
    batch_size: BatchSize = None
    weights: Weights = None
    classes: Classes = None
    signed: Signed = False
    as_json: Json = False

    def classifier(self, model: str, texts: Sequence[str] | None = None) -> Classifier:
        """The classifier called `model`, with the weights and class names that were given."""
        from egcam.cli.inputs import read_classes
        from egcam.models.zoo import load_for_photographs

        return load_for_photographs(model, self.weights, self.device, read_classes(self.classes), texts or None)

    def of_method(self, classifier: Classifier) -> dict[str, Any]:
        """What goes to the method; references are prepared as the network expects them."""
        from egcam.cli.inputs import read_reference

        return {
            "layer": self.layer,
            "samples": self.samples,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "signed": self.signed,
            "reference": read_reference(self.reference, classifier),
        }


def explaining(command: Callable[..., int]) -> Callable[..., int]:
    """A command with a parameter `given: Explaining`, in whose place Typer sees an option for each of its fields."""
    names = [field.name for field in fields(Explaining)]
    types = get_type_hints(Explaining, include_extras=True)

    @wraps(command)
    def grouped(**options: Any) -> int:
        given = Explaining(**{name: options.pop(name) for name in names})
        return command(**options, given=given)

    group = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
        for field in fields(Explaining)
    ]
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        parameters += group if parameter.name == "given" else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    grouped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped
