"""Which layer to explain: by module, by name, or found by a dry run."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError, LayerError, near_misses
from egcam.models.guard import add_hook, untouched
from egcam.models.inputs import ExtraInputs
from egcam.models.shadow import meta_copy

Layer: TypeAlias = nn.Module | str | Sequence[nn.Module | str] | None

_POOLING = re.compile(r"Adaptive|Global|AttentionPool", re.IGNORECASE)
_ATTENTION = re.compile(r"Atten|Attn", re.IGNORECASE)


@dataclass(frozen=True)
class LayerPoint:
    """A place in the network: a module and, for one that runs several times, which of its calls (counted from 1).

    The network's input is a place too; it has no module.
    """

    name: str
    module: nn.Module | None
    call: int | None = None


INPUT = LayerPoint("input", None)


@dataclass(frozen=True)
class Call:
    """One call of one module in a dry run."""

    name: str
    pooling: bool
    in_attention: bool
    weighted: bool
    started: int
    finished: int
    shape: tuple[int, ...]
    value: tuple[int, int]
    inputs: frozenset[int]
    bytes: int


@dataclass(frozen=True)
class Trace:
    """All calls of a dry run with one image, in the order they finished."""

    calls: tuple[Call, ...]
    image: int
    classes: int | None

    def bytes_per_image(self, layers: Sequence[str]) -> int:
        """About how much memory one image needs in a pass with gradients at `layers`.

        Before the first layer nothing is kept, so a few of the largest outputs are alive at once; from there on every
        output stays for the backward pass, and its gradient comes on top.
        """
        starts = [call.finished for call in self.calls if call.name in layers]
        first = min(starts, default=-1)
        before = max((call.bytes for call in self.calls if call.finished <= first), default=0)
        after = sum(call.bytes for call in self.calls if call.finished > first)
        return 3 * before + 2 * after


def resolve(model: nn.Module, layer: Layer, find: Callable[[], str]) -> tuple[LayerPoint, ...]:
    """The places the user named: a module, a dotted name, `"name:2"` for its second call, or a list of those.

    Args:
        model: the plain module.
        layer: what the user said; None means the layer that `find` returns.
        find: called only when it is needed.
    """
    if layer is None:
        return (_named(model, find()),)
    if isinstance(layer, str | nn.Module):
        return (_one(model, layer),)
    points = tuple(_one(model, item) for item in (layer if isinstance(layer, Iterable) else [layer]))
    if not points:
        raise LayerError("the list of layers is empty; pass at least one layer, or None to have it found")
    repeated = [name for name, times in Counter(point.name for point in points).items() if times > 1]
    if repeated:
        raise LayerError(f"layer {repeated[0]!r} is listed twice")
    return points


def _one(model: nn.Module, layer: object) -> LayerPoint:
    if isinstance(layer, str):
        return _named(model, layer)
    if not isinstance(layer, nn.Module):
        raise LayerError(f"a layer is a module of the model or its dotted name, not {type(layer).__name__}")
    for name, module in model.named_modules():
        if module is layer:
            return LayerPoint(name, module)
    raise LayerError(
        f"the {type(layer).__name__} given as layer is not part of this model; pass one of the model's own modules "
        f"or its name, e.g. {_an_example(model)!r}"
    )


def _an_example(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return names[-1] if names else next((name for name, _ in model.named_modules() if name), "")


def _named(model: nn.Module, name: str) -> LayerPoint:
    plain, _, call = name.partition(":")
    for prefix in ("module.", "_orig_mod."):
        if plain not in dict(model.named_modules()):
            plain = plain.removeprefix(prefix)
    modules = dict(model.named_modules(remove_duplicate=False))
    if not plain or plain not in modules:
        known = [known for known in modules if known]
        raise LayerError(f"the model has no layer {name!r}; {near_misses(plain, known)}")
    if call and (not call.isdigit() or int(call) < 1):
        raise LayerError(f"layer {name!r}: after the colon comes the number of the call, from 1, e.g. '{plain}:2'")
    return LayerPoint(name if call else plain, modules[plain], int(call) if call else None)


def find_layer(model: nn.Module, images: Tensor, extra: ExtraInputs | None = None) -> str:
    """The last layer whose output still has spatial extent, global and adaptive pooling aside.

    Where several modules put out that same tensor, the outermost one that does not span the whole network from the
    image on is named: `layer4` rather than `layer4.2`, `features.30` rather than `features`. A map of class scores
    that is only pooled afterwards (SqueezeNet's last convolution) is an output, not a feature layer.
    """
    return last_spatial_layer(dry_run(model, images, extra))


def last_spatial_layer(trace: Trace) -> str:
    """`find_layer`'s rule, on the calls of a dry run."""
    spatial = [call for call in trace.calls if _is_spatial(call)]
    spatial = [call for call in spatial if not _is_class_map(call, trace)]
    if not spatial:
        raise _no_spatial_layer("none of its modules puts out feature maps (N, channels, height, width)")
    last = max(spatial, key=lambda call: call.finished)
    _refuse_channels_last(last, trace)
    _refuse_tokens(last, spatial, trace)
    same = sorted((call for call in spatial if call.value == last.value), key=lambda call: call.finished)
    first = same[0]
    times = Counter(call.name for call in trace.calls)
    family = [
        call
        for call in same
        if (call is first or first.name.startswith(call.name + "."))
        and times[call.name] == 1
        and (call is first or trace.image not in call.inputs)
    ]
    if family:
        return max(family, key=lambda call: call.finished).name
    return f"{first.name}:{sum(call.name == first.name for call in trace.calls if call.finished <= first.finished)}"


def _is_spatial(call: Call) -> bool:
    # Inside attention, four dimensions are heads and tokens; other first dimensions are windows cut from the image.
    if not call.name or call.pooling or call.in_attention or len(call.shape) != 4 or call.shape[0] != 1:
        return False
    return call.shape[2] * call.shape[3] > 1 and not _is_channels_last(call)


def _is_channels_last(call: Call) -> bool:
    if len(call.shape) != 4:
        return False
    _, height, width, channels = call.shape
    return height == width > 1 and channels >= 4 * height


def _is_class_map(call: Call, trace: Trace) -> bool:
    weighted_after = any(other.weighted and other.started > call.finished for other in trace.calls)
    return call.shape[1] == trace.classes and not weighted_after


def _refuse_tokens(last: Call, spatial: list[Call], trace: Trace) -> None:
    """A transformer's patch embedding is spatial too, but the network's work happens on tokens after it."""
    tokens = [call for call in trace.calls if call.weighted and len(call.shape) == 3 and call.shape[1] > 1]
    convolutions = [call for call in spatial if call.weighted]
    if len(tokens) > len(convolutions) and any(call.started > last.finished for call in tokens):
        norms = [call.name for call in tokens if call.name.endswith(("norm1", "ln_1"))] or [tokens[-1].name]
        raise _no_spatial_layer(
            "it works on tokens (N, length, channels)", f"layer={norms[-1]!r} with reshape='tokens'"
        )


def _refuse_channels_last(last: Call, trace: Trace) -> None:
    after = [call for call in trace.calls if call.finished > last.finished and _is_channels_last(call) and call.name]
    if any(call.weighted and call.started > last.finished for call in after):
        raise _no_spatial_layer(
            "its last feature maps are (N, height, width, channels)",
            f"layer={after[-1].name!r} with reshape='channels-last'",
        )


def _no_spatial_layer(why: str, proposal: str = "layer='…' with reshape='tokens' or 'channels-last'") -> LayerError:
    return LayerError(
        f"no layer to explain was found in this network: {why}. Pass {proposal}, or a layer and a callable reshape "
        "that turns its output into (N, channels, height, width)"
    )


def dry_run(model: nn.Module, images: Tensor, extra: ExtraInputs | None = None) -> Trace:
    """Follow one image through the network: on meta tensors where the network allows, else for real."""
    extra = extra or ExtraInputs(len(images))
    args, kwargs = extra.rows(torch.zeros(1, dtype=torch.long, device="cpu"))
    one = images[:1].detach()
    with untouched(model, images.device), torch.no_grad():
        try:
            moved = (_to_meta(one), *(_to_meta(value) for value in args))
            return _trace(meta_copy(model), moved, {name: _to_meta(value) for name, value in kwargs.items()})
        except EgcamError:
            raise
        except Exception:  # data-dependent code, tensors held outside buffers, operators without meta kernels
            return _trace(model, (one.clone(), *args), kwargs)


def _to_meta(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, tuple | list):
        return type(value)(_to_meta(item) for item in value)
    if isinstance(value, dict):
        return {name: _to_meta(item) for name, item in value.items()}
    return value


def _trace(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> Trace:
    recorder = _Recorder()
    handles = []
    try:
        for name, module in model.named_modules():
            handles.append(add_hook(module, recorder.enter, before=True))
            handles.append(add_hook(module, recorder.leave(name)))
        output = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return Trace(tuple(recorder.calls), id(args[0]), _class_count(output))


def _class_count(output: object) -> int | None:
    from egcam.models.targets import class_scores

    try:
        return class_scores(output, 1).shape[1]
    except EgcamError:
        return None


class _Recorder:
    """Hooks that write down every call of the thread that made it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._thread = threading.get_ident()
        self._clock = 0
        self._open: list[int] = []
        self._alive: list[Tensor] = []  # identity is told by id(), so nothing seen may be freed meanwhile
        self._pooling = 0
        self._attention = 0

    def enter(self, module: nn.Module, args: tuple[object, ...]) -> None:
        if threading.get_ident() != self._thread:
            return
        self._clock += 1
        self._open.append(self._clock)
        self._pooling += _matches(_POOLING, module)
        self._attention += _matches(_ATTENTION, module)

    def leave(self, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, args: tuple[object, ...], output: object) -> None:
            if threading.get_ident() != self._thread:
                return
            self._clock += 1
            inside_pooling = self._pooling > 0
            self._pooling -= _matches(_POOLING, module)
            self._attention -= _matches(_ATTENTION, module)
            started = self._open.pop()
            tensor = tensor_in(output)
            if tensor is None:
                return
            self._alive.append(tensor)
            self.calls.append(
                Call(
                    name=name,
                    pooling=inside_pooling,
                    in_attention=self._attention > 0,
                    weighted=any(True for _ in module.parameters(recurse=False)),
                    started=started,
                    finished=self._clock,
                    shape=tuple(tensor.shape),
                    value=(id(tensor), tensor._version),
                    inputs=frozenset(id(value) for value in args if isinstance(value, Tensor)),
                    bytes=tensor.numel() * tensor.element_size() // max(1, tensor.shape[0] if tensor.ndim else 1),
                )
            )

        return hook


def _matches(pattern: re.Pattern[str], module: nn.Module) -> bool:
    return bool(pattern.search(type(module).__name__))


def tensor_in(output: object) -> Tensor | None:
    """The tensor a module puts out: itself, or the first one of a tuple, list or dict."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)
