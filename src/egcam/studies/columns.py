"""The outcomes of a study in columns: what millions of scores are kept in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from egcam.evaluation.comparable import Chosen, Values
from egcam.evaluation.score import Coded, Scores, Whole
from egcam.studies.records import Outcome, Unit


@dataclass(frozen=True, eq=False)
class Outcomes:
    """U outcomes with N scores; see `egcam.studies.records.Outcome`. Without curves, maps and pictures.

    Attributes:
        model: (U,) the models' labels.
        method: (U,) the methods' names.
        image: (U,) the images' numbers.
        name: (U,) the images' names.
        target: (U,) the classes explained.
        prediction: (U,) the classes predicted.
        seconds: (U,) how long each took.
        cause: (U,) why those failed that did.
        batch_size: (U,) the most images in one pass, where memory did not allow the study's.
        begins: (U + 1,) where the scores of each begin, and where the last one's end.
        scores: (N,) the long table: model, image, method, metric, value, seconds, cause.
    """

    model: Coded
    method: Coded
    image: Whole
    name: Coded
    target: Whole
    prediction: Whole
    seconds: Values
    cause: Coded
    batch_size: Coded
    begins: Whole
    scores: Scores

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, place: int) -> Outcome:
        start, end = self.begins[place : place + 2]
        own = self._some(slice(place, place + 1), np.array([0, end - start]), self.scores[start:end])
        return next(iter(own))

    def __iter__(self) -> Iterator[Outcome]:
        """One after the other, as objects: some kilobytes each."""
        scores = tuple(self.scores)
        columns = (
            *(column.listed() for column in (self.model, self.method, self.name, self.cause, self.batch_size)),
            *(column.tolist() for column in (self.image, self.target, self.prediction, self.seconds)),
        )
        for (start, end), row in zip(pairwise(self.begins.tolist()), zip(*columns, strict=True), strict=True):
            model, method, name, cause, batch_size, image, target, prediction, seconds = row
            unit, own = Unit(model, method, image), scores[start:end]
            yield Outcome(unit, name, target, prediction, seconds, own, cause, batch_size=batch_size)

    @property
    def unit_of_score(self) -> Whole:
        """(N,) the place of the outcome that each score is of."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.begins))

    def where(self, chosen: Chosen) -> Outcomes:
        """Those that are chosen: (U,) truth values."""
        if chosen.all():
            return self
        lengths = np.diff(self.begins)
        begins = np.concatenate(([0], np.cumsum(lengths[chosen])))
        return self._some(chosen, begins, self.scores[np.repeat(chosen, lengths)])

    def _some(self, rows: Any, begins: Whole, scores: Scores) -> Outcomes:
        columns = [one.name for one in fields(self) if one.name not in ("begins", "scores")]
        return Outcomes(**{name: getattr(self, name)[rows] for name in columns}, begins=begins, scores=scores)
