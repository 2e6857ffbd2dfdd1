"""The models of a study: loaded with their references, and looked at before the work begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from egcam.attribution import references, registry
from egcam.attribution.explainer import Explainer
from egcam.attribution.registry import options_for, starts_from_one_image
from egcam.errors import LayerError, near_misses
from egcam.evaluation.failures import is_out_of_memory
from egcam.models import zoo
from egcam.models.class_names import read_classes
from egcam.models.layers import BY_WORD, is_word, resolve
from egcam.models.preprocessing import Preprocessing
from egcam.models.trace import Trace, dry_run
from egcam.studies.config import StudyError
from egcam.studies.datasets import Dataset, Picture, kind_of, open_dataset
from egcam.studies.geometry import reference_pool, resized_preprocessing
from egcam.studies.keys import pixels_of, recipe_of, source_checksums
from egcam.studies.manifest import ModelRecord, state_checksum
from egcam.studies.specs import DataSpec, MethodSpec, ModelSpec, Study


def source_of(study: Study, method: MethodSpec) -> str:
    """Where a method's references come from: its own option, else the study's, if that is for it; else its default."""
    source = study.reference.source
    of_study = {} if is_drawn(source) and starts_from_one_image(method.method) else {"reference": source}
    return str({**registry.method(method.method).options(), **of_study, **method.options}["reference"])


def is_drawn(source: str) -> bool:
    """Whether a source is a collection of images: data, a folder, or photographs."""
    return source not in references.MADE_BY_NAME or references.by_name(source).is_collection


def drawn_pool(study: Study, source: str, preprocessing: Preprocessing, data: Dataset) -> tuple[Tensor, dict[str, str]]:
    """(M, C, H, W) the references from a source, and the checksums of the images that decided them, by name."""
    others = data if source == "data" else open_dataset(DataSpec("folder", source))
    pixels: dict[str, str] = {}

    def note(picture: Picture) -> None:
        pixels[picture.name] = pixels_of(picture)

    return reference_pool(others, preprocessing, study.data.size, study.reference.count, study.data.seed, note), pixels


@dataclass
class Network:
    """A model of the study, ready for its images."""

    spec: ModelSpec  # which
    classifier: zoo.Classifier  # the model and what belongs to it
    preprocessing: Preprocessing  # how it gets the study's images
    study: Study  # what it belongs to
    data: Dataset  # the study's images
    explainers: dict[str, Any] = field(default_factory=dict)  # made so far, by method
    # Drawn so far, by source, with the checksums of the images that decided them.
    references: dict[str, tuple[Any, dict[str, str]]] = field(default_factory=dict)
    recipes: dict[str, str] = field(default_factory=dict)  # what methods do here, as keys, by method

    @property
    def layer(self) -> str | None:
        """Where it is explained, or None if each method finds its usual layer."""
        return self.spec.layer or self.classifier.layer

    def options(self, method: MethodSpec, batch: int | None = None) -> dict[str, Any]:
        """What a method is made with: the study's layer, reference and seed where it takes them, and its own options.

        `batch` is the most images in one pass, where memory does not allow what the method would take.
        """
        shared = {"layer": self.layer, "seed": self.study.seed}
        own = dict(method.options)
        if "reference" in registry.takes(method.method):
            # Drawn only for methods that compare with references: reading a pool takes a while.
            own["reference"] = self.reference(source_of(self.study, method))
        if batch is not None and "batch_size" in registry.takes(method.method):
            own["batch_size"] = min(batch, method.options.get("batch_size") or batch)
        return options_for(method.method, shared, own, self.classifier.preprocessing.normalisation)

    def recipe(self, method: MethodSpec) -> str:
        """The key of what a method does here: see `egcam.studies.keys`."""
        if method.name not in self.recipes:
            source = source_of(self.study, method) if "reference" in registry.takes(method.method) else None
            checksums = {} if source is None else self._drawn(source)[1]
            about = self.study, self.spec, self.inputs, self.classifier.device.type
            self.recipes[method.name] = recipe_of(*about, method, source, checksums)
        return self.recipes[method.name]

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What determines the model's numbers, as plain data: weights, own code, and how it gets its images."""
        is_own = ".py" in self.spec.name
        return {
            "checksum": state_checksum(self.classifier.model),
            "code": source_checksums(self.spec.name.rpartition(":")[0]) if is_own else {},
            "preprocessing": asdict(self.classifier.preprocessing),
        }

    def reference(self, source: str) -> Any:
        """What methods compare with: the name of one of egcam's own, or images."""
        return self._drawn(source)[0]

    def _drawn(self, source: str) -> tuple[Any, dict[str, str]]:
        if source in references.MADE_BY_NAME:
            return source, {}
        if source not in self.references:
            pool, checksums = drawn_pool(self.study, source, self.classifier.preprocessing, self.data)
            self.references[source] = references.Images(pool.to(self.classifier.device)), checksums
        return self.references[source]


