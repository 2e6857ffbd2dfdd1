"""Detectors and segmenters by name: torchvision's, or your own, ready for photographs of any shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from PIL import Image

from egcam.errors import ModelError, near_misses, require
from egcam.models.class_names import Classes, as_class_names
from egcam.models.class_scores import known_classes
from egcam.models.classifier import Classifier
from egcam.models.inputs import FromList
from egcam.models.preprocessing import Preprocessing
from egcam.models.weights import RANDOM, fill, of_torchvision, read_state
from egcam.models.zoo import device_called, own_network

Kind: TypeAlias = Literal["detection", "segmentation"]

DEFAULTS: dict[Kind, str] = {
    "detection": "fasterrcnn_mobilenet_v3_large_320_fpn",
    "segmentation": "lraspp_mobilenet_v3_large",
}
_LONGEST_SIDE = {"detection": 800, "segmentation": 520}
# torchvision's detectors normalise their images themselves.
_AS_THEY_ARE = Preprocessing(resize=None, mean=(0.0,) * 3, std=(1.0,) * 3)


def load(
    kind: Kind,
    name: str | None = None,
    weights: str | Path | None = None,
    device: str | torch.device | None = None,
    classes: Classes | None = None,
) -> Classifier:
    """A detector or segmenter, in eval mode, with its class names.

    Args:
        kind: "detection" or "segmentation".
        name: one of torchvision's of that kind, or "path/to/file.py:function", a function that returns a module or a
            `Classifier`. A detector takes a list of images and returns boxes, scores and labels of each, as
            torchvision's do; a segmenter returns (N, classes, h, w), on its own or in a dictionary.
        weights: as for `egcam.zoo.load`.
        device: as for `egcam.zoo.load`.
        classes: class names, where the model's own are unknown.
    """
    name = DEFAULTS[kind] if name is None else name
    place = device_called(device)
    is_own = name.endswith(".py") or ".py:" in name
    network = own_network(name) if is_own else _torchvision(kind, name, weights)
    if weights is not None and str(weights) != RANDOM:
        fill(network.model, read_state(Path(weights)), name, str(weights))
    if is_own and kind == "detection":
        network = replace(network, preprocessing=_AS_THEY_ARE)
    if classes is not None:
        network = replace(network, classes=as_class_names(classes))
    elif network.classes is None:
        network = replace(network, classes=known_classes(network.model, None))
    network.model.to(place).eval()
    return replace(network, model=FromList(network.model)) if kind == "detection" else network


def names(kind: Kind) -> list[str]:
    """torchvision's networks of a kind."""
    require("torchvision", "vision", f"{kind} by a torchvision name")
    from torchvision import models

    return list(models.list_models(module=getattr(models, kind)))


def fitted_to(network: Classifier, photograph: Image.Image, kind: Kind) -> Classifier:
    """The network for this photograph: it sees all of it, in its own proportions, scaled down where it is large."""
    share = min(1.0, _LONGEST_SIDE[kind] / max(photograph.size))
    size = max(1, round(photograph.height * share)), max(1, round(photograph.width * share))
    return replace(network, preprocessing=replace(network.preprocessing, size=size, resize=None))


def _torchvision(kind: Kind, name: str, weights: str | Path | None) -> Classifier:
    offered = names(kind)
    if name not in offered:
        raise ModelError(
            f"there is no network for {kind} called {name!r}; {near_misses(name, offered)} To load your own, pass "
            "path/to/file.py:function"
        )
    from torchvision import models

    published: Any = models.get_model_weights(name).DEFAULT
    preprocessing = Preprocessing(resize=None) if kind == "segmentation" else _AS_THEY_ARE
    categories = published.meta["categories"]
    # The published segmenters were saved with the head that helped in training.
    aux = {"aux_loss": True} if name.startswith(("fcn", "deeplab")) and str(weights) != RANDOM else {}
    options = {"weights_backbone": None, "num_classes": len(categories), **aux}
    model = of_torchvision(name, published if weights is None else None, **options)
    return Classifier(model, name, categories, preprocessing)
