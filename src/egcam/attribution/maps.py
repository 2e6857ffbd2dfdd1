"""What a method computes for some images, before the explanation is made of it."""

from __future__ import annotations

from collections.abc import Sequence
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
        slopes: "steps" or "derivatives", for estimators that have both.
    """

    maps: list[Tensor]
    errors: list[Tensor] | None = None
    reference: str | None = None
    completeness: Completeness | None = None
    slopes: str | None = None


def facts_of(parts: Sequence[Maps]) -> dict[str, str]:
    """What is known of how maps were made only once they are."""
    slopes = {part.slopes for part in parts} - {None}
    return {"slopes": "steps" if slopes == {"steps"} else "derivatives"} if slopes else {}
