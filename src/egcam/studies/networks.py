"""The models of a study: loaded with their references, and looked at before the work begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from egcam import references, registry
from egcam.metrics.timing import synchronise
from egcam.models import zoo
from egcam.models.class_names import read_classes
from egcam.models.layers import dry_run, last_spatial_layer
from egcam.models.preprocessing import Preprocessing
from egcam.studies.config import StudyError
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import Dataset
from egcam.studies.geometry import reference_pool, resized_preprocessing
from egcam.studies.manifest import ModelRecord, state_checksum
from egcam.studies.specs import DataSpec, MethodSpec, ModelSpec, Study

_PROBED = 4


@dataclass
class Network:
    """A model of the study, ready for its images.

    Attributes:
        spec: which.
        classifier: the model and what belongs to it.
        preprocessing: how it gets the study's images.
        study: what it belongs to.
        data: the study's images.
        explainers: made so far, by method.
        references: made so far, by source.
    """

    spec: ModelSpec
    classifier: zoo.Classifier
    preprocessing: Preprocessing
    study: Study
    data: Dataset
    explainers: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)

    @property
    def layer(self) -> str | None:
        """Where it is explained, or None where egcam finds the layer."""
        return self.spec.layer or self.classifier.layer

    def options(self, method: MethodSpec, batch: int | None = None) -> dict[str, Any]:
        """What a method is made with: the study's layer, reference and seed where it takes them, and its own.

        Args:
            method: which.
            batch: the most images in one pass, where memory does not allow what the method would take.
        """
        source = method.options.get("reference", self.study.reference.source)
        usual = {"layer": self.layer, "seed": self.study.seed}
        takes = registry.takes(method.method)
        given = {key: value for key, value in usual.items() if value is not None and key in takes}
        # Drawn only for methods that compare with references: reading a pool takes a while.
        reference = {"reference": self.reference(source)} if "reference" in takes else {}
        limit = {}
        if batch is not None and "batch_size" in takes:
            limit = {"batch_size": min(batch, method.options.get("batch_size") or batch)}
        return {**given, **method.options, **reference, **limit}

    def reference(self, source: str) -> Any:
        """What Expected Grad-CAM compares with."""
        if source not in self.references:
            self.references[source] = _reference(self.study, source, self.classifier, self.data)
        return self.references[source]


@dataclass(frozen=True)
class Described:
    """What is known of a model once it was looked at.

    Attributes:
        record: for the manifest.
        channels: of the explained layer.
        size: the longer side of its input in pixels.
        device: where it runs.
        seconds_per_pass: one image through it, in a small batch, with the study's threads.
    """

    record: ModelRecord
    channels: int
    size: int
    device: str
    seconds_per_pass: float


def load_network(study: Study, spec: ModelSpec, data: Dataset) -> Network:
    """A model of the study, ready to be explained."""
    classifier, preprocessing = _loaded(study, spec)
    return Network(spec, classifier, preprocessing, study, data)


def describe_networks(study: Study) -> dict[str, Described]:
    """Load each model in turn, look at it, and let it go."""
    return {spec.label: _described(study, spec) for spec in study.models}


def _loaded(study: Study, spec: ModelSpec) -> tuple[zoo.Classifier, Preprocessing]:
    classifier = zoo.load(spec.name, spec.weights, study.device, read_classes(spec.classes))
    preprocessing = classifier.preprocessing
    if study.data.size is not None:
        preprocessing = resized_preprocessing(preprocessing, study.data.size)
    return classifier, preprocessing


def _described(study: Study, spec: ModelSpec) -> Described:
    classifier, preprocessing = _loaded(study, spec)
    model, device = classifier.model, classifier.device
    images = torch.zeros(_PROBED, len(preprocessing.mean), *preprocessing.size, device=device)
    trace = dry_run(model, images[:1])
    _check_classes(study, spec, trace.classes)
    layer = spec.layer or classifier.layer or last_spatial_layer(trace)
    shapes = [call.shape for call in trace.calls if call.name == layer.partition(":")[0] and len(call.shape) == 4]
    record = ModelRecord(
        checksum=state_checksum(model),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer=layer,
        size=preprocessing.size,
    )
    with _pinned(study.threads), torch.inference_mode():
        model(images[:1])
        synchronise(device)
        start = perf_counter()
        model(images)
        synchronise(device)
        seconds = (perf_counter() - start) / len(images)
    channels = shapes[-1][1] if shapes else 1
    return Described(record, channels, max(preprocessing.size), str(device), seconds)


def _check_classes(study: Study, spec: ModelSpec, classes: int | None) -> None:
    """A label must be the network's: CIFAR-10's third class is not ImageNet's."""
    if study.target == "label" and study.data.kind == "cifar10" and classes not in (None, 10):
        raise StudyError(
            f'target is "label", and {spec.label} has {classes} classes, not CIFAR-10\'s ten: use target = "prediction"'
        )


@contextmanager
def _pinned(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _reference(study: Study, source: str, classifier: zoo.Classifier, data: Dataset) -> Any:
    seen = classifier.preprocessing
    if source in references.MADE_BY_NAME:
        return references.by_name(source, seen.mean, seen.std)
    others = data if source == "data" else open_dataset(DataSpec("folder", source))
    pool = reference_pool(others, seen, study.data.size, study.reference.count, study.data.seed)
    return references.Images(pool.to(classifier.device))
