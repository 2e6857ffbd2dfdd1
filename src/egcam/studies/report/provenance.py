"""What was run, and what a reader must know before the numbers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from egcam.attribution.references import by_name
from egcam.errors import TargetError
from egcam.evaluation import printing
from egcam.evaluation.numbers import counted
from egcam.metrics.registry import metric as metric_called
from egcam.models.class_names import read_classes
from egcam.models.class_scores import imagenet_classes
from egcam.models.zoo import EMBEDDED
from egcam.pages.escaping import one_line
from egcam.studies.datasets import kind_of, kinds
from egcam.studies.manifest import ModelRecord
from egcam.studies.report.formatting import listed, method_labels, metric_label
from egcam.studies.specs import ModelSpec, Study

if TYPE_CHECKING:
    from egcam.evaluation.table import Table
    from egcam.studies.results import Results
    from egcam.studies.specs import ModelSpec


def class_names(study: Study, model: ModelSpec) -> Sequence[str] | None:
    """The names in the order of the model's outputs: its file of names, the data's, ImageNet's; None where unknown.

    Example:
        >>> from egcam.studies.specs import DataSpec
        >>> study = Study("tiny", (), DataSpec("folder", "photos"), (), ())
        >>> class_names(study, ModelSpec("efficientnet-lite0", "net"))[281]
        'tabby'
        >>> class_names(study, ModelSpec("net.py:build", "net"))
    """
    if model.classes is not None:
        try:
            return read_classes(model.classes)
        except TargetError:
            # The results may have come from another machine; numbers are better than no report.
            return None
    # A kind of the study's own plugin need not be known where the report is written.
    if study.target == "label" and study.data.kind in kinds() and kind_of(study.data.kind).class_names is not None:
        return kind_of(study.data.kind).class_names
    return imagenet_classes() if _outputs(model) == 1000 else None


def is_own(model: ModelSpec) -> bool:
    """Whether it is a Python file of the study's author rather than a network with published weights."""
    return model.name.endswith(".py") or ".py:" in model.name


def _outputs(model: ModelSpec) -> int | None:
    """How many classes a network known by name has; None where its author, or a file of weights, decides that."""
    if is_own(model) or model.weights not in (None, "random"):
        return None
    if model.name == EMBEDDED:
        return 1000
    return _of_torchvision(model.name) or _of_timm(model.name.removeprefix("timm/"))


def _of_torchvision(name: str) -> int | None:
    if importlib.util.find_spec("torchvision") is None:
        return None
    models: Any = importlib.import_module("torchvision.models")
    try:
        return len(models.get_model_weights(name).DEFAULT.meta["categories"])
    except (ValueError, KeyError):
        return None


def _of_timm(name: str) -> int | None:
    if importlib.util.find_spec("timm") is None:
        return None
    timm: Any = importlib.import_module("timm")
    return int(timm.get_pretrained_cfg(name).num_classes) if timm.is_model(name) else None


RANDOM = "random"


def heading(results: Results) -> str:
    """The report's title."""
    return one_line(results.study.title or results.study.name)


_TARGETS = {
    "prediction": "the predicted class",
    "second": "the class with the second highest score",
    "label": "the image's label",
}


def facts(results: Results) -> list[tuple[str, str]]:
    """What was run, as pairs of a word and a text."""
    study, manifest = results.study, results.source.manifest
    labels = method_labels(study.methods)
    found = [("study", study.name), ("started", manifest.created)]
    found += [(f"model {model.label}", _model(model, _record(results, model.label))) for model in study.models]
    found += [
        ("data", _data(results)),
        ("images", _images(results)),
        ("methods", "; ".join(_with_options(labels[one.name], _own_options(one)) for one in study.methods)),
        (
            "metrics",
            "; ".join(_with_options(metric_label(metric_called(one.name).name), one.options) for one in study.metrics),
        ),
        ("primary metric", metric_label(study.primary) if study.primary else ""),
        ("target", _TARGETS[study.target]),
        ("protocol", f"{study.protocol}" + (" (the paper's conventions)" if study.protocol == "paper" else "")),
        ("reference", _reference(results)),
        ("seeds", f"{study.seed} for methods and metrics, {study.data.seed} for the choice of images"),
        ("units", _units(results)),
        ("versions", _versions(manifest.versions)),
    ]
    if manifest.further:
        found.append(("also run with", "; ".join(_versions(one.versions) for one in manifest.further)))
    return [(word, one_line(notes)) for word, notes in found if one_line(notes)]


