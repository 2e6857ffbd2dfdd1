"""The options that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "efficientnet-lite0"
DEFAULT_METHOD = "expected-grad-cam"
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
        help="Embedded, torchvision's, timm's (timm/NAME), or your own: path/to/file.py:function. See: egcam models",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A saved state_dict, read without running code; 'random' for untrained weights."),
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Class names, one on each line or in JSON, where they are not known."),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="NAME|INT", help="The class to explain; the predicted one if not given."),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="a,b,c|all",
        help="Which methods; the usual ones if not given. all leaves out those that cannot be applied.",
    ),
]
Layer = Annotated[str | None, typer.Option(metavar="NAME", help="The layer, by dotted name; found if not given.")]
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|NAME",
        help="What the image is compared with: a folder of other images (best: from the same data), or "
        "mixed, photographs, blurred, colours, noise, uniform, constant, black, white.",
    ),
]
Samples = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="How many samples (or steps) an averaging method takes.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Same seed, same map.")]
Device = Annotated[str | None, typer.Option(metavar="D", help="cpu, cuda, cuda:1, mps; a GPU if there is one.")]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Most images in one pass; else as many as memory allows.")
]
Signed = Annotated[bool, typer.Option("--signed", help="Show negative evidence, too (no ReLU).")]
Sharpness = Annotated[
    float,
    typer.Option(metavar="P", min=1, help="Draw heat maps to the power of P: what is small gets smaller."),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the files go.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]
