"""What came of a study: scores by model, paired over the images that every method has finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from egcam.errors import EgcamError, near_misses, require
from egcam.evaluation.comparable import Chosen, Values, comparable
from egcam.evaluation.score import Coded, Scores, Whole, smallest
from egcam.evaluation.table import Table
from egcam.imageops import upsampled
from egcam.metrics.faithfulness import sufficiency_of_cells
from egcam.metrics.registry import MetricError
from egcam.metrics.registry import metric as metric_called
from egcam.metrics.undefined import causes_collected
from egcam.progress import Progress
from egcam.studies.columns import Outcomes
from egcam.studies.pictures import height_and_width
from egcam.studies.plan import WHOLE, Part, belongs
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
        done: the outcomes there are, in columns and canonical order.

    Example:
        >>> Results.of("results/")                                         # doctest: +SKIP
        >>> Results.of("results/").table("vgg16").summary("grad-cam")      # doctest: +SKIP
    """

    source: Store
    study: Study
    done: Outcomes

    @classmethod
    def of(cls, source: Sourced, progress: Progress | None = None) -> Results:
        """The results in a store or a folder (or behind a URL such as s3://bucket/results)."""
        found = source if isinstance(source, Store) else Store(source)
        asked_for = found.manifest.study
        try:
            study = Study.model_validate(asked_for)
        except (ValueError, TypeError) as error:
            said = " ".join(str(error).split())[:300]
            raise ResultsError(
                f"the manifest in {found.folder} is of no study that this egcam knows: {said}"
            ) from error
        done = found.columns(progress)
        # A folder may also hold what an earlier form of the study asked for.
        asked = done.model.placed(one.label for one in study.models) >= 0
        asked &= done.method.placed(one.name for one in study.methods) >= 0
        return cls(found, study, done.where(asked))

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What is done as objects, for a few thousand units; there is room for many more in `done`."""
        return tuple(self.done)

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
        try:
            return tuple(metric_called(metric.name).name for metric in self.study.metrics)
        except MetricError as error:
            if not self.study.plugins:
                raise
            # Not imported unasked: the results may be somebody else's, and so would be the code.
            wanted = " ".join(f"--plugin {Path(file).name}" for file in self.study.plugins)
            raise ResultsError(
                f"the study was run with plugins, and they are not loaded: `egcam {wanted} study …` loads them, and so "
                f"does importing them in Python. Without them, {error}"
            ) from error

    @property
    def units(self) -> int:
        """How many units the study has in all."""
        return self.source.manifest.units

    @property
    def complete(self) -> bool:
        """Whether every unit has an outcome with all metrics."""
        return int(self.whole.sum()) >= self.units

    def lacking(self, limit: int | None = None, part: Part = WHOLE) -> int:
        """How many units of the first `limit` images (None: all) of a part have no outcome with all metrics."""
        images = len(self.source.manifest.data.images)
        asked = len(range(part[0] - 1, min(images, limit or images), part[1])) * len(self.models) * len(self.methods)
        return asked - sum(belongs(unit, limit, part) for unit in self.done.where(self.whole).units)

    @cached_property
    def whole(self) -> Chosen:
        """(U,) whether each outcome has all metrics; one from before the study grew lacks some."""
        return np.asarray(self.done.held(self._each) >= len(self._each))

    @cached_property
    def _each(self) -> frozenset[str]:
        return frozenset(name for name in self.metrics if not metric_called(name).whole_set)

    @cached_property
    def failures(self) -> list[Failure]:
        """The units that failed, with the cause."""
        failed = self.done.where(self.done.cause.codes >= 0)
        return [Failure(outcome.unit, outcome.error or "") for outcome in failed]

    @cached_property
    def _finished(self) -> dict[str, Whole]:
        """(N,) the numbers of the images that every method has finished, by model."""
        of_model, found = self.done.model.placed(self.models), {}
        for place, model in enumerate(self.models):
            numbers, counts = np.unique(self.done.image[of_model == place], return_counts=True)
            found[model] = numbers[counts == len(self.methods)]
        return found

    @cached_property
    def _places(self) -> dict[str, Whole]:
        """(M, N) where the outcome of each method on each finished image is, by model."""
        of_model, of_method = self.done.model.placed(self.models), self.done.method.placed(self.methods)
        found = {}
        for place, (model, images) in enumerate(self._finished.items()):
            own = np.flatnonzero((of_model == place) & np.isin(self.done.image, images))
            found[model] = np.empty((len(self.methods), len(images)), np.int64)
            found[model][of_method[own], np.searchsorted(images, self.done.image[own])] = own
        return found

    def images(self, model: str) -> tuple[int, ...]:
        """The numbers of the images that every method has finished on a model."""
        return tuple(self._finished[self._known(model)].tolist())

    def outcome(self, model: str, method: str, image: int) -> Outcome:
        """What came of one unit on an image that every method has finished."""
        column = int(np.searchsorted(self._finished[model], image))
        return self.done[int(self._places[model][self.methods.index(method), column])]

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of all models with an image that every method has finished."""
        return {model: self._table(model) for model in self.models if len(self._finished[model])}

    def table(self, model: str) -> Table:
        """A model's scores over the images that every method has finished; images go by number."""
        if self._known(model) not in self.tables:
            raise ResultsError(
                f"no image is done by all {len(self.methods)} methods on {model} yet: "
                f"{len(self.done):,} of {self.units:,} units of the study are done"
            )
        return self.tables[model]

    def _known(self, model: str) -> str:
        if model not in self.models:
            raise ResultsError(f"no model of this study is called {model!r}; {near_misses(model, self.models)}")
        return model

    def _table(self, model: str) -> Table:
        """The scores of M methods by K metrics on N images as columns of M * K * N rows, in this order."""
        scores, images = self.done.scores, self._finished[model]
        shape = len(self.methods), len(self.metrics), len(images)
        of_sets = self._of_sets(model)
        texts = dict.fromkeys((*scores.cause.names, *self.done.cause.names, _NOT_COMPUTED))
        texts |= dict.fromkeys(text for _, causes in of_sets.values() for text in causes if text is not None)
        names = tuple(texts)
        value, seconds = np.full(shape, nan), np.zeros(shape)
        errors = self.done.cause.renamed(lambda text: text or _NOT_COMPUTED).placed(names)[self._places[model]]
        cause = np.repeat(np.where(errors < 0, names.index(_NOT_COMPUTED), errors)[:, None], len(self.metrics), 1)
        own = self._is_of_each & (scores.model.placed([model]) == 0)
        own &= (row := scores.image.placed(images.tolist())) >= 0
        at = scores.method.placed(self.methods)[own], scores.metric.placed(self.metrics)[own], row[own]
        value[at], seconds[at] = scores.value[own], scores.seconds[own]
        cause[at] = scores.cause.placed(names)[own]
        for (method, metric), (values, causes) in of_sets.items():
            value[method, metric], cause[method, metric] = values, Coded.of(causes).placed(names)
        keys = np.indices(shape, smallest(max(shape)), sparse=True)
        of_method, of_metric, of_image = (np.broadcast_to(one, shape).ravel() for one in keys)
        rows = Scores(
            Coded(np.zeros(value.size, np.int8), (model,)),
            Coded(of_image, tuple(images.tolist())),
            Coded(of_method, self.methods),
            Coded(of_metric, self.metrics),
            value.ravel(),
            seconds.ravel(),
            Coded(cause.ravel(), names),
        )
        return Table(rows, self.methods, self.metrics)

    @cached_property
    def _is_of_each(self) -> Chosen:
        """(N,) whether each score is by a metric that the study asks for and that each image has by itself."""
        wanted = np.array([*(name in self._each for name in self.metrics), False])
        return np.asarray(wanted[self.done.scores.metric.placed(self.metrics)])

    def _of_sets(self, model: str) -> dict[tuple[int, int], tuple[Values, list[str | None]]]:
        """Values and causes by metrics that compare images with each other, by the places of method and metric."""
        whole = [place for place, name in enumerate(self.metrics) if name not in self._each]
        in_the_set = self._sets(model) if whole else np.zeros((0, 0), bool)
        return {
            (method, metric): self._of_the_set(model, method, in_the_set[method], self.study.metrics[metric])
            for metric in whole
            for method in range(len(self.methods))
        }

    def _sets(self, model: str) -> Chosen:
        """(M, N) the images whose maps a method's whole-set metrics are over: the same for all compared methods."""
        images = self._finished[model].tolist()
        worked = self.done.cause.codes[self._places[model]] < 0
        held = np.full((len(images), len(self.methods)), nan)
        for place, method in enumerate(self.methods):
            maps = self.source.maps(model, method)
            usable = [image in maps and bool(np.isfinite(maps[image]).all()) for image in images]
            held[worked[place] & usable, place] = 1.0
        return np.asarray(np.isfinite(comparable(held).values).T)

    def _of_the_set(
        self, model: str, place: int, in_the_set: Chosen, spec: MetricSpec
    ) -> tuple[Values, list[str | None]]:
        """(N,) the scores of a method by a metric that compares images with each other, and why some are missing."""
        images, units = self._finished[model].tolist(), self._places[model][place]
        errors, values = self.done.cause[units].listed(), np.full(len(images), nan)
        if metric_called(spec.name).name != "sufficiency":
            return values, [error or f"{spec.name} cannot be computed from the stored maps" for error in errors]
        usable = np.flatnonzero(in_the_set)
        size = self._size(model) if len(usable) else None
        if len(usable) and size is None:
            return values, [error or _NO_SIZE for error in errors]
        maps = self.source.maps(model, self.methods[place])
        causes = [error or _left_out(maps.get(image)) for error, image in zip(errors, images, strict=True)]
        if size is not None:
            cells = [torch.from_numpy(np.array(maps[images[one]], np.float32)) for one in usable]
            if len({one.shape for one in cells}) > 1:
                cells = [upsampled(one[None], size)[0] for one in cells]
            predictions = torch.from_numpy(self.done.prediction[units[usable]])
            with causes_collected() as found:
                scores = sufficiency_of_cells(torch.stack(cells), size, predictions, **spec.options)
            values[usable] = scores.tolist()
            for number, one in enumerate(usable):
                causes[one] = found.get(number)
        return values, causes

    def _size(self, model: str) -> tuple[int, int] | None:
        """(height, width) of what the model sees: as recorded, as its pictures are, or as the study asks for."""
        record = self.source.manifest.models.get(model)
        if record is not None and record.size is not None:
            return record.size
        for image, picture in self.source.pictures(model).items():
            return height_and_width(picture, f"the picture of image {image}")
        side = self.study.data.size
        return None if side is None else (side, side)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Every score, tidy: model, image, name, method, metric, value, seconds, cause, target, prediction.

        All outcomes are in it, also of images that some method has not finished; scores of whole-set metrics are
        over the images that all have. Texts are categories: models, methods and metrics in the study's order, images
        by name.
        """
        require("pandas", "study", "a table of scores")
        import pandas

        columns = self._block(*self._long)
        images = tuple(sorted(set(columns["name"].names)))
        orders = {"model": self.models, "method": self.methods, "metric": self.metrics, "name": images}
        for name, order in orders.items():
            columns[name] = Coded(columns[name].placed(order), order)
        made = {
            name: pandas.Categorical.from_codes(one.codes, pandas.Index(one.names)).remove_unused_categories()
            if isinstance(one, Coded)
            else one
            for name, one in columns.items()
        }
        frame: pd.DataFrame = pandas.DataFrame(made)
        return frame

    def blocks(self, most: int = 50_000) -> Iterator[dict[str, Any]]:
        """The rows of the frame, so many at a time: columns by name, texts as `Coded`."""
        scores, of_unit = self._long
        for start in range(0, len(scores), most):
            yield self._block(scores[start : start + most], of_unit[start : start + most])

    def _block(self, scores: Scores, of_unit: Whole) -> dict[str, Any]:
        done = self.done
        found = {
            **{name: getattr(scores, name) for name in ("model", "method", "metric", "value", "seconds", "cause")},
            **{name: getattr(done, name)[of_unit] for name in ("image", "name", "target", "prediction")},
        }
        return {name: found[name] for name in COLUMNS}

    @cached_property
    def _long(self) -> tuple[Scores, Whole]:
        """All scores, outcome by outcome and in the order of the study's metrics, and the place of each one's outcome.

        Scores of whole-set metrics are those of the tables.
        """
        kept = self._is_of_each
        scores, of_unit = self.done.scores, self.done.unit_of_score
        if not kept.all():
            scores, of_unit = scores[kept], of_unit[kept]
        if len(self._each) < len(self.metrics):
            whole = [name for name in self.metrics if name not in self._each]
            more = [table.only(whole).scores for table in self.tables.values()]
            places = [np.repeat(self._places[model][:, None], len(whole), 1).ravel() for model in self.tables]
            scores, of_unit = Scores.joined([scores, *more]), np.concatenate([of_unit, *places])
        order = of_unit.astype(np.int64) * len(self.metrics) + scores.metric.placed(self.metrics)
        if (order[1:] < order[:-1]).any():
            rows = np.argsort(order)
            scores, of_unit = scores[rows], of_unit[rows]
        return scores, of_unit


COLUMNS = ("model", "image", "name", "method", "metric", "value", "seconds", "cause", "target", "prediction")

_NOT_COMPUTED = "it was not computed"
_NO_MAP = "its map was not kept, which a metric over the whole set needs"
_NO_SIZE = "the size of the images is not in the results: set data.size, or examples to at least 1, in the study"
_NOT_FINITE = "its map holds NaN or infinite values"
_NOT_COMMON = "another method has no map of it, and images are compared with each other: the same ones for all methods"


def _left_out(coarse: Floats | None) -> str:
    """Why an image is not in the set that a whole-set metric is over."""
    if coarse is None:
        return _NO_MAP
    return _NOT_COMMON if np.isfinite(coarse).all() else _NOT_FINITE
