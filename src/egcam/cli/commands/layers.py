"""`egcam layers`: where in a network a map can be made, and what it costs there."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from egcam.cli import options as opt
from egcam.cli.console import out, print_json


def layers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for --model of egcam explain.")] = opt.DEFAULT_MODEL,
    weights: opt.Weights = None,
    as_json: opt.Json = False,
) -> None:
    """List the layers between a network's blocks, with resolution, channels and what follows them.

    The last column is the share of the network that a sample of the latent path runs, forward. Layers inside blocks can
    be named as well; a skip connection may go around those.
    """
    import torch

    from egcam.evaluation.layers import candidate_layers
    from egcam.models import zoo
    from egcam.models.layers import find_layer

    classifier = zoo.load(model, weights=weights if weights is not None else _weights_needed(model))
    channels = 3
    images = torch.zeros(1, channels, *classifier.preprocessing.size, device=classifier.device)
    found = candidate_layers(classifier.model, images)
    usual = classifier.layer or find_layer(classifier.model, images)
    if as_json:
        print_json({"model": model, "found": usual, "layers": [_record(layer) for layer in found]})
        return
    table = Table(box=None, pad_edge=False)
    for head in ("layer", "map", "channels", "follows"):
        table.add_column(head, justify="left" if head == "layer" else "right", no_wrap=True)
    for layer in found:
        name = f"{layer.name}  (found)" if layer.name == usual else layer.name
        height, width = layer.size
        table.add_row(name, f"{height} x {width}", str(layer.channels), f"{layer.tail:.1%}")
    out().print(table)


def _weights_needed(model: str) -> str | None:
    """Only shapes matter, so nothing is downloaded; what comes with the package or is one's own is taken as it is."""
    return None if model == opt.DEFAULT_MODEL or ".py" in model else "random"


def _record(layer: Any) -> dict[str, Any]:
    return {"name": layer.name, "size": list(layer.size), "channels": layer.channels, "tail": layer.tail}
