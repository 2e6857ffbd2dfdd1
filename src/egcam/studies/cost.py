"""What a study takes: passes through its networks, which limit how fast it can be, and so time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from egcam.attribution import registry
from egcam.attribution.references import MADE_BY_NAME
from egcam.metrics.registry import Metric, make, metric, total_passes
from egcam.studies.config import load_study
from egcam.studies.datasets import open_dataset
from egcam.studies.networks import NetworkFacts, describe_networks
from egcam.studies.pools import source_of
from egcam.studies.specs import MethodSpec, Study

# The layers the paper explains, so that its presets know their cost before a model is loaded.
CHANNELS = {("vgg16", "features.30"): 512, ("resnet50", "layer4"): 2048, ("alexnet", "features.12"): 256}
_USUAL_CHANNELS = 512


def explanation_passes(spec: MethodSpec, channels: int, size: int = 224, source: str = "usual") -> int:
    """Single-image passes one explanation takes; tails behind the layer, as Ablation-CAM runs them, not counted.

    Nor are references counted that are the same for every image: they are seen once. `source` is where they come from.

    Example:
        >>> explanation_passes(MethodSpec("s", "smooth-grad-cam++", {"samples": 16}), channels=512)
        17
    """
    options = {key: value for key, value in spec.options.items() if key != "reference"}
    if "reference" in registry.takes(spec.method):
        # For counting passes, black stands in for images of the data.
        options["reference"] = source if source in MADE_BY_NAME else "black"
    return registry.create(spec.method, nn.Identity(), **options).passes_at(channels, size)


def metrics_by_image(study: Study) -> list[Metric]:
    """The study's metrics as they are computed, less those that compare images: these come at the end."""
    each = [one for one in study.metrics if not metric(one.name).whole_set]
    return [make(one.name, study.protocol, study.seed, **one.options) for one in each]


def unit_passes(study: Study, method: MethodSpec, channels: int, size: int) -> int:
    """Single-image passes of a unit: the image's own, the explanation, and its metrics, shared where metrics share."""
    explanation = explanation_passes(method, channels, size, source_of(study, method))
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


def longest_unit(study: Study, networks: Mapping[str, NetworkFacts]) -> float:
    """Seconds of the study's longest unit, by passes."""
    return max(
        unit_passes(study, method, one.channels, one.size) * one.seconds_per_pass
        for one in networks.values()
        for method in study.methods
    )


@dataclass(frozen=True)
class Estimate:
    """What a study costs.

    Attributes:
        images: how many.
        units: how many.
        passes: of one image through a model, by label.
        seconds: of one worker's time, by label: the passes at the median speed of some short probes.
        fastest: the same at the speed of the fastest probe, all models together.
        slowest: the same at the speed of the slowest.
        by_method: of these seconds, what each method takes, metrics included.
        by_metric: of these seconds, what each metric takes; work that several share counts for the first. The rest is
            explanations.
        disk: bytes of results, about.
        report_rows: lines of scores a report reads.
    """

    images: int
    units: int
    passes: dict[str, int]
    seconds: dict[str, float]
    fastest: float = 0.0
    slowest: float = 0.0
    by_method: Mapping[str, float] = field(default_factory=dict)
    by_metric: Mapping[str, float] = field(default_factory=dict)
    disk: int = 0
    report_rows: int = 0

    @property
    def total_passes(self) -> int:
        """All models together."""
        return sum(self.passes.values())

    @property
    def total_seconds(self) -> float:
        """All models together, for one worker."""
        return sum(self.seconds.values())

    @property
    def report_seconds(self) -> float:
        """What `status` and `report` take at the end, about."""
        return _REPORT_START + _REPORT_ROW * self.report_rows

    @property
    def report_memory(self) -> int:
        """Bytes a report takes, about."""
        return _REPORT_BYTES + _REPORT_ROW_BYTES * self.report_rows


# Measured: seconds of `egcam study report` on results of 9.5 million scores, two cores, before scores were in columns;
# its memory by benchmarks/report_memory.py on 3 million. Parts of 4,000 to 1.5 million units.
_REPORT_START, _REPORT_ROW = 8.0, 36e-6
_REPORT_BYTES, _REPORT_ROW_BYTES = 980_000_000, 170
_UNIT_BYTES, _SCORE_BYTES, _CURVE_BYTES, _PIXEL_BYTES = 60, 18, 200, 4


def estimate(study: Study | str | Path, limit: int | None = None) -> Estimate:
    """Count the passes of a study and estimate how long they take, from short probes of each model.

    A probe passes a few blank images through a model with the study's threads. The estimate uses the median of five;
    the fastest and slowest show how reliable it is. Backward passes, tails after the layer and reading images are not
    included, so expect somewhat more.

    Args:
        study: a study or its TOML file.
        limit: only this many images, the first ones.
    """
    found = study if isinstance(study, Study) else load_study(study)
    data = open_dataset(found.data)
    return estimated(found, describe_networks(found, data), min(len(data), limit or len(data)))


def estimated(study: Study, networks: dict[str, NetworkFacts], images: int) -> Estimate:
    """The estimate, the models having been looked at."""
    passes = {label: images * image_passes(study, one.channels, one.size) for label, one in networks.items()}
    seconds = {label: passes[label] * one.seconds_per_pass for label, one in networks.items()}
    probes = {label: one.probes or (one.seconds_per_pass,) for label, one in networks.items()}
    units = images * len(study.models) * len(study.methods)
    each = metrics_by_image(study)
    return Estimate(
        images,
        units,
        passes,
        seconds,
        fastest=sum(passes[label] * min(found) for label, found in probes.items()),
        slowest=sum(passes[label] * max(found) for label, found in probes.items()),
        by_method={
            method.name: sum(
                images * unit_passes(study, method, one.channels, one.size) * one.seconds_per_pass
                for one in networks.values()
            )
            for method in study.methods
        },
        by_metric=_by_metric(study, each, networks, images),
        disk=units * _bytes_of_unit(study, each, networks),
        report_rows=units * len(study.metrics),
    )


def _by_metric(
    study: Study, each: Sequence[Metric], networks: Mapping[str, NetworkFacts], images: int
) -> dict[str, float]:
    """Seconds of each metric: the passes it adds to those of the metrics before it."""
    found = dict.fromkeys((one.name for one in each), 0.0)
    for network in networks.values():
        for method in study.methods:
            explanation = explanation_passes(method, network.channels, network.size, source_of(study, method))
            before = 0
            for number, one in enumerate(each, 1):
                after = total_passes(each[:number], network.size, explanation)
                found[one.name] += images * (after - before) * network.seconds_per_pass
                before = after
    return found


def _bytes_of_unit(study: Study, each: Sequence[Metric], networks: Mapping[str, NetworkFacts]) -> int:
    curves = sum(one.name in ("insertion", "deletion") for one in each)
    # An inner layer has a sixteenth of the pixels along each side.
    cells = max((one.size // 16) ** 2 for one in networks.values())
    kept = cells if study.maps == "all" or len(each) < len(study.metrics) else 0
    return _UNIT_BYTES + _SCORE_BYTES * len(each) + _CURVE_BYTES * curves + _PIXEL_BYTES * kept
