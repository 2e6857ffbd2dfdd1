"""Run what follows a layer so that its backward pass multiplies slopes instead of derivatives.

The slope of an operation is its mean derivative between what it got at the two ends l and u,

    slope = integral over t in [0, 1] of J(l + t (u - l)),        so        slope (u - l) = f(u) - f(l),

and slopes multiplied backwards through a network, times the step at any layer, are the rise of the score, exactly
(the rules are in `slope_rules`). `Recording` writes down what each operation got at the upper end, the image.
`SlopeGraph` runs the lower ends, the references, with a graph that can be kept: its backward pass takes the upper ends
from whichever record it is given. So a map costs one recorded pass and one backward pass.

An operation that chooses by its data (an argmax, a routing, a Python `if`) is another function at each end. That shows
in the sum, so whoever uses slopes must look at it.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from egcam.errors import LayerError
from egcam.models.nested import mapped_tensors, tensors_in
from egcam.models.restore import add_hook
from egcam.models.slope_rules import (
    AtNodes,
    Clipped,
    Elementwise,
    MatrixProduct,
    Maximum,
    Product,
    Rule,
    Softmax,
    Standardised,
    Tensors,
)


class Overwritten(Exception):
    """The network writes into what an operation got: the lower ends have to be copied."""


class Unlike(LayerError):
    """The network does other things at one end than at the other."""

    def __init__(self) -> None:
        super().__init__("the network computes other things at one end of a step than at the other")


@dataclass(frozen=True)
class Record:
    """What went into each operation that has a rule, in the order of their calls: its name, and the tensors."""

    names: list[str] = field(default_factory=list)
    inputs: list[Tensors] = field(default_factory=list)


class _Following(TorchFunctionMode):
    """While active, operations on what follows from marked tensors go by their rules.

    Args:
        whole: the names of modules that are taken as one operation; see `opaque_modules`.
    """

    has_graph: bool  # whether what is run has derivatives

    def __init__(self, whole: Collection[str] = ()) -> None:
        super().__init__()
        self._whole = whole
        self._first_within = 0
        self._mark = object()  # of this run: a tensor of the user's that is written into keeps it
        self._begun = False

    def __exit__(self, *error: Any) -> None:
        """End the block; an interrupt within an operation, for which torch takes the mode away, must come through."""
        is_active = any(mode is self for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        if not is_active:
            traceback.clear_frames(error[2])  # what torch was about to do, to put the mode back, is done here
            is_active = any(mode is self for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        if is_active:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def mark(self, value: Any) -> Any:
        """The same, with all tensors marked as following from the layer."""
        self._begun = True
        for tensor in tensors_in(value):
            tensor._egcam_follows = self._mark  # type: ignore[attr-defined]
        return value

    def follows(self, value: Any) -> bool:
        """Whether a tensor, or one in a tuple, list or dictionary, follows from the layer."""
        if isinstance(value, Tensor):
            return getattr(value, "_egcam_follows", None) is self._mark
        return isinstance(value, tuple | list | dict) and any(map(self.follows, tensors_in(value)))

    def moves(self, value: Any) -> bool:
        """Whether a tensor follows from the layer and has derivatives."""
        return self.follows(value) and isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, by its rule if it needs one."""
        kwargs = kwargs or {}
        if not any(map(self.follows, args)) and not any(map(self.follows, kwargs.values())):
            return func(*args, **kwargs)
        name, in_place = _name_of(func)
        moving = sum(map(self.moves, tensors_in([args, kwargs])))
        if name in _LINEAR or not moving or (name in _MULTILINEAR and moving < 2):
            result = self.plainly(func, args, kwargs)
        else:
            result = self._by_rule(name, func, in_place, args, kwargs)
        if in_place:
            self.mark(args[0])
        # A parameter that is returned as it is, as by weight.to(rows), does not follow from the rows.
        if not in_place and any(result is argument and not self.follows(argument) for argument in args[:2]):
            return result
        return self.mark(result)

    def _by_rule(
        self, name: str, func: Callable[..., Any], in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        plain = func
        if in_place:
            plain = _on_copy(func)
        elif kwargs.get("inplace", False) is True or (
            name in _OF_ONE_NUMBER and True in [a for a in args if a is True]
        ):
            in_place, kwargs = True, {key: value for key, value in kwargs.items() if key != "inplace"}
            args = tuple(False if argument is True else argument for argument in args)
        rule = _RULES.get(name, _by_nodes)
        if not in_place:
            return rule(self, name, plain, args, kwargs)
        # What the operation got must not be overwritten.
        copy = self.mark(args[0].clone())
        return args[0].copy_(rule(self, name, plain, (copy, *args[1:]), kwargs))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Be active, and take some of the model's modules whole."""
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name in self._whole:
                    stack.callback(add_hook(module, self._begin_whole, before=True, with_kwargs=True).remove)
                    stack.callback(add_hook(module, self._take_whole, with_kwargs=True).remove)
            with self:
                yield

    def _begin_whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._first_within = self.operations()

    def _take_whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self.follows([args, kwargs]):
            return None
        self.forget_operations(self._first_within)

        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return module.forward(*args, **kwargs)

        with torch._C.DisableTorchFunction(), torch.set_grad_enabled(self.has_graph):
            return self.mark(_by_nodes(self, "module", forward, args, kwargs))

    def operations(self) -> int:
        """How many with a rule there were so far."""
        raise NotImplementedError

    def forget_operations(self, first: int) -> None:
        """Those from number `first` on."""
        raise NotImplementedError

    def plainly(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation without a rule."""
        return func(*args, **kwargs)

    def apply(self, rule: Rule, *inputs: Tensor) -> Any:
        """The value of an operation with a rule."""
        raise NotImplementedError


class Recording(_Following):
    """The upper end: writes down what each operation with a rule got.

    Args:
        whole: see `opaque_modules`.

    Attributes:
        record: what was written down.
    """

    has_graph = False

    def __init__(self, whole: Collection[str] = ()) -> None:
        super().__init__(whole)
        self.record = Record()

    def operations(self) -> int:
        """How many with a rule there were so far."""
        return len(self.record.names)

    def forget_operations(self, first: int) -> None:
        """Those from number `first` on."""
        del self.record.names[first:], self.record.inputs[first:]

    def apply(self, rule: Rule, *inputs: Tensor) -> Any:
        """The value."""
        self.record.names.append(rule.name)
        # Copies, because the network may write into them later.
        self.record.inputs.append(tuple(tensor.detach().clone() for tensor in inputs))
        return self.mark(rule.run(*inputs)[0])


class SlopeGraph(_Following):
    """The lower ends, run with a graph whose backward pass multiplies the slopes up to the ends of a record.

    Args:
        copies: whether what the operations got is copied, for networks that write into it later.
        whole: see `opaque_modules`.
        first: whether this is the run that shows which modules those are.
    """

    has_graph = True

    def __init__(self, copies: bool = False, whole: Collection[str] = (), *, first: bool = False) -> None:
        super().__init__(whole)
        self._first = first
        self.copies = copies
        self._names: list[str] = []
        self._lock = threading.Lock()  # of all threads: on a graphics card the backward pass runs in another one
        self.record = Record()  # of the upper ends, while the graph is run backwards

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, with a graph from the layer on, also where the network switches gradients off.

        Between operations gradients stay off, as they are outside: a checkpoint that saw them on would run a part of
        the network again in the backward pass, without the rules. Only in a first run are they on, because functions
        that a mode is not shown leave no node otherwise.
        """
        if self._first:
            return super().__torch_function__(func, types, args, kwargs)
        with torch.set_grad_enabled(self._begun or torch.is_grad_enabled()):
            return super().__torch_function__(func, types, args, kwargs)

    def operations(self) -> int:
        """How many with a rule there were so far."""
        return len(self._names)

    def forget_operations(self, first: int) -> None:
        """Those from number `first` on."""
        del self._names[first:]

    def apply(self, rule: Rule, *inputs: Tensor) -> Any:
        """The value, with its place in the graph."""
        self._names.append(rule.name)
        return self.mark(_Operation.apply(rule, self, len(self._names) - 1, *inputs))

    def plainly(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation without a rule; parameters are constants, or convolutions would keep their input for them."""
        constants = [*map(_constant, args)]
        result = func(*constants, **{name: _constant(value) for name, value in kwargs.items()})
        return next((given for given, constant in zip(args, constants, strict=True) if result is constant), result)

    def pull(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        leaves: Sequence[Tensor],
        record: Record,
        keep: bool = False,
    ) -> list[Tensor | None]:
        """The slopes at the leaves, each (n, …), given those of the outputs; None where no output depends on one.

        Args:
            outputs: of the run, with their graph.
            gradients: one for each of them.
            leaves: what the run began with.
            record: of the upper ends: of one row, or of as many as were run.
            keep: whether the graph will be used again.
        """
        with self._lock:
            if self._names != record.names:
                raise Unlike
            self.record = record
            try:
                return list(torch.autograd.grad(outputs, leaves, gradients, retain_graph=keep, allow_unused=True))
            except RuntimeError as error:
                if "modified by an inplace operation" in str(error) and not self.copies:
                    raise Overwritten from error
                raise
            finally:
                self.record = Record()


class _Operation(Function):
    """An operation with a rule, in the graph of the lower ends."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, graph: SlopeGraph, call: int, *inputs: Tensor) -> Any:
        value, kept = rule.run(*inputs)
        if graph.copies:
            kept = tuple(tensor.clone() for tensor in kept)
        ctx.rule, ctx.graph, ctx.call, ctx.shapes = rule, graph, call, [tensor.shape for tensor in inputs]
        ctx.save_for_backward(*kept)
        if isinstance(value, tuple):
            ctx.mark_non_differentiable(*(part for part in value if not part.is_floating_point()))
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        upper = ctx.graph.record.inputs[ctx.call]
        ends = [
            tensor if tensor.shape == shape else _matched(tensor, shape)
            for tensor, shape in zip(upper, ctx.shapes, strict=True)
        ]
        slopes = ctx.rule.pull(ctx.saved_tensors, ends, gradients)
        return None, None, None, *map(_summed, slopes, ctx.shapes)


@contextmanager
def opaque_modules(model: nn.Module) -> Iterator[set[str]]:
    """While the model is run in its first graph: the names of modules whose backward pass is their own, without slopes.

    Such a `torch.autograd.Function` is not shown to a function mode, so the module that holds it is taken whole.
    """
    names: set[str] = set()

    def note(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nodes: list[Any] = [tensor.grad_fn for tensor in tensors_in(output)]
        if any(isinstance(node, BackwardCFunction) and type(node) is not _OPERATIONS for node in nodes):
            names.add(name)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not type(module).__module__.startswith("torch.nn.") and not any(True for _ in module.children()):
                stack.callback(add_hook(module, partial(note, name)).remove)
        yield names


_OPERATIONS: Any = _Operation._backward_cls


def _summed(slope: Tensor | None, shape: torch.Size) -> Tensor | None:
    """Over what was broadcast."""
    return slope if slope is None or slope.shape == shape else slope.sum_to_size(shape)


def _constant(value: Any) -> Any:
    return value.detach() if type(value) is nn.Parameter else value


def _on_copy(func: Callable[..., Any]) -> Callable[..., Any]:
    """What an operation that works in place makes of a copy."""
    return lambda first, *args, **kwargs: func(first.clone(), *args, **kwargs)


def _name_of(func: Callable[..., Any]) -> tuple[str, bool]:
    """The plain name of a torch function, and whether it works in place: `__imul__` is ("mul", True)."""
    name = getattr(func, "__name__", "")
    if not name.startswith("__"):
        return name.strip("_"), name.endswith("_")
    inner = name.strip("_")
    if inner[1:] not in _OPERATORS:
        return inner, inner == "setitem"
    if inner[0] == "i":
        return inner[1:], True
    # Of those that are turned around, only the order of these matters to their slopes.
    return ("reversed_" if inner[1:] in ("truediv", "div", "pow", "matmul") else "") + inner[1:], False


def _matched(upper: Tensor, shape: torch.Size) -> Tensor:
    """An upper end for each row, wherever the network has put the rows; a single one broadcasts."""
    if upper.ndim != len(shape):
        raise Unlike
    times = [
        size // other if other and size % other == 0 else 0 for other, size in zip(upper.shape, shape, strict=True)
    ]
    if sorted(times)[:-1] != [1] * (len(shape) - 1):
        raise Unlike
    return upper if upper.shape[times.index(max(times))] == 1 else upper.repeat(times)


# -- which rule ------------------------------------------------------------------------------------

RuleOf: TypeAlias = Callable[[_Following, str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS = _words("add sub mul truediv div matmul pow floordiv mod")
# What is linear in all that follows from the layer, whatever else it takes, and what only looks at it.
_LINEAR = _words(
    """
    add sub subtract rsub neg negative positive mean sum cumsum cat concat concatenate stack hstack vstack dstack
    reshape reshape_as view view_as flatten unflatten ravel permute transpose t swapaxes swapdims moveaxis movedim
    squeeze unsqueeze expand expand_as broadcast_to repeat tile repeat_interleave roll flip fliplr flipud rot90 chunk
    split tensor_split hsplit vsplit dsplit split_with_sizes unsafe_chunk unsafe_split unbind select narrow getitem
    setitem index index_select take take_along_dim gather scatter scatter_add index_add index_copy index_put
    masked_fill masked_select masked_scatter where diagonal diag diag_embed tril triu trace contiguous clone to type
    type_as float double half bfloat16 cpu cuda copy detach alias zero fill as_strided meshgrid block_diag diff
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout pad constant_pad_nd
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate upsample
    fold unfold im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
    fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn
    fft_fftshift fft_ifftshift view_as_real view_as_complex real imag conj resolve_conj atleast_1d atleast_2d
    atleast_3d requires_grad get set len size dim stride item tolist numel shape argmax argmin argsort eq ne lt le gt ge
    equal isnan isinf isfinite any all nonzero bool int long is_floating_point is_complex zeros_like ones_like
    empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full new_tensor get_device
    is_contiguous data_ptr ndimension element_size storage_offset result_type can_cast
    """
)
# Linear in each factor by itself: those that follow from the layer count.
_MULTILINEAR = _words(
    """
    mul multiply matmul mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr addcmul einsum tensordot kron
    lerp linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cross chain_matmul
    linalg_multi_dot reversed_matmul
    """
)
_CLIPPED = _words("relu relu6 hardtanh clamp clip clamp_min clamp_max")
_BENT = _words("leaky_relu threshold abs absolute hardsigmoid softshrink hardshrink sign floor ceil round trunc frac")
_CURVED = _words(
    """
    gelu silu sigmoid tanh elu selu celu mish softplus softsign logsigmoid hardswish tanhshrink exp expm1 log log1p log2
    log10 sqrt rsqrt reciprocal square pow erf erfc sin cos tan atan arctan sinh cosh asinh expit special_expit
    """
)
_OF_ONE_NUMBER = _CLIPPED | _BENT | _CURVED


def _by_nodes(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Any operation, taken at nodes of its own."""
    moving = [tensor for tensor in tensors_in([args, kwargs]) if mode.moves(tensor)]
    numbers = {id(tensor): number for number, tensor in enumerate(moving)}

    def call(*tensors: Tensor) -> Any:
        def put(tensor: Tensor) -> Tensor:
            return tensors[numbers[id(tensor)]] if id(tensor) in numbers else _constant(tensor)

        return func(*mapped_tensors(args, put), **mapped_tensors(kwargs, put))

    # A trial: what is no function of its input (a shape, a decision) or a view of it needs no rule.
    with torch.enable_grad():
        copies = [tensor.detach().clone().requires_grad_() for tensor in moving]
        trial = call(*copies)
    parts = list(tensors_in(trial))
    places = {tensor.untyped_storage().data_ptr() for tensor in copies}
    if not any(part.requires_grad for part in parts) or any(
        part.untyped_storage().data_ptr() in places for part in parts if part.numel()
    ):
        return mode.plainly(func, args, kwargs)
    nodes = -(-len(moving) // 2) if name in _MULTILINEAR else None
    rule = AtNodes(name, lambda *tensors: tuple(tensors_in(call(*tensors))), nodes)
    values = iter(mode.apply(rule, *moving))
    return mapped_tensors(trial, lambda _: next(values))


def _of_one_number(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    first, *rest = args
    if name in ("abs", "absolute") and first.is_complex():
        parts = torch.view_as_real(first)
        return mode.apply(Elementwise("sqrt", torch.sqrt), mode.apply(Product(), parts, parts).sum(-1))
    if not mode.moves(first) or first.is_complex() or any(map(mode.moves, tensors_in([rest, kwargs]))):
        return _by_nodes(mode, name, func, args, kwargs)

    function = (lambda z: func(z, *rest, **kwargs)) if rest or kwargs else func
    if name in _CLIPPED:
        return mode.apply(Clipped(name, function), first)
    if any(True for _ in tensors_in([rest, kwargs])):
        return _by_nodes(mode, name, func, args, kwargs)
    return mode.apply(Elementwise(name, function, name in _BENT), first)


def _product(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    a, b = args[:2]
    if len(args) > 2 or kwargs or a.is_complex() or b.is_complex():
        return _by_nodes(mode, name, func, args, kwargs)
    return mode.apply(Product(), a, b)


def _matrix_product(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    a, b = reversed(args[:2]) if name == "reversed_matmul" else args[:2]
    if len(args) > 2 or kwargs or a.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.is_complex() or b.is_complex():
        return _by_nodes(mode, name, func, args, kwargs)
    return mode.apply(MatrixProduct(), a, b)


def _quotient(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    a, b = reversed(args[:2]) if name.startswith("reversed") else args[:2]
    if len(args) > 2 or kwargs:
        return _by_nodes(mode, name, func, args, kwargs)
    if not mode.moves(b):
        return mode.plainly(func, args, kwargs)
    inverse = mode.apply(Elementwise("reciprocal", torch.reciprocal), b)
    return mode.apply(Product(), a, inverse) if mode.moves(a) else inverse * a


def _reversed_power(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if isinstance(args[1], Tensor):
        return _by_nodes(mode, name, func, args, kwargs)
    return mode.apply(Elementwise(name, lambda z: args[1] ** z), args[0])


def _prelu(mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first, weight = args[0], _constant(kwargs["weight"] if "weight" in kwargs else args[1])
    if mode.moves(weight) or not mode.moves(first):
        return _by_nodes(mode, name, func, args, kwargs)
    weight = weight.reshape(-1, *[1] * (first.ndim - 2)) if weight.numel() > 1 else weight
    below = mode.apply(Clipped("relu", torch.relu), -first)
    return mode.apply(Clipped("relu", torch.relu), first) - below * weight


def _glu(mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    a, b = args[0].chunk(2, kwargs.get("dim", args[1] if len(args) > 1 else -1))
    return mode.apply(Product(), a, mode.apply(Elementwise("sigmoid", torch.sigmoid), b))


def _softmax(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    given = [*args[2:], *kwargs.values()]
    if not isinstance(dim, int) or any(isinstance(value, torch.dtype) for value in given):
        return _by_nodes(mode, name, func, args, kwargs)
    return mode.apply(Softmax(dim), args[0])


def _layer_norm(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    centred = name == "layer_norm"
    names = ("input", "normalized_shape", "weight", *(("bias",) if centred else ()), "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    z, shape = given["input"], given["normalized_shape"]
    count = 1 if isinstance(shape, int) else len(shape)
    eps = given.get("eps")
    if count >= z.ndim or any(map(mode.moves, tensors_in([given.get("weight"), given.get("bias")]))):
        return _by_nodes(mode, name, func, args, kwargs)
    eps = (1e-5 if centred else torch.finfo(z.dtype).eps) if eps is None else eps
    flat = mode.apply(Standardised(eps, centred), z.flatten(z.ndim - count))
    return _affine(flat.reshape(z.shape), given.get("weight"), given.get("bias"))


def _group_norm(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = dict(zip(("input", "num_groups", "weight", "bias", "eps"), args, strict=False)) | kwargs
    z = given["input"]
    flat = mode.apply(Standardised(given.get("eps", 1e-5)), z.reshape(len(z), given["num_groups"], -1))
    return _affine_by_channel(flat.reshape(z.shape), given.get("weight"), given.get("bias"))


def _instance_norm(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    if not given.get("use_input_stats", True):
        return mode.plainly(func, args, kwargs)
    z = given["input"]
    flat = mode.apply(Standardised(given.get("eps", 1e-5)), z.flatten(2))
    return _affine_by_channel(flat.reshape(z.shape), given.get("weight"), given.get("bias"))


def _batch_norm(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    training = kwargs.get("training", args[5] if len(args) > 5 else False)
    return _by_nodes(mode, name, func, args, kwargs) if training else mode.plainly(func, args, kwargs)


def _affine(z: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    z = z if weight is None else z * _constant(weight)
    return z if bias is None else z + _constant(bias)


def _affine_by_channel(z: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    places = [1] * (z.ndim - 2)
    return _affine(
        z, *(None if values is None else _constant(values).reshape(-1, *places) for values in (weight, bias))
    )


def _normalize(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = dict(zip(("input", "p", "dim", "eps"), args, strict=False)) | kwargs
    z, dim, eps = given["input"], given.get("dim", 1), given.get("eps", 1e-12)
    if given.get("p", 2.0) != 2.0 or given.get("out") is not None or not isinstance(dim, int):
        return _by_nodes(mode, name, func, args, kwargs)
    squares = mode.apply(Product(), z, z).sum(dim, keepdim=True)
    return mode.apply(Product(), z, mode.apply(Elementwise("inverse", lambda v: 1 / v.sqrt().clamp_min(eps)), squares))


def _larger(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """maximum and minimum of two tensors."""
    if len(args) != 2 or kwargs:
        return _by_nodes(mode, name, func, args, kwargs)
    a, b = args if name in ("maximum", "max", "fmax") else (-args[0], -args[1])
    shape = (a.detach() + b.detach()).shape
    larger = mode.apply(Maximum(), a.expand(shape), b.expand(shape))
    return larger if name in ("maximum", "max", "fmax") else -larger


def _extreme(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """max, min, amax and amin of one tensor, over all of it or some of its dimensions."""
    if len(args) == 2 and isinstance(args[1], Tensor):
        return _larger(mode, name, func, args, kwargs)
    z = args[0]
    sign = -1 if name.endswith("min") else 1
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    listed = list(range(z.ndim)) if dims is None or dims == () else [dims] if isinstance(dims, int) else list(dims)
    listed = sorted(dim % z.ndim for dim in listed)
    others = [dim for dim in range(z.ndim) if dim not in listed]
    flat = z.permute(*others, *listed).flatten(len(others)) if others else z.reshape(-1)
    largest = sign * _largest(mode, sign * flat)
    for dim in listed if keep else ():
        largest = largest.unsqueeze(dim)
    if name in ("amax", "amin") or dims is None:
        return largest
    with torch.no_grad():
        kinds = func(z.detach(), *args[1:], **kwargs)
    return type(kinds)((largest, kinds[1]))


def _largest(mode: _Following, values: Tensor) -> Tensor:
    """The largest along the last dimension, found in rounds of two against two."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        a, b, odd = values[..., :half], values[..., half : 2 * half], values[..., 2 * half :]
        values = torch.cat([mode.apply(Maximum(), a, b), odd], dim=-1)
    return values[..., 0]


def _max_pool(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The largest of each window."""
    axes = int(name[-2])
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = dict(zip(names, args, strict=False)) | kwargs
    z = given["input"]
    kernel = _sides(given["kernel_size"], axes)
    stride = _sides(given.get("stride") or kernel, axes)
    padding = _sides(given.get("padding", 0), axes)
    if _sides(given.get("dilation", 1), axes) != [1] * axes or z.ndim != axes + 2 or given.get("return_indices"):
        return _by_nodes(mode, name, func, args, kwargs)
    with torch.no_grad():
        size = func(*args, **kwargs).shape[2:]
    ends = [(count - 1) * step + side for count, step, side in zip(size, stride, kernel, strict=True)]
    beyond = [max(0, end - side - before) for end, side, before in zip(ends, z.shape[2:], padding, strict=True)]
    edges = [edge for pair in zip(reversed(padding), reversed(beyond), strict=True) for edge in pair]
    windows = functional.pad(z, edges, value=float(z.detach().min()) - 1.0)
    for axis, (end, side, step) in enumerate(zip(ends, kernel, stride, strict=True)):
        windows = windows.narrow(axis + 2, 0, end).unfold(axis + 2, side, step)
    return _largest(mode, windows.flatten(axes + 2))


def _adaptive_max_pool(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    axes = int(name[-2])
    given = dict(zip(("input", "output_size", "return_indices"), args, strict=False)) | kwargs
    z = given["input"]
    if z.ndim != axes + 2 or given.get("return_indices"):
        return _by_nodes(mode, name, func, args, kwargs)
    size = given["output_size"]
    counts = [size] * axes if isinstance(size, int) else list(size)
    counts = [side if count is None else count for side, count in zip(z.shape[2:], counts, strict=True)]
    for axis, count in enumerate(counts, start=2):
        side = z.shape[axis]
        parts = [
            z.narrow(axis, i * side // count, -(-(i + 1) * side // count) - i * side // count) for i in range(count)
        ]
        z = torch.stack([_largest(mode, part.movedim(axis, -1)) for part in parts], dim=axis)
    return z


def _sides(value: Any, axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


# -- attention -------------------------------------------------------------------------------------


def _times(mode: _Following, a: Tensor, b: Tensor) -> Tensor:
    """a @ b, whichever of them moves."""
    if not (mode.moves(a) and mode.moves(b)):
        product = a @ b
        return _like(mode, _like(mode, product, a), b)
    if a.shape[:-2] == b.shape[:-2]:
        return mode.apply(MatrixProduct(), a, b)  # type: ignore[no-any-return]
    return mode.apply(AtNodes("matmul", torch.matmul, 1), a, b)  # type: ignore[no-any-return]


def _attention(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if mode.moves(mask):
        return _by_nodes(mode, name, func, args, kwargs)
    if given.get("enable_gqa", False):
        times = query.shape[-3] // key.shape[-3]
        key, value = (_like(mode, each.repeat_interleave(times, -3), each) for each in (key, value))
    if given.get("is_causal", False):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return _attended(mode, query, key, value, mask, given.get("scale"))[0]


def _attended(
    mode: _Following, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / sqrt(d)) v, and the softmax."""
    query = _like(mode, query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale), query)
    scores = _times(mode, query, _like(mode, key.transpose(-1, -2), key))
    if mask is not None:
        masked = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        scores = _like(mode, masked, scores)
    weights = mode.apply(Softmax(-1), scores) if mode.moves(scores) else scores.softmax(-1)
    return _times(mode, weights, value), weights


def _like(mode: _Following, tensor: Tensor, other: Tensor) -> Tensor:
    """Marked if the other is."""
    if mode.follows(other):
        mode.mark(tensor)
    return tensor


def _multi_head_attention(
    mode: _Following, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `torch.nn.MultiheadAttention` computes, on (length, rows, channels); unusual forms go by nodes."""
    names = (
        "query", "key", "value", "embed_dim", "heads", "in_weight", "in_bias", "bias_k", "bias_v", "zero", "dropout",
        "out_weight", "out_bias",
    )  # fmt: skip
    given = dict(zip(names, args, strict=False)) | kwargs
    unusual = ("key_padding_mask", "attn_mask", "use_separate_proj_weight", "static_k", "static_v", "is_causal",
               "bias_k", "bias_v", "zero")  # fmt: skip
    plain = all(given.get(key) is None or given[key] is False for key in unusual)
    if not plain or len(args) < len(names) or given["in_weight"] is None or given["query"].ndim != 3:
        return _by_nodes(mode, name, func, args, kwargs)
    bias = given["in_bias"]
    biases = [None] * 3 if bias is None else _constant(bias).chunk(3)
    parts = []
    for tensor, weight, offset in zip(args[:3], _constant(given["in_weight"]).chunk(3), biases, strict=True):
        made = functional.linear(tensor.transpose(0, 1), weight, offset)
        heads = made.reshape(made.shape[0], made.shape[1], given["heads"], -1).transpose(1, 2)
        parts.append(_like(mode, heads, tensor))
    attended, weights = _attended(mode, parts[0], parts[1], parts[2], None, None)
    joined = attended.transpose(1, 2).flatten(2).transpose(0, 1)
    output = functional.linear(joined, _constant(given["out_weight"]), _constant(given["out_bias"]))
    if not given.get("need_weights", True):
        return output, None
    return output, weights.mean(1) if given.get("average_attn_weights", True) else weights


_RULES: dict[str, RuleOf] = {
    **dict.fromkeys(_OF_ONE_NUMBER, _of_one_number),
    **dict.fromkeys(("mul", "multiply"), _product),
    **dict.fromkeys(("matmul", "mm", "bmm", "reversed_matmul"), _matrix_product),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "reversed_truediv", "reversed_div"), _quotient),
    **dict.fromkeys(("reversed_pow", "rpow"), _reversed_power),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), _larger),
    **dict.fromkeys(("max", "min", "amax", "amin"), _extreme),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), _max_pool),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"), _adaptive_max_pool),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    "prelu": _prelu,
    "glu": _glu,
    "softmax": _softmax,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "normalize": _normalize,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head_attention,
}
