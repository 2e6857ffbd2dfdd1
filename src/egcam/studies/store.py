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
from typing import Any, TypeAlias, TypeVar

import numpy as np

from egcam.progress import Progress, part_of
from egcam.studies import parquet
from egcam.studies.columns import among, arrow, joined, places, split, taken
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
Maps: TypeAlias = dict[str, dict[int, Floats]]


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

    def done(self, failed: bool = True, needs: Collection[str] = (), maps: bool = False) -> set[Unit]:
        """The units there are outcomes of.

        Args:
            failed: whether those that failed count.
            needs: the names of the metrics an outcome must hold.
            maps: whether it must hold a map, unless it failed.
        """
        units, scores = self.tables()
        has_failed = units["cause"].is_valid().to_numpy()
        held = np.bincount(scores["unit"].to_numpy()[among(scores["metric"], needs)], minlength=len(units))
        counts = (held == len(set(needs))) & (failed | ~has_failed)
        counts &= has_failed | units["has_map"].to_numpy() if maps else True
        return {unit for unit, is_done in zip(_units(units), counts.tolist(), strict=True) if is_done}

    def tables(self, progress: Progress | None = None) -> tuple[Any, Any]:
        """What counts as Arrow tables: (units, scores), in the order of models, then images, then methods.

        Units have the columns model, method, image (its number), name, target, prediction, seconds, cause (why it
        failed), batch_size, has_map, and held, how many of the study's metrics there is a score of. Scores have unit,
        the row of theirs, metric, value, seconds and cause. Of a unit that is there several times the one with most of
        the study's metrics counts, of these one that did not fail, and of these the first.
        """
        return self._tables(parquet.OUTCOME, progress=progress)

    def outcomes(self) -> list[Outcome]:
        """All outcomes as objects, for a few thousand units: in the order of `tables`, without curves and pictures."""
        units, scores = self.tables()
        begins = np.searchsorted(scores["unit"].to_numpy(), np.arange(len(units) + 1)).tolist()
        rows = zip(*(scores[name].to_pylist() for name in ("metric", "value", "seconds", "cause")), strict=True)
        listed, found = list(rows), []
        for unit, row, start, end in zip(_units(units), units.to_pylist(), begins, begins[1:], strict=False):
            own = tuple(unit.score(*score) for score in listed[start:end])
            name, target, prediction = row["name"], row["target"], row["prediction"]
            more = {"error": row["cause"], "batch_size": row["batch_size"]}
            found.append(Outcome(unit, name, target, prediction, row["seconds"], own, **more))
        return found

    def curves(self, model: str, metric: str) -> Maps:
        """Perturbation curves: by method, then image."""
        units, scores = self._tables(("curve",), metric=metric, model=[model])
        return _by_method(units.take(scores["unit"]), parquet.curves(scores))

    def maps(self, model: str, method: str | None = None, images: Collection[int] | None = None) -> Maps:
        """The coarse maps that were kept, perhaps only those of a method, or of some images: by method, then image."""
        methods = None if method is None else [method]
        units, _ = self._tables(("shape", "map"), model=[model], method=methods, image=images)
        units = units.filter(units["map"].is_valid())
        return _by_method(units, parquet.maps(units))

    def pictures(self, model: str) -> dict[int, bytes]:
        """What the model saw, as encoded images, if kept, by image."""
        units, _ = self._tables(("picture",), model=[model])
        units = units.filter(units["picture"].is_valid())
        # Where several methods have one, that of the first.
        pairs = zip(units["image"].to_pylist(), units["picture"].to_pylist(), strict=True)
        return dict(reversed(list(pairs)))

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

    def _tables(
        self,
        columns: Sequence[str],
        metric: str | None = None,
        progress: Progress | None = None,
        **only: Collection[Any] | None,
    ) -> tuple[Any, Any]:
        """The units that count and their scores: see `tables`.

        Args:
            columns: what to read besides the keys.
            metric: take the rows with a curve by this metric for scores.
            progress: called with the share that is read.
            only: of these models, methods or images.
        """
        manifest, pa = self.manifest, arrow()
        # What no run has read is in no part.
        contents = pa.array(manifest.data.images.values(), pa.string())
        recipes = [recipe for methods in manifest.recipes.values() for recipe in methods.values()]

        def needed(table: Any) -> tuple[Any, Any]:
            """What of a part belongs to the study and is needed: not all of all parts is in memory at once."""
            units, scores = split(table)
            # The number that the image has by now.
            image = pa.array(places(units["content"], contents), pa.int64())
            units = units.set_column(units.column_names.index("image"), "image", image)
            kept = (image.to_numpy() >= 0) & among(units["recipe"], recipes)
            kept &= among(units["model"], manifest.models) & among(units["method"], manifest.methods)
            for name, values in only.items():
                kept &= values is None or among(units[name], values)
            belongs = among(scores["setting"], manifest.settings.values())
            is_score = belongs & scores["value"].is_valid().to_numpy()
            held = scores["unit"].to_numpy()[is_score & among(scores["metric"], manifest.metrics)]
            units = units.append_column("held", pa.array(np.bincount(held, minlength=len(units))))
            units = units.append_column("has_map", units["shape"].is_valid())
            if metric is not None:
                is_score = belongs & scores["curve"].is_valid().to_numpy() & among(scores["metric"], [metric])
            units = units.drop_columns([name for name in ("recipe", "content", "shape") if name not in columns])
            return taken(units, scores.filter(pa.array(is_score)).drop_columns("setting"), np.flatnonzero(kept))

        units, scores = joined(self._parts((*parquet.KEYS, *columns), needed, progress))
        model, method = places(units["model"], manifest.models), places(units["method"], manifest.methods)
        image, held = units["image"].to_numpy(), units["held"].to_numpy()
        order = np.lexsort((~units["has_map"].to_numpy(), units["cause"].is_valid(), -held, method, image, model))
        keys = np.stack((model, image, method))[:, order]
        is_first = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(0))[: len(order)]
        return taken(units, scores, order[is_first])

    def _parts(
        self, columns: Iterable[str], made: Callable[[Any], Made], progress: Progress | None = None
    ) -> list[Made]:
        """What is made of the table of each sound part."""
        wanted = list(dict.fromkeys(columns))
        environments = self.manifest.environments

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
            return made(table)

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


def _units(table: Any) -> list[Unit]:
    return [Unit(*row) for row in zip(*(table[name].to_pylist() for name in Unit._fields), strict=True)]


def _by_method(units: Any, things: Iterable[Floats]) -> Maps:
    """A thing of each unit: by method, then image."""
    found: Maps = {}
    for unit, thing in zip(_units(units), things, strict=True):
        found.setdefault(unit.method, {})[unit.image] = thing
    return found
