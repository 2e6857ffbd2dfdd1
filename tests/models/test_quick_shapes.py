"""Shapes told quickly are those torch tells on the meta device, strides and types included."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.models import trace
from egcam.models.quick_shapes import QuickShapes
from support.small_models import pictures, small_net


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CASES: dict[str, Any] = {
    "convolution": lambda: functional.conv2d(empty(2, 6, 9, 11), empty(8, 3, 3, 2), None, (2, 1), (1, 0), (2, 3), 2),
    "convolution of one axis": lambda: functional.conv1d(empty(2, 6, 9), empty(8, 6, 3), empty(8), padding=1),
    "convolution of three axes": lambda: functional.conv3d(empty(2, 3, 5, 6, 7), empty(4, 3, 3, 3, 3), stride=2),
    "convolution without batch": lambda: functional.conv2d(empty(3, 9, 9), empty(4, 3, 3, 3)),
    "transposed convolution": lambda: functional.conv_transpose2d(empty(1, 4, 5, 5), empty(4, 3, 2, 2), stride=2),
    "channels-last convolution": lambda: functional.conv2d(
        empty(2, 3, 9, 9).to(memory_format=torch.channels_last), empty(4, 3, 3, 3)
    ),
    "half precision": lambda: functional.conv2d(
        empty(1, 3, 9, 9, dtype=torch.bfloat16), empty(4, 3, 3, 3, dtype=torch.bfloat16)
    ),
    "batch norm": lambda: functional.batch_norm(empty(2, 3, 4, 5), empty(3), empty(3), empty(3), empty(3)),
    "batch norm that trains": lambda: functional.batch_norm(empty(2, 3, 4), None, None, training=True),
    "max pooling": lambda: functional.max_pool2d(empty(2, 3, 9, 8), 3, 2, 1),
    "max pooling with indices": lambda: functional.max_pool2d(empty(2, 3, 9, 8), 2, return_indices=True)[1],
    "max pooling rounded up": lambda: functional.max_pool2d(empty(2, 3, 9, 8), 2, ceil_mode=True),
    "max pooling without batch": lambda: functional.max_pool2d(empty(3, 9, 8), (3, 2)),
    "linear": lambda: functional.linear(empty(2, 7), empty(5, 7), empty(5)),
    "linear without bias": lambda: functional.linear(empty(2, 7), empty(5, 7)),
    "linear on rows of rows": lambda: functional.linear(empty(2, 3, 7), empty(5, 7), empty(5)),
    "mean": lambda: empty(2, 3, 4, 5).mean((2, -1)),
    "mean that keeps its axes": lambda: empty(2, 3, 4, 5).mean((-2, -1), keepdim=True),
    "mean of all": lambda: empty(2, 3, 4, 5).mean(),
    "pooling to one": lambda: functional.adaptive_avg_pool2d(empty(2, 3, 4, 5), 1),
    "relu": lambda: empty(2, 3).relu(),
    "relu of a view": lambda: empty(2, 3, 4).transpose(1, 2).relu(),
    "relu in place": lambda: empty(2, 3).relu_(),
    "relu6": lambda: functional.relu6(empty(2, 3)),
    "gelu": lambda: functional.gelu(empty(2, 3)),
    "silu in place": lambda: functional.silu(empty(2, 3), inplace=True),
    "sigmoid of integers": lambda: empty(2, 3, dtype=torch.int64).sigmoid(),
    "softmax": lambda: empty(2, 3).softmax(1),
    "clone": lambda: empty(2, 3).clone(),
    "clone in another format": lambda: empty(2, 3, 4, 5).clone(memory_format=torch.channels_last),
    "sum": lambda: empty(2, 3) + empty(2, 3),
    "sum with a number": lambda: empty(2, 3) + 1,
    "sum with a multiple": lambda: torch.add(empty(2, 3), empty(2, 3), alpha=2),
    "sum spread over the second": lambda: empty(3) + empty(2, 3),
    "sum spread over both": lambda: empty(2, 1) + empty(1, 3),
    "sum of two types": lambda: empty(2, 3) + empty(2, 3, dtype=torch.float64),
    "product spread over the first": lambda: empty(2, 3, 4, 5) * empty(2, 3, 1, 1),
    "quotient": lambda: empty(2, 3) / empty(3),
    "difference in place": lambda: empty(2, 3).sub_(empty(3)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_shape_is_torchs(case):
    expected = CASES[case]()
    with QuickShapes():
        found = CASES[case]()
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert found.is_meta


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: functional.conv2d(empty(1, 3, 9, 9), empty(4, 2, 3, 3)),
        lambda: functional.conv2d(empty(1, 3, 2, 2), empty(4, 3, 3, 3)),
        lambda: functional.linear(empty(2, 7), empty(5, 6), empty(5)),
        lambda: functional.batch_norm(empty(2, 3, 4), empty(4), empty(4), empty(4), empty(4)),
        lambda: empty(2, 3) + empty(4),
        lambda: empty(2, 3).mean(2),
    ],
)
def test_what_torch_refuses_is_refused(wrong):
    try:
        wrong()
    except (RuntimeError, IndexError, ValueError):
        pass
    else:
        pytest.skip("this torch does not refuse it without pixels")
    with pytest.raises((RuntimeError, IndexError, ValueError)), QuickShapes():
        wrong()


class _Joins(nn.Module):
    """Branches, a gate and a pooled head, with operations told quickly and others."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.norm, self.head = nn.LayerNorm([12, 12]), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        left = self.norm(functional.avg_pool2d(self.left(images), 3, 1, 1)).relu()
        gate = left.mean((2, 3), keepdim=True).sigmoid()
        joined = torch.cat([left * gate, self.right(images) - left], 1)
        return self.head(joined.amax((2, 3)))


@pytest.mark.parametrize("build", [small_net, _Joins])
def test_a_dry_run_is_the_same_with_and_without(build, monkeypatch):
    model, images = build(), pictures()
    quick = trace.dry_run(model, images)
    monkeypatch.setattr(trace, "QuickShapes", nullcontext)
    usual = trace.dry_run(model, images)

    def seen(of: trace.Trace) -> list[tuple[Any, ...]]:
        return [(one.name, one.shape, one.shape_in, one.bytes, one.multiplications, one.sees_image) for one in of.calls]

    assert seen(quick) == seen(usual)
    assert all(one.sees_image for one in quick.calls)
    assert quick.classes == usual.classes == 5


def test_a_usual_network_needs_nothing_of_what_torch_works_out_in_python():
    model, images, slow = small_net(), pictures(), set()

    def watch(frame: Any, event: str, argument: object) -> None:
        name = frame.f_code.co_filename.replace("\\", "/")
        if any(
            part in name for part in ("torch/_refs/", "torch/_decomp/", "torch/_meta_registrations", "torch/_prims")
        ):
            slow.add(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        trace.dry_run(model, images)
    finally:
        sys.setprofile(None)
    assert not slow
