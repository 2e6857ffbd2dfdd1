"""Slopes between two points in place of derivatives at one.

A network is run twice: at the upper end of a step, where what goes into each of its operations is recorded, and at the
lower end, with gradients. The backward pass then propagates not the derivative of each operation but its slope between
what it got at the two ends:

    function of single numbers   (f(u) - f(l)) / (u - l), DeepLIFT's rescale rule
    product of a and b           of a, the mean of b at both ends, and vice versa: the Shapley value of two factors
    softmax                      its Jacobian with the logarithmic mean of both ends' probabilities
    normalisation                the two rules for products and for 1 / sqrt(variance), combined
    maximum                      (a + b + |a - b|) / 2, pair by pair

The slopes are exact where derivatives are only exact for infinitely small steps: slope times step, summed over all
activations, is the difference of the scores at the two ends. Linear operations need no rule. An operation that has
none shows in that sum, so whoever uses slopes must look at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from egcam.errors import LayerError
from egcam.models.capture import does_not_reach, gradients_of

Rule: TypeAlias = Callable[..., Any]

_CLIPPED = frozenset(("relu", "relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max"))
_BENT = frozenset(("leaky_relu", "prelu", "rrelu", "threshold", "abs", "absolute", "hardsigmoid", "softshrink"))
_CURVED = frozenset(
    ("gelu", "silu", "sigmoid", "tanh", "elu", "selu", "celu", "mish", "softplus", "softsign", "logsigmoid",
     "log_sigmoid", "hardswish", "tanhshrink", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square",
     "pow", "erf", "sin", "cos")
)  # fmt: skip
_PRODUCTS = frozenset(("mul", "multiply", "rmul", "imul", "matmul", "rmatmul", "bmm"))
_QUOTIENTS = frozenset(("div", "divide", "true_divide", "truediv", "itruediv"))
_FOLLOWS = "_egcam_follows_the_layer"


class _Recorded:
    """A tensor as it was: memory that the network has written into since is of no use."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor, tensor._version

    @property
    def tensor(self) -> Tensor:
        if self._tensor._version != self._version:
            raise LayerError("the network writes into what an operation with a slope got")
        return self._tensor


Record: TypeAlias = list[tuple[_Recorded, ...]]
"""What went into each operation that has a rule, in the order of their calls."""


def record_at(rows: Tensor, scores_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Record]:
    """(R,) the scores of rows (R, …), and what their operations got."""
    with torch.no_grad(), Slopes() as slopes:
        scores = scores_of(_marked(rows.detach().clone()))
    return scores, slopes.record


def slopes_at(
    rows: Tensor, upper: Record, scores_of: Callable[[Tensor], Tensor], layer: str, recorded: bool = True
) -> tuple[Tensor, Tensor, Record]:
    """(R,) the scores of rows (R, …), their slopes up to the upper ends of the steps, (R, …), and their own record.

    Args:
        rows: the lower ends.
        upper: the record of the upper ends: one for each row, or a single one for all.
        scores_of: from the rows to their scores.
        layer: its name, for the error if no score depends on the rows.
        recorded: False where no step goes further down; the record, a third of the memory, is then empty.
    """
    with torch.enable_grad():
        leaf = _marked(rows.detach().requires_grad_())
        with Slopes(upper, recorded) as slopes:
            scores = scores_of(leaf)
        found = gradients_of(scores, [leaf])
    if found is None:
        raise does_not_reach(layer)
    return scores.detach(), found[0], slopes.record


