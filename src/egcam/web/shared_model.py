"""The one thing all sessions share: the network, read-only and used by one at a time."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from egcam.errors import LayerError
from egcam.models.class_scores import class_count
from egcam.models.layers import feature_layers, last_spatial_layer, works_on_tokens
from egcam.models.trace import Call, Trace, dry_run
from egcam.models.zoo import Classifier

USUAL = "usual"
"""The layer or the reference a method takes when none is chosen."""


@dataclass(frozen=True)
class LayerChoice:
    """A layer that can be explained: its name and the (channels, height, width) it outputs."""

    name: str
    shape: tuple[int, ...]

    @property
    def label(self) -> str:
        """The layer as the page lists it."""
        _, height, width = self.shape
        return f"{self.name}, {height} × {width} places"


@dataclass(frozen=True, eq=False)
class SharedModel:
    """The classifier, what can be chosen of it, and the lock that whoever runs it or draws holds."""

    classifier: Classifier
    layers: tuple[LayerChoice, ...]  # those that can be explained, in the order they run
    classes: tuple[str, ...]  # one name for each output
    # Held while the network runs. matplotlib's settings are global, too: figures are drawn under it.
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def layer(self) -> str:
        """The layer explained unless another is chosen; `USUAL` is each method's own."""
        return self.classifier.layer or USUAL


def share(classifier: Classifier, layer: str | None = None) -> SharedModel:
    """Look through a network once, so that the page can list its layers and classes.

    Args:
        classifier: the network.
        layer: where to explain unless the visitor chooses otherwise; each method's own layer if not given.

    Example:
        >>> from torch import nn
        >>> from egcam.models.preprocessing import Preprocessing
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        >>> shared = share(Classifier(net, "small", ["cat", "dog"], Preprocessing((8, 8), 8)))
        >>> [choice.name for choice in shared.layers], shared.layer, shared.classes
        (['0', '1'], 'usual', ('cat', 'dog'))
    """
    height, width = classifier.size
    channels = len(classifier.preprocessing.mean)
    trace = dry_run(classifier.model, torch.zeros(1, channels, height, width, device=classifier.device))
    wanted = layer or classifier.layer
    choices = _token_layers if works_on_tokens(trace) else _layer_choices
    found = choices(classifier.model, trace, wanted or last_spatial_layer(trace))
    count = 0 if trace.classes is None else class_count(trace.classes, classifier.classes)
    names = tuple(classifier.class_name(index) for index in range(count))
    return SharedModel(replace(classifier, layer=wanted), found, names)


def _token_layers(model: nn.Module, trace: Trace, wanted: str) -> tuple[LayerChoice, ...]:
    """The layers between the blocks of a transformer that the scores depend on, and the wanted one."""
    found = [LayerChoice(one.name, (one.channels, *one.size)) for one in feature_layers(model, trace)]
    calls = trace.calls_of(wanted.partition(":")[0])
    if not calls:
        raise LayerError(f"layer {wanted!r} is not in this network; try {', '.join(one.name for one in found[-3:])}")
    named = LayerChoice(wanted, trace.map_shape(calls[-1]))
    return tuple(found if any(one.name == wanted for one in found) else [*found, named])


def _layer_choices(model: nn.Module, trace: Trace, wanted: str) -> tuple[LayerChoice, ...]:
    """The outermost modules that output feature maps, and the wanted one.

    A module that takes the image itself and holds others (`features` of VGG) spans the network: what is in it counts.
    """
    times = Counter(call.name for call in trace.calls)
    spatial = [call for call in trace.calls if _has_places(call) and times[call.name] == 1]
    holders = {call.name for call in spatial if any(other.name.startswith(call.name + ".") for other in spatial)}
    spans = {call.name for call in spatial if call.name in holders and trace.image in call.inputs}
    parts = [call for call in spatial if call.name not in spans]
    names = {call.name for call in parts}
    outermost = [call for call in parts if not any(_is_inside(call.name, name) for name in names)]
    kept = {call.name: call for call in outermost}
    for call in spatial:
        if call.name == wanted.partition(":")[0]:
            kept.setdefault(wanted, call)
    if wanted not in kept:
        calls = [call for call in trace.calls if call.name == wanted.partition(":")[0] and len(call.shape) == 4]
        if not calls:
            known = ", ".join(list(kept)[-3:])
            raise LayerError(f"layer {wanted!r} outputs no feature maps, or is not in this network; try {known}")
        kept[wanted] = calls[-1]
    ordered = sorted(kept.items(), key=lambda item: item[1].finished)
    return tuple(LayerChoice(name, trace.map_shape(call)) for name, call in ordered)


def _has_places(call: Call) -> bool:
    plain = bool(call.name) and not call.pooling and not call.in_attention
    return plain and len(call.shape) == 4 and call.shape[0] == 1 and call.shape[2] * call.shape[3] > 1


def _is_inside(name: str, other: str) -> bool:
    return name.startswith(other + ".")
