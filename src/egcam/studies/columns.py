"""The outcomes of a study in columns: what millions of scores are kept in."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from egcam.evaluation.comparable import Chosen, Values
from egcam.evaluation.score import Coded, Score, Scores, Whole, joined
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
        has_map: (U,) whether a map of it was kept.
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
    has_map: Chosen
    begins: Whole
    scores: Scores

    @classmethod
    def gathered(cls, parts: list[Outcomes], places: Whole) -> Outcomes:
        """The outcomes at some places of several parts that follow one another, in the order of the places.

        The list is empty afterwards. Each column of the parts is let go once it is in order, so that there is never
        twice as much in memory.
        """
        lengths = np.concatenate([np.diff(part.begins) for part in parts])
        starts, kept = np.cumsum(lengths) - lengths, lengths[places]
        begins = np.concatenate(([0], np.cumsum(kept)))
        rows = np.arange(begins[-1]) + np.repeat(starts[places] - begins[:-1], kept)
        of_units = {name: [getattr(part, name) for part in parts] for name in _OF_UNITS}
        of_scores = {name: [getattr(part.scores, name) for part in parts] for name in Score._fields}
        parts.clear()
        scores = Scores(**{name: joined(of_scores.pop(name))[rows] for name in Score._fields})
        return cls(**{name: joined(of_units.pop(name))[places] for name in _OF_UNITS}, begins=begins, scores=scores)

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
            *(column.listed() for column in (self.name, self.cause, self.batch_size)),
            *(column.tolist() for column in (self.target, self.prediction, self.seconds)),
        )
        for unit, (start, end), row in zip(
            self.units, pairwise(self.begins.tolist()), zip(*columns, strict=True), strict=True
        ):
            name, cause, batch_size, target, prediction, seconds = row
            yield Outcome(unit, name, target, prediction, seconds, scores[start:end], cause, batch_size=batch_size)

    @property
    def units(self) -> list[Unit]:
        """The units they are of."""
        return list(map(Unit, self.model.listed(), self.method.listed(), self.image.tolist()))

    def held(self, metrics: Collection[str]) -> Whole:
        """(U,) how many of the metrics each has a score for."""
        before = np.cumsum(self.scores.metric.placed(metrics) >= 0)
        return np.diff(np.concatenate(([0], before))[self.begins])

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
        return Outcomes(**{name: getattr(self, name)[rows] for name in _OF_UNITS}, begins=begins, scores=scores)


_OF_UNITS = tuple(one.name for one in fields(Outcomes) if one.name not in ("begins", "scores"))
