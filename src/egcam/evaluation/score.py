"""One score: what a metric says of one map."""

from __future__ import annotations

from typing import NamedTuple


class Score(NamedTuple):
    """What a metric says of one map."""

    image: int | str  # number or name
    method: str
    metric: str
    value: float  # NaN if there is none
    seconds: float  # work that metrics share counts for the first that needs it
    cause: str | None = None  # why there is no value
