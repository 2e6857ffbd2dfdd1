"""The options every explainer takes, written down once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from egcam.models.capture import Reshape
from egcam.models.targets import Score


class Common(TypedDict, total=False):
    """See `egcam.explainers.explainer.Explainer`."""

    score: Score
    classes: Sequence[str] | None
    signed: bool
    batch_size: int | None
    memory: int | None
    reshape: str | Reshape | None
