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
from egcam.evaluation.comparable import Chosen, Values, Whole, comparable
from egcam.evaluation.table import Table
from egcam.imageops import upsampled
from egcam.metrics.faithfulness import sufficiency_of_cells
from egcam.metrics.registry import MetricError
from egcam.metrics.registry import metric as metric_called
from egcam.metrics.undefined import causes_collected
from egcam.progress import Progress
from egcam.studies.columns import among, arrow, places, texts
from egcam.studies.geometry import height_and_width
from egcam.studies.plan import WHOLE, Part
from egcam.studies.records import Floats, Unit
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
        done: the units there are outcomes of, and
        scores: their scores, as Arrow tables: see `egcam.studies.store.Store.tables`.

    Example:
        >>> Results.of("results/")                                         # doctest: +SKIP
        >>> Results.of("results/").table("vgg16").summary("grad-cam")      # doctest: +SKIP
    """

    source: Store
    study: Study
    done: Any
    scores: Any

    @classmethod
    def of(cls, source: Sourced, progress: Progress | None = None) -> Results:
        """The results in a store or a folder (or behind a URL such as s3://bucket/results)."""
        store = source if isinstance(source, Store) else Store(source)
        manifest = store.manifest
        try:
            study = Study.model_validate(manifest.study)
        except (ValueError, TypeError) as error:
            said = " ".join(str(error).split())[:300]
            raise ResultsError(
                f"the manifest in {store.folder} is of no study that this egcam knows: {said}"
            ) from error
        return cls(store, study, *store.tables(progress))

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

    def shortfall(self, limit: int | None = None, part: Part = WHOLE) -> tuple[int, int]:
        """How many units of the first `limit` images (None: all) of a part failed, and how many are not there whole."""
        images, (mine, parts) = len(self.source.manifest.data.images), part
        first = min(images, limit or images)
        units = len(range(mine - 1, first, parts)) * len(self.models) * len(self.methods)
        image = self.done["image"].to_numpy()
        asked = (image % parts == mine - 1) & (image < first)
        has_failed = self.done["cause"].is_valid().to_numpy()
        return int((asked & has_failed).sum()), units - int((asked & self.whole).sum())

    @cached_property
    def whole(self) -> Chosen:
        """(U,) whether each outcome has all metrics; one from before the study grew lacks some."""
        return np.asarray(self.done["held"].to_numpy() >= len(self._each))

    @cached_property
    def _each(self) -> frozenset[str]:
        return frozenset(name for name in self.metrics if not metric_called(name).whole_set)

    @cached_property
    def failures(self) -> list[Failure]:
        """The units that failed, with the cause."""
        failed = self.done.filter(self.done["cause"].is_valid())
        columns = (failed[name].to_pylist() for name in (*Unit._fields, "cause"))
        return [Failure(Unit(*unit), cause) for *unit, cause in zip(*columns, strict=True)]

    @cached_property
    def _places(self) -> dict[str, Whole]:
        """(M, N) the rows of `done` with each method on each image that every method has finished, by model."""
        of_model, image = places(self.done["model"], self.models), self.done["image"].to_numpy()
        found = {}
        for place, model in enumerate(self.models):
            rows = np.flatnonzero(of_model == place)
            # Rows are in the order of images, then methods, and each unit is there once.
            _, inverse, counts = np.unique(image[rows], return_inverse=True, return_counts=True)
            finished = rows[counts[inverse] == len(self.methods)]
            found[model] = finished.reshape(-1, len(self.methods)).T
        return found

    @cached_property
    def _finished(self) -> dict[str, Whole]:
        """(N,) the numbers of the images that every method has finished, by model."""
        image = self.done["image"].to_numpy()
        return {model: image[rows[0]] for model, rows in self._places.items()}

    def images(self, model: str) -> tuple[int, ...]:
        """The numbers of the images that every method has finished on a model."""
        return tuple(self._finished[self._known(model)].tolist())

    def classes(self, model: str, method: str, image: int) -> tuple[str, int, int]:
        """The image's name, the class explained and the class predicted, where every method has finished the image."""
        column = int(np.searchsorted(self._finished[model], image))
        row = int(self._places[model][self.methods.index(method), column])
        name, target, prediction = (self.done[name][row].as_py() for name in ("name", "target", "prediction"))
        return name, target, prediction

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
        """The scores of M methods by K metrics on N images."""
        rows, names = self._places[model], tuple(self._finished[model].tolist())
        shape = len(self.methods), len(self.metrics), len(names)
        values, seconds = np.full(shape, nan), np.zeros(shape)
        cause = np.empty(shape, object)
        cause[:] = np.where(self._errors[rows] == None, _NOT_COMPUTED, self._errors[rows])[:, None]  # noqa: E711
        cell_of_unit = np.full(len(self.done), -1)
        cell_of_unit[rows.ravel()] = np.arange(rows.size)
        metric, cell = places(self.scores["metric"], self.metrics), cell_of_unit[self.scores["unit"].to_numpy()]
        chosen = np.flatnonzero((metric >= 0) & (cell >= 0))
        at = cell[chosen] // len(names), metric[chosen], cell[chosen] % len(names)
        scores = self.scores.take(arrow().array(chosen))
        values[at], seconds[at] = scores["value"].to_numpy(), scores["seconds"].to_numpy()
        cause[at] = texts(scores["cause"])
        for place in (place for place, name in enumerate(self.metrics) if name not in self._each):
            for method, in_the_set in enumerate(self._sets(model)):
                found = self._of_the_set(model, method, in_the_set, self.study.metrics[place])
                values[method, place], cause[method, place] = found
        return Table(values, self.methods, self.metrics, names, seconds, cause)

    @cached_property
    def _errors(self) -> Any:
        """(U,) why each unit failed; None where it did not."""
        return texts(self.done["cause"])

    def _sets(self, model: str) -> Chosen:
        """(M, N) the images whose maps a method's whole-set metrics are over: the same for all compared methods."""
        images = self._finished[model].tolist()
        worked = self._errors[self._places[model]] == None  # noqa: E711
        held = np.full((len(images), len(self.methods)), nan)
        for place, method in enumerate(self.methods):
            maps = self.source.maps(model, method).get(method, {})
            usable = [image in maps and bool(np.isfinite(maps[image]).all()) for image in images]
            held[worked[place] & usable, place] = 1.0
        return np.asarray(np.isfinite(comparable(held).values).T)

    def _of_the_set(
        self, model: str, place: int, in_the_set: Chosen, spec: MetricSpec
    ) -> tuple[Values, list[str | None]]:
        """(N,) the scores of a method by a metric that compares images with each other, and why some are missing."""
        images, units = self._finished[model].tolist(), self._places[model][place]
        errors, values = self._errors[units].tolist(), np.full(len(images), nan)
        if metric_called(spec.name).name != "sufficiency":
            return values, [error or f"{spec.name} cannot be computed from the stored maps" for error in errors]
        usable = np.flatnonzero(in_the_set)
        size = self._size(model) if len(usable) else None
        if len(usable) and size is None:
            return values, [error or _NO_SIZE for error in errors]
        maps = self.source.maps(model, self.methods[place]).get(self.methods[place], {})
        causes = [error or _left_out(maps.get(image)) for error, image in zip(errors, images, strict=True)]
        if size is not None:
            cells = [torch.from_numpy(np.array(maps[images[one]], np.float32)) for one in usable]
            if len({one.shape for one in cells}) > 1:
                cells = [upsampled(one[None], size)[0] for one in cells]
            predictions = torch.from_numpy(self.done["prediction"].to_numpy()[units[usable]])
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
        return self._rows(self._long)

    def blocks(self, most: int = 50_000) -> Iterator[pd.DataFrame]:
        """The rows of the frame, so many at a time."""
        for start in range(0, len(self._long), most):
            yield self._rows(self._long.slice(start, most))

    def _rows(self, scores: Any) -> pd.DataFrame:
        """Scores with what their units are, for people."""
        require("pandas", "study", "a table of scores")
        import pandas

        units = self.done.select(["model", "image", "name", "method", "target", "prediction"])
        columns = {**_columns(units.take(scores["unit"])), **_columns(scores)}
        frame = pandas.DataFrame({name: columns[name].to_pandas() for name in COLUMNS})
        orders = {"model": self.models, "method": self.methods, "metric": self.metrics}
        orders["name"] = tuple(sorted(set(frame["name"].cat.categories)))
        for name, order in orders.items():
            frame[name] = frame[name].cat.set_categories(order).cat.remove_unused_categories()
        return frame

    @cached_property
    def _long(self) -> Any:
        """All scores of the study's metrics, unit by unit and in the order of metrics, as an Arrow table.

        Scores of whole-set metrics are those of the tables.
        """
        pa, each = arrow(), [name for name in self.metrics if name in self._each]
        scores = self.scores.filter(pa.array(among(self.scores["metric"], each)))
        for model, table in self.tables.items():
            for metric in (name for name in self.metrics if name not in self._each):
                place = table.metrics.index(metric)
                count = table.images * len(self.methods)
                columns = {
                    "unit": pa.array(self._places[model].ravel(), pa.int32()),
                    "metric": pa.array([metric] * count).dictionary_encode(),
                    "value": table.scores[:, place].ravel(),
                    "seconds": table.seconds[:, place].ravel(),
                    "cause": pa.array(table.cause[:, place].ravel(), pa.string()).dictionary_encode(),
                }
                scores = pa.concat_tables([scores, pa.table(columns)])
        scores = scores.unify_dictionaries()
        order = scores["unit"].to_numpy().astype(np.int64) * len(self.metrics) + places(scores["metric"], self.metrics)
        return scores if (order[1:] >= order[:-1]).all() else scores.take(pa.array(np.argsort(order)))


def _columns(table: Any) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))


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
