"""What the classes of a study's model are called, as far as it can be known without loading the model."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from egcam.errors import TargetError
from egcam.models.class_names import read_classes
from egcam.models.class_scores import imagenet_classes
from egcam.models.zoo import EMBEDDED
from egcam.studies.datasets import kind_of, kinds
from egcam.studies.specs import ModelSpec, Study


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
