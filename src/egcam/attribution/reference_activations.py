"""What a network makes of references, kept from call to call for as long as the network stays the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from egcam.models.capture import Probe

_CPU_BUDGET = 256 * 2**20

Fingerprint: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True)
class AtReference:
    """One reference: what each layer outputs, (…), and the scores of all classes, (classes,), if there are any.

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
        self._means: tuple[Hashable, list[Tensor]] = (None, [])
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

    def overrule(self, fingerprint: Fingerprint, question: Hashable) -> None:
        """Let the answer be no from now on."""
        with self._lock:
            self._begin(fingerprint)
            self._verdicts[question] = False

    def means(
        self, fingerprint: Fingerprint, keys: frozenset[Hashable], answer: Callable[[], list[Tensor]]
    ) -> list[Tensor]:
        """At each layer the mean of the references with these keys: what was answered last, if it was for them."""
        with self._lock:
            if fingerprint == self._fingerprint and self._means[0] == keys:
                return self._means[1]
        found = answer()
        with self._lock:
            self._begin(fingerprint)
            self._means = (keys, found)
        return found

    def _begin(self, fingerprint: Fingerprint) -> None:
        if fingerprint != self._fingerprint:
            self._fingerprint, self._kept, self._verdicts, self._bytes = fingerprint, {}, {}, 0
            self._means = (None, [])

    def __len__(self) -> int:
        return len(self._kept)

    def __getstate__(self) -> dict[str, Any]:
        return {"budget": self.budget}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def fingerprint(probe: Probe, images: Tensor) -> Fingerprint:
    """What the activations of a reference depend on: layers, weights, buffers, hooks, image size, dtype, autocast.

    A weight is identified by its memory, its version and some of its numbers: an optimiser raises the version, writing
    through `.data` does not.
    """
    modules = tuple(
        (id(module), module.training, tuple(module._forward_hooks), tuple(module._forward_pre_hooks))
        for module in probe.model.modules()
    )
    device = images.device.type
    can_autocast = torch.amp.is_autocast_available(device)
    autocast = torch.get_autocast_dtype(device) if can_autocast and torch.is_autocast_enabled(device) else None
    image = (tuple(images.shape[1:]), images.dtype, images.device)
    return (tuple(point.name for point in probe.points), image, autocast, probe.weights, modules)
