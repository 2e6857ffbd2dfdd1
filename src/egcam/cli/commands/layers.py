"""`egcam layers`: where in a network a map can be made, and what it costs there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from egcam.cli import options as opt
from egcam.cli.console import out, print_json, table


def layers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for --model of egcam explain.")] = opt.DEFAULT_MODEL,
    weights: opt.Weights = None,
    as_json: opt.Json = False,
) -> None:
    """List the layers between a network's blocks, with resolution, channels and what follows them.

    Marks the default layer of most methods and that of SlopeCAM. The last column is the share of the forward
    pass that each sample of SlopeCAM runs. You can also name layers inside blocks, but a skip connection may
    bypass those.
    """
    import torch

    from egcam.evaluation.layers import candidate_layers
    from egcam.models import zoo
    from egcam.models.layers import inner_layer, last_spatial_layer
    from egcam.models.trace import dry_run

    classifier = zoo.load(model, weights=weights if weights is not None else _weights_needed(model))
    channels = 3
    images = torch.zeros(1, channels, *classifier.preprocessing.size, device=classifier.device)
    found = candidate_layers(classifier.model, images)
    trace = dry_run(classifier.model, images)
    usual = classifier.layer or last_spatial_layer(trace)
    inner = classifier.layer or inner_layer(classifier.model, trace)
    if as_json:
        listed = [_record(layer) for layer in found]
        print_json({"model": model, "found": usual, "slope-cam": inner, "layers": listed})
        return
    heads = ("layer", "map", "channels", "follows")
    rows = [
        (
            _marked(layer.name, {"found": usual, "slope-cam": inner}),
            f"{layer.size[0]} x {layer.size[1]}",
            str(layer.channels),
            f"{layer.tail:.1%}",
        )
        for layer in found
    ]
    out().print(table(heads, rows, right=heads[1:], whole=heads))


def _marked(name: str, marks: dict[str, str]) -> str:
    """The layer's name, and what finds this layer by itself."""
    own = ", ".join(mark for mark, at in marks.items() if at == name)
    return f"{name}  ({own})" if own else name


def _weights_needed(model: str) -> str | None:
    """Only shapes matter, so nothing is downloaded; the package's own model and the user's are taken as they are."""
    return None if model == opt.DEFAULT_MODEL or ".py" in model else "random"


def _record(layer: Any) -> dict[str, Any]:
    return {"name": layer.name, "size": list(layer.size), "channels": layer.channels, "tail": layer.tail}
