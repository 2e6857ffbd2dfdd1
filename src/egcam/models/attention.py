"""Look at the attention of a network: every matrix of a forward pass, and the gradients there in a backward pass.

Fused attention never makes its matrices. For the length of a block it is computed step by step instead, in this thread
alone; no module is changed. What is recorded are softmaxes over the last axis, whichever library they are made by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_SOFTMAX = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)
_SOFTMAX_BACKWARD = torch.ops.aten._softmax_backward_data.default


@dataclass
class Attention:
    """One attention of a pass."""

    matrix: Tensor  # (…, queries, keys), rows sum to 1
    gradient: Tensor | None = None  # of the scores at the matrix, once a backward pass came by
    is_applied: bool = False  # whether it was multiplied as it is, rather than mixed with other matrices before


@contextmanager
def recorded_attention() -> Iterator[list[Attention]]:
    """All attention computed inside the block, in order."""
    recorder = _Recorder()
    with _StepByStep(), recorder:
        yield recorder.seen


class _StepByStep(TorchFunctionMode):
    """Computes attention as softmax and products of matrices, so that there are matrices to see."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            return torch.ops.aten._scaled_dot_product_attention_math(*args, **named)[0]
        if func is functional.multi_head_attention_forward and named.get("need_weights") is False:
            output, _ = func(*args, **{**named, "need_weights": True})
            return output, None
        return func(*args, **named)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every softmax below autograd, and every one that is passed back through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Attention] = []
        self._by_memory: dict[int, Attention] = {}
        self._copies: list[Tensor] = []  # in another precision

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in _SOFTMAX and output.ndim >= 3 and args[1] in (-1, output.ndim - 1):
            attention = Attention(output.detach())
            self.seen.append(attention)
            # It is kept, so that no other tensor comes to lie there.
            self._by_memory[output.data_ptr()] = attention
        elif func is _SOFTMAX_BACKWARD and (recorded := self._by_memory.get(args[1].data_ptr())) is not None:
            recorded.gradient = args[0].detach().clone()
        elif func is torch.ops.aten.bmm.default:
            for recorded in filter(None, (self._by_memory.get(factor.data_ptr()) for factor in args)):
                recorded.is_applied = True
        elif (
            func is torch.ops.aten._to_copy.default
            and (recorded := self._by_memory.get(args[0].data_ptr())) is not None
        ):
            self._by_memory[output.data_ptr()] = recorded
            self._copies.append(output)
        return output