def warnings(results: Results) -> list[str]:
    """What a reader must know first: stand-ins, unfinished work, failures."""
    notes = []
    untrained = [model.label for model in results.study.models if _weights(results, model) == RANDOM]
    if untrained:
        word = "has" if len(untrained) == 1 else "have"
        notes.append(
            f"{listed(untrained)} {word} random weights, no training: such numbers show that the study runs and say "
            "nothing about the methods."
        )
    remarks = {"the data": results.source.manifest.data.note}
    remarks |= {model.label: _record(results, model.label).note for model in results.study.models}
    notes += [f"{name}: {note}" for name, note in remarks.items() if note]
    if not results.complete:
        notes.append(_unfinished(results))
    if results.failures:
        notes.append(
            f"{counted(len(results.failures), 'unit')} of {results.units:,} failed; the causes are below. Means "
            "and differences are over the images that all compared methods have a score for."
        )
    return [one_line(text) for text in notes]


def caveats(results: Results, model: str) -> list[str]:
    """What a reader of a model's tables must know, wherever they are shown."""
    spec = next(one for one in results.study.models if one.label == model)
    notes = []
    if _weights(results, spec) == RANDOM:
        notes.append("Random weights: these numbers say nothing about the methods.")
    note = _record(results, model).note
    notes += [one_line(note)] if note else []
    done, total = len(results.images(model)), _image_count(results)
    if done < total:
        notes.append(f"Unfinished: {done:,} of {counted(total, 'image')}.")
    return notes


def _image_count(results: Results) -> int:
    return results.units // max(1, len(results.models) * len(results.methods))


def _unfinished(results: Results) -> str:
    done = f"{len(results.done):,} of {results.units:,} units are done"
    counts = {model: len(results.images(model)) for model in results.models}
    text = listed([f"{count:,} on {model}" for model, count in counts.items()])
    over = f"images that all methods have finished ({text})"
    if len(counts) == 1:
        over = f"{counted(sum(counts.values()), 'image')} that all methods have finished"
    return f"Unfinished: {done}: the numbers are over the {over}."


def _record(results: Results, label: str) -> ModelRecord:
    """What the manifest says of a model; nothing of one that was added since."""
    return results.source.manifest.models.get(label, ModelRecord("", 0, ""))


def _weights(results: Results, model: ModelSpec) -> str | None:
    return _record(results, model.label).weights or model.weights


def _model(model: ModelSpec, record: ModelRecord) -> str:
    weights = record.weights or model.weights
    if weights is None:
        # A model file of the study's author decides on the weights itself.
        text = "own weights" if is_own(model) else "published weights"
    else:
        # Only the file's name: the rest of the path is of the machine it ran on.
        text = "random weights" if weights == RANDOM else f"weights from {PurePath(str(weights)).name}"
    parts = [PurePath(model.name).name, text]
    layer = record.layer or model.layer
    parts += [f"layer {layer}"] if layer else []
    parts += [f"{name} at {own}" for name, own in (record.own_layers or {}).items()]
    parts += [f"{record.size[0]} x {record.size[1]} px"] if record.size else []
    parts += [f"{record.parameters:,} parameters"] if record.parameters else []
    parts += [f"checksum {record.checksum[:12]}"] if record.checksum else []
    return ", ".join(parts)


def _data(results: Results) -> str:
    data = results.study.data
    text = results.source.manifest.data.description or f"{data.kind}, {PurePath(data.path or '').name}"
    text += f", {data.size} x {data.size} px" if data.size else ""
    classes = data.options.get("classes", ())
    return text + (f", classes {', '.join(classes)}" if classes else "")


def _images(results: Results) -> str:
    count = _image_count(results)
    scored = {model: len(results.images(model)) for model in results.models}
    text = f"{count:,}"
    if set(scored.values()) != {count}:
        each = ", ".join(f"{number:,} ({one})" for one, number in scored.items())
        text = f"{count:,} in all; finished by all methods: {each}"
    unscored = {model: _unscored(table) for model, table in results.tables.items()}
    if any(unscored.values()):
        each = ", ".join(f"{number:,} ({one})" for one, number in unscored.items() if number)
        text += f"; without any score: {each}"
    return text


def _unscored(table: Table) -> int:
    """How many images no method has any score for."""
    held = [np.isfinite(table.values(method, metric)) for method in table.methods for metric in table.metrics]
    return int((~np.any(held, axis=0)).sum())


def _own_options(method: Any) -> dict[str, Any]:
    made = {} if method.name == method.method else {"method": method.method}
    return {**made, **method.options}


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    return name if not options else f"{name} ({', '.join(f'{key} {value}' for key, value in options.items())})"


def _reference(results: Results) -> str:
    reference = results.study.reference
    if reference.source == "data":
        return f"{reference.count:,} other images of the same data"
    if "/" in reference.source or "\\" in reference.source:
        return f"{reference.count:,} images of the folder {PurePath(reference.source).name}"
    if reference.source == "usual":
        return "each method's own"
    # What the name stands for does not depend on the network's normalisation.
    return by_name(reference.source).description


def _units(results: Results) -> str:
    return f"{len(results.done):,} of {results.units:,} done, {len(results.failures):,} failed"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def missing(results: Results, model: str) -> list[str]:
    """Why scores of a model are missing: a line for each method and kind of causes."""
    return printing.missing(results.table(model), method_labels(results.study.methods), metric_label)