class Slopes(TorchFunctionMode):
    """While active, operations on what follows from marked tensors are recorded.

    Args:
        upper: the record of the upper ends; given, the operations have slopes in place of derivatives.
        recorded: whether the ends that are run are recorded.

    Attributes:
        record: of the ends that are run.
    """

    def __init__(self, upper: Record | None = None, recorded: bool = True) -> None:
        super().__init__()
        self.record: Record = []
        self._upper = upper
        self._recorded = recorded
        self._calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, by its rule where it has one."""
        kwargs = kwargs or {}
        if not any(map(_follows, [*args, *kwargs.values()])):
            return func(*args, **kwargs)
        rule = self._rule(func, args, kwargs)
        found = func(*args, **kwargs) if rule is None else rule(*args, **kwargs)
        if found is None and args:  # as x[mask] = y
            _marked(args[0])
        # A parameter that is returned as it is, as by weight.to(rows), does not follow from the rows.
        itself = any(found is one and not _follows(one) for one in args[1:] if isinstance(one, Tensor))
        itself |= bool(args) and found is args[0] and not _follows(found) and not _works_in_place(func)
        return found if itself else _marked(found)

    def apply(self, kind: type[Function], inputs: tuple[Tensor, ...], *more: Any, overwrites: bool = False) -> Tensor:
        """One operation with a rule, recorded; `overwrites` where it writes into its inputs."""
        call, own = self._calls, tuple(one.detach() for one in inputs)
        self._calls += 1
        if self._recorded:
            own = tuple(one.clone() for one in own) if overwrites else own
            self.record.append(tuple(map(_Recorded, own)))
        upper = self.record if self._upper is None else self._upper
        if len(upper) <= call or len(upper[call]) != len(inputs):
            raise _unlike()
        ends = tuple(_matched(other.tensor, one) for other, one in zip(upper[call], inputs, strict=True))
        found: Tensor = _marked(kind.apply(*inputs, ends, *more))
        return found

    def _rule(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rule | None:
        name = getattr(func, "__name__", "").strip("_")
        alone = bool(args) and _follows_alone(args[0]) and not any(map(_follows, [*args[1:], *kwargs.values()]))
        for kind, names in ((_Clipped, _CLIPPED), (_Bent, _BENT), (_Curved, _CURVED)):
            if alone and name in names:
                return self._elementwise(func, kind)
        if alone and name in _RULES_OF_ONE:
            return lambda *args, **kwargs: _RULES_OF_ONE[name](self, func, *args, **kwargs)
        if alone and name in ("rdiv", "rtruediv") and len(args) == 2:
            return lambda a, b: self.apply(_Curved, (a,), torch.reciprocal) * b
        two = len(args) == 2 and all(map(_follows_alone, args)) and not kwargs
        if two and name in _PRODUCTS:
            return self._in_place_or_not(func, lambda a, b: self.apply(_Product, (a, b), _OUT_OF_PLACE.get(name, func)))
        if two and name in _QUOTIENTS:
            return self._in_place_or_not(
                func, lambda a, b: self.apply(_Product, (a, self.apply(_Curved, (b,), torch.reciprocal)), torch.mul)
            )
        if two and name == "maximum":
            return lambda a, b: self.apply(_Maximum, (a, b))
        if two and name == "minimum":
            return lambda a, b: -self.apply(_Maximum, (-a, -b))
        if name == "scaled_dot_product_attention":
            return lambda *args, **kwargs: _attention(self, *args, **kwargs)
        if name == "multi_head_attention_forward":
            return lambda *args, **kwargs: _multi_head_attention(self, func, *args, **kwargs)
        return None

    def _elementwise(self, func: Callable[..., Any], kind: type[Function]) -> Rule:
        def rule(first: Tensor, *args: Any, **kwargs: Any) -> Any:
            in_place = _works_in_place(func) or kwargs.get("inplace", False) or True in [a for a in args if a is True]
            overwrite = partial(_with_further, func, args, dict(kwargs))
            if "inplace" in kwargs:
                kwargs["inplace"] = False
            plain = tuple(False if one is True else one for one in args)

            def function(z: Tensor) -> Tensor:
                found: Tensor = func(z.clone() if _works_in_place(func) else z, *plain, **kwargs)
                return found

            if not in_place:
                return self.apply(kind, (first,), function)
            if kind is _Clipped and not first._is_view():
                return self.apply(_ClippedInPlace, (first,), function, overwrite, overwrites=True)
            return first.copy_(self.apply(kind, (first.clone(),), function))

        return rule

    def _in_place_or_not(self, func: Callable[..., Any], rule: Callable[[Tensor, Tensor], Tensor]) -> Rule:
        if not _works_in_place(func):
            return rule
        return lambda a, b: a.copy_(rule(a.clone(), b))


def _with_further(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: Tensor) -> Tensor:
    found: Tensor = func(first, *args, **kwargs)
    return found


_OUT_OF_PLACE: dict[str, Callable[..., Any]] = {"mul": torch.mul, "multiply": torch.mul, "imul": torch.mul}


def _works_in_place(func: Callable[..., Any]) -> bool:
    name: str = getattr(func, "__name__", "")
    return name in ("__imul__", "__itruediv__") or (name.endswith("_") and not name.endswith("__"))


def _unlike() -> LayerError:
    return LayerError("the network computes other things at one end of a step than at the other")


def _follows(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_follows, value))
    return isinstance(value, Tensor) and getattr(value, _FOLLOWS, False)


def _follows_alone(value: Any) -> bool:
    return isinstance(value, Tensor) and _follows(value) and value.is_floating_point()


def _marked(value: Any) -> Any:
    """The same, with a mark that it depends on the rows."""
    if isinstance(value, tuple | list):
        for one in value:
            _marked(one)
    elif isinstance(value, Tensor):
        setattr(value, _FOLLOWS, True)
    return value


def _matched(upper: Tensor, like: Tensor) -> Tensor:
    """An upper end for each row, wherever the network has put the rows; a single one broadcasts."""
    if upper.shape == like.shape:
        return upper
    sizes = list(zip(upper.shape, like.shape, strict=False))
    times = [own // other if other and own % other == 0 else 0 for other, own in sizes]
    if upper.ndim != like.ndim or sorted(times)[:-1] != [1] * (like.ndim - 1):
        raise _unlike()
    return upper if 1 in [other for other, own in sizes if other != own] else upper.repeat(times)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


Ends: TypeAlias = tuple[Tensor, ...]
Elementwise: TypeAlias = Callable[[Tensor], Tensor]


class _Elementwise(Function):
    """A function of single numbers, whose forward pass saves the slopes."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        if gradient.dtype != slope.dtype:
            return gradient * slope, None, None
        return slope.mul_(gradient), None, None  # its memory is of no further use


