"""Follow one image through a network: which modules run, what each outputs, and what of it comes from the image."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.weak import WeakIdKeyDictionary

from egcam.errors import EgcamError
from egcam.models.class_scores import TENSOR_KEYS, class_scores
from egcam.models.dependence import CallKey, Influence, Ways
from egcam.models.inputs import ExtraInputs
from egcam.models.layer_output import axis_of_module, axis_of_shape, convolution_dimensions, fits, token_grid
from egcam.models.nested import tensor_in, tensors_in
from egcam.models.restore import add_hook, untouched

if TYPE_CHECKING:
    from egcam.models.place_check import Axis, Grid
    from egcam.models.targets import Places

# A recurrent layer, too, has at every place what it makes of all places before.
_POOLING = re.compile(r"(Adaptive|Global)\w*Pool|(Attention|Attn)\w*Pool|^(LSTM|GRU|RNN)$", re.IGNORECASE)
_ATTENTION = re.compile(r"Atten|Attn", re.IGNORECASE)
_BENDING = re.compile(r"[A-Z]*LU\d?$|Swish|Mish|Sigmoid|Tanh|Softmax|Softplus|Max|(Layer|Group|Instance|RMS)Norm")


@dataclass(frozen=True)
class Call:
    """One call of one module in a dry run; tensors are numbered in the order in which they were first seen."""

    name: str
    pooling: bool  # whether it is in a module that pools
    in_attention: bool
    is_attention: bool
    weighted: bool  # whether the module itself, not one within, has parameters
    axis: Axis | None  # where the module's kind says its channels are
    started: int
    finished: int
    shape: tuple[int, ...]  # of what it returned; () where that is nested
    value: tuple[int, int]  # the number and version of that tensor
    inputs: frozenset[int]  # the numbers of the tensors it took
    shape_in: tuple[int, ...]  # of the first of these
    bytes: int  # of what it returned, for one image
    multiplications: int = 0  # with the module's own weights
    bends: bool = False  # whether its kind is known not to be linear: activation functions, normalisations, maxima
    dimensions: int = 0  # over how many it convolves; 0 for what is no convolution
    sees_image: bool = False  # whether what it returned depends on the image, by differentiable operations
    maps: tuple[int, ...] = ()  # the (1, ., ., .) in a tuple, list or dictionary it returned, such as feature pyramids
    node: int = -1  # what it returned, in `Trace.ways`; -1 where the score does not depend on it
    maps_taken: tuple[int, ...] = ()  # the maps in the tuples, lists and dictionaries that it took


@dataclass(frozen=True)
class Trace:
    """All calls of a dry run with one image, in the order they finished."""

    calls: tuple[Call, ...]
    image: int  # its number
    image_shape: tuple[int, ...]  # (channels, height, width); of signals (channels, length), of volumes likewise
    classes: int | None  # how many the network tells apart, where its output shows it
    other_inputs: bool  # whether the network takes other tensors, too
    places: Places | None = None  # what the network says of single places of the image, where its output shows it
    influence: Influence | None = field(default=None, compare=False, repr=False)  # None for a model without numbers
    ways: Ways | None = field(default=None, compare=False, repr=False)  # from the image to the score, if they are known

    @property
    def image_size(self) -> tuple[int, ...]:
        """(height, width) of the image, (length,) of a signal, (depth, height, width) of a volume."""
        return self.image_shape[1:]

    @cached_property
    def shares_weights(self) -> bool:
        """Whether a module with weights runs more than once."""
        weighted = [call.name for call in self.calls if call.weighted]
        return len(set(weighted)) < len(weighted)

    @property
    def calls_on_image(self) -> tuple[Call, ...]:
        """The calls whose output depends on the image; all, if the network switches gradients off and none shows it."""
        return tuple(call for call in self.calls if call.sees_image) or self.calls

    def calls_of(self, name: str) -> list[Call]:
        """The calls of one module."""
        return [call for call in self.calls if call.name == name]

    def may_be_tokens(self, call: Call) -> bool:
        """Whether a call returned three dimensions; of a signal those are maps."""
        return len(call.shape) == 3 and len(self.image_size) > 1

    def axis(self, call: Call) -> Axis | None:
        """Where the (N, ., ., .) or (N, ., .) that a call returned has its channels; None where that is unknown."""
        by_tensor, by_shape = self._claims
        of_tensor, of_shape = by_tensor[call.value[0]], by_shape[call.shape]
        if self.may_be_tokens(call):
            # Where both axes are of one size, another tensor of that shape may be turned.
            claimed = of_tensor if call.shape[1] == call.shape[2] else of_tensor or of_shape
            return next(iter(claimed)) if len(claimed) == 1 else None
        claimed = of_tensor or of_shape
        if not claimed and len(call.shape) == 4 and not fits(call.shape[2:], self.image_size):
            # What tokens (N, length, channels) say of a (N, height, width, channels) that holds as many of them.
            rows, height, width, channels = call.shape
            of_tokens = by_shape[rows, height * width, channels]
            claimed = of_tokens if of_tokens == {"channels-last"} else claimed
        return axis_of_shape(call.shape, self.image_size, claimed)

    def grid(self, call: Call) -> Grid:
        """The grid of the tokens (1, length, channels) that a call returned."""
        return token_grid(call.shape[1], self.image_size, self, call)

    def reaches_output(self, call: Call) -> bool | None:
        """Whether the scores depend on the map a call returned, class token and the like aside; None if unknown."""
        reached = self._reached.get(self._keys[call.started])
        if reached is None:
            return None
        if self.may_be_tokens(call):
            reached = reached[len(reached) - prod(self.grid(call)) :]
        return bool(reached.any())

    @cached_property
    def is_headless(self) -> bool:
        """Whether the outputs are an embedding: features at many places, normalised and then pooled or picked.

        A head is a linear layer on one vector, or a convolution whose maps are only pooled.
        """
        weights = [call for call in self.calls if call.multiplications]
        if self.classes is None or not weights:
            return False
        last = max(weights, key=lambda call: call.finished)
        has_places = len(last.shape) > 2
        return has_places and any(call.weighted and call.started > last.finished for call in self.calls if call.name)

    def tokens_read(self, call: Call) -> Tensor | None:
        """(length,) which of the tokens that a call returned the scores depend on; None if unknown."""
        return self._reached.get(self._keys[call.started])

    @cached_property
    def _keys(self) -> dict[int, CallKey]:
        """Each call, by when it started, as a module's first, second, ... call."""
        times: defaultdict[str, int] = defaultdict(int)
        keys: dict[int, CallKey] = {}
        for call in self.calls:
            times[call.name] += 1
            keys[call.started] = (call.name, times[call.name])
        return keys

    @cached_property
    def _reached(self) -> dict[CallKey, Tensor]:
        if self.influence is None:
            return {}
        return self.influence.places(
            {self._keys[call.started]: call for call in self.calls if len(call.shape) >= 3 and call.shape[0] == 1}
        )

    @cached_property
    def _claims(self) -> tuple[dict[int, set[Axis]], dict[tuple[int, ...], set[Axis]]]:
        """What modules that know where their channels are say, of the tensors they output or take and of shapes."""
        by_tensor: defaultdict[int, set[Axis]] = defaultdict(set)
        by_shape: defaultdict[tuple[int, ...], set[Axis]] = defaultdict(set)
        for call in self.calls:
            if call.axis is not None:
                by_shape[call.shape].add(call.axis)
                for tensor in {call.value[0], *call.inputs}:
                    by_tensor[tensor].add(call.axis)
        return by_tensor, by_shape

    def map_shape(self, call: Call) -> tuple[int, ...]:
        """(channels, height, width) of the (N, ., ., .) or the tokens (N, length, channels) that a call returned."""
        if self.may_be_tokens(call):
            return (call.shape[2], *self.grid(call))
        _, *first, last = call.shape
        return (last, *first) if self.axis(call) == "channels-last" else (*first, last)

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

    def _first_end(self, layers: Sequence[str]) -> int:
        plain = [name.partition(":")[0] for name in layers]
        return min((call.finished for call in self.calls if call.name in plain), default=-1)


