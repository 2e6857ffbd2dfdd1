"""What a method computes for some images, before the explanation is made of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from egcam.attribution.explanation import Completeness


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
