"""One score: the row of every table of scores, from the worker of a study to its report."""

from __future__ import annotations

from typing import NamedTuple


class Score(NamedTuple):
    """What a metric says of one map.

    Attributes:
        model: the model's label in a study; "" where there is only one.
        image: the image's number or name.
        method: the method's name.
        metric: the metric's name.
        value: NaN if there is none.
        seconds: how long it took; work that metrics share counts for the first that needs it.
        cause: why there is no value.
    """

    model: str
    image: int | str
    method: str
    metric: str
    value: float
    seconds: float
    cause: str | None = None
