"""Networks whose head is not linear: the real features of AlexNet and VGG-16 with a head of three layers.

Their heads are trained by `benchmarks/heads.py`, which writes them into the folder EGCAM_HEADS. In a study file:

    [[models]]
    name = "../networks.py:alexnet"
    layer = "features.12"
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torchvision import models

from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

CLASSES = ["fish", "bird", "reptile", "arthropod", "dog", "carnivore", "mammal", "other"]
# ImageNet's classes by what they are: (first, last, class). What is not here is "other".
RANGES = [
    (0, 6, "fish"),
    (389, 397, "fish"),
    (7, 24, "bird"),
    (80, 100, "bird"),
    (127, 146, "bird"),
    (25, 68, "reptile"),
    (69, 79, "arthropod"),
    (118, 126, "arthropod"),
    (300, 326, "arthropod"),
    (151, 268, "dog"),
    (269, 299, "carnivore"),
    (356, 362, "carnivore"),
    (387, 388, "carnivore"),
    (101, 106, "mammal"),
    (147, 150, "mammal"),
    (330, 355, "mammal"),
    (363, 386, "mammal"),
]
_HIDDEN = 512


def coarse_class(label: int) -> int:
    """One of eight classes for an ImageNet class."""
    found = [name for first, last, name in RANGES if first <= label <= last]
    return CLASSES.index(found[0] if found else "other")


def body(name: str) -> nn.Module:
    """The network with its real features and a head that is yet to be trained."""
    data = os.environ.get("EGCAM_DATA")
    if data is None:
        raise RuntimeError("EGCAM_DATA must name the folder with the weights of the features")
    model = models.get_model(name, weights=None, init_weights=False) if name == "vgg16" else models.get_model(name)
    state = torch.load(Path(data) / "weights" / f"{name}_features_fp16.pth", weights_only=True)
    model.load_state_dict({key: value.float() for key, value in state.items()}, strict=False)
    torch.manual_seed(0)
    inputs = next(layer for layer in model.classifier if isinstance(layer, nn.Linear)).in_features
    model.classifier = nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(inputs, _HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, len(CLASSES)),
    )
    return model.eval()


def _trained(name: str) -> Classifier:
    heads = os.environ.get("EGCAM_HEADS")
    if heads is None:
        raise RuntimeError("EGCAM_HEADS must name the folder benchmarks/heads.py wrote the heads into")
    model = body(name)
    model.classifier.load_state_dict(torch.load(Path(heads) / f"{name}.pth", weights_only=True))
    return Classifier(model, name, CLASSES, Preprocessing())


def alexnet() -> Classifier:
    """AlexNet's features with the trained head."""
    return _trained("alexnet")


def vgg16() -> Classifier:
    """VGG-16's features with the trained head."""
    return _trained("vgg16")