class _Clipped(_Elementwise):
    """The number itself or a constant. Where the ends meet, the slope is 1 or 0."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, ends: Ends, function: Elementwise) -> Tensor:
        found = function(z)
        _save_slopes_of_clipped(ctx, _wide(ends[0]) - _wide(z), found, ends[0], function)
        return found


class _ClippedInPlace(_Elementwise):
    """The same, written over the number as the network does it: passes over memory are what it costs."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, ends: Ends, function: Elementwise, overwrite: Elementwise) -> Tensor:
        run = _wide(ends[0]) - _wide(z)
        overwrite(z)
        ctx.mark_dirty(z)
        _save_slopes_of_clipped(ctx, run, z, ends[0], function)
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return *_Elementwise.backward(ctx, gradient), None


def _save_slopes_of_clipped(ctx: Any, run: Tensor, found: Tensor, upper: Tensor, function: Elementwise) -> None:
    """(f(u) - f(l)) / (u - l), given the run u - l and what was found at l. Clipping rounds nothing."""
    above, below = _wide(function(upper)), _wide(found)
    slope = (above.sub_(below) if above.shape == run.shape else above - below).div_(run)
    # 0 / 0 where the ends meet. On a graphics card, to ask whether there is any takes longer than to replace them.
    if slope.device.type != "cpu" or bool(slope.sum().isnan()):
        slope = torch.where(run == 0, (found == upper).to(run), slope)
    ctx.save_for_backward(slope)


class _Bent(_Elementwise):
    """Straight between corners, so that differences are exact; where the ends meet, the derivative."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, ends: Ends, function: Elementwise) -> Tensor:
        return _with_slopes(ctx, z, ends[0], function, reach=0.0)


class _Curved(_Elementwise):
    """Where the ends are so close that their difference has lost digits, the derivative in the middle is better."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, ends: Ends, function: Elementwise) -> Tensor:
        return _with_slopes(ctx, z, ends[0], function, torch.finfo(_wide(z[:0]).dtype).eps ** 0.5)


def _with_slopes(ctx: Any, z: Tensor, end: Tensor, function: Elementwise, reach: float) -> Tensor:
    found = function(z)
    lower, upper = _wide(z), _wide(end)
    below, above = found if lower is z else function(lower), function(upper)
    run, rise = upper - lower, above - below
    # Digits are lost where the rise is small beside the values; a small rise on a long way is a small slope.
    close = (run.abs() <= reach * (1 + lower.abs())) & (rise.abs() <= reach * (below.abs() + above.abs()))
    slope = rise.div_(run)
    if bool(close.any()):
        with torch.enable_grad():
            middle = ((lower + upper) / 2).requires_grad_()
            (derivative,) = torch.autograd.grad(function(middle).sum(), middle)
        slope = torch.where(close, derivative, slope)
    ctx.save_for_backward(slope)
    return found


