"""Leave the user's model as it was found: mode, buffers and random state, after errors and from many threads, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class _Visit:
    """What a model looked like when the first of its current visitors came."""

    training: list[nn.Module]
    buffers: list[tuple[nn.Module, str, Tensor, Tensor]]
    visitors: int = 1


_visits: dict[int, _Visit] = {}
_visits_lock = threading.Lock()


def _arrive(model: nn.Module) -> None:
    """Put the model in eval mode; only the first of several simultaneous visitors records and changes anything."""
    with _visits_lock:
        visit = _visits.get(id(model))
        if visit is not None:
            visit.visitors += 1
            return
        training = [module for module in model.modules() if module.training]
        buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        _visits[id(model)] = _Visit(training, buffers)
        for module in training:
            module.training = False


def _leave(model: nn.Module) -> None:
    """The last visitor out puts the recorded mode and buffers back."""
    with _visits_lock:
        visit = _visits[id(model)]
        visit.visitors -= 1
        if visit.visitors:
            return
        del _visits[id(model)]
        for module in visit.training:
            module.training = True
        with torch.inference_mode(False), torch.no_grad():
            for module, name, buffer, saved in visit.buffers:
                module._buffers[name] = buffer
                # Written only when it differs: a write would bump the tensor's version under a graph of the user's.
                if not buffer.is_meta and not torch.equal(buffer, saved):
                    buffer.copy_(saved)


@contextmanager
def _random_state(device: torch.device) -> Iterator[None]:
    """Put torch's generators (CPU and `device`) back to where they were."""
    cpu = torch.get_rng_state()
    accelerator = None
    if device.type == "cuda":
        accelerator = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        accelerator = torch.mps.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if accelerator is not None and device.type == "cuda":
            torch.cuda.set_rng_state(accelerator, device)
        elif accelerator is not None:
            torch.mps.set_rng_state(accelerator)


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
        stack.enter_context(_random_state(device))
        stack.enter_context(_uncached_autocast(device))
        _arrive(model)
        stack.callback(_leave, model)
        yield
