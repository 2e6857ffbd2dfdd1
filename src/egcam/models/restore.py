"""Leave the user's model as it was found: mode, buffers and random state, after errors and from many threads, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass
class _Visit:
    """What one module looked like when the first of its current visitors came."""

    module: nn.Module
    training: bool
    buffers: dict[str, Tensor | None]
    values: dict[str, Tensor]
    visitors: int = 1

    def restore_buffers(self) -> None:
        current = self.module._buffers
        if list(current) != list(self.buffers) or any(current[name] is not self.buffers[name] for name in current):
            current.clear()
            current.update(self.buffers)
        for name, value in self.values.items():
            buffer = current[name]
            assert buffer is not None
            # Written only when it differs: a write would bump the tensor's version under a graph of the user's.
            if not buffer.is_meta and not torch.equal(buffer, value):
                buffer.copy_(value)


# By module, not by model: one thread may explain a model while another explains a part of it.
_visits: dict[int, _Visit] = {}
_visits_lock = threading.Lock()


def _arrive(modules: list[nn.Module]) -> None:
    """Put modules in eval mode; only the first of several simultaneous visitors records and changes anything."""
    with _visits_lock:
        new = [module for module in modules if id(module) not in _visits]
        values = [{name: b.detach().clone() for name, b in m._buffers.items() if b is not None} for m in new]
        for module in modules:
            if id(module) in _visits:
                _visits[id(module)].visitors += 1
        for module, own in zip(new, values, strict=True):
            _visits[id(module)] = _Visit(module, module.training, dict(module._buffers), own)
            module.training = False


def _leave(modules: list[nn.Module]) -> None:
    """The last visitor out puts the recorded mode and buffers back."""
    with _visits_lock, torch.inference_mode(False), torch.no_grad():
        done = []
        for module in modules:
            visit = _visits[id(module)]
            visit.visitors -= 1
            if visit.visitors == 0:
                done.append(_visits.pop(id(module)))
                module.training = visit.training
        for visit in done:
            visit.restore_buffers()


_hooks_lock = threading.Lock()


def add_hook(
    module: nn.Module, hook: Callable[..., Any], before: bool = False, with_kwargs: bool = False
) -> RemovableHandle:
    """Register a forward hook, or one before the forward; it gets what was passed by name only if asked for.

    torch numbers hooks with a counter that two threads can read at the same time; then one hook replaces the other.
    """
    with _hooks_lock:
        add = module.register_forward_pre_hook if before else module.register_forward_hook
        return add(hook, with_kwargs=with_kwargs)


@dataclass
class _Chance:
    """A generator's state when the first of its current visitors came."""

    state: Tensor
    visitors: int = 1


_chances: dict[torch.device, _Chance] = {}
_chances_lock = threading.Lock()


def _random_state_of(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


@contextmanager
def _random_state(device: torch.device) -> Iterator[None]:
    """Put torch's generator of a device back to where it was; of several threads, the last one out does so."""
    with _chances_lock:
        if device in _chances:
            _chances[device].visitors += 1
        else:
            _chances[device] = _Chance(_random_state_of(device))
    try:
        yield
    finally:
        with _chances_lock:
            chance = _chances[device]
            chance.visitors -= 1
            if chance.visitors == 0:
                del _chances[device]
                _set_random_state(device, chance.state)


@contextmanager
def _uncached_autocast(device: torch.device) -> Iterator[None]:
    """Keep the user's autocast but stop it caching weights: copies made under `no_grad` would lack their history."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        yield
        return
    dtype = torch.get_autocast_dtype(device.type)
    with torch.autocast(device.type, dtype=dtype, cache_enabled=False):
        yield


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a model in eval mode, out of inference mode, and give it back exactly as it was.

    Mode, buffers and torch's random state are restored when the block ends, whatever ends it. Several threads
    may be inside for the same model: the first one in records, the last one out restores.

    Example:
        >>> net = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).train()
        >>> with untouched(net, torch.device("cpu")):
        ...     net.training
        False
        >>> net.training
        True
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        for place in {torch.device("cpu"), device if device.type in ("cuda", "mps") else torch.device("cpu")}:
            stack.enter_context(_random_state(place))
        stack.enter_context(_uncached_autocast(device))
        modules = list(model.modules())
        _arrive(modules)
        stack.callback(_leave, modules)
        yield