def dry_run(
    model: nn.Module, images: Tensor, extra: ExtraInputs | None = None, read: Callable[[Any], Tensor] | None = None
) -> Trace:
    """Follow one image through the network, in a forward pass of which nothing is kept.

    Args:
        model: the plain module.
        images: (N, C, H, W); one is followed.
        extra: further inputs of the model.
        read: from the output to the explained score, where that is no class.
    """
    extra = extra or ExtraInputs(len(images))
    args, kwargs = extra.rows(torch.zeros(1, dtype=torch.long, device="cpu"))
    with untouched(model, images.device):
        try:
            return _trace(model, images[:1].detach(), args, kwargs, extra.images, read)
        except EgcamError:
            raise
        except Exception:  # code that takes no history, or the user's own mistake, which shows again
            return _trace(model, images[:1].detach(), args, kwargs, extra.images, read, with_history=False)


def _trace(
    model: nn.Module,
    image: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    as_input: Callable[[Tensor], Any],
    read: Callable[[Any], Tensor] | None,
    with_history: bool = True,
) -> Trace:
    # The graph is looked at, never run: what its operations would keep is let go of.
    nothing_kept = torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda kept: kept)
    with torch.set_grad_enabled(with_history), nothing_kept, ExitStack() as stack:
        # Copies: the model may write into its input, which a tensor that gradients start from does not allow.
        followed = image.clone().requires_grad_(with_history and image.is_floating_point()).clone()
        recorder = _Recorder(followed)
        for name, module in model.named_modules():
            stack.callback(add_hook(module, recorder.enter(name), before=True, with_kwargs=True).remove)
            stack.callback(add_hook(module, recorder.leave(name), with_kwargs=True).remove)
        output = model(as_input(followed), *args, **kwargs)
        ways = recorder.ways_to(_score_in(output, read))
    has_numbers = not any(tensor.is_meta for tensor in (image, *model.parameters()))
    like = tuple(image.shape), image.dtype, image.device
    return Trace(
        calls=recorder.calls(ways),
        ways=ways if ways.are_known else None,
        image=recorder.number(followed),
        image_shape=tuple(image.shape[1:]),
        classes=_class_count(output),
        other_inputs=any(True for _ in tensors_in([args, kwargs])),
        places=_places_in(output, image.ndim - 2),
        influence=Influence(ref(model), like, args, kwargs) if has_numbers else None,
    )


