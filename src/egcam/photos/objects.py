"""What a detector or segmenter found in a photograph, each object explained: what `egcam detect` and `segment` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from egcam.attribution.explanation import Explanation
from egcam.drawing.marks import mark_color, with_box, with_outline
from egcam.drawing.overlays import Tile, grid, overlay_image
from egcam.errors import ModelError
from egcam.models.class_scores import label_index
from egcam.models.classifier import Classifier
from egcam.models.restore import untouched
from egcam.models.targets import ImageTarget, image_part
from egcam.models.weights import one_line
from egcam.photos.comparison import explained_by_each
from egcam.progress import Progress
from egcam.targets import Box, Mask
from egcam.targets.masks import segmentation_in

_BACKGROUND = ("__background__", "background")
_LEAST_SHARE = 0.005  # of the photograph, for a class nobody asked for


@dataclass(frozen=True)
class FoundObject:
    """One object in a photograph."""

    label: int
    name: str  # of its class
    score: float  # how sure the network is; for a segmented class, the mean probability inside its mask
    size: tuple[int, int]  # (height, width) of the image that the box or mask is of
    box: tuple[float, float, float, float] | None = None  # (left, top, right, bottom) of a detected object
    mask: Tensor | None = None  # (height, width) of a segmented one

    @property
    def target(self) -> ImageTarget:
        """What is explained of it."""
        return Mask(self.label, self.mask) if self.box is None else Box(self.box, self.label)

    @property
    def title(self) -> str:
        """Its name and how sure the network is."""
        return f"{self.name} {self.score:.0%}"

    def marked_in(self, picture: Image.Image, color: str, label: str = "") -> Image.Image:
        """The picture with its box or outline."""
        if self.box is None:
            assert self.mask is not None
            return with_outline(picture, self.mask.cpu().numpy(), color, label)
        across, down = picture.width / self.size[1], picture.height / self.size[0]
        left, top, right, bottom = self.box
        return with_box(picture, (left * across, top * down, right * across, bottom * down), color, label)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; boxes in shares of the photograph's width and height."""
        height, width = self.size
        entry: dict[str, Any] = {"label": self.label, "name": self.name, "score": round(self.score, 6)}
        if self.box is not None:
            sides = (width, height, width, height)
            entry["box"] = [round(corner / side, 6) for corner, side in zip(self.box, sides, strict=True)]
        if self.mask is not None:
            entry["area"] = round(float(self.mask.float().mean()), 6)
        return entry


