"""What a method computes for some images, before the explanation is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from egcam.attribution.explanation import Completeness

if TYPE_CHECKING:
    from egcam.attribution.task import Task


@dataclass(frozen=True)
class Maps:
    """Maps before the ReLU.

    Attributes:
        maps: one (n, h, w) per layer.
        errors: their standard errors, where they were sampled.
        reference: what the references were.
        completeness: both sides of the completeness equation, for estimators that have one.
        inexact: why derivatives had to stand in for slopes, for methods that take slopes.
    """

    maps: list[Tensor]
    errors: list[Tensor] | None = None
    reference: str | None = None
    completeness: Completeness | None = None
    inexact: str | None = None


def with_zero_maps(parts: Sequence[Maps | None], tasks: Sequence[Task]) -> list[Maps]:
    """The maps of each task; those of a task without a score are zero, and have what the others have."""
    like = next((part for part in parts if part is not None), Maps([]))
    return [_zero_maps(like, task) if part is None else part for part, task in zip(parts, tasks, strict=True)]


def _zero_maps(like: Maps, task: Task) -> Maps:
    count = len(task.images)

    def none(tensor: Tensor) -> Tensor:
        return tensor.new_zeros((count, *tensor.shape[1:]))

    maps = [none(one) for one in like.maps] or [torch.zeros_like(layer[:, 0]) for layer in task.activations]
    errors = None if like.errors is None else [none(one) for one in like.errors]
    sides = None if like.completeness is None else like.completeness.each(none)
    return replace(like, maps=maps, errors=errors, completeness=sides, inexact=None)