def _class_count(output: object) -> int | None:
    try:
        return class_scores(output, 1).shape[1]
    except EgcamError:
        return None


def _score_in(output: object, read: Callable[[Any], Tensor] | None) -> Any:
    """The node of autograd's graph that holds the explained score; None where it is unknown."""
    if isinstance(output, Tensor):
        return output.grad_fn
    try:
        return (class_scores(output, 1) if read is None else read(output)).grad_fn
    except Exception:  # a target that cannot read tensors without numbers, or no class scores
        return None


def _places_in(output: object, axes: int) -> Places | None:
    """What of single places of an image with so many axes an output speaks of: detections, a map, or neither."""
    if isinstance(output, list) and output and isinstance(output[0], Mapping):
        return "boxes" if "boxes" in output[0] else None
    if isinstance(output, list) and output and all(_shape_of(rows)[1:] == (6,) for rows in output):
        return "boxes"
    if isinstance(output, Mapping):
        if "pred_boxes" in output:
            return "boxes"
        return "map" if any(len(_shape_of(output.get(key))) == axes + 2 for key in TENSOR_KEYS) else None
    first = output[0] if isinstance(output, tuple) and output and not hasattr(output, "_fields") else output
    if _class_count(output) is not None:
        return None
    dimensions = len(_shape_of(first))
    return "map" if dimensions == axes + 2 else "boxes" if (dimensions, axes) == (3, 2) else None


def _shape_of(value: object) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


