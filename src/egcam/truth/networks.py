"""The networks of the tests with a known answer, as studies name them: `name = "egcam.truth.networks:walls"`."""

from __future__ import annotations

from functools import cache

from torch import nn

from egcam.models.classifier import Classifier
from egcam.models.preprocessing import Preprocessing
from egcam.truth.grids import Disconnected
from egcam.truth.shapes import CLASSES, LAYER, SIDE, ShapesNetwork, shapes_network
from egcam.truth.walls import Walled

HIDDEN_ROWS = 4  # of the twelve of the layer
CELLS = 2  # along a side of a grid


@cache
def trained() -> ShapesNetwork:
    """`shapes_network()`, read or trained once for each process."""
    return shapes_network()


def shapes() -> Classifier:
    """The network that knows shapes and the planted patch: for "shapes" and "patch"."""
    return _classifier(trained(), "shapes", LAYER, 1, CLASSES)


def gridpg() -> Classifier:
    """The same network, which is shown grids."""
    return _classifier(trained(), "gridpg", LAYER, CELLS, CLASSES)


def walls() -> Classifier:
    """The network behind a wall that hides the lower third of its layer."""
    return _classifier(Walled(trained(), LAYER, HIDDEN_ROWS), "walls", "cells", 1, CLASSES)


def difull() -> Classifier:
    """On grids, with a head for each cell that sees that cell alone, from the pixels on."""
    return _disconnected("difull")


def dipart() -> Classifier:
    """On grids, with a head for each cell that sees that cell alone, from the layer on."""
    return _disconnected("dipart")


def _disconnected(name: str) -> Classifier:
    heads = [f"{label}, cell {cell}" for cell in range(CELLS**2) for label in CLASSES]
    return _classifier(Disconnected(trained(), LAYER, CELLS, name == "difull"), name, "cells", CELLS, heads)


def _classifier(
    model: nn.Module, name: str, layer: str, images: int, classes: list[str] | tuple[str, ...]
) -> Classifier:
    side = images * SIDE
    as_drawn = Preprocessing((side, side), None, "nearest", (0.5,) * 3, (0.25,) * 3)
    return Classifier(model.eval(), name, tuple(classes), as_drawn, layer=layer)
