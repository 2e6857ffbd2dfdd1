"""What a network makes of references, kept from call to call for as long as the network stays the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from egcam.attribution.checksums import some_numbers

_CPU_BUDGET = 256 * 2**20
_LOOKED_AT = 64  # numbers of each weight that are looked at to see whether it changed behind torch's back

Fingerprint: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True)
class AtReference:
    """One reference: what each layer outputs, (…), and the scores of all classes, (classes,), where there are any.

    Before a dense head also `contributions` (H, places) and `hidden` (H,), see `egcam.models.dense_head`.
    """

    activations: tuple[Tensor, ...]
    class_scores: Tensor | None
    contributions: Tensor | None = None
    hidden: Tensor | None = None

    @property
    def bytes(self) -> int:
        """Of all but the scores."""
        kept = [*self.activations, *(one for one in (self.contributions, self.hidden) if one is not None)]
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)


class ReferenceActivations:
    """The references an explainer has seen, under the fingerprint of the network that saw them.

    Safe to use from several threads. When the fingerprint changes everything is forgotten; beyond `budget` bytes, what
    came first is.
    """

    def __init__(self, budget: int = _CPU_BUDGET) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._fingerprint: Fingerprint = ()
        self._kept: dict[Hashable, AtReference] = {}
        self._verdicts: dict[Hashable, bool] = {}
        self._bytes = 0

    def get(self, fingerprint: Fingerprint, keys: Sequence[Hashable]) -> dict[Hashable, AtReference]:
        """Those of the keys that are known."""
        with self._lock:
            if fingerprint != self._fingerprint:
                return {}
            return {key: self._kept[key] for key in keys if key in self._kept}

    def keep(self, fingerprint: Fingerprint, found: dict[Hashable, AtReference]) -> None:
        """Add what was found, as far as the budget allows."""
        with self._lock:
            self._begin(fingerprint)
            for key, value in found.items():
                if key not in self._kept:
                    self._kept[key] = value
                    self._bytes += value.bytes
            while self._bytes > self.budget and self._kept:
                self._bytes -= self._kept.pop(next(iter(self._kept))).bytes

    def verdict(self, fingerprint: Fingerprint, question: Hashable, answer: Callable[[], bool]) -> bool:
        """What was answered before, or is now: something that is true of the network, not of an image."""
        with self._lock:
            if fingerprint == self._fingerprint and question in self._verdicts:
                return self._verdicts[question]
        found = answer()
        with self._lock:
            self._begin(fingerprint)
            self._verdicts[question] = found
        return found

    def _begin(self, fingerprint: Fingerprint) -> None:
        if fingerprint != self._fingerprint:
            self._fingerprint, self._kept, self._verdicts, self._bytes = fingerprint, {}, {}, 0

    def __len__(self) -> int:
        return len(self._kept)

    def __getstate__(self) -> dict[str, Any]:
        return {"budget": self.budget}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def fingerprint(model: nn.Module, layers: Sequence[str], images: Tensor) -> Fingerprint:
    """What the activations of a reference depend on: layers, weights, buffers, hooks, image size, dtype, autocast.

    A weight is identified by its memory, its version and some of its numbers: an optimiser raises the version, writing
    through `.data` does not.
    """
    state = [*model.parameters(), *model.buffers()]
    marks = tuple((tensor.data_ptr(), tensor._version, tensor.dtype, tensor.device) for tensor in state)
    modules = tuple(
        (id(module), module.training, tuple(module._forward_hooks), tuple(module._forward_pre_hooks))
        for module in model.modules()
    )
    device = images.device.type
    can_autocast = torch.amp.is_autocast_available(device)
    autocast = torch.get_autocast_dtype(device) if can_autocast and torch.is_autocast_enabled(device) else None
    image = (tuple(images.shape[1:]), images.dtype, images.device)
    return (tuple(layers), image, autocast, marks, tuple(some_numbers(state, _LOOKED_AT)), modules)