class _Maximum(Function):
    """The larger of two numbers: (a + b + |a - b|) / 2."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, ends: Ends) -> Tensor:
        lower, upper = _wide(a) - _wide(b), _wide(ends[0]) - _wide(ends[1])
        run = upper - lower
        ctx.save_for_backward(torch.where(run == 0, lower.sign(), (upper.abs() - lower.abs()).div_(run)))
        return torch.maximum(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (lean,) = ctx.saved_tensors
        return gradient * (1 + lean) / 2, gradient * (1 - lean) / 2, None


class _Product(Function):
    """Any bilinear operation: each factor's slope is that with the other in the middle between its ends."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, ends: Ends, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.operation = operation
        ctx.save_for_backward((a + ends[0]) / 2, (b + ends[1]) / 2)
        return operation(a.clone(), b)  # a copy, because the operation may be one in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        with torch.enable_grad():
            leaves = [factor.detach().requires_grad_() for factor in ctx.saved_tensors]
            found = ctx.operation(leaves[0].clone(), leaves[1])
            parts = torch.autograd.grad(found, leaves, gradient)
        return *parts, None, None


class _Softmax(Function):
    """With m the logarithmic mean of both ends' probabilities, dp_i = m_i (ds_i - sum_j m_j ds_j / sum_j m_j), exactly.

    For p = exp(s - L): the slope of exp is m, and since p adds up to 1 at both ends, L rises by the m-weighted mean of
    ds.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, ends: Ends, dim: int) -> Tensor:
        lower, upper = (functional.log_softmax(_wide(one), dim) for one in (z, ends[0]))
        apart = (upper - lower).abs()
        mean = torch.maximum(lower, upper).exp() * torch.where(
            apart > 1e-4, -torch.expm1(-apart) / apart, 1 - apart / 2
        )
        # What is masked has no probability at either end.
        ctx.save_for_backward(mean.nan_to_num(0.0, 0.0, 0.0))
        ctx.dim = dim
        return lower.exp().to(z.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (mean,) = ctx.saved_tensors
        centre = (mean * gradient).sum(ctx.dim, keepdim=True) / mean.sum(ctx.dim, keepdim=True)
        return (mean * (gradient - centre)).to(gradient.dtype), None, None


def _softmax(
    slopes: Slopes, func: Callable[..., Any], z: Tensor, dim: int | None = None, *rest: Any, **more: Any
) -> Any:
    if dim is None or more.get("dtype") is not None or any(isinstance(one, torch.dtype) for one in rest):
        return func(z, dim, *rest, **more)
    return slopes.apply(_Softmax, (z,), dim)


class _Standardised(Function):
    """c r with c = z - mean(z) and r = 1 / sqrt(mean(c²) + eps), over the last dimension.

    Products by their rule: d(c r) = dc r̄ + c̄ dr, dr = -d(v) / (s t (s + t)) with s and t the roots at the two ends, and
    d(v) = 2 mean(c̄ dc).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, ends: Ends, eps: float) -> Tensor:
        (lower, s), (upper, t) = (_centred(_wide(one), eps) for one in (z, ends[0]))
        ctx.save_for_backward((lower + upper) / 2, (1 / s + 1 / t) / 2, -1 / (s * t * (s + t)))
        return (lower / s).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        middle, scale, of_variance = ctx.saved_tensors
        inner = gradient * scale + 2 * of_variance * (gradient * middle).mean(-1, keepdim=True) * middle
        return (inner - inner.mean(-1, keepdim=True)).to(gradient.dtype), None, None


