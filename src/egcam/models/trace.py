"""Follow one image through a network: which modules run, what each puts out, and what of it comes from the image."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError
from egcam.models.axes import Axis, axis_of_module, axis_of_shape
from egcam.models.inputs import ExtraInputs
from egcam.models.restore import add_hook, untouched
from egcam.models.shadow import meta_copy

_POOLING = re.compile(r"Adaptive|Global|AttentionPool", re.IGNORECASE)
_ATTENTION = re.compile(r"Atten|Attn", re.IGNORECASE)
_BENDING = re.compile(r"[A-Z]*LU\d?$|Swish|Mish|Sigmoid|Tanh|Softmax|Softplus|Max|(Layer|Group|Instance|RMS)Norm")


@dataclass(frozen=True)
class Call:
    """One call of one module in a dry run.

    Attributes:
        axis: where the module's kind says its channels are.
        shape: of what it put out.
        value: identity and version of that tensor.
        inputs: the identities of the tensors it took.
        shape_in: of the first of those.
        multiplications: with the module's own weights.
        bends: whether the module's kind is known not to be linear: activation functions, normalisations, maxima.
        sees_image: whether what it put out depends on the image, by differentiable operations.
    """

    name: str
    pooling: bool
    in_attention: bool
    weighted: bool
    axis: Axis | None
    started: int
    finished: int
    shape: tuple[int, ...]
    value: tuple[int, int]
    inputs: frozenset[int]
    shape_in: tuple[int, ...]
    bytes: int
    multiplications: int = 0
    bends: bool = False
    sees_image: bool = False


@dataclass(frozen=True)
class Trace:
    """All calls of a dry run with one image, in the order they finished.

    Attributes:
        image: the identity of the image.
        image_shape: (channels, height, width).
        classes: how many the network tells apart, where its output shows it.
        other_inputs: whether the network takes other tensors, too.
    """

    calls: tuple[Call, ...]
    image: int
    image_shape: tuple[int, int, int]
    classes: int | None
    other_inputs: bool

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the image."""
        return self.image_shape[1], self.image_shape[2]

    @property
    def calls_on_image(self) -> tuple[Call, ...]:
        """The calls whose output depends on the image; all, if the network switches gradients off and none shows it."""
        return tuple(call for call in self.calls if call.sees_image) or self.calls

    def calls_of(self, name: str) -> list[Call]:
        """The calls of one module."""
        return [call for call in self.calls if call.name == name]

    def axis(self, call: Call) -> Axis | None:
        """Where the (N, ., ., .) that a call put out has its channels; None where that cannot be told."""
        by_tensor, by_shape = self._told
        told = by_tensor.get(call.value[0]) or by_shape.get(call.shape) or set()
        return axis_of_shape(call.shape, self.image_size, told)

    @cached_property
    def _told(self) -> tuple[dict[int, set[Axis]], dict[tuple[int, ...], set[Axis]]]:
        """What modules that know where their channels are say, of the tensors they put out or take and of shapes."""
        by_tensor: defaultdict[int, set[Axis]] = defaultdict(set)
        by_shape: defaultdict[tuple[int, ...], set[Axis]] = defaultdict(set)
        for call in self.calls:
            if call.axis is not None:
                by_shape[call.shape].add(call.axis)
                for tensor in {call.value[0], *call.inputs}:
                    by_tensor[tensor].add(call.axis)
        return by_tensor, by_shape

    def map_shape(self, call: Call) -> tuple[int, int, int]:
        """(channels, height, width) of the (N, ., ., .) that a call put out."""
        _, first, second, third = call.shape
        return (third, first, second) if self.axis(call) == "channels-last" else (first, second, third)

    def bytes_per_image(self, layers: Sequence[str]) -> int:
        """About how much memory one image needs in a pass with gradients at `layers`.

        Before the first layer nothing is kept, so a few of the largest outputs are alive at once; from there on every
        output stays for the backward pass, and its gradient comes on top.
        """
        first = self._first_end(layers)
        before = max((call.bytes for call in self.calls if call.finished <= first), default=0)
        return 3 * before + self.bytes_of_tail(layers)

    def bytes_of_tail(self, layers: Sequence[str]) -> int:
        """About how much memory one image needs from the first of `layers` on, with gradients."""
        first = self._first_end(layers)
        return 2 * sum(call.bytes for call in self.calls if call.finished > first)

    def bends_after(self, layer: str) -> bool:
        """Whether a module that is known not to be linear runs after a layer."""
        end = self._first_end([layer])
        return any(call.bends and call.started > end for call in self.calls)

    def _first_end(self, layers: Sequence[str]) -> int:
        plain = [name.partition(":")[0] for name in layers]
        return min((call.finished for call in self.calls if call.name in plain), default=-1)


def dry_run(model: nn.Module, images: Tensor, extra: ExtraInputs | None = None) -> Trace:
    """Follow one image through the network: on meta tensors where the network allows, else for real."""
    extra = extra or ExtraInputs(len(images))
    args, kwargs = extra.rows(torch.zeros(1, dtype=torch.long, device="cpu"))
    one = images[:1].detach()
    with untouched(model, images.device):
        try:
            moved = {name: _to_meta(value) for name, value in kwargs.items()}
            return _trace(meta_copy(model), one.to("meta"), tuple(_to_meta(value) for value in args), moved)
        except EgcamError:
            raise
        except Exception:  # data-dependent code, tensors held outside buffers, operators without meta kernels
            pass
        if _has_tensors(args, kwargs):
            # Only then is it a question what depends on the image, and worth a history that some code does not take.
            try:
                return _trace(model, one, args, kwargs)
            except EgcamError:
                raise
            except Exception:  # or the user's own mistake, which shows again
                pass
        return _trace(model, one, args, kwargs, with_history=False)


