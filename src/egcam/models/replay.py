"""Run only what comes after a layer.

A network is a program, so its tail cannot be cut off in general. But its modules up to the layer can be answered from
memory: in a shallow copy of the module tree, every module that finished before the layer ran is replaced by one that
returns what it returned then, and the layer by one that returns the activations to try. What is left to compute is the
tail, and whatever little a forward method does outside modules. The copy shares all weights; the model is not touched.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from egcam.models.capture import Probe
from egcam.models.guard import add_hook
from egcam.models.layers import LayerPoint, tensor_in
from egcam.models.nested import mapped_tensors, tensors_in
from egcam.models.shadow import replace_modules

_UNKNOWN = object()
"""Stands for an output that cannot be repeated, so that the module has to run."""


class _Memory:
    """What modules returned before the layer ran; shared by all stand-ins of one replay."""

    def __init__(self, images: int) -> None:
        self.remembered = images
        self.passed_layer = False
        self.copies = 1
        self.image = 0
        self.materialise = False

    def repeated(self, value: Any) -> Any:
        """A remembered output for `copies` rows of the image that is replayed.

        Always fresh memory, for the network may write into what a module returned.
        """
        return mapped_tensors(value, self._rows)

    def _rows(self, tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != self.remembered:
            return tensor.clone()
        one = tensor[self.image, None].clone()
        many = one.expand(self.copies, *one.shape[1:])
        return many.clone() if self.materialise else many


class _StandIn(nn.Module):
    """Takes a module's place in the copy; what is read from it, such as `out_channels`, is read from the module.

    Its own attributes begin with `replay_`, so that they hide none of the module's.
    """

    def __init__(self, original: nn.Module, memory: _Memory) -> None:
        super().__init__()
        self.replay_original = (original,)  # in a tuple, so that the user's module is not registered as a child
        self.replay_memory = memory
        self.replay_calls = 0
        # .eval() would reach no user module, for the original is not registered.
        self.training = False

    def __getattr__(self, name: str) -> Any:
        if "replay_original" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.replay_original[0], name)


class _FromMemory(_StandIn):
    """Stands in for a module that ran before the layer: returns what that returned, call by call."""

    def __init__(self, original: nn.Module, memory: _Memory, outputs: list[Any]) -> None:
        super().__init__(original, memory)
        self.replay_outputs = outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The remembered output of this call, or the module itself once the layer has run."""
        self.replay_calls += 1
        known = not self.replay_memory.passed_layer and self.replay_calls <= len(self.replay_outputs)
        output = self.replay_outputs[self.replay_calls - 1] if known else _UNKNOWN
        if output is _UNKNOWN:
            return self.replay_original[0](*args, **kwargs)
        return self.replay_memory.repeated(output)


