"""Where the outcomes of a study are kept: one folder, safe against whatever ends a run.

    results/
      manifest.json            configuration, checksums, versions
      parts/20260101T…parquet  some outcomes each; written once, as a whole, never changed
      parts/damaged/           parts that no longer fit their checksum, set aside
      locks/                   who is at work

A part is there as a whole or not at all, so finished work survives a kill, a full disk or a crash. What is in it is
known by its keys (`egcam.studies.keys`): units whose keys are in no part are missing, and those of other images,
settings or weights lie beside them and do not count. What is read does not depend on the order parts came in.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from egcam.errors import require
from egcam.evaluation.comparable import Chosen
from egcam.evaluation.score import Coded, Whole, joined
from egcam.progress import Progress, part_of
from egcam.studies import parquet
from egcam.studies.columns import Outcomes
from egcam.studies.locks import Shard, guarded, locked
from egcam.studies.manifest import Manifest, same_packages
from egcam.studies.records import Floats, Outcome, Unit
from egcam.studies.storage import Folder
from egcam.studies.storage import StoreError as StoreError
from egcam.studies.storage import StoreWarning as StoreWarning

MANIFEST = "manifest.json"
PARTS = "parts"
DAMAGED = "parts/damaged"
_READ_AT_ONCE = 16

Made = TypeVar("Made")


class Store:
    """The results of a study, in a folder or behind an fsspec URL such as s3://bucket/results.

    Example:
        >>> from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
        >>> models = {"vgg16": ModelRecord("no checksum", 0, "features.30")}
        >>> keys = {"recipes": {"vgg16": {"cam": "r"}}, "settings": {"insertion": "s"}}
        >>> data = DataRecord("a dog", {"dog.jpg": "c"})
        >>> manifest = Manifest({"methods": [{"name": "cam"}]}, data, models, units=1, **keys)
        >>> store = Store("memory://docstring-of-store")
        >>> store.begin(manifest)
        >>> unit = Unit("vgg16", "cam", 0)
        >>> with store.lock():
        ...     store.write([Outcome(unit, "dog.jpg", 3, 3, 0.1, (unit.score("insertion", 0.7),))])
        >>> unit in store.done(), store.outcomes()[0].scores[0].value
        (True, 0.7)
    """

    def __init__(self, folder: str | Path) -> None:
        """A store in `folder`; nothing is touched yet."""
        self._folder = Folder(folder)
        self._manifest: Manifest | None = None
        # Of the run that writes; the manifest's are those of the first.
        self._versions: Mapping[str, str] | None = None

    @property
    def folder(self) -> str:
        """Where, as the user wrote it."""
        return self._folder.name

    @property
    def manifest(self) -> Manifest:
        """What the folder says about itself."""
        if self._manifest is None:
            self._manifest = self._read_manifest()
        if self._manifest is None:
            raise StoreError(
                f"there is no {MANIFEST} in {self.folder}; 'egcam study run … --out {self.folder}' makes one"
            )
        return self._manifest

    def known_images(self) -> tuple[str, ...]:
        """The names of the images of the run before; none if there was none."""
        former = self._read_manifest()
        return () if former is None else former.data.names

    def begin(self, manifest: Manifest, mix_versions: bool = False) -> None:
        """Make the folder, or join the results in it.

        Results of other studies may lie in it, with other keys: the folder's manifest is that of the last run.

        Args:
            manifest: of the run that begins.
            mix_versions: whether results of other versions of egcam, torch and so on count too; all are listed in the
                manifest. A folder that holds such is refused otherwise.
        """
        self._folder.make()
        with guarded(self._folder):
            former = self._read_manifest()
            change = None if former is None else manifest.hardware_change(former, self.folder)
            joined = manifest if former is None else manifest.after(former, self.folder, mix_versions)
            self._folder.write(MANIFEST, joined.to_json().encode())
        if change:
            warnings.warn(change, StoreWarning, stacklevel=2)
        self._folder.make(PARTS)
        self._manifest, self._versions = joined, manifest.versions

    def lock(self, shard: Shard = (1, 1), wait: float | None = None) -> AbstractContextManager[None]:
        """Hold the folder while writing: see `egcam.studies.locks`.

        Args:
            shard: (i, n) for shard i of n, which run side by side.
            wait: for how many seconds others are waited for; None refuses at once.
        """
        return locked(self._folder, shard, wait)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Add outcomes, all or none: once this returns they are kept."""
        if outcomes:
            keyed = [self._keyed(outcome) for outcome in outcomes]
            data = parquet.encode(keyed, self.manifest.settings, self._versions or self.manifest.versions)
            self._folder.write(f"{PARTS}/{parquet.part_name(data)}", data)

    def done(self, failed: bool = True, needs: Iterable[str] = (), maps: bool = False) -> set[Unit]:
        """The units there are outcomes of.

        Args:
            failed: whether those that failed count.
            needs: the names of the metrics an outcome must hold.
            maps: whether it must hold a map, unless it failed.
        """
        found, needs = self.columns(), set(needs)
        has_failed = found.cause.codes >= 0
        holds = found.held(needs) == len(needs)
        holds &= has_failed | found.has_map if maps else True
        holds &= True if failed else ~has_failed
        return set(found.where(holds).units)

    def outcomes(self) -> list[Outcome]:
        """All outcomes, each unit's once, without curves, maps and pictures.

        They are in the order of models, then images, then methods. Of a unit that is there several times the one with
        most of the study's metrics counts, of these one that did not fail, and of these the first.
        """
        return list(self.columns())

    def columns(self, progress: Progress | None = None) -> Outcomes:
        """The same in columns: twenty times as many fit into memory."""
        parts = self._parts(parquet.OUTCOME, parquet.outcomes, progress)
        model, method = (joined([getattr(part, name) for part in parts]) for name in ("model", "method"))
        image, has_map = (joined([getattr(part, name) for part in parts]) for name in ("image", "has_map"))
        has_failed = joined([part.cause.codes >= 0 for part in parts])
        held = joined([part.held(self.manifest.metrics) for part in parts])
        return Outcomes.gathered(parts, self._chosen(model, method, image, held, has_failed, has_map))

    def errors(self) -> dict[Unit, str]:
        """Why units failed."""
        table = self._table((), holding="cause")
        return dict(zip(parquet.units(table), parquet.coded(table["cause"]).listed(), strict=True))

    def curves(self, model: str, metric: str) -> dict[str, dict[int, Floats]]:
        """Perturbation curves: by method, then image."""
        table = self._table(("curve",), holding="curve", metric=metric, model=[model])
        return _by_method(table, parquet.curves(table))

    def maps(self, model: str, method: str) -> dict[int, Floats]:
        """The coarse maps that were kept, by image."""
        table = self._table(("map",), holding="map", model=[model], method=[method])
        return _by_method(table, parquet.maps(table)).get(method, {})

    def maps_of(self, model: str, images: Collection[int]) -> dict[str, dict[int, Floats]]:
        """The coarse maps of some images that were kept: by method, then image."""
        table = self._table(("map",), holding="map", model=[model], image=images)
        return _by_method(table, parquet.maps(table))

    def pictures(self, model: str) -> dict[int, bytes]:
        """What the model saw, as encoded images, if kept, by image."""
        table = self._table(("picture",), holding="picture", model=[model])
        found: dict[int, bytes] = {}
        for image, picture in zip(table["image"].to_pylist(), table["picture"].to_pylist(), strict=True):
            found.setdefault(image, picture)
        return found

    def damaged(self) -> list[str]:
        """Names of parts that do not fit their checksum; their units count as not done."""
        names = [name for name in self._folder.names(PARTS) if parquet.checksum_in(name)]
        return [name for name, sound in zip(names, self._map(self._is_sound, names), strict=True) if not sound]

    def set_damaged_aside(self) -> list[str]:
        """Move damaged parts to parts/damaged, and return their names. Only while holding the lock."""
        names = self.damaged()
        if names:
            self._folder.make(DAMAGED)
        for name in names:
            self._folder.move(f"{PARTS}/{name}", f"{DAMAGED}/{name}")
        return names

    def is_as_begun(self, outcome: Outcome) -> bool:
        """Whether model, references and image were those the run began with."""
        keyed = self._keyed(outcome)
        return (keyed.recipe, keyed.content) == self._keys(outcome.unit)

    def _keyed(self, outcome: Outcome) -> Outcome:
        """An outcome with keys: where its worker could not say them, with those it was asked for by."""
        recipe, content = self._keys(outcome.unit)
        name = outcome.name or self.manifest.data.names[outcome.unit.image]
        return replace(outcome, name=name, recipe=outcome.recipe or recipe, content=outcome.content or content)

    def _keys(self, unit: Unit) -> tuple[str, str]:
        """The keys that a unit is asked for by."""
        manifest = self.manifest
        content = manifest.data.images[manifest.data.names[unit.image]]
        if content is None:
            raise StoreError(f"the image of {unit} is not among those the run has looked at")
        return manifest.recipes[unit.model][unit.method], content

    def _read_manifest(self) -> Manifest | None:
        try:
            text = self._folder.read(MANIFEST)
        except FileNotFoundError:
            return None
        return Manifest.from_json(text, f"{self.folder.rstrip('/')}/{MANIFEST}")

    def _table(self, columns: Iterable[str], holding: str, metric: str | None = None, **only: Collection[Any]) -> Any:
        """The rows of all units that count, in the order of the study, where they hold something.

        Args:
            columns: what to read besides the keys.
            holding: in which column.
            metric: the rows are those of units; with a metric, of their scores by it.
            only: of these models, methods or images.
        """
        import pyarrow as pa

        def trimmed(table: Any) -> Any:
            """What of a part is needed, so that not all of all parts is in memory at once."""
            chosen = np.ones(len(table), bool)
            for name, values in only.items():
                chosen &= _among(table[name], values)
            table = table.filter(chosen)
            held = np.zeros(len(table), np.int16)
            held[parquet.beginnings(table)] = _held(table, self.manifest.metrics)
            is_needed = table["metric"].is_null().to_numpy() | _among(table["metric"], [metric])
            return table.append_column("held", pa.array(held)).filter(is_needed)

        table = pa.concat_tables(self._parts(columns, trimmed)).unify_dictionaries()
        begins = parquet.beginnings(table)
        of_units = table.take(begins)
        chosen = self._chosen(
            parquet.coded(of_units["model"]),
            parquet.coded(of_units["method"]),
            of_units["image"].to_numpy(),
            of_units["held"].to_numpy(),
            of_units["cause"].is_valid().to_numpy(),
            of_units["shape"].is_valid().to_numpy(),
        )
        holds = table[holding].is_valid().to_numpy()
        if metric is None:
            rows = begins[chosen]
            return table.take(rows[holds[rows]])
        # A unit's row is followed by that of its score, where there is one.
        rows = begins[chosen] + 1
        is_score = np.append(table["metric"].is_valid().to_numpy() & holds, False)
        return table.take(rows[is_score[rows]])

    def _parts(
        self, columns: Iterable[str], made: Callable[[Any], Made], progress: Progress | None = None
    ) -> list[Made]:
        """What is made of the table of each sound part, with the numbers that images have by now."""
        require("pyarrow", "study", "a study's results")
        wanted = list(dict.fromkeys((*parquet.KEYS, *columns)))
        environments = self.manifest.environments
        current = _Current(self.manifest)

        def read(name: str) -> str | Made | None:
            path = f"{PARTS}/{name}"
            try:
                data = self._folder.read(path)
                parquet.check(name, data)
            except FileNotFoundError:
                return f"{name}: set aside since it was listed"
            except parquet.DamagedPartError as error:
                return str(error)
            table, versions = parquet.decode(data, wanted, f"{self.folder.rstrip('/')}/{path}")
            if not any(same_packages(versions, accepted) for accepted in environments):
                return None
            return made(current.of(table))

        found = self._map(read, self._part_names(), progress)
        faults = [part for part in found if isinstance(part, str)]
        self._warn("damaged parts were left out; their units count as not done", faults)
        # An empty part has all columns, also where nothing else was read.
        nothing, _ = parquet.decode(parquet.encode((), {}, {}), wanted, self.folder)
        return [made(nothing), *(part for part in found if part is not None and not isinstance(part, str))]

    def _part_names(self) -> list[str]:
        names = [name for name in self._folder.names(PARTS) if name.endswith(".parquet")]
        self._warn(
            "files whose names egcam did not give were left out", [n for n in names if not parquet.checksum_in(n)]
        )
        return [name for name in names if parquet.checksum_in(name)]

    def _warn(self, what: str, names: Sequence[str]) -> None:
        if names:
            text = f"{self.folder.rstrip('/')}/{PARTS}: {what}: {', '.join(names)}"
            warnings.warn(text, StoreWarning, stacklevel=4)

    def _is_sound(self, name: str) -> bool:
        try:
            parquet.check(name, self._folder.read(f"{PARTS}/{name}"))
        except FileNotFoundError:
            return True
        except parquet.DamagedPartError:
            return False
        return True

    def _map(self, function: Any, names: Sequence[str], progress: Progress | None = None) -> list[Any]:
        """`function` of each name, several at a time: hashing uses all cores, and a network's delays overlap."""
        workers = min(os.cpu_count() or 1, 8) if self._folder.path else _READ_AT_ONCE
        with ThreadPoolExecutor(workers, "egcam store") as pool:
            found = []
            for one in pool.map(function, names):
                found.append(one)
                part_of(progress, 0.0, 1.0)(len(found) / len(names))
            return found

    def _chosen(self, model: Coded, method: Coded, image: Whole, held: Whole, failed: Chosen, has_map: Chosen) -> Whole:
        """The places of the outcomes that count among all there are, (U,) each, in the order of the study."""
        of_model, of_method = _ranks(model, list(self.manifest.models)), _ranks(method, self.manifest.methods)
        order = np.lexsort((np.arange(len(image)), ~has_map, failed, -held, of_method, image, of_model))
        keys = np.stack((of_model, image, of_method))[:, order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
        return order[is_first]


class _Current:
    """What of the parts belongs to the study: what has its recipes, settings and the present contents of its images."""

    def __init__(self, manifest: Manifest) -> None:
        self._recipes = [recipe for methods in manifest.recipes.values() for recipe in methods.values()]
        self._settings = list(manifest.settings.values())
        # What no run has read is in no part: a number is no content.
        self._contents = [content or number for number, content in enumerate(manifest.data.images.values())]

    def of(self, table: Any) -> Any:
        """The rows of a part that belong to it, with the numbers that images have by now."""
        from pyarrow import array

        image = parquet.coded(table["content"]).placed(self._contents).astype(np.int64)
        belongs = (image >= 0) & _among(table["recipe"], self._recipes)
        belongs &= table["metric"].is_null().to_numpy() | _among(table["setting"], self._settings)
        return table.set_column(table.column_names.index("image"), "image", array(image)).filter(belongs)


def _among(column: Any, values: Collection[Any]) -> Any:
    """(N,) whether each row has one of the values."""
    return parquet.coded(column).placed(values) >= 0


def _by_method(table: Any, things: Iterable[Floats]) -> dict[str, dict[int, Floats]]:
    """What each row of a table holds: by method, then image."""
    found: dict[str, dict[int, Floats]] = {}
    for unit, thing in zip(parquet.units(table), things, strict=True):
        found.setdefault(unit.method, {})[unit.image] = thing
    return found


def _ranks(names: Coded, known: Sequence[str]) -> Any:
    """Each name's place among the known ones; others come after them, by name."""
    return names.placed([*known, *sorted(set(names.names) - set(known))])


def _held(table: Any, metrics: Collection[str]) -> Any:
    """How many of the metrics each outcome has a score for."""
    is_held = _among(table["metric"], metrics) & table["value"].is_valid().to_numpy()
    begins = parquet.beginnings(table)
    return np.add.reduceat(is_held.astype(np.int64), begins) if len(begins) else np.zeros(0, np.int64)
