"""What came of a study: scores by model, paired over the images that every method has finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image

from egcam.errors import EgcamError, near_misses, require
from egcam.evaluation.comparable import comparable
from egcam.evaluation.score import Score
from egcam.evaluation.table import Table
from egcam.imageops import upsampled
from egcam.metrics.faithfulness import sufficiency_of_cells
from egcam.metrics.registry import metric as metric_called
from egcam.metrics.undefined import causes_collected
from egcam.studies.records import Floats, Outcome, Unit
from egcam.studies.specs import MetricSpec, Study
from egcam.studies.store import Store

if TYPE_CHECKING:
    import pandas as pd


class ResultsError(EgcamError):
    """Results that are asked for and are not there (yet)."""


Sourced: TypeAlias = Store | str | Path


class Failure(NamedTuple):
    """A unit that failed, and why."""

    unit: Unit
    cause: str


@dataclass(frozen=True)
class Results:
    """The outcomes of a study and what follows from them.

    A model's table holds the images that every method has finished, failures included, so that methods are compared
    on the same images in the same order; its means are over those of them that all compared methods have a score for
    (see `egcam.evaluation.table.Table.comparable`). Metrics of the whole set (sufficiency) are computed here, from the
    kept maps, over the images that all compared methods have a map of: each score depends on all of them.

    Attributes:
        source: where they come from.
        study: what was asked for.
        outcomes: what is done, in canonical order.

    Example:
        >>> Results.of("results/")                                         # doctest: +SKIP
        >>> Results.of("results/").table("vgg16").summary("grad-cam")      # doctest: +SKIP
    """

    source: Store
    study: Study
    outcomes: tuple[Outcome, ...]

    @classmethod
    def of(cls, source: Sourced) -> Results:
        """The results in a store or a folder (or behind a URL such as s3://bucket/results)."""
        found = source if isinstance(source, Store) else Store(source)
        study = Study.model_validate(found.manifest.study)
        models, methods = {one.label for one in study.models}, {one.name for one in study.methods}
        # A folder may also hold what an earlier form of the study asked for.
        asked = (one for one in found.outcomes() if one.unit.model in models and one.unit.method in methods)
        return cls(found, study, tuple(asked))

    @property
    def models(self) -> tuple[str, ...]:
        """The labels of the models, in the study's order."""
        return tuple(model.label for model in self.study.models)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the study's order."""
        return tuple(method.name for method in self.study.methods)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics, in the study's order."""
        return tuple(metric_called(metric.name).name for metric in self.study.metrics)

    @property
    def units(self) -> int:
        """How many units the study has in all."""
        return self.source.manifest.units

    @property
    def complete(self) -> bool:
        """Whether every unit has an outcome with all metrics."""
        return sum(map(self.is_whole, self.outcomes)) >= self.units

    def is_whole(self, outcome: Outcome) -> bool:
        """Whether an outcome has all metrics; one from before the study grew lacks some."""
        return self._each <= {score.metric for score in outcome.scores}

    @cached_property
    def _each(self) -> frozenset[str]:
        return frozenset(name for name in self.metrics if not metric_called(name).whole_set)

    @cached_property
    def failures(self) -> list[Failure]:
        """The units that failed, with the cause."""
        return [Failure(outcome.unit, outcome.error) for outcome in self.outcomes if outcome.error is not None]

    @cached_property
    def _by_unit(self) -> dict[Unit, Outcome]:
        return {outcome.unit: outcome for outcome in self.outcomes}

    @cached_property
    def _images(self) -> dict[str, tuple[int, ...]]:
        seen: dict[str, dict[int, set[str]]] = {model: {} for model in self.models}
        for unit in self._by_unit:
            if unit.model in seen:
                seen[unit.model].setdefault(unit.image, set()).add(unit.method)
        every = set(self.methods)
        return {
            model: tuple(sorted(image for image, methods in images.items() if methods >= every))
            for model, images in seen.items()
        }

    def images(self, model: str) -> tuple[int, ...]:
        """The numbers of the images that every method has finished on a model."""
        return self._images[self._known(model)]

    def outcome(self, model: str, method: str, image: int) -> Outcome:
        """What came of one unit."""
        return self._by_unit[Unit(model, method, image)]

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of all models with an image that every method has finished."""
        return {model: self._table(model) for model in self.models if self._images[model]}

    def table(self, model: str) -> Table:
        """A model's scores over the images that every method has finished; images go by number."""
        if self._known(model) not in self.tables:
            raise ResultsError(
                f"no image is done by all {len(self.methods)} methods on {model} yet: "
                f"{len(self._by_unit):,} of {self.units:,} units of the study are done"
            )
        return self.tables[model]

    def _known(self, model: str) -> str:
        if model not in self.models:
            raise ResultsError(f"no model of this study is called {model!r}; {near_misses(model, self.models)}")
        return model

    def _table(self, model: str) -> Table:
        of_set = self._of_sets(model)
        rows: list[Score] = []
        for method in self.methods:
            rows += self._rows(
                model, method, {metric: found for (own, metric), found in of_set.items() if own == method}
            )
        return Table(tuple(rows), self.methods, self.metrics)

    def _rows(self, model: str, method: str, of_set: Mapping[str, Mapping[int, Score]]) -> list[Score]:
        """A method's scores, metric by metric and image by image. No index of all scores: there may be millions."""
        by_metric: dict[str, list[Score]] = {metric: [] for metric in self.metrics}
        for image in self._images[model]:
            unit = Unit(model, method, image)
            given = {score.metric: score for score in self._by_unit[unit].scores}
            for metric, found in by_metric.items():
                score = of_set[metric].get(image) if metric in of_set else given.get(metric)
                found.append(score or self._not_computed(unit, metric))
        return [score for found in by_metric.values() for score in found]

    def _of_sets(self, model: str) -> dict[tuple[str, str], dict[int, Score]]:
        """The scores of metrics that compare images with each other, by method and metric, then image."""
        whole = [one for one in self.study.metrics if metric_called(one.name).whole_set]
        sets = self._sets(model) if whole else {}
        return {
            (method, metric_called(one.name).name): {
                int(score.image): score for score in self._of_the_set(model, method, in_the_set, one)
            }
            for one in whole
            for method, in_the_set in sets.items()
        }

    def _not_computed(self, unit: Unit, metric: str) -> Score:
        return unit.score(metric, nan, 0.0, self._by_unit[unit].error or "it was not computed")

    def _sets(self, model: str) -> dict[str, frozenset[int]]:
        """The images whose maps a method's whole-set metrics are over: the same ones for all compared methods."""
        images = self._images[model]
        held = np.full((len(images), len(self.methods)), nan)
        for place, method in enumerate(self.methods):
            maps = self.source.maps(model, method)
            for row, image in enumerate(images):
                usable = self.outcome(model, method, image).error is None and image in maps
                if usable and np.isfinite(maps[image]).all():
                    held[row, place] = 1.0
        kept = np.isfinite(comparable(held).values)
        return {
            method: frozenset(image for image, counts in zip(images, kept[:, place], strict=True) if counts)
            for place, method in enumerate(self.methods)
        }

    def _of_the_set(self, model: str, method: str, whole_set: frozenset[int], spec: MetricSpec) -> list[Score]:
        """The scores of a metric that compares images with each other, over those in the set."""
        metric = metric_called(spec.name).name
        outcomes = {image: self.outcome(model, method, image) for image in self._images[model]}

        def without(why: Callable[[int], str]) -> list[Score]:
            return [one.unit.score(metric, nan, 0.0, one.error or why(image)) for image, one in outcomes.items()]

        if metric != "sufficiency":
            return without(lambda image: f"{spec.name} cannot be computed from the stored maps")
        maps = self.source.maps(model, method)
        usable = [image for image in outcomes if image in whole_set]
        size = self._size(model) if usable else None
        if usable and size is None:
            return without(lambda image: _NO_SIZE)
        found = {score.image: score for score in without(lambda image: _left_out(maps.get(image)))}
        if usable and size is not None:
            cells = [torch.from_numpy(np.array(maps[image], np.float32)) for image in usable]
            if len({one.shape for one in cells}) > 1:
                cells = [upsampled(one[None], size)[0] for one in cells]
            predictions = torch.tensor([outcomes[image].prediction for image in usable])
            with causes_collected() as causes:
                values = sufficiency_of_cells(torch.stack(cells), size, predictions, **spec.options).tolist()
            for place, image in enumerate(usable):
                found[image] = outcomes[image].unit.score(metric, values[place], 0.0, causes.get(place))
        return list(found.values())

    def _size(self, model: str) -> tuple[int, int] | None:
        """(height, width) of what the model sees: as recorded, as its pictures are, or as the study asks for."""
        record = self.source.manifest.models.get(model)
        if record is not None and record.size is not None:
            return record.size
        for picture in self.source.pictures(model).values():
            width, height = Image.open(BytesIO(picture)).size
            return height, width
        side = self.study.data.size
        return None if side is None else (side, side)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Every score, tidy: model, image, name, method, metric, value, seconds, cause, target, prediction.

        All outcomes are in it, also of images that some method has not finished; scores of whole-set metrics are
        over the images that all have.
        """
        require("pandas", "study", "a table of scores")
        import pandas

        frame: pd.DataFrame = pandas.DataFrame(list(self.lines()), columns=list(COLUMNS))
        return frame

    def lines(self) -> Iterator[tuple[Any, ...]]:
        """The rows of the frame, in the order of `COLUMNS`, one after the other: there may be millions."""
        of_set = {
            (*score[:3], score.metric): score
            for table in (self.tables.values() if len(self._each) < len(self.metrics) else ())
            for score in table.rows
            if score.metric not in self._each
        }
        for outcome in self.outcomes:
            model, method, image = outcome.unit
            given = {score.metric: score for score in outcome.scores if score.metric in self._each}
            for metric in self.metrics:
                score = given.get(metric) or of_set.get((model, image, method, metric))
                if score is not None:
                    yield (model, image, outcome.name, *score[2:], outcome.target, outcome.prediction)


COLUMNS = ("model", "image", "name", "method", "metric", "value", "seconds", "cause", "target", "prediction")

_NO_MAP = "its map was not kept, which a metric over the whole set needs"
_NO_SIZE = "the size of the images is not in the results: set data.size, or examples to at least 1, in the study"
_NOT_FINITE = "its map holds NaN or infinite values"
_NOT_COMMON = "another method has no map of it, and images are compared with each other: the same ones for all methods"


def _left_out(coarse: Floats | None) -> str:
    """Why an image is not in the set that a whole-set metric is over."""
    if coarse is None:
        return _NO_MAP
    return _NOT_COMMON if np.isfinite(coarse).all() else _NOT_FINITE