@dataclass(frozen=True)
class ExplainedObjects:
    """The objects of one photograph and their maps."""

    title: str
    photograph: Image.Image  # as sharp as it is
    model: str
    objects: tuple[FoundObject, ...]  # the surest first
    explanation: Explanation | None  # one map for each object; None if there is no object
    seconds: float = 0.0

    def picture(self, sharpness: float = 1.0, side: int = 360) -> Image.Image:
        """The photograph with all objects marked, and beside it each object with its map."""
        marked = self.photograph
        for number, item in reversed(list(enumerate(self.objects))):
            marked = item.marked_in(marked, mark_color(number), item.name)
        count = len(self.objects)
        tiles = [Tile(marked, f"{count} object{'s' if count != 1 else ''}", self.model), *self._overlays(sharpness)]
        method = "" if self.explanation is None else f" · {self.explanation.method} at {_few(self.explanation.layer)}"
        height = min(side * 3 // 2, round(side * self.photograph.height / self.photograph.width))
        return grid(tiles, _columns(len(tiles)), side, f"{self.title}{method}", height)

    def _overlays(self, sharpness: float) -> list[Tile]:
        if self.explanation is None:
            return []
        maps = self.explanation.heatmaps.float().cpu().numpy()
        tiles = []
        for number, (item, heat) in enumerate(zip(self.objects, maps, strict=True)):
            overlay = overlay_image(self.photograph, heat, sharpness=sharpness)
            detail = "no evidence: the map is zero" if not np.any(heat) else _where(item)
            tiles.append(Tile(item.marked_in(overlay, mark_color(number)), item.title, detail))
        return tiles


def _where(item: FoundObject) -> str:
    if item.box is not None:
        return "why this box?"
    assert item.mask is not None
    return f"why these {float(item.mask.float().mean()):.0%} of the pixels?"


def _few(layer: str) -> str:
    names = layer.split(" + ")
    return layer if len(names) == 1 else f"{len(names)} layers, {names[0]} to {names[-1]}"


def _columns(count: int) -> int:
    return count if count <= 4 else 3 if count <= 6 else 4


def detected(network: Classifier, image: Tensor, threshold: float, most: int) -> list[FoundObject]:
    """What a detector finds in an image (C, H, W), the surest first.

    Args:
        network: that takes lists of images, as torchvision's detectors do.
        image: prepared for it.
        threshold: the least score.
        most: how many at most.
    """
    output = _output(network, image)
    if not isinstance(output, Mapping) or not {"boxes", "scores", "labels"} <= set(output):
        raise ModelError(
            f"{network.name} does not answer as a detector: for each image it must return a dictionary of boxes, "
            "scores and labels, as torchvision's detectors do"
        )
    size = (image.shape[-2], image.shape[-1])
    order = output["scores"].argsort(descending=True)
    objects = []
    for place in order[:most].tolist():
        score, label = float(output["scores"][place]), int(output["labels"][place])
        left, top, right, bottom = output["boxes"][place].tolist()
        if score >= threshold and left < right and top < bottom:
            objects.append(FoundObject(label, network.class_name(label), score, size, (left, top, right, bottom)))
    return objects


def segmented(network: Classifier, image: Tensor, classes: Sequence[int | str], most: int) -> list[FoundObject]:
    """The classes that a segmenter finds in an image (C, H, W), the largest first; a pixel is of its likeliest class.

    Args:
        network: the segmenter.
        image: prepared for it.
        wanted: the classes, by index or name; empty for all but the background.
        most: how many at most.
    """
    maps = segmentation_in(_output(network, image))[None]
    size = (image.shape[-2], image.shape[-1])
    chances = functional.interpolate(maps, size=size, mode="bilinear", align_corners=False)[0].softmax(0)
    likeliest = chances.argmax(0)
    asked = [label_index(one, network.classes, len(chances)) for one in classes]
    objects = []
    for label in asked or range(len(chances)):
        mask, name = likeliest == label, network.class_name(label)
        share = float(mask.float().mean())
        if share > 0 and (asked or (share >= _LEAST_SHARE and name not in _BACKGROUND)):
            objects.append(FoundObject(label, name, float(chances[label][mask].mean()), size, None, mask))
    largest = sorted(objects, key=lambda one: -float(one.mask.float().mean()))  # type: ignore[union-attr]
    return largest[:most]


def _output(network: Classifier, image: Tensor) -> Any:
    with untouched(network.model, network.device), torch.no_grad():
        try:
            output = network.model(image[None].to(network.device, copy=True))
        except Exception as error:
            raise ModelError(
                f"{network.name} cannot be run on the image ({one_line(error)}): a detector takes a list of images "
                "(C, H, W), a segmenter a batch (N, C, H, W)"
            ) from error
        return image_part(output, 1, 0)


def explain_objects(
    network: Classifier,
    photograph: Image.Image,
    objects: Sequence[FoundObject],
    method: str,
    title: str = "",
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ExplainedObjects:
    """Explain each object of a photograph.

    Args:
        network: fitted to the photograph.
        photograph: where the objects are.
        objects: what was found in it.
        method: one of `egcam.methods()`.
        title: what to call the photograph.
        options: for the method; those it does not take are left out.
        progress: called with the share of the work done, from 0 to 1.
    """
    picture = network.crop(photograph)
    if not objects:
        return ExplainedObjects(title, picture, network.name, (), None)
    images = network.images(photograph).expand(len(objects), -1, -1, -1)
    targets = [item.target for item in objects]
    ((_, explanation, seconds),) = explained_by_each(network, images, [method], targets, options, progress=progress)
    return ExplainedObjects(title, picture, network.name, tuple(objects), explanation, seconds)