def _centred(z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """z - mean(z), and the root of its variance."""
    centred = z - z.mean(-1, keepdim=True)
    return centred, (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def _layer_norm(
    slopes: Slopes,
    func: Callable[..., Any],
    z: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    if len(shape) >= z.ndim:
        found: Tensor = func(z, normalized_shape, weight, bias, eps)
        return found
    flat = slopes.apply(_Standardised, (z.flatten(z.ndim - len(shape)),), eps)
    return _affine(flat.reshape(z.shape), weight, bias)


def _group_norm(
    slopes: Slopes,
    func: Callable[..., Any],
    z: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    **__: Any,
) -> Tensor:
    flat = slopes.apply(_Standardised, (z.reshape(len(z), num_groups, -1),), eps)
    places = [1] * (z.ndim - 2)
    by_channel = [None if one is None else one.reshape(-1, *places) for one in (weight, bias)]
    return _affine(flat.reshape(z.shape), *by_channel)


def _affine(z: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    z = z if weight is None else z * weight
    return z if bias is None else z + bias


def _normalize(
    slopes: Slopes,
    func: Callable[..., Any],
    z: Tensor,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: Any = None,
) -> Tensor:
    if p != 2.0 or out is not None or not isinstance(dim, int):
        found: Tensor = func(z, p, dim, eps, out)
        return found
    squares = slopes.apply(_Product, (z, z), lambda a, b: (a * b).sum(dim, keepdim=True))
    return slopes.apply(
        _Product, (z, slopes.apply(_Curved, (squares,), lambda v: 1 / v.sqrt().clamp_min(eps))), torch.mul
    )


def _max_pool2d(slopes: Slopes, func: Callable[..., Any], z: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The largest of each window, found in rounds of two against two."""
    given = dict(zip(("kernel_size", "stride", "padding", "dilation"), args, strict=False)) | kwargs
    kernel = _pair(given["kernel_size"])
    stride = _pair(given.get("stride") or kernel)
    padding = _pair(given.get("padding", 0))
    known = _pair(given.get("dilation", 1)) == (1, 1) and z.ndim == 4 and not given.get("return_indices", False)
    if not known or len(args) > 4:
        return func(z, *args, **kwargs)
    with torch.no_grad():
        size = func(z, *args, **kwargs).shape[2:]
    ends_at = [(count - 1) * step + side for count, step, side in zip(size, stride, kernel, strict=True)]
    beyond = [max(0, end - side - before) for end, side, before in zip(ends_at, z.shape[2:], padding, strict=True)]
    least = float(z.detach().min()) - 1.0
    edges = (padding[1], beyond[1], padding[0], beyond[0])
    around = functional.pad(z, edges, value=least)[:, :, : ends_at[0], : ends_at[1]]
    windows = around.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).flatten(4)
    while windows.shape[-1] > 1:
        half = windows.shape[-1] // 2
        a, b, odd = windows[..., :half], windows[..., half : 2 * half], windows[..., 2 * half :]
        windows = torch.cat([slopes.apply(_Maximum, (a, b)), odd], dim=-1)
    return windows[..., 0]


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    values = tuple(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _times(slopes: Slopes, operation: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    if _follows(a) and _follows(b):
        return slopes.apply(_Product, (a, b), operation)
    found = operation(a, b)
    return found if not (_follows(a) or _follows(b)) else _like(found, a if _follows(a) else b)


def _scores_of_keys(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2)


def _attention(
    slopes: Slopes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    return _attended(slopes, query, key, value, attn_mask, is_causal, scale, enable_gqa)[0]


def _attended(
    slopes: Slopes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None = None,
    grouped: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / sqrt(d)) v, and the softmax."""
    if grouped:
        times = query.shape[-3] // key.shape[-3]
        key, value = (_like(one.repeat_interleave(times, -3), one) for one in (key, value))
    scores = _times(slopes, _scores_of_keys, query, key) * (scale or 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        there = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~there, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    moves = _follows(query) or _follows(key)
    weights = slopes.apply(_Softmax, (scores,), -1) if moves else scores.softmax(-1)
    return _times(slopes, torch.matmul, weights, value), weights


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """Marked if the other is."""
    if _follows(other):
        _marked(tensor)
    return tensor


def _multi_head_attention(
    slopes: Slopes,
    func: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    **more: Any,
) -> Any:
    """What `torch.nn.MultiheadAttention` computes, on (length, rows, channels)."""
    unusual = ("key_padding_mask", "attn_mask", "use_separate_proj_weight", "static_k", "static_v", "is_causal")
    given = any(more.get(name) is not None and more[name] is not False for name in unusual)
    if in_proj_weight is None or bias_k is not None or bias_v is not None or add_zero_attn or given or query.ndim != 3:
        return func(
            query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v,
            add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, **more,
        )  # fmt: skip
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    parts = []
    for one, weight, bias in zip((query, key, value), in_proj_weight.chunk(3), biases, strict=True):
        made = functional.linear(one.transpose(0, 1), weight, bias)
        heads = made.reshape(made.shape[0], made.shape[1], num_heads, -1).transpose(1, 2)
        parts.append(_like(heads, one))
    found, weights = _attended(slopes, parts[0], parts[1], parts[2], None, False)
    joined = found.transpose(1, 2).flatten(2).transpose(0, 1)
    output = functional.linear(joined, out_proj_weight, out_proj_bias)
    if not more.get("need_weights", True):
        return output, None
    return output, weights.mean(1) if more.get("average_attn_weights", True) else weights


_RULES_OF_ONE: dict[str, Rule] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "max_pool2d": _max_pool2d,
    "normalize": _normalize,
}
