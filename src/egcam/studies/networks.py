"""The models of a study: loaded with their references, and looked at before the work begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from egcam.attribution import references, registry
from egcam.attribution.explainer import Explainer
from egcam.attribution.shared_options import options_for
from egcam.errors import LayerError, near_misses
from egcam.evaluation.failures import is_out_of_memory
from egcam.metrics.timing import synchronise
from egcam.models import zoo
from egcam.models.class_names import read_classes
from egcam.models.layers import BY_WORD, is_word, resolve
from egcam.models.preprocessing import Preprocessing
from egcam.models.trace import Trace, dry_run
from egcam.studies.config import StudyError
from egcam.studies.datasets import Dataset, kind_of
from egcam.studies.geometry import resized_preprocessing
from egcam.studies.manifest import ModelRecord, state_checksum
from egcam.studies.pools import drawn_pool, pool_titles, source_of
from egcam.studies.source_files import source_checksums
from egcam.studies.specs import MethodSpec, ModelSpec, Study

_PROBED, _PROBES = 4, 5


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
        pools: checksums of the references' images as they were when the study began, by title and name; what is
            missing is not compared.
    """

    spec: ModelSpec
    classifier: zoo.Classifier
    preprocessing: Preprocessing
    study: Study
    data: Dataset
    explainers: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    pools: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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

    def reference(self, source: str) -> Any:
        """What methods compare with: the name of one of egcam's own, or images."""
        if source not in self.references:
            self.references[source] = self._drawn(source)
        return self.references[source]

    def _drawn(self, source: str) -> Any:
        seen = self.classifier.preprocessing
        if source in references.MADE_BY_NAME:
            return source
        pool, pixels = drawn_pool(self.study, source, seen, self.data)
        title = pool_titles(self.study)[source]
        began_with = self.pools.get(title, pixels)
        changed = sorted(name for name, checksum in pixels.items() if began_with.get(name) != checksum)
        if changed:
            raise StudyError(
                f"the references ({title}) have changed since the study began: {changed[0]} is another image"
            )
        return references.Images(pool.to(self.classifier.device))


@dataclass(frozen=True)
class NetworkFacts:
    """What is known of a model once it was looked at.

    Attributes:
        record: for the manifest.
        channels: of the explained layer.
        size: the longer side of its input in pixels.
        device: where it runs.
        seconds_per_pass: one image through it, in a small batch, with the study's threads: the median of some probes.
        preprocessing: the network's own.
    """

    record: ModelRecord
    channels: int
    size: int
    device: str
    seconds_per_pass: float
    preprocessing: Preprocessing
    probes: tuple[float, ...] = ()
    """The probes themselves, in seconds."""


def load_network(study: Study, spec: ModelSpec, data: Dataset, began_with: Mapping[str, Any] | None = None) -> Network:
    """A model of the study, ready to be explained.

    Args:
        study: what it belongs to.
        spec: which.
        data: the study's images.
        began_with: the "models" (as `model_inputs`, by label) and "references" (their checksums) the study began
            with; a model or reference that is another by now is refused.
    """
    known = began_with or {}
    classifier, preprocessing = _loaded(study, spec)
    _check_model(spec, model_inputs(spec, classifier), known.get("models", {}).get(spec.label))
    return Network(spec, classifier, preprocessing, study, data, pools=known.get("references", {}))


def model_inputs(spec: ModelSpec, classifier: zoo.Classifier) -> dict[str, Any]:
    """What determines a model's numbers, as plain data: its weights, its own code, and how it gets its images."""
    own = ".py" in spec.name
    return {
        "checksum": state_checksum(classifier.model),
        "code": source_checksums(spec.name.rpartition(":")[0]) if own else {},
        "preprocessing": {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(classifier.preprocessing).items()
        },
    }


def _check_model(spec: ModelSpec, now: Mapping[str, Any], then: Mapping[str, Any] | None) -> None:
    """A worker may load a model days after the study began, or on another machine."""
    if then is None or dict(now) == dict(then):
        return
    names = {"checksum": "its weights", "preprocessing": "its preprocessing"}
    changed = [names[key] for key in names if now[key] != then[key]]
    files = {**then["code"], **now["code"]}
    changed += [name for name in files if now["code"].get(name) != then["code"].get(name)]
    raise StudyError(f"the model {spec.label} is not the one the study began with: {', '.join(changed)} changed")


def describe_networks(study: Study) -> dict[str, NetworkFacts]:
    """Load each model in turn, look at it, and let it go."""
    found = {}
    for spec in study.models:
        try:
            found[spec.label] = _described(study, spec)
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


def _described(study: Study, spec: ModelSpec) -> NetworkFacts:
    classifier, preprocessing = _loaded(study, spec)
    model, device = classifier.model, classifier.device
    images = torch.zeros(_PROBED, len(preprocessing.mean), *preprocessing.size, device=device)
    trace = dry_run(model, images[:1])
    _check_classes(study, spec, trace.classes)
    layer = spec.layer or classifier.layer or "last"
    layer = BY_WORD[layer](model, trace) if is_word(layer, model) else layer
    _check_layer(spec, model, layer, trace)
    shapes = [trace.map_shape(call) for call in trace.calls_of(layer.partition(":")[0]) if len(call.shape) in (3, 4)]
    record = ModelRecord(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer=layer,
        size=preprocessing.size,
        own_layers={} if spec.layer or classifier.layer else _own_layers(study, model, trace, layer),
        **model_inputs(spec, classifier),
    )
    with _pinned(study.threads), torch.inference_mode():
        probes = _probes(model, images)
    channels = shapes[-1][0] if shapes else 1
    size, seconds = max(preprocessing.size), median(probes)
    return NetworkFacts(record, channels, size, str(device), seconds, classifier.preprocessing, probes)


def _probes(model: nn.Module, images: Tensor) -> tuple[float, ...]:
    """Seconds of a pass, several times after a first one that does not count: a single one may be disturbed."""
    model(images[:1])
    found = []
    for _ in range(_PROBES):
        synchronise(images.device)
        start = perf_counter()
        model(images)
        synchronise(images.device)
        found.append((perf_counter() - start) / len(images))
    return tuple(found)


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


@contextmanager
def _pinned(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