class _Injected(_StandIn):
    """Stands in for the layer: returns the activations to try, in the form the layer puts them out."""

    def __init__(self, original: nn.Module, memory: _Memory, call: int, output: Any) -> None:
        super().__init__(original, memory)
        self.replay_call = call
        self.replay_output = output
        self.replay_activations: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The activations at the explained call, the module itself at others."""
        self.replay_calls += 1
        if self.replay_calls != self.replay_call:
            return self.replay_original[0](*args, **kwargs)
        self.replay_memory.passed_layer = True
        if self.replay_output is _UNKNOWN:
            raise TypeError("the layer's output cannot be repeated")
        assert self.replay_activations is not None
        return _with_first_tensor(self.replay_memory.repeated(self.replay_output), self.replay_activations)


class Replay:
    """The tail of a network after one layer, for the images of one forward pass.

    Whether the tail can be run by itself is tried out for each image: it must give the output that the whole network
    gave. Where it does not, or fails, the whole network is run instead.

    Args:
        probe: the model at a single layer whose tensor is (N, K, h, w).
        images: (n, C, H, W) the images of this replay.
        rows: (n,) their numbers in the call.
        count: told the number of single-image passes through the whole network, as they are made.

    Attributes:
        output: what the model returned for the images.
        activations: (n, K, h, w) at the layer.
    """

    def __init__(self, probe: Probe, images: Tensor, rows: Tensor, count: Callable[[int], None]) -> None:
        (self._point,) = probe.points
        assert self._point.module is not None
        self._probe = probe
        self._images = images
        self._rows = rows
        self._count = count
        record = _Record(probe.model, self._point)
        with torch.no_grad(), record:
            seen = probe.forward(images, rows)
        count(len(images))
        self.output = seen.output
        self.activations = seen.activations[0]
        self._memory = _Memory(len(images))
        self._injected = _Injected(self._point.module, self._memory, record.call, record.layer_output)
        self._stand_ins = {
            id(module): _FromMemory(module, self._memory, outputs) for module, outputs in record.returned()
        }
        replaced: dict[int, nn.Module] = {**self._stand_ins, id(self._point.module): self._injected}
        self._shadow: nn.Module | None = None
        try:
            self._shadow = replace_modules(probe.model, replaced)
        except Exception:  # a module that cannot be copied without its constructor, as sharded ones
            self._forget()
        self._proven: set[int] = set()

    def run(self, activations: Tensor, image: int) -> Any:
        """The model's output when the layer puts out `activations` (B, K, h, w) for image number `image`."""
        if self._shadow is not None and image not in self._proven:
            if self._is_true(image):
                self._proven.add(image)
            else:
                self._forget()
        if self._shadow is not None:
            try:
                return self._tail(activations, image)
            except Exception:  # whatever is wrong with the network itself shows in the whole pass
                self._forget()
        return self._whole(activations, image)

    def _forget(self) -> None:
        """Give up on the tail, and let go of what was remembered for it."""
        self._shadow = None
        self._stand_ins.clear()

    def _is_true(self, image: int) -> bool:
        """Whether replaying the true activations gives the true output; networks with side doors do not.

        Two rows are replayed, for some things go wrong only with several.
        """
        twice = self.activations[image, None].expand(2, *self.activations.shape[1:])
        try:
            again = list(tensors_in(self._tail(twice, image)))
        except Exception:
            return False
        if not again or not self._memory.passed_layer:
            return False
        truth = list(tensors_in(self.output))
        if all(tensor.ndim > 0 and len(tensor) == len(self._images) for tensor in truth):
            truth = [tensor[image, None].expand(2, *tensor.shape[1:]) for tensor in truth]
        else:
            truth = list(tensors_in(self._whole(twice, image)))
        return len(again) == len(truth) and all(map(_alike, again, truth))

    def _tail(self, activations: Tensor, image: int) -> Any:
        try:
            return self._replay(activations, image)
        except Exception:
            if self._memory.materialise:
                raise
            # Something writes in place into a remembered tensor, which as a mere repetition cannot be written to.
            self._memory.materialise = True
            return self._replay(activations, image)

    def _replay(self, activations: Tensor, image: int) -> Any:
        assert self._shadow is not None
        self._memory.passed_layer = False
        self._memory.copies = len(activations)
        self._memory.image = image
        self._injected.replay_calls = 0
        self._injected.replay_activations = activations.clone()
        for stand_in in self._stand_ins.values():
            stand_in.replay_calls = 0
        images, rows = self._inputs(image, len(activations))
        args, kwargs = self._probe.extra.rows(rows)
        # A repetition cannot be written to as a whole, but each of its rows can.
        images = images.clone() if self._memory.materialise else images[:1].clone().expand_as(images)
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
            return _with_first_tensor(output, activations.clone()) if calls == self._injected.replay_call else None

        assert self._point.module is not None
        self._count(len(activations))
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
        self.layer_output: Any = None
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
            if self._layer_calls == self.call:
                self.layer_output = _kept(output)


def _kept(value: Any) -> Any:
    """A copy of an output, for later modules may write into it; unknown where tensors may be hidden in it."""
    return mapped_tensors(value, lambda tensor: tensor.detach().clone()) if _is_plain(value) else _UNKNOWN


def _is_plain(value: Any) -> bool:
    """Whether it is made of tensors, numbers, texts and Python's own containers."""
    if type(value) in (dict, OrderedDict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, Tensor | bool | int | float | str)


def _with_first_tensor(output: Any, new: Tensor) -> Any:
    """A layer's output with `new` in place of the tensor that `tensor_in` finds in it."""
    old = tensor_in(output)
    return mapped_tensors(output, lambda tensor: new if tensor is old else tensor)


def _alike(first: Tensor, second: Tensor) -> bool:
    """Equal but for rounding. What is not finite proves nothing."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    if not bool(first.isfinite().all()) or not bool(second.isfinite().all()):
        return False
    tolerance = 1e-2 if first.dtype in (torch.float16, torch.bfloat16) else 1e-4
    largest = float(second.abs().max()) if second.numel() else 0.0
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * largest + 1e-12)


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
