"""What is found out about a model, once: a session that lives as long as the model does.

Explainers are thin: options and a session. So `egcam.explain` called twice costs what a kept explainer costs. Facts
that follow from the structure of the network (shapes, layers) last until a module, a hook or a plain attribute changes;
what depends on the weights lasts until one of them does, also through `.data`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Fact = TypeVar("Fact")

CHECKSUM_DIGITS = 16  # hexadecimal
_LOOKED_AT = 512  # numbers of each tensor
_USUAL = (Tensor, nn.Parameter)  # others, as sharded ones, may have no memory of their own
_BUDGET = 1024 * 2**20  # bytes of graphs kept for a model
_TORCHS = frozenset(vars(nn.Module()))  # attributes that every module has; its mode, too, for all is run in eval mode
_PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Weights:
    """A model's parameters and buffers as they are now."""

    checksum: str  # the first digits of a sha256 of names, shapes, dtypes and some numbers of each
    places: Hashable  # where each lies in memory, and how often torch has seen it written


class Session:
    """What is known of one model; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._structure: Hashable = None
        self._weights: Hashable = None
        self._of_structure: dict[Hashable, Any] = {}
        self._of_weights: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def look(self, model: nn.Module) -> Weights:
        """See whether the model is what it was, and forget what no longer holds; its weights."""
        structure, weights = _structure_of(model), weights_of(model)
        with self._lock:
            if structure != self._structure:
                self._structure, self._weights, self._of_structure = structure, None, {}
            if (weights.places, weights.checksum) != self._weights:
                self._weights = (weights.places, weights.checksum)
                self._of_weights.clear()
        return weights

    def fact(self, key: Hashable, make: Callable[[], Fact]) -> Fact:
        """A fact about the structure: what was found before, or is now."""
        with self._lock:
            known = self._of_structure
            if key in known:
                return known[key]  # type: ignore[no-any-return]
        found = make()
        with self._lock:
            return known.setdefault(key, found)  # type: ignore[no-any-return]

    def kept(self, key: Hashable, make: Callable[[], tuple[Fact, int]]) -> Fact:
        """What depends on the weights: what was made before, or is now, with the bytes it takes.

        Beyond the budget, what was not used for longest is let go of.
        """
        with self._lock:
            state = self._weights
            if key in self._of_weights:
                self._of_weights.move_to_end(key)
                return self._of_weights[key][0]  # type: ignore[no-any-return]
        found, size = make()
        with self._lock:
            if state == self._weights and size <= _BUDGET:
                self._of_weights[key] = (found, size)
                while sum(bytes_ for _, bytes_ in self._of_weights.values()) > _BUDGET:
                    self._of_weights.popitem(last=False)
        return found


_sessions: WeakKeyDictionary[nn.Module, Session] = WeakKeyDictionary()
_sessions_lock = threading.Lock()


def session_of(model: nn.Module) -> Session:
    """The model's session, the same for as long as the model lives.

    Example:
        >>> net = nn.Linear(2, 3)
        >>> session_of(net) is session_of(net)
        True
    """
    with _sessions_lock:
        session = _sessions.get(model)
        if session is None:
            session = _sessions[model] = Session()
        return session


def _structure_of(model: nn.Module) -> Hashable:
    """Modules, hooks, modes and plain attributes."""
    return tuple(
        (
            name,
            ref(module),  # equal to another of the same module for as long as that lives
            tuple(module._forward_hooks),  # their numbers, which torch gives out once
            tuple(module._forward_pre_hooks),
            tuple(_mark(value) for key, value in vars(module).items() if key not in _TORCHS),
        )
        for name, module in model.named_modules()
    )


class _Same:
    """Equal to another of the same object for as long as that lives: its address may then be another's."""

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        try:
            self._value: ref[Any] | None = ref(value)
        except TypeError:  # dictionaries and the like
            self._value = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._address != other._address:
            return False
        return all(one._value is None or one._value() is not None for one in (self, other))

    def __hash__(self) -> int:
        return hash(self._address)


def _mark(value: Any) -> Hashable:
    """What tells an attribute from what it was."""
    if isinstance(value, Tensor):
        return _Same(value), 0 if value.is_inference() else value._version
    if isinstance(value, list):
        return tuple(map(_mark, value))
    if type(value) is dict:
        return tuple((key, _mark(item)) for key, item in value.items())
    if isinstance(value, _PLAIN):
        try:
            hash(value)
        except TypeError:
            return _Same(value)
        return type(value), value
    return _Same(value)


def weights_of(model: nn.Module) -> Weights:
    """Read a model's weights.

    Of a large tensor evenly spread numbers are read, from 512 to 1023, and of a smaller one all. A step of training
    changes nearly every number, and so the checksum; a few weights that are written by hand it may miss.
    """
    names, places = [], []
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            lazy = is_lazy(tensor)
            names.append(f"{prefix}.{name} {'' if lazy else tuple(tensor.shape)} {tensor.dtype};")
            readable = not lazy and not tensor.is_meta and tensor.layout == torch.strided
            version = 0 if lazy or tensor.is_inference() else tensor._version
            place = tensor.data_ptr() if readable and type(tensor) in _USUAL else id(tensor)
            places.append((place, version, tensor.dtype, tensor.device))
            if readable:
                kinds.setdefault((tensor.dtype, tensor.device), []).append(_some_numbers(tensor.detach()))
    digest = sha256("".join(names).encode())
    for parts in kinds.values():
        # One copy from the device for all tensors of a kind.
        digest.update(bytes_of(torch.cat(parts)))
    return Weights(digest.hexdigest()[:CHECKSUM_DIGITS], tuple(places))


def _some_numbers(tensor: Tensor) -> Tensor:
    # Of weights that several processes share, the part that lies here.
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    count = tensor.numel()
    step = max(1, count // _LOOKED_AT)
    if type(tensor) in _USUAL and tensor.is_contiguous():
        # One operation: a network has hundreds of weights.
        return tensor.as_strided((-(-count // step),), (step,))
    return tensor.detach().reshape(-1)[::step]


def bytes_of(tensor: Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory, in the order of its places."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
