"""The shapes that common operations output on the meta device, computed quickly.

torch works most of them out in Python that loads its compiler: seconds in a process that explains one photograph, and
milliseconds in every dry run after that. What is not known here, or is out of the ordinary, is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_POINTWISE = (
    *("relu", "sigmoid", "tanh", "silu", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid"),
    *("gelu", "softplus", "mish", "clone", "_softmax"),
)
_COMBINING = ("add", "sub", "mul", "div")


class QuickShapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, operations on meta tensors of this thread have their shapes computed quickly.

    Example:
        >>> with QuickShapes():
        ...     torch.nn.Conv2d(3, 8, 3, stride=2, device="meta")(torch.empty(1, 3, 9, 9, device="meta")).shape
        torch.Size([1, 8, 4, 4])
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch load dynamo in order to skip it.

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation's result."""
        shape_of = _KNOWN.get(func)
        if shape_of is not None and not kwargs and _are_plain(args):
            result = shape_of(*args)
            if result is not None:
                return result
        return func(*args, **(kwargs or {}))


def _are_plain(args: Sequence[Any]) -> bool:
    """Whether all tensors are on the meta device and of the first one's floating-point type; that one is contiguous."""
    first, *others = (value for value in args if isinstance(value, Tensor))
    return (
        first.is_meta
        and first.is_contiguous()
        and first.is_floating_point()
        and all(one.is_meta and one.dtype == first.dtype for one in others)
    )


def _new(like: Tensor, shape: Sequence[int]) -> Tensor:
    # `empty_like` and `new_empty` are among what torch works out in Python.
    return torch.empty(shape, dtype=like.dtype, device="meta")


def _alike(x: Tensor, *_: object) -> Tensor:
    return _new(x, x.shape)


def _itself(x: Tensor, *_: object) -> Tensor:
    return x


def _fits(x: Tensor, other: object) -> bool:
    """Whether the other operand is spread over x, never x over it."""
    if not isinstance(other, Tensor):
        return isinstance(other, float | int)
    return other.ndim <= x.ndim and all(
        size in (1, own) for size, own in zip(reversed(other.shape), reversed(x.shape), strict=False)
    )


def _combined(x: Tensor, other: object) -> Tensor | None:
    return _new(x, x.shape) if _fits(x, other) else None


def _combined_in_place(x: Tensor, other: object) -> Tensor | None:
    return x if _fits(x, other) else None


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor | None:
    if (
        transposed
        or not weight.is_contiguous()
        or x.ndim != weight.ndim
        or x.shape[1] != weight.shape[1] * groups
        or weight.shape[0] % groups
    ):
        return None
    return _slid(x, weight.shape[0], weight.shape[2:], stride, padding, dilation)


def _max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil: bool = False,
) -> tuple[Tensor, Tensor] | None:
    if x.ndim != 4 or ceil or any(len(values) != 2 for values in (kernel, stride, padding, dilation)):
        return None
    pooled = _slid(x, x.shape[1], kernel, stride, padding, dilation)
    return None if pooled is None else (pooled, torch.empty(pooled.shape, dtype=torch.int64, device="meta"))


def _slid(
    x: Tensor,
    channels: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor | None:
    if not len(x.shape[2:]) == len(kernel) == len(stride) == len(padding) == len(dilation):
        return None
    steps = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    sizes = [(size + 2 * edge - spread * (width - 1) - 1) // step + 1 for size, width, step, edge, spread in steps]
    return _new(x, (x.shape[0], channels, *sizes)) if min(sizes) > 0 else None


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor] | None:
    fitting = all(one is None or one.shape == x.shape[1:2] for one in (weight, bias, mean, variance))
    return None if training or not fitting else (_new(x, x.shape), _new(x, (0,)), _new(x, (0,)))


def _linear(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    fitting = (
        x.is_contiguous()
        and x.ndim == weight.ndim == 2
        and x.shape[1] == weight.shape[0]
        and bias.shape == weight.shape[1:]
    )
    return _new(x, (x.shape[0], weight.shape[1])) if fitting else None


def _mean(x: Tensor, axes: Sequence[int] | None, keep: bool = False) -> Tensor | None:
    if not axes or any(not -x.ndim <= axis < x.ndim for axis in axes):
        return None
    gone = {axis % x.ndim for axis in axes}
    sizes = [1 if axis in gone else size for axis, size in enumerate(x.shape) if keep or axis not in gone]
    return _new(x, sizes)


def _known() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {
        aten.convolution.default: _convolution,
        aten.native_batch_norm.default: _batch_norm,
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.addmm.default: _linear,
        aten.mean.dim: _mean,
    }
    for name in _POINTWISE:
        found[getattr(aten, name).default] = _alike
        if hasattr(aten, name + "_"):
            found[getattr(aten, name + "_").default] = _itself
    for name in _COMBINING:
        found[getattr(aten, name).Tensor] = _combined
        found[getattr(aten, name + "_").Tensor] = _combined_in_place
    return found


_KNOWN = _known()
