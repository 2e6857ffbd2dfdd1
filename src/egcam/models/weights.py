"""Saved weights: read a file without running its code, put it into a model, or say why it does not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from egcam.errors import ModelError, require

_CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "net")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")


def read_state(file: Path) -> dict[str, Tensor]:
    """The state_dict in a file; nothing in the file is executed."""
    if not file.is_file():
        raise ModelError(f"there is no weights file {file}: pass a file saved with torch.save(model.state_dict())")
    if file.suffix == ".safetensors":
        require("safetensors", "vision", "a .safetensors file")
    try:
        content = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    except Exception as error:
        raise ModelError(
            f"{file} could not be read as weights ({one_line(error)}): "
            "pass a file saved with torch.save(model.state_dict(), file)"
        ) from error
    return _bare(_unwrapped(content, file))


def _read_torch(file: Path) -> object:
    return torch.load(file, map_location="cpu", weights_only=True)


def _read_safetensors(file: Path) -> object:
    from safetensors.torch import load_file

    return load_file(file)


def _unwrapped(content: object, file: Path) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        for key in _CHECKPOINT_KEYS:
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if isinstance(content, Mapping):
        tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors
    raise ModelError(f"{file} holds no weights: pass a file saved with torch.save(model.state_dict(), file)")


def _bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state without the prefixes that DataParallel, torch.compile and Lightning put before every key."""
    for prefix in _WRAPPER_PREFIXES:
        if all(key.startswith(prefix) for key in state):
            return _bare({key.removeprefix(prefix): value for key, value in state.items()})
    return state


def fill(model: nn.Module, state: Mapping[str, Tensor], name: str, file: str) -> None:
    """Load a state into a model; `name` and `file` are for the error, which shows keys that do not fit."""
    wanted = model.state_dict()
    if "densenet" in name:
        # torchvision's published files still have the names its first DenseNet used.
        old = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")
        state = {old.sub(r"\1\2.", key): value for key, value in state.items()}
    elif set(state).isdisjoint(wanted) and all(key.startswith("model.") for key in wanted):
        state = {f"model.{key}": value for key, value in state.items()}
    counters = "num_batches_tracked"
    missing = [key for key in wanted if key not in state and not key.endswith(counters)]
    unknown = [key for key in state if key not in wanted]
    shapes = [
        f"{key} is {tuple(state[key].shape)} in the file and {tuple(value.shape)} in the model"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    problems = [
        _few("missing", missing),
        _few("unknown to the model", unknown),
        _few("of another shape", shapes),
    ]
    if any(problems):
        raise ModelError(f"{file} does not fit {name}: " + "; ".join(problem for problem in problems if problem))
    model.load_state_dict(dict(state), strict=False)


def _few(what: str, items: Sequence[str], most: int = 3) -> str:
    if not items:
        return ""
    more = ", …" if len(items) > most else ""
    return f"{len(items)} {what} ({', '.join(items[:most])}{more})"


def outputs(state: Mapping[str, Tensor] | None, usual: int) -> int:
    """How many classes the saved network has: the length of its last weight, which belongs to its head."""
    shapes = [value.shape for key, value in (state or {}).items() if key.endswith((".weight", ".bias"))]
    return shapes[-1][0] if shapes and len(shapes[-1]) else usual


def one_line(error: BaseException) -> str:
    """An error of another library in a few words, on one line."""
    lines = _COLOURS.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {shorten(lines[0], 120, placeholder=' …')}" if lines else type(error).__name__