class _Recorder:
    """Hooks that write down every call."""

    def __init__(self, image: Tensor) -> None:
        self._image = image
        self._origin = image.grad_fn
        self._calls: list[tuple[Call, Any]] = []
        self._clock = 0
        # Of the modules that run now: when they started, whether they pool or attend, and the maps they took in lists.
        self._open: list[tuple[int, bool, bool, tuple[int, ...]]] = []
        # Nothing is kept alive; another tensor at the same address gets a number of its own.
        self._numbers: MutableMapping[Tensor, int] = WeakIdKeyDictionary()
        self._count = count()

    def number(self, tensor: Tensor) -> int:
        """Which of the tensors that were seen it is."""
        number = self._numbers.get(tensor)
        if number is None:
            number = self._numbers[tensor] = next(self._count)
        return number

    def enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            self._clock += 1
            # Whole networks have such names, too: AttentionNet, GlobalLocalNet.
            taken = (*args, *kwargs.values())
            whole = not name or (any(True for _ in module.children()) and any(arg is self._image for arg in taken))
            pools, attends = (not whole and _matches(kind, module) for kind in (_POOLING, _ATTENTION))
            # Now, for some write what they make into the list that they took.
            self._open.append((self._clock, pools, attends, self._maps([*args, *kwargs.values()])))

        return hook

    def leave(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            self._clock += 1
            pooling = any(pools for _, pools, _, _ in self._open)
            started, _, is_attention, maps_taken = self._open.pop()
            tensor = tensor_in(output)
            is_nested = tensor is None
            if is_nested:
                tensor = next(filter(_is_map, tensors_in(output)), None)
            if tensor is None or is_functorch_wrapped_tensor(tensor):  # the outputs of several networks in one
                return
            taken = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            call = Call(
                name=name,
                pooling=pooling,
                in_attention=any(attends for _, _, attends, _ in self._open),
                is_attention=is_attention,
                weighted=any(True for _ in module.parameters(recurse=False)),
                axis=self._axis(module, tensor),
                started=started,
                finished=self._clock,
                shape=() if is_nested else tuple(tensor.shape),
                value=(self.number(tensor), 0 if tensor.is_inference() else tensor._version),
                inputs=frozenset(map(self.number, taken)),
                shape_in=tuple(taken[0].shape) if taken else (),
                bytes=tensor.numel() * tensor.element_size() // max(1, tensor.shape[0] if tensor.ndim else 1),
                multiplications=_multiplications(module, tensor),
                bends=_matches(_BENDING, module),
                maps=self._maps([output]),
                maps_taken=maps_taken,
                dimensions=convolution_dimensions(module),
            )
            self._calls.append((call, tensor.grad_fn))

        return hook

    def _maps(self, values: Sequence[object]) -> tuple[int, ...]:
        """The maps in tuples, lists and dictionaries."""
        listed = [value for value in values if not isinstance(value, Tensor)]
        return tuple(self.number(tensor) for tensor in tensors_in(listed) if _is_map(tensor))

    def _axis(self, module: nn.Module, output: Tensor) -> Axis | None:
        if output.ndim not in (3, self._image.ndim):
            return None
        return axis_of_module(module, tuple(output.shape), tokens=output.ndim != self._image.ndim)

    def ways_to(self, score: Any) -> Ways:
        """The ways from the image to a node of autograd's graph."""
        return Ways(self._origin, score, [history for _, history in self._calls])

    def calls(self, ways: Ways) -> tuple[Call, ...]:
        """The calls, each with whether it depends on the image, and its place on the ways to the score."""
        calls = tuple(
            replace(call, sees_image=ways.sees_image(history), node=ways.number(history))
            for call, history in self._calls
        )
        ways.forget_graph()
        return calls


def _is_map(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim == 4 and len(tensor) == 1


def _matches(pattern: re.Pattern[str], module: nn.Module) -> bool:
    return bool(pattern.search(type(module).__name__))


def _multiplications(module: nn.Module, output: Tensor) -> int:
    """Each weight of a convolution or linear layer is used once for each position it outputs."""
    weight = _weight(module, output)
    return 0 if weight is None else weight.numel() * (output.numel() // len(weight))


def _weight(module: nn.Module, output: Tensor) -> Tensor | None:
    """What a module multiplies by: its weight, or what weight_norm and the like make that from, or a head's prototypes.

    A norm's weight has one dimension only.
    """
    parameters = module._parameters
    made_from = getattr(module, "parametrizations", {})
    parts = [*(made_from["weight"].parameters() if "weight" in made_from else ())]
    parts += [part for name in ("weight", "weight_v", "weight_orig") if (part := parameters.get(name)) is not None]
    if not parts and output.ndim == 2 and not module._modules:
        parts = [
            part
            for part in parameters.values()
            if part is not None and part.ndim == 2 and output.shape[1] in part.shape
        ]
    parts = [part for part in parts if part.ndim >= 2 and len(part)]
    return max(parts, key=lambda part: part.numel(), default=None)
