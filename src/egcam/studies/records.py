"""The smallest piece of a study, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from egcam.evaluation.score import Score

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class Unit(NamedTuple):
    """One model explaining one image with one method: done as a whole or not at all."""

    model: str
    method: str
    image: int

    def score(self, metric: str, value: float, seconds: float = 0.0, cause: str | None = None) -> Score:
        """The unit's score by a metric."""
        return Score(self.image, self.method, metric, value, seconds, cause)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a unit."""

    unit: Unit  # which one
    name: str  # the image's name in the data, such as its file name
    target: int  # the class that was explained; -1 where it was not reached
    prediction: int  # the class the model predicts; -1 likewise
    seconds: float  # how long the unit took
    scores: tuple[Score, ...]  # one for each metric, in the study's order; whole-set metrics have none yet
    # Why the unit failed, where it did: the image could not be read, or the method or a metric raised an error. Scores
    # that are missing for it are NaN with their cause; those of metrics that worked are there. A score that is
    # undefined by its metric's definition is NaN with a cause and fails no unit.
    error: str | None = None
    # Perturbation curves by metric, at evenly spaced shares of the pixels from 0 to 1.
    curves: Mapping[str, Floats] = field(default_factory=dict)
    coarse: Floats | None = None  # (h, w) the map before it was enlarged, where the study keeps it
    picture: bytes | None = None  # what the model saw, as an encoded image, where the study keeps it
    # The most images in one pass, where memory did not allow the study's; last digits may then differ.
    batch_size: int | None = None
    # The keys of what was done, and of the image it was done to, as they really were; see `egcam.studies.keys`. ""
    # where it did not come to that: the outcome then counts for what was asked for.
    recipe: str = ""
    content: str = ""


def failed(unit: Unit, metrics: tuple[str, ...], cause: str, name: str = "") -> Outcome:
    """The outcome of a unit that failed.

    Example:
        >>> failed(Unit("vgg16", "grad-cam", 3), ("insertion",), "the worker died").scores[0].cause
        'the worker died'
    """
    scores = tuple(unit.score(metric, nan, 0.0, cause) for metric in metrics)
    return Outcome(unit, name, -1, -1, 0.0, scores, error=cause)