def _to_meta(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, tuple | list):
        return type(value)(_to_meta(item) for item in value)
    if isinstance(value, dict):
        return {name: _to_meta(item) for name, item in value.items()}
    return value


def _trace(
    model: nn.Module, one: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], with_history: bool = True
) -> Trace:
    with torch.set_grad_enabled(with_history):
        # Copies: the model may write into its input, which a tensor that gradients start from does not allow.
        image = one.clone().requires_grad_(with_history and one.is_floating_point()).clone()
        recorder = _Recorder(image)
        handles = []
        try:
            for name, module in model.named_modules():
                handles.append(add_hook(module, recorder.enter(name), before=True))
                handles.append(add_hook(module, recorder.leave(name)))
            output = model(image, *args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
    _, channels, height, width = one.shape
    return Trace(
        calls=tuple(recorder.calls_seen()),
        image=id(image),
        image_shape=(channels, height, width),
        classes=_class_count(output),
        other_inputs=_has_tensors(args, kwargs),
    )


def _has_tensors(*values: object) -> bool:
    return any(
        isinstance(value, Tensor)
        or (isinstance(value, dict) and _has_tensors(*value.values()))
        or (isinstance(value, tuple | list) and _has_tensors(*value))
        for value in values
    )


def _class_count(output: object) -> int | None:
    from egcam.models.targets import class_scores

    try:
        return class_scores(output, 1).shape[1]
    except EgcamError:
        return None


class _Recorder:
    """Hooks that write down every call of the thread that made it."""

    def __init__(self, image: Tensor) -> None:
        self._image = image
        self._origin = image.grad_fn
        self._calls: list[Call] = []
        self._histories: list[Any] = []
        self._thread = threading.get_ident()
        self._clock = 0
        self._open: list[int] = []
        self._alive: list[Tensor] = []  # identity is told by id(), so nothing seen may be freed meanwhile
        self._names: list[tuple[bool, bool]] = []

    def enter(self, name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        def hook(module: nn.Module, args: tuple[object, ...]) -> None:
            if threading.get_ident() != self._thread:
                return
            self._clock += 1
            self._open.append(self._clock)
            # Whole networks have such names, too: AttentionNet, GlobalLocalNet.
            whole = not name or (any(True for _ in module.children()) and any(arg is self._image for arg in args))
            kinds = (False, False) if whole else (_matches(_POOLING, module), _matches(_ATTENTION, module))
            self._names.append(kinds)

        return hook

    def leave(self, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, args: tuple[object, ...], output: object) -> None:
            if threading.get_ident() != self._thread:
                return
            self._clock += 1
            inside_pooling = any(pooling for pooling, _ in self._names)
            self._names.pop()
            started = self._open.pop()
            tensor = tensor_in(output)
            if tensor is None:
                return
            taken = [value for value in args if isinstance(value, Tensor)]
            self._alive += [tensor, *taken]
            self._histories.append(tensor.grad_fn)
            self._calls.append(
                Call(
                    name=name,
                    pooling=inside_pooling,
                    in_attention=any(attention for _, attention in self._names),
                    weighted=any(True for _ in module.parameters(recurse=False)),
                    axis=axis_of_module(module, tuple(tensor.shape)),
                    started=started,
                    finished=self._clock,
                    shape=tuple(tensor.shape),
                    value=(id(tensor), tensor._version),
                    inputs=frozenset(id(value) for value in taken),
                    shape_in=tuple(taken[0].shape) if taken else (),
                    bytes=tensor.numel() * tensor.element_size() // max(1, tensor.shape[0] if tensor.ndim else 1),
                    multiplications=_multiplications(module, tensor),
                    bends=_matches(_BENDING, module),
                )
            )

        return hook

    def calls_seen(self) -> list[Call]:
        """The calls, each with whether it depends on the image."""
        known: dict[Any, bool] = {None: False, self._origin: self._origin is not None}
        return [
            replace(call, sees_image=_leads_to_known(history, known))
            for call, history in zip(self._calls, self._histories, strict=True)
        ]


def _leads_to_known(history: Any, known: dict[Any, bool]) -> bool:
    """Whether a node of autograd's graph leads to one that is known to be true; all nodes on the way get known."""
    waiting = [history]
    while waiting:
        node = waiting[-1]
        if node in known:
            waiting.pop()
            continue
        before = [earlier for earlier, _ in node.next_functions]
        unknown = [earlier for earlier in before if earlier not in known]
        if unknown:
            waiting += unknown
            continue
        known[node] = any(known[earlier] for earlier in before)
        waiting.pop()
    return known[history]


def _matches(pattern: re.Pattern[str], module: nn.Module) -> bool:
    return bool(pattern.search(type(module).__name__))


def _multiplications(module: nn.Module, output: Tensor) -> int:
    """Each weight of a convolution or linear layer is used once for each position it puts out."""
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim < 2 or not len(weight):
        return 0
    return weight.numel() * (output.numel() // len(weight))


def tensor_in(output: object) -> Tensor | None:
    """The tensor a module puts out: itself, or the first one of a tuple, list or dict."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)
