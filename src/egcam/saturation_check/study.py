"""One network in the saturation study: its curves on some photographs, and two methods' maps and patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from egcam.attribution.explanation import Explanation
from egcam.drawing.overlays import to_pil
from egcam.models.classifier import Classifier
from egcam.progress import Progress
from egcam.saturation_check.measure import Spacing, normalised_black, saturation
from egcam.saturation_check.patches import Patches, top_patches
from egcam.saturation_check.result import Saturation

COMPARED = ("grad-cam", "slope-cam")
"""The plain gradient, and the one averaged over the path."""

# About how long the curves take next to the maps: 25 passes for each image against 1 and 16, and the patches.
_CURVES, _MAPS = 0.55, 0.4


@dataclass(frozen=True)
class Photograph:
    """An image and what to call it."""

    name: str
    image: Image.Image


@dataclass(frozen=True, eq=False)
class MethodPatches:
    """Where one method points: its maps, its hottest patches, and pictures of what the network is shown of them."""

    explanation: Explanation
    patches: Patches
    pictures: tuple[Image.Image, ...]


@dataclass(frozen=True, eq=False)
class ModelStudy:
    """One network on all photographs.

    Attributes:
        label: what to call the network in this study.
        model: the network's name.
        names: the photographs' names.
        pictures: the part of each photograph that the network sees.
        classes: the name of each photograph's label.
        measured: the curves.
        methods: for each compared method, where it points.
    """

    label: str
    model: str
    names: tuple[str, ...]
    pictures: tuple[Image.Image, ...]
    classes: tuple[str, ...]
    measured: Saturation
    methods: Mapping[str, MethodPatches]

    @property
    def insertion(self) -> dict[str, float]:
        """The mean insertion score of each method's patches."""
        return {name: float(found.patches.scores.mean()) for name, found in self.methods.items()}

    @property
    def background(self) -> float:
        """The mean score of the blurred images alone."""
        return float(next(iter(self.methods.values())).patches.background.mean())

    @property
    def full(self) -> float:
        """The mean score of the images."""
        return float(self.measured.probability[:, -1].mean())


def study_model(
    classifier: Classifier,
    photographs: Sequence[Photograph],
    *,
    layer: str | None = None,
    steps: int = 25,
    target: int | str | None = None,
    spacing: Spacing = "even",
    seed: int = 0,
    grid: int = 4,
    options: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> ModelStudy:
    """Measure one network, and let Grad-CAM and SlopeCAM say what it looked at.

    Args:
        classifier: the network, with its preprocessing and class names; black is black before its normalisation.
        photographs: what to measure it on.
        layer: the layer for curves and maps; None takes the classifier's, or finds one.
        steps: how many values of a.
        target: the label followed; None is the prediction for each photograph.
        spacing: "even" or "uniform", see `egcam.saturation_check.measure.saturation`.
        seed: of the values of a and of the methods' samples.
        grid: the cells along each side of an image; the patches are these cells.
        options: for the methods that take them: reference, samples.
        batch_size: the most images in one pass.
        progress: called with the share of the work done.

    Example:
        >>> from torch import nn
        >>> from egcam.models.preprocessing import Preprocessing
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 2))
        >>> for weight in (net[0].weight, net[3].weight):  # so that white is evidence for the class
        ...     _ = weight.data.abs_()
        >>> small = Classifier(net, "small", ["cat", "dog"], Preprocessing((8, 8), 8))
        >>> photographs = [Photograph("white", Image.new("RGB", (9, 9), "white"))]
        >>> done = study_model(small, photographs, steps=3, options={"reference": "black"})
        >>> done.measured.logit.shape, sorted(done.methods)
        (torch.Size([1, 3]), ['slope-cam', 'grad-cam'])
    """
    report = progress or (lambda share: None)
    seen = classifier.preprocessing
    images = torch.stack([classifier.preprocess(one.image) for one in photographs]).to(classifier.device)
    measured = saturation(
        classifier.model,
        images,
        layer or classifier.layer,
        steps,
        target,
        spacing=spacing,
        seed=seed,
        black=normalised_black(seen.mean, seen.std),
        classes=classifier.classes,
        batch_size=batch_size,
        progress=lambda done, total: report(_CURVES * done / max(1, total)),
    )
    methods = {}
    for number, name in enumerate(COMPARED):
        given = {**(options or {}), "layer": measured.layer, "seed": seed, "batch_size": batch_size}
        explanation = classifier.explain(images, name, measured.targets, **classifier.options_for(name, given))
        patches = top_patches(classifier.model, images, explanation, measured.targets, grid=grid, batch_size=batch_size)
        methods[name] = MethodPatches(explanation, patches, tuple(to_pil(seen.colours(patches.shown))))
        report(_CURVES + _MAPS * (number + 1) / len(COMPARED))
    return ModelStudy(
        classifier.name,
        classifier.name,
        tuple(one.name for one in photographs),
        tuple(classifier.crop(one.image) for one in photographs),
        tuple(classifier.class_name(index) for index in measured.targets.tolist()),
        measured,
        methods,
    )
