"""Run only what comes after a layer.

A network is a program, so its tail cannot be cut off in general. But its modules up to the layer can be answered from
memory: in a shallow copy of the module tree, every module that finished before the layer ran is replaced by one that
returns what it returned then, and the layer by one that returns the activations to try. What is left to compute is the
tail, and whatever little a forward method does outside modules. The copy shares all weights; the model is not touched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from egcam.errors import LayerError
from egcam.models.capture import Probe, does_not_reach, gradients_of
from egcam.models.layers import LayerPoint
from egcam.models.nested import mapped_tensors, tensors_in, with_first_tensor
from egcam.models.restore import add_hook
from egcam.models.shadow import replace_modules
from egcam.models.slopes import Recording, SlopeGraph

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

        Always fresh memory, because the network may write into what a module returned.
        """
        return mapped_tensors(value, self._rows)

    def _rows(self, tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != self.remembered:
            return tensor.clone()
        if self.row_by_row:
            return tensor[self.own.to(tensor.device)]
        # The output is mostly unused, so the first row is repeated for all at no cost. If it is used, the check of the
        # output reveals it, unless all rows are of one image; then it is right.
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
    """Stands in for the layer: returns the activations to try, in the form of the layer's output."""

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
        if self.replay_activations.requires_grad:
            torch.set_grad_enabled(True)  # the network may have switched them off around the layer
        return with_first_tensor(self.replay_memory.repeated(self.replay_output), self.replay_activations)


class Replay:
    """The tail of a network after one layer, for the images of one forward pass.

    Whether the tail can be run alone is tried with the images: it must give the output that the whole network
    gave. Where it does not, or fails, the whole network is run instead. What does not pass through the layer, such as a
    skip connection around it, is what the image makes it.

    Args:
        probe: the model at a single layer.
        images: (n, C, H, W) the images of this replay.
        rows: (n,) their numbers in the call.
        count: called with the number of single-image passes through the whole network, as they are made.
        recording: writes down the pass over the images; see `egcam.models.slopes`.
        proofs: what earlier replays of this network found out, by layer: whether each image's rows must be remembered,
            or None where the whole network has to run.

    Attributes:
        output: what the model returned for the images.
        activations: (n, …) what the layer returned, before any reshaping.
    """

    def __init__(
        self,
        probe: Probe,
        images: Tensor,
        rows: Tensor,
        count: Callable[[int], None],
        recording: Recording | None = None,
        proofs: dict[str, bool | None] | None = None,
    ) -> None:
        (self._point,) = probe.points
        assert self._point.module is not None
        self._probe = probe
        self._images = images
        self._rows = rows
        self._count = count
        record = _Record(probe.model, self._point)
        with torch.no_grad(), record:
            seen = probe.forward(images, rows) if recording is None else probe.recorded(images, rows, recording)
        self.output = seen.output
        count(len(images))
        (activations,) = seen.raw
        check_rows(self._point.name, activations, len(images))
        self.activations = activations
        self._layer_calls = record.layer_calls
        self._memory = _Memory(len(images))
        self._injected = _Injected(self._point.module, self._memory, record.call, record.layer_output)
        self._stand_ins = {
            id(module): _FromMemory(module, self._memory, outputs) for module, outputs in record.returned()
        }
        self._shadow: nn.Module | None = None
        try:
            self._shadow = replace_modules(probe.model, self._replaced())
        except Exception:  # a module that cannot be copied without its constructor, as sharded ones
            self._forget()
        self._is_proven = False
        self._proofs = {} if proofs is None else proofs
        if self.layer in self._proofs:
            self._take_proof(self._proofs[self.layer])

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
        """What the layer outputs, as (B, K, h, w)."""
        return self._probe.as_maps(self._point, tensor, self._images[:1].expand(len(tensor), *self._images.shape[1:]))

    def run(self, activations: Tensor, own: Tensor) -> Any:
        """The model's output when the layer outputs `activations` (B, …), row b for image number `own[b]`."""
        with torch.no_grad():
            return self._run(activations, own)

    def gradients(self, activations: Tensor, own: Tensor, score: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """(B,) the scores at `activations` (B, …), and their gradient there, (B, …).

        Args:
            activations: what the layer outputs.
            own: (B,) the number of the image each row belongs to.
            score: from the model's output to the (B,) numbers explained.
        """
        return gradients_at(activations, lambda leaf: score(self._run(leaf, own)), self._point.name)

    def curvature(self, activations: Tensor, own: Tensor, score: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """The gradient at `activations` (B, …), and H A: how it changes along the activations themselves."""
        # The fused forms of attention have no second derivatives.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            leaf = activations.detach().requires_grad_()
            scores = score(self._run(leaf, own))
            found = gradients_of(scores, [leaf], create_graph=True)
            if found is None:
                raise does_not_reach(repr(self._point.name))
            (gradient,) = found
            if not gradient.requires_grad:  # the score is linear in them
                return gradient.detach(), torch.zeros_like(gradient)
            (product,) = torch.autograd.grad(gradient, leaf, leaf.detach(), allow_unused=True)
        return gradient.detach(), torch.zeros_like(gradient) if product is None else product

    def graph(self, activations: Tensor, own: Tensor, graph: SlopeGraph) -> tuple[Tensor, Any]:
        """A copy of `activations` (B, …) to start from, and the model's output for it, with the graph between them."""
        leaf = activations.detach().clone().requires_grad_()
        self.runs_by_itself  # noqa: B018 (tried now, because it takes rows of its own)
        with torch.no_grad(), graph.watching(self._probe.model):
            start = graph.mark(leaf).clone()
            output = self._replay(start, own) if self._shadow is not None else self._whole(start, own)
        return leaf, output

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

    def _replaced(self) -> dict[int, nn.Module]:
        assert self._point.module is not None
        return {**self._stand_ins, id(self._point.module): self._injected}

    def _forget(self) -> None:
        """Give up on the tail, and free what was stored for it."""
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
        proof: bool | None = None
        for row_by_row in (False, True):
            self._memory.row_by_row = row_by_row
            if self._is_true():
                proof = row_by_row
                break
        self._proofs[self.layer] = proof
        self._take_proof(proof)

    def _take_proof(self, row_by_row: bool | None) -> None:
        if row_by_row is None:
            self._forget()
        else:
            self._memory.row_by_row, self._is_proven = row_by_row, True

    def _is_true(self) -> bool:
        """Whether replaying the true activations gives the true output; not so if something bypasses the modules.

        A single image is replayed as two rows, because some errors occur only with several.
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
        shadow = self._shadow
        assert shadow is not None
        self._memory.passed_layer = False
        self._memory.own = own
        self._injected.replay_calls = 0
        # A copy, because the next module may work in place.
        self._injected.replay_activations = activations.clone()
        for stand_in in self._stand_ins.values():
            stand_in.replay_calls = 0
        args, kwargs = self._probe.extra.rows(self._rows[own])
        try:
            output = shadow(self._probe.extra.images(self._memory.repeated(self._images)), *args, **kwargs)
        finally:
            self._injected.replay_activations = None
        self._check_calls(self._injected.replay_calls)
        return output

    def _check_calls(self, calls: int) -> None:
        """A layer that runs for each image by itself was given the activations of all at its first run."""
        if calls != self._layer_calls:
            raise LayerError(
                f"layer {self._point.name!r} runs {calls} times in a larger batch and {self._layer_calls} times in a "
                "smaller one: the network takes image after image. Pass batch_size=1"
            )

    def _whole(self, activations: Tensor, own: Tensor) -> Any:
        """The same by brute force: the whole network, with the layer's output replaced on the way."""
        self._count(len(activations))
        return self._probe.replaced(self._images[own.to(self._images.device)], self._rows[own], activations)


def check_rows(layer: str, activations: Tensor, images: int) -> None:
    """Refuse a layer whose output has not one row for each image."""
    if activations.ndim == 0 or len(activations) != images:
        raise LayerError(
            f"layer {layer!r} outputs {tuple(activations.shape)} for {images} image(s): what comes after it cannot "
            "be run for one of them alone. Use a method with gradients at the image, such as 'grad-cam'"
        )


def gradients_at(points: Tensor, scores_of: Callable[[Tensor], Tensor], layer: str) -> tuple[Tensor, Tensor]:
    """(B,) the scores at `points` (B, …), and their gradient there, (B, …); the layer is named if there is none."""
    with torch.enable_grad():
        leaf = points.detach().requires_grad_()
        scores = scores_of(leaf)
        found = gradients_of(scores, [leaf])
    if found is None:
        raise does_not_reach(repr(layer))
    return scores.detach(), found[0]


class _Record:
    """Records, for the length of a block, what each module off the path to the layer returned before the layer ran."""

    def __init__(self, model: nn.Module, point: LayerPoint) -> None:
        self.point = point
        self.call = point.call or 1
        self._beside = _modules_beside(model, point)
        self._returned: dict[int, tuple[nn.Module, list[Any]]] = {}
        self.layer_calls = 0
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
        if self.layer_calls < self.call:
            self._returned.setdefault(id(module), (module, []))[1].append(_kept(output))

    def _note_layer(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.layer_calls += 1
        if self.layer_calls == self.call:
            self.layer_output = _kept(output)


def _kept(value: Any) -> Any:
    """A copy of an output, because later modules may write into it; unknown if it may contain hidden tensors."""
    return mapped_tensors(value, lambda tensor: tensor.detach().clone()) if _is_plain(value) else _UNKNOWN


def _is_plain(value: Any) -> bool:
    """Whether it is made of tensors, numbers, texts and Python's own containers."""
    if type(value) in (dict, OrderedDict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, Tensor | bool | int | float | str)


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
