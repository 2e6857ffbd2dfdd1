"""How many passes through the network a study takes: the limit of how fast it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from torch import nn

from egcam.attribution import registry
from egcam.errors import InputError
from egcam.metrics import robustness
from egcam.metrics.faithfulness import patch_count, patch_side
from egcam.metrics.registry import metric
from egcam.studies.specs import MethodSpec, MetricSpec, Study

# The layers the paper explains, so that its presets know their cost before a model is loaded.
CHANNELS = {("vgg16", "features.30"): 512, ("resnet50", "layer4"): 2048, ("alexnet", "features.12"): 256}
_USUAL_CHANNELS = 512

_CURVES = {"insertion": ("insertion",), "deletion": ("deletion",), "insertion-deletion": ("insertion", "deletion")}
_CONFIDENCES = ("average-drop", "increase-in-confidence", "average-gain")


def explanation_passes(spec: MethodSpec, channels: int) -> int:
    """Single-image passes one explanation takes; tails behind the layer, as Ablation-CAM runs them, not counted.

    Example:
        >>> explanation_passes(MethodSpec("e", "expected-grad-cam", {"samples": 16}), channels=512)
        17
    """
    options = {key: value for key, value in spec.options.items() if key != "reference"}
    return registry.create(spec.method, nn.Identity(), **options).passes_at(channels)


def unit_passes(study: Study, method: MethodSpec, channels: int, size: int) -> int:
    """Single-image passes of a unit: the explanation and its metrics, shared where metrics share.

    Those of infidelity are made for the first method of an image; the others use what was found.
    """
    explanation = explanation_passes(method, channels)
    each = [one for one in study.metrics if not metric(one.name).whole_set]
    # One more finds the classes.
    return explanation + 1 + sum(_metric_passes(study, each, one, explanation, size) for one in each)


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
    shared = sum(_infidelity_passes(study, one.options, size) for one in study.metrics if one.name == "infidelity")
    return alone - (len(study.methods) - 1) * shared


def usual_passes(study: Study, images: int) -> int:
    """`study_passes` before any model is loaded: input and layer as the paper's, or as is usual."""
    sizes = {model.label: study.data.size or 224 for model in study.models}
    channels = {model.label: CHANNELS.get((model.name, model.layer or ""), _USUAL_CHANNELS) for model in study.models}
    return study_passes(study, images, sizes, channels)


def _metric_passes(study: Study, each: Sequence[MetricSpec], spec: MetricSpec, explanation: int, size: int) -> int:
    """What a metric adds to those before it."""
    before = each[: each.index(spec)]
    name, options = spec.name, spec.options
    if name in _CURVES:
        done = {part for one in before if one.name in _CURVES and one.options == options for part in _CURVES[one.name]}
        return len(set(_CURVES[name]) - done) * (_steps(options, size) + 1)
    if name in robustness.RECIPES:
        return _robustness_passes(study, each, spec, explanation)
    if name in _CONFIDENCES:
        return 0 if any(one.name in _CONFIDENCES and one.options == options for one in before) else 2
    if name == "infidelity":
        return _infidelity_passes(study, options, size)
    if name in ("pixel-flipping", "faithfulness-estimate", "monotonicity"):
        paper = study.protocol == "paper" and name != "monotonicity"
        return _steps(options, size, paper) + 1
    return int(_OTHERS[name](options, size, explanation)) if name in _OTHERS else 0


def _steps(options: Mapping[str, Any], size: int, paper: bool = False) -> int:
    pixels: int = options.get("step", 224 if paper else size)
    return ceil(size * size / pixels)


def _robustness_passes(study: Study, each: Sequence[MetricSpec], spec: MetricSpec, explanation: int) -> int:
    """Metrics with the same noise share their perturbed explanations; the first of them is charged with all."""
    paper = study.protocol == "paper"

    def setting(one: MetricSpec) -> tuple[Any, int]:
        return robustness.RECIPES[one.name].setting(paper, one.options.get("noise"), one.options.get("samples"))

    alike = [one for one in each if one.name in robustness.RECIPES and setting(one)[0] == setting(spec)[0]]
    if alike[0] != spec:
        return 0
    samples = max(setting(one)[1] for one in alike)
    outputs = any(robustness.RECIPES[one.name].outputs for one in alike)
    return samples * explanation + (samples + 1 if outputs else 0)


def _infidelity_passes(study: Study, options: Mapping[str, Any], size: int) -> int:
    """One for each patch and one for the image; none where the patch does not fit, which the metric refuses."""
    try:
        side = patch_side(options.get("patch"), size, size, paper=study.protocol == "paper")
    except InputError:
        return 0
    return patch_count(side, size, size) + 1


_OTHERS: dict[str, Any] = {
    "irof": lambda options, size, explanation: options.get("n_segments", 100) + 1,
    "running-time": lambda options, size, explanation: (
        (options.get("warmup", 1) + options.get("repeats", 3)) * explanation + 1
    ),
    "adcc": lambda options, size, explanation: explanation + 2,
    "road": lambda options, size, explanation: len(options.get("shares", range(9))) + 1,
    "random-logit": lambda options, size, explanation: explanation + 1,
    "model-randomization": lambda options, size, explanation: options.get("stages", 10) * (explanation + 1),
    "sensitivity-n": lambda options, size, explanation: (
        len(options.get("shares", range(8))) * options.get("subsets", 20) + 1
    ),
}
