"""Run only what comes after a layer.

A network is a program, so its tail cannot be cut off in general. But its modules up to the layer can be answered from
memory: in a shallow copy of the module tree, every module that finished before the layer ran is replaced by one that
returns what it returned then, and the layer by one that returns the activations to try. What is left to compute is the
tail, and whatever little a forward method does outside modules. The copy shares all weights; the model is not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from egcam.models.capture import Probe
from egcam.models.guard import add_hook
from egcam.models.layers import LayerPoint, tensor_in
from egcam.models.shadow import replace_modules


class _Memory:
    """What modules returned before the layer ran; shared by all stand-ins of one replay."""

    def __init__(self) -> None:
        self.passed_layer = False
        self.images = 1
        self.image = 0
        self.materialise = False


class _FromMemory(nn.Module):
    """Stands in for a module that ran before the layer: returns what that returned, call by call."""

    def __init__(self, original: nn.Module, memory: _Memory, outputs: list[Any]) -> None:
        super().__init__()
        self._original = (original,)  # in a tuple, so that the user's module is not registered as a child
        self.memory = memory
        self.outputs = outputs
        self.calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The remembered output of this call, or the module itself once the layer has run."""
        if self.memory.passed_layer or self.calls >= len(self.outputs):
            return self._original[0](*args, **kwargs)
        self.calls += 1
        return self._repeated(self.outputs[self.calls - 1])

    def _repeated(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            one = value[self.memory.image, None]
            many = one.expand(self.memory.images, *one.shape[1:])
            return many.clone() if self.memory.materialise else many
        if isinstance(value, dict):
            return {key: self._repeated(item) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self._repeated(item) for item in value)
        return value


class _Injected(nn.Module):
    """Stands in for the layer: returns the activations to try."""

    def __init__(self, original: nn.Module, memory: _Memory, call: int) -> None:
        super().__init__()
        self._original = (original,)
        self.memory = memory
        self.call = call
        self.calls = 0
        self.activations: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The activations at the explained call, the module itself at others."""
        self.calls += 1
        if self.calls != self.call:
            return self._original[0](*args, **kwargs)
        self.memory.passed_layer = True
        assert self.activations is not None
        return self.activations


class Replay:
    """The tail of a network after one layer, for the images of one forward pass.

    Args:
        probe: the model at a single layer whose output is a plain (N, K, h, w) tensor.
        images: (n, C, H, W) the images of this replay.
        rows: (n,) their numbers in the call.

    Attributes:
        output: what the model returned for the images.
        activations: (n, K, h, w) at the layer.
    """

    def __init__(self, probe: Probe, images: Tensor, rows: Tensor) -> None:
        (self._point,) = probe.points
        assert self._point.module is not None
        self._probe = probe
        self._images = images
        self._rows = rows
        record = _Record(probe.model, self._point)
        with torch.no_grad(), record:
            seen = probe.forward(images, rows)
        self.output = seen.output
        self.activations = seen.activations[0]
        self._memory = _Memory()
        self._injected = _Injected(self._point.module, self._memory, record.call)
        self._stand_ins = {
            id(module): _FromMemory(module, self._memory, outputs) for module, outputs in record.returned()
        }
        # .eval() would reach no user module, for the originals are not registered; copies keep the mode they are in.
        for stand_in in (self._injected, *self._stand_ins.values()):
            stand_in.training = False
        replaced: dict[int, nn.Module] = {**self._stand_ins, id(self._point.module): self._injected}
        self._shadow = replace_modules(probe.model, replaced)
        self._works: bool | None = None

    def run(self, activations: Tensor, image: int) -> Any:
        """The model's output when the layer puts out `activations` (B, K, h, w) for image number `image`."""
        if self._works is None:
            self._works = self._check()
        return self._tail(activations, image) if self._works else self._whole(activations, image)

    def _check(self) -> bool:
        """Whether replaying the true activations gives the true output; networks with side doors do not."""
        try:
            again = tensor_in(self._tail(self.activations[:1], 0))
        except RuntimeError:
            return False
        truth = tensor_in(self.output)
        if again is None or truth is None or not self._memory.passed_layer:
            return False
        tolerance = 1e-2 if truth.dtype in (torch.float16, torch.bfloat16) else 1e-4
        return torch.allclose(again[:1], truth[:1], rtol=tolerance, atol=tolerance * float(truth.abs().max()) + 1e-12)

    def _tail(self, activations: Tensor, image: int) -> Any:
        try:
            return self._replay(activations, image)
        except RuntimeError:
            if self._memory.materialise:
                raise
            # Something writes in place into a remembered tensor, which as a mere repetition cannot be written to.
            self._memory.materialise = True
            return self._replay(activations, image)

    def _replay(self, activations: Tensor, image: int) -> Any:
        self._memory.passed_layer = False
        self._memory.images = len(activations)
        self._memory.image = image
        self._injected.calls = 0
        self._injected.activations = activations.clone()
        for stand_in in self._stand_ins.values():
            stand_in.calls = 0
        images, rows = self._inputs(image, len(activations))
        args, kwargs = self._probe.extra.rows(rows)
        # A repetition cannot be written to, but a single row is the user's own memory.
        images = images.clone() if len(images) == 1 or self._memory.materialise else images
        with torch.no_grad():
            return self._shadow(images, *args, **kwargs)

    def _whole(self, activations: Tensor, image: int) -> Any:
        """The same by brute force: the whole network, with the layer's output replaced on the way."""
        images, rows = self._inputs(image, len(activations))
        args, kwargs = self._probe.extra.rows(rows)
        thread, calls = threading.get_ident(), 0

        def put(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            nonlocal calls
            if threading.get_ident() != thread:
                return None
            calls += 1
            return activations.clone() if calls == self._injected.call else None

        assert self._point.module is not None
        handle = add_hook(self._point.module, put)
        try:
            with torch.no_grad():
                return self._probe.model(images.clone(), *args, **kwargs)
        finally:
            handle.remove()

    def _inputs(self, image: int, count: int) -> tuple[Tensor, Tensor]:
        images = self._images[image, None].expand(count, *self._images.shape[1:])
        return images, self._rows[image].expand(count)


class _Record:
    """Writes down, for the length of a block, what each module beside the way to the layer returned before it."""

    def __init__(self, model: nn.Module, point: LayerPoint) -> None:
        self.point = point
        self.call = point.call or 1
        self._thread = threading.get_ident()
        self._beside = _modules_beside(model, point)
        self._returned: dict[int, tuple[nn.Module, list[Any]]] = {}
        self._layer_calls = 0
        self._stack = ExitStack()

    def __enter__(self) -> _Record:
        for module in self._beside:
            self._stack.callback(add_hook(module, self._note).remove)
        assert self.point.module is not None
        self._stack.callback(add_hook(self.point.module, self._note_layer).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def returned(self) -> list[tuple[nn.Module, list[Any]]]:
        """Each module with its outputs in the order of its calls."""
        return list(self._returned.values())

    def _note(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() == self._thread and self._layer_calls < self.call:
            self._returned.setdefault(id(module), (module, []))[1].append(_kept(output))

    def _note_layer(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() == self._thread:
            self._layer_calls += 1


def _kept(value: Any) -> Any:
    """A copy of an output: later modules may write into the original in place."""
    return _mapped(value, lambda tensor: tensor.detach().clone())


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_mapped(item, function) for item in value)
    return value


def _modules_beside(model: nn.Module, point: LayerPoint) -> list[nn.Module]:
    """The children of the modules that contain the layer, without those that contain it or are it.

    A list or dictionary of modules never runs itself, so its members stand in its place.
    """
    name = point.name.partition(":")[0]
    parts = name.split(".")
    way = [model]
    for part in parts:
        way.append(way[-1]._modules[part])  # type: ignore[arg-type]
    containers = way[:-1]
    on_way = {id(module) for module in way}
    beside = {id(child): child for parent in containers for child in _running(parent) if id(child) not in on_way}
    return list(beside.values())


def _running(parent: nn.Module) -> Iterator[nn.Module]:
    """The children that are called as such."""
    for child in parent.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _running(child)
        else:
            yield child