@dataclass(frozen=True)
class NetworkFacts:
    """What is known of a model once it was looked at."""

    record: ModelRecord  # for the manifest
    device: str  # where it runs
    recipes: Mapping[str, str]  # what methods do on it, as keys, by method


def load_network(study: Study, spec: ModelSpec, data: Dataset) -> Network:
    """A model of the study, ready to be explained on its images."""
    classifier, preprocessing = _loaded(study, spec)
    network = Network(spec, classifier, preprocessing, study, data)
    # As it is now: later something may have changed it.
    _ = network.inputs
    return network


def describe_networks(study: Study, data: Dataset) -> dict[str, NetworkFacts]:
    """Load each model in turn, look at it, and let it go."""
    found = {}
    for spec in study.models:
        try:
            found[spec.label] = _described(study, spec, data)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            side = study.data.size
            way = "use a smaller model, or more memory" if side is None else f"set data.size below {side}"
            raise StudyError(f"the model {spec.label} needs more memory for an image than there is: {way}") from error
    return found


def _loaded(study: Study, spec: ModelSpec) -> tuple[zoo.Classifier, Preprocessing]:
    classifier = zoo.load(spec.name, spec.weights, study.device, read_classes(spec.classes))
    preprocessing = classifier.preprocessing
    if study.data.size is not None:
        preprocessing = resized_preprocessing(preprocessing, study.data.size)
    return classifier, preprocessing


def _described(study: Study, spec: ModelSpec, data: Dataset) -> NetworkFacts:
    network = load_network(study, spec, data)
    classifier, preprocessing = network.classifier, network.preprocessing
    model, device = classifier.model, classifier.device
    trace = dry_run(model, torch.zeros(1, len(preprocessing.mean), *preprocessing.size, device=device))
    _check_classes(study, spec, trace.classes)
    layer = spec.layer or classifier.layer or "last"
    layer = BY_WORD[layer](model, trace) if is_word(layer, model) else layer
    _check_layer(spec, model, layer, trace)
    record = ModelRecord(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer=layer,
        size=preprocessing.size,
        own_layers={} if spec.layer or classifier.layer else _own_layers(study, model, trace, layer),
        **network.inputs,
    )
    recipes = {method.name: network.recipe(method) for method in study.methods}
    return NetworkFacts(record, str(device), recipes)


def _own_layers(study: Study, model: nn.Module, trace: Trace, layer: str) -> dict[str, str]:
    """The layers of the study's methods that do not find `layer`, by the methods' names in the study."""
    at_layers = [method for method in study.methods if "layer" in registry.takes(method.method)]
    made = {method.name: registry.create(method.method, model) for method in at_layers}
    # A plugin's method may be no explainer of egcam's, and then says nothing of its layer.
    found = {name: one.usual_layer(trace) for name, one in made.items() if isinstance(one, Explainer)}
    return {name: own for name, own in found.items() if own != layer}


def _check_layer(spec: ModelSpec, model: nn.Module, layer: str, trace: Trace) -> None:
    """A layer that is not there, or does not run, would fail every unit of its model, perhaps after days."""
    try:
        points = resolve(model, layer, lambda: layer)
    except LayerError as error:
        raise StudyError(f"the model {spec.label}: {error}") from error
    ran = Counter(call.name for call in trace.calls)
    for point in points:
        # "name:2" is the second call.
        times = ran[point.name.partition(":")[0]]
        if point.module is not None and times < (point.call or 1):
            often = f"runs {times} time(s)" if times else "does not run"
            raise StudyError(
                f"the model {spec.label}: the layer {layer!r} {often} when the network sees an image; "
                f"{near_misses(layer, ran)}"
            )


def _check_classes(study: Study, spec: ModelSpec, classes: int | None) -> None:
    """A label must be the network's: CIFAR-10's third class is not ImageNet's."""
    kind = kind_of(study.data.kind)
    if study.target == "label" and kind.class_names is not None and classes not in (None, len(kind.class_names)):
        raise StudyError(
            f'target is "label", and {spec.label} has {classes} classes, not the {len(kind.class_names)} of '
            f'{kind.title}: use target = "prediction"'
        )
