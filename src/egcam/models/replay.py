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

from egcam.errors import LayerError
from egcam.models.capture import Probe
from egcam.models.layers import LayerPoint
from egcam.models.nested import mapped_tensors, tensors_in
from egcam.models.restore import add_hook
from egcam.models.shadow import replace_modules
from egcam.models.trace import tensor_in
from egcam.rng import generator

_UNKNOWN = object()
"""Stands for an output that cannot be repeated, so that the module has to run."""


class _Memory:
    """What modules returned before the layer ran; shared by all stand-ins of one replay."""

    def __init__(self, images: int) -> None:
        self.remembered = images
        self.passed_layer = False
        self.own = torch.zeros(1, dtype=torch.long, device="cpu")
        self.row_by_row = False

    def repeated(self, value: Any) -> Any:
        """A remembered output for the images that are replayed.

        Always fresh memory, for the network may write into what a module returned.
        """
        return mapped_tensors(value, self._rows)

    def _rows(self, tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != self.remembered:
            return tensor.clone()
        if self.row_by_row:
            return tensor[self.own.to(tensor.device)]
        # Mostly nobody looks at it, so the first row stands for all of them at no cost. Where somebody does, the check
        # of the output shows it, unless all rows are of one image; then it is right.
        one = tensor[int(self.own[0]), None].clone()
        return one.expand(len(self.own), *one.shape[1:])


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

    Whether the tail can be run by itself is tried out with the images: it must give the output that the whole network
    gave. Where it does not, or fails, the whole network is run instead. What does not pass through the layer, such as a
    skip connection around it, is what the image makes it.

    Args:
        probe: the model at a single layer.
        images: (n, C, H, W) the images of this replay.
        rows: (n,) their numbers in the call.
        count: told the number of single-image passes through the whole network, as they are made.

    Attributes:
        output: what the model returned for the images.
        activations: (n, …) what the layer put out, before any reshaping.
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
            self.output = probe.forward(images, rows).output
        count(len(images))
        activations = tensor_in(record.layer_output)
        assert activations is not None
        self.activations = activations
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
        self._is_proven = False

    @property
    def runs_by_itself(self) -> bool:
        """Whether the tail alone is run, rather than the whole network."""
        if self._shadow is not None and not self._is_proven:
            self._prove()
        return self._shadow is not None

    @property
    def layer(self) -> str:
        """The name of the layer."""
        return self._point.name

    def as_maps(self, tensor: Tensor) -> Tensor:
        """What the layer puts out, as (B, K, h, w)."""
        return self._probe.as_maps(self._point, tensor, self._images[:1].expand(len(tensor), *self._images.shape[1:]))

    def run(self, activations: Tensor, own: Tensor) -> Any:
        """The model's output when the layer puts out `activations` (B, …), row b for image number `own[b]`."""
        with torch.no_grad():
            return self._run(activations, own)

    def gradients(self, activations: Tensor, own: Tensor, score: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """(B,) the scores at `activations` (B, …), and their gradient there, (B, …).

        Args:
            activations: what the layer puts out.
            own: (B,) the number of the image each row belongs to.
            score: from the model's output to the (B,) numbers explained.
        """
        with torch.enable_grad():
            leaf = activations.detach().requires_grad_()
            scores = score(self._run(leaf, own))
            found = torch.autograd.grad(scores.sum(), leaf, allow_unused=True)[0] if scores.requires_grad else None
        if found is None:
            raise LayerError(
                f"the explained score does not depend on {self._point.name!r} through differentiable operations; "
                "choose a layer between the image and the score (and a target that does not detach it)"
            )
        return scores.detach(), found

    def is_affine(self, numbers: Callable[[Any], Tensor]) -> bool:
        """Whether some numbers of the output, (3, …), are an affine function of what the layer puts out.

        As where nothing but pooling and a linear layer follows. Tried around the first image:
        f((u + v) / 2) = (f(u) + f(v)) / 2 for points u and v far apart in random directions, which no activation
        function and no normalisation survives. Takes three rows of the tail.
        """
        here = self.activations[0]
        far = 3.0 * float(here.float().std())
        chance = generator(0, "affine")
        steps = torch.randn((2, *here.shape), generator=chance, device="cpu", dtype=torch.float32).to(here)
        u, v = here + far * steps[0], here - far * steps[1]
        own = torch.zeros(3, dtype=torch.long, device="cpu")
        at_u, at_v, between = numbers(self.run(torch.stack([u, v, (u + v) / 2]), own)).double()
        tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(here.dtype, 1e-2)
        bend = (between - (at_u + at_v) / 2).abs().max()
        return bool((at_u != at_v).all() and bend <= tolerance * (at_u.abs() + at_v.abs()).max())

    def _run(self, activations: Tensor, own: Tensor) -> Any:
        if self._shadow is not None and not self._is_proven:
            output = self._run_and_prove(activations, own)
            if output is not _UNKNOWN:
                return output
        if self.runs_by_itself:
            try:
                return self._replay(activations, own)
            except Exception:  # whatever is wrong with the network itself shows in the whole pass
                self._forget()
        return self._whole(activations, own)

    def _forget(self) -> None:
        """Give up on the tail, and let go of what was remembered for it."""
        self._shadow = None
        self._stand_ins.clear()

    def _run_and_prove(self, activations: Tensor, own: Tensor) -> Any:
        """Run with the true activations as further rows, whose output must be the true one: a check at no further run.

        Unknown where the output is not made of rows, or is not the true one.
        """
        truth = list(tensors_in(self.output))
        count = len(self._images)
        if not _is_plain(self.output) or not all(tensor.ndim > 0 and len(tensor) == count for tensor in truth):
            return _UNKNOWN
        rows = torch.cat([own, torch.arange(count, device="cpu")])
        try:
            output = self._replay(torch.cat([activations, self.activations]), rows)
        except Exception:
            return _UNKNOWN
        again = list(tensors_in(output))
        if not self._memory.passed_layer or any(len(tensor) != len(rows) for tensor in again):
            return _UNKNOWN
        if len(again) != len(truth) or not all(map(_alike, [tensor[len(own) :].detach() for tensor in again], truth)):
            return _UNKNOWN
        self._is_proven = True
        return mapped_tensors(output, lambda tensor: tensor[: len(own)])

    def _prove(self) -> None:
        """Try cheaply remembered rows, then each image's own; give up where neither gives the true output."""
        for row_by_row in (False, True):
            self._memory.row_by_row = row_by_row
            if self._is_true():
                self._is_proven = True
                return
        self._forget()

    def _is_true(self) -> bool:
        """Whether replaying the true activations gives the true output; networks with side doors do not.

        A single image is replayed as two rows, for some things go wrong only with several.
        """
        own = torch.arange(len(self._images), device="cpu")
        own = own.repeat(2) if len(own) == 1 else own
        activations = self.activations[own.to(self.activations.device)]
        try:
            with torch.no_grad():
                again = list(tensors_in(self._replay(activations, own)))
        except Exception:
            return False
        if not again or not self._memory.passed_layer:
            return False
        truth = list(tensors_in(self.output))
        if all(tensor.ndim > 0 and len(tensor) == len(self._images) for tensor in truth):
            truth = [tensor[own.to(tensor.device)] for tensor in truth]
        else:
            with torch.no_grad():
                truth = list(tensors_in(self._whole(activations, own)))
        return len(again) == len(truth) and all(map(_alike, again, truth))

    def _replay(self, activations: Tensor, own: Tensor) -> Any:
        assert self._shadow is not None
        self._memory.passed_layer = False
        self._memory.own = own
        self._injected.replay_calls = 0
        # A copy, for the next module may work in place.
        self._injected.replay_activations = activations.clone()
        for stand_in in self._stand_ins.values():
            stand_in.replay_calls = 0
        args, kwargs = self._probe.extra.rows(self._rows[own])
        try:
            return self._shadow(self._memory.repeated(self._images), *args, **kwargs)
        finally:
            self._injected.replay_activations = None

    def _whole(self, activations: Tensor, own: Tensor) -> Any:
        """The same by brute force: the whole network, with the layer's output replaced on the way."""
        args, kwargs = self._probe.extra.rows(self._rows[own])
        thread, calls = threading.get_ident(), 0
        with_gradient = torch.is_grad_enabled()

        def put(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            nonlocal calls
            if threading.get_ident() != thread:
                return None
            calls += 1
            if calls != self._injected.replay_call:
                return None
            torch.set_grad_enabled(with_gradient)
            return _with_first_tensor(output, activations.clone())

        assert self._point.module is not None
        self._count(len(activations))
        handle = add_hook(self._point.module, put)
        try:
            with torch.no_grad():
                return self._probe.model(self._images[own.to(self._images.device)], *args, **kwargs)
        finally:
            handle.remove()


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
