"""How many passes through the network a study takes: the limit of how fast it can be."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from egcam.attribution import registry
from egcam.metrics.registry import Metric, make, metric, total_passes
from egcam.studies.specs import MethodSpec, Study

# The layers the paper explains, so that its presets know their cost before a model is loaded.
CHANNELS = {("vgg16", "features.30"): 512, ("resnet50", "layer4"): 2048, ("alexnet", "features.12"): 256}
_USUAL_CHANNELS = 512


def explanation_passes(spec: MethodSpec, channels: int) -> int:
    """Single-image passes one explanation takes; tails behind the layer, as Ablation-CAM runs them, not counted.

    Example:
        >>> explanation_passes(MethodSpec("e", "expected-grad-cam", {"samples": 16}), channels=512)
        17
    """
    options = {key: value for key, value in spec.options.items() if key != "reference"}
    return registry.create(spec.method, nn.Identity(), **options).passes_at(channels)


def metrics_by_image(study: Study) -> list[Metric]:
    """The study's metrics as they are computed, less those that compare images: these come at the end."""
    each = [one for one in study.metrics if not metric(one.name).whole_set]
    return [make(one.name, study.protocol, study.seed, **one.options) for one in each]


def unit_passes(study: Study, method: MethodSpec, channels: int, size: int) -> int:
    """Single-image passes of a unit: the image's own, the explanation, and its metrics, shared where metrics share."""
    explanation = explanation_passes(method, channels)
    return explanation + _network_passes(study, size) + total_passes(metrics_by_image(study), size, explanation, False)


def _network_passes(study: Study, size: int) -> int:
    """Those that do not depend on the map: made for the first method of an image, the others use what was found."""
    return max(1, total_passes(metrics_by_image(study), size, 0, True))


def study_passes(study: Study, images: int, sizes: Mapping[str, int], channels: Mapping[str, int]) -> int:
    """Single-image passes of the whole study.

    Args:
        study: what is to be done.
        images: on how many images.
        sizes: the side of each model's input in pixels, by label.
        channels: of the explained layer, by label.
    """
    return images * sum(image_passes(study, channels[model.label], sizes[model.label]) for model in study.models)


def image_passes(study: Study, channels: int, size: int) -> int:
    """Single-image passes of all methods on one image: what is found out about the network is shared.

    Work that is stopped and taken up again may take a few more.
    """
    alone = sum(unit_passes(study, method, channels, size) for method in study.methods)
    return alone - (len(study.methods) - 1) * _network_passes(study, size)


def usual_passes(study: Study, images: int) -> int:
    """`study_passes` before any model is loaded: input and layer as the paper's, or as is usual."""
    sizes = {model.label: study.data.size or 224 for model in study.models}
    channels = {model.label: CHANNELS.get((model.name, model.layer or ""), _USUAL_CHANNELS) for model in study.models}
    return study_passes(study, images, sizes, channels)
