"""What came of a study: scores by model, paired over the images that every method has finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from egcam.evaluation.table import Row, Table
from egcam.imageops import upsampled
from egcam.metrics.faithfulness import sufficiency_of
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
    """A unit that came to nothing, and why."""

    unit: Unit
    cause: str


@dataclass(frozen=True)
class Results:
    """The outcomes of a study and what follows from them.

    A model's table holds the images that every method has finished, failures included, so that methods are compared
    on the same images in the same order; its means are over those of them that all compared methods have a score for
    (see `egcam.evaluation.table.Table.comparable`). Metrics of the whole set (sufficiency) are computed here, from the
    kept maps, over the images that all compared methods have a map of: each score hangs on all of them.

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
        """The units that came to nothing, with the cause."""
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
        """A model's scores over the images that every method has finished; images go by number.

        Args:
            model: its label in the study.
        """
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
        rows: list[Row] = []
        whole = [name for name in self.metrics if metric_called(name).whole_set]
        sets = self._sets(model) if whole else {method: frozenset[int]() for method in self.methods}
        for method in self.methods:
            scores = self._scores(model, method, self._images[model], sets[method])
            for metric in self.metrics:
                rows += [Row(image, method, metric, *score) for image, score in scores[metric].items()]
        return Table(tuple(rows), self.methods, self.metrics)

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

    def _scores(
        self, model: str, method: str, images: Sequence[int], whole_set: frozenset[int]
    ) -> dict[str, dict[int, _Scored]]:
        """By metric and image: value, seconds and cause."""
        outcomes = {image: self.outcome(model, method, image) for image in images}
        given = {
            image: {score.metric: _Scored(score.value, score.seconds, score.cause) for score in outcome.scores}
            for image, outcome in outcomes.items()
        }
        found = {}
        for spec, metric in zip(self.study.metrics, self.metrics, strict=True):
            if metric_called(metric).whole_set:
                found[metric] = self._of_the_set(model, method, outcomes, whole_set, spec)
            else:
                found[metric] = {
                    image: given[image].get(metric, _Scored(nan, 0.0, outcome.error or "it was not computed"))
                    for image, outcome in outcomes.items()
                }
        return found

    def _of_the_set(
        self, model: str, method: str, outcomes: Mapping[int, Outcome], whole_set: frozenset[int], spec: MetricSpec
    ) -> dict[int, _Scored]:
        """The scores of a metric that compares images with each other, over those in the set."""
        if metric_called(spec.name).name != "sufficiency":
            return {image: _Scored(nan, 0.0, f"{spec.name} cannot be had from kept maps") for image in outcomes}
        maps = self.source.maps(model, method)
        scored = {image: _Scored(nan, 0.0, one.error or _left_out(maps.get(image))) for image, one in outcomes.items()}
        usable = [image for image in outcomes if image in whole_set]
        if not usable:
            return scored
        size = self._size(model)
        if size is None:
            return {image: _Scored(nan, 0.0, one.error or _NO_SIZE) for image, one in outcomes.items()}
        large = torch.empty(len(usable), *size)
        for place, image in enumerate(usable):
            large[place] = upsampled(torch.from_numpy(np.array(maps[image], np.float32))[None], size)[0]
        predictions = torch.tensor([outcomes[image].prediction for image in usable])
        with causes_collected() as causes:
            values = sufficiency_of(large, predictions, **spec.options).tolist()
        for place, image in enumerate(usable):
            scored[image] = _Scored(values[place], 0.0, causes.get(place))
        return scored

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

        frame: pd.DataFrame = pandas.DataFrame(self.lines, columns=list(COLUMNS))
        return frame

    @cached_property
    def lines(self) -> list[tuple[Any, ...]]:
        """The rows of the frame, in the order of `COLUMNS`."""
        whole = {name for name in self.metrics if metric_called(name).whole_set}
        of_set = {
            (model, row.method, row.image, row.metric): row
            for model, table in self.tables.items()
            for row in table.rows
            if row.metric in whole
        }
        found: list[tuple[Any, ...]] = []
        for outcome in self.outcomes:
            model, method, image = outcome.unit
            given = {score.metric: score for score in outcome.scores}
            for metric in self.metrics:
                score = of_set.get((model, method, image, metric)) if metric in whole else given.get(metric)
                if score is not None:
                    about = (model, image, outcome.name, method, metric)
                    value = (score.value, score.seconds, score.cause)
                    found.append((*about, *value, outcome.target, outcome.prediction))
        return found


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


def known_of(record: Any, key: str) -> Any:
    """What a record of the manifest says under `key`; None where it says nothing."""
    return getattr(record, key, None)


class _Scored(NamedTuple):
    value: float
    seconds: float
    cause: str | None
