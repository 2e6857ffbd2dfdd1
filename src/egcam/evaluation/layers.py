"""Which layer to explain, measured on your own images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from egcam.attribution.registry import create
from egcam.errors import LayerError
from egcam.imageops import size_of
from egcam.metrics import InsertionDeletion
from egcam.models.dimensions import as_batch, dimensions_of
from egcam.models.inputs import ExtraInputs, plain_model
from egcam.models.layers import FeatureLayer, feature_layers
from egcam.models.trace import dry_run

_MOST = 6


@dataclass(frozen=True)
class LayerScore:
    """A layer and how good the maps there are."""

    layer: FeatureLayer  # name, channels, size and cost
    mean: float  # insertion less deletion, averaged over the images; higher is better
    scores: Tensor  # (N,) of each image


def candidate_layers(
    model: nn.Module, images: Tensor, *, inputs: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
) -> list[FeatureLayer]:
    """The layers between the blocks of a network, in the order they run; `inputs`, `keywords` as in an explanation.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(100, 2))
        >>> [(layer.name, layer.channels, layer.size) for layer in candidate_layers(net, torch.rand(1, 1, 9, 9))]
        [('0', 2, (7, 7)), ('1', 2, (7, 7)), ('2', 4, (5, 5))]
    """
    model = plain_model(model)
    images = as_batch(images, dimensions_of(model, images, None, inputs, keywords))
    extra = ExtraInputs(len(images), tuple(inputs), dict(keywords or {}))
    return feature_layers(model, dry_run(model, images, extra))


def best_layer(
    model: nn.Module,
    images: Tensor,
    method: str = "slope-cam",
    layers: Sequence[str] | None = None,
    step: int | None = None,
    *,
    inputs: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[LayerScore]:
    """Insertion-deletion of a method's maps at several layers, best first.

    It explains the predictions. Use your own images, but not those you will judge the maps by.

    Args:
        model: the classifier.
        images: (N, C, H, W), preprocessed.
        method: a registered method that has a layer.
        layers: which to try; by default the last one of each resolution below a quarter of the image's side and, if
            these are few, the ones before them.
        step: pixels at once in the curves; by default a twelfth of the image.
        inputs: additional positional inputs of the model, as in an explanation.
        keywords: additional keyword inputs of the model.
        options: of the method.
    """
    extra: dict[str, Any] = {"inputs": inputs, "keywords": keywords}
    known = {layer.name: layer for layer in candidate_layers(model, images, **extra)}
    names = _worth_trying(list(known.values()), images) if layers is None else list(layers)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise LayerError(f"{unknown[0]!r} is not one of the layers between the blocks: {', '.join(known)}")
    images = as_batch(images, dimensions_of(model, images, None, inputs, keywords))
    step = -(-prod(size_of(images)) // 12) if step is None else step
    found = []
    for name in names:
        explanation = create(method, model, layer=name, **options)(images, **extra)
        scores = InsertionDeletion(step)(model, images, explanation, **extra)
        found.append(LayerScore(known[name], float(scores.nanmean()), scores))
    return sorted(found, key=lambda one: one.mean, reverse=True)


def _worth_trying(layers: list[FeatureLayer], images: Tensor) -> list[str]:
    """Coarse layers, late ones first: maps of single pixels are noise, and cost most."""
    # The height, or a signal's length: frames are often left as many as they are.
    axis = max(0, images.ndim - 4)
    coarse = [layer for layer in layers if 4 * layer.size[axis] <= size_of(images)[axis]] or layers
    last_of_size = list({layer.size: layer.name for layer in coarse}.values())
    others = [layer.name for layer in reversed(coarse) if layer.name not in last_of_size]
    chosen = {*last_of_size[-_MOST:], *others[: max(0, _MOST - len(last_of_size))]}
    return [layer.name for layer in coarse if layer.name in chosen]
