"""Networks with weights: untrained ones, the same every time; a hub's; a file's, which is read without running code."""

from __future__ import annotations

import importlib
import re
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from egcam.errors import ModelError, require
from egcam.rng import OwnDraws

Made = TypeVar("Made")

RANDOM = "random"  # in place of a file: the same untrained weights every time
_CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "net")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")


def read_state(file: Path) -> dict[str, Tensor]:
    """The state_dict in a file; nothing in the file is executed."""
    right = "pass a file saved with torch.save(model.state_dict(), file)"
    if not file.is_file():
        raise ModelError(f"there is no weights file {file}: {right}")
    if file.suffix == ".safetensors":
        require("safetensors", "vision", "a .safetensors file")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(f"{file} could not be read as weights ({one_line(error)}): {right}") from error
    if isinstance(content, Mapping):
        inner = (content[key] for key in _CHECKPOINT_KEYS if isinstance(content.get(key), Mapping))
        state = {str(key): value for key, value in next(inner, content).items() if isinstance(value, Tensor)}
        if state:
            return _bare(state)
    raise ModelError(f"{file} holds no weights: {right}")


def _bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state without the prefixes that DataParallel, torch.compile and Lightning put before every key."""
    for prefix in _WRAPPER_PREFIXES:
        if all(key.startswith(prefix) for key in state):
            return _bare({key.removeprefix(prefix): value for key, value in state.items()})
    return state


def fill(model: nn.Module, state: Mapping[str, Tensor], name: str, file: str) -> None:
    """Load a state into a model; `name` and `file` are for the error, which shows keys that do not fit."""
    expected = model.state_dict()
    if "densenet" in name:
        # torchvision's published files still have the names its first DenseNet used.
        old = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")
        state = {old.sub(r"\1\2.", key): value for key, value in state.items()}
    elif set(state).isdisjoint(expected) and all(key.startswith("model.") for key in expected):
        state = {f"model.{key}": value for key, value in state.items()}
    counters = "num_batches_tracked"
    missing = [key for key in expected if key not in state and not key.endswith(counters)]
    unknown = [key for key in state if key not in expected]
    shapes = [
        f"{key} is {tuple(state[key].shape)} in the file and {tuple(value.shape)} in the model"
        for key, value in expected.items()
        if key in state and state[key].shape != value.shape
    ]
    parts = [("missing", missing), ("unknown to the model", unknown), ("of another shape", shapes)]
    problems = [
        f"{len(items)} {what} ({', '.join(items[:3])}{', …' if len(items) > 3 else ''})"
        for what, items in parts
        if items
    ]
    if problems:
        raise ModelError(f"{file} does not fit {name}: {'; '.join(problems)}")
    model.load_state_dict(dict(state), strict=False)


def outputs(state: Mapping[str, Tensor] | None, usual: int) -> int:
    """How many classes the saved network has: the length of its last weight, which belongs to its head."""
    shapes = [value.shape for key, value in (state or {}).items() if key.endswith((".weight", ".bias"))]
    return shapes[-1][0] if shapes and len(shapes[-1]) else usual


def one_line(error: BaseException) -> str:
    """An error of another library in a few words, on one line."""
    lines = _COLOURS.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {shorten(lines[0], 120, placeholder=' …')}" if lines else type(error).__name__


def seeded(build: Callable[[], Made]) -> Made:
    """A network whose first weights are the same every time, without touching the global random state."""
    with OwnDraws(torch.Generator().manual_seed(0)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()


def downloaded(name: str, build: Callable[[], Made]) -> Made:
    """A network with its published weights, or another part of it."""
    try:
        return build()
    except Exception as error:
        raise ModelError(
            f"the weights of {name} could not be downloaded ({one_line(error)}): connect to the Internet, "
            'or set weights (--weights on the command line) to a file, or to "random" for an untrained network'
        ) from error


def of_torchvision(name: str, published: Any | None, **untrained: Any) -> Any:
    """The network of that name, with published weights; where these are None, made with the `untrained` options."""
    from torchvision.models import get_model

    if published is None:
        return seeded(lambda: get_model(name, weights=None, **untrained))
    return downloaded(name, lambda: get_model(name, weights=published, progress=sys.stderr.isatty()))


@contextmanager
def no_vain_retries() -> Iterator[None]:
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
