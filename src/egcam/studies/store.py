"""Where the outcomes of a study are kept: one folder, safe against whatever ends a run.

    results/
      manifest.json            configuration, checksums, versions
      parts/20260101T…parquet  some outcomes each; written once, as a whole, never changed
      parts/damaged/           parts that no longer fit their checksum, put aside
      locks/                   who is at work

A part is there as a whole or not at all, so finished work survives a kill, a full disk or a crash, and units that are
in no part are simply done again. What is read does not depend on the order in which parts came in.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from egcam.errors import require
from egcam.evaluation.score import Coded
from egcam.progress import Progress, part_of
from egcam.studies import parquet
from egcam.studies.columns import Outcomes
from egcam.studies.inputs import StoredInput
from egcam.studies.locks import Shard, guarded, locked
from egcam.studies.manifest import Manifest
from egcam.studies.records import Floats, Outcome, Unit
from egcam.studies.storage import Folder, StoreError, StoreWarning

__all__ = ["Store", "StoreError", "StoreWarning"]

MANIFEST = "manifest.json"
PARTS = "parts"
DAMAGED = "parts/damaged"
_READ_AT_ONCE = 16


class Store:
    """The results of a study, in a folder or behind an fsspec URL such as s3://bucket/results.

    Example:
        >>> from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
        >>> models = {"vgg16": ModelRecord("no checksum", 0, "features.30")}
        >>> manifest = Manifest({"methods": [{"name": "cam"}]}, DataRecord("a dog"), models, units=1)
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
        """The names of the images of the run before; none where there was none."""
        found = self._read_manifest()
        return () if found is None else found.data.names

    def begin(self, manifest: Manifest, mix_versions: bool = False) -> None:
        """Make the folder, or check that what is in it may be gone on with.

        Behind a URL two runs that begin at the same instant do not see each other. Should their settings differ, the
        parts of one are refused when they are read.

        Args:
            manifest: of the run that begins. A folder with another configuration, data or models is refused.
            mix_versions: whether results of other versions of egcam, torch and so on may be in one folder; all are
                listed in the manifest.
        """
        known = self._read_manifest()
        if known is None or known.joined(manifest, self.folder, mix_versions) != known:
            self._folder.make()
            with guarded(self._folder):
                # Another run may have begun since.
                known = self._read_manifest()
                hardware_change = None if known is None else known.hardware_change(manifest, self.folder)
                known = manifest if known is None else known.joined(manifest, self.folder, mix_versions)
                self._folder.write(MANIFEST, known.to_json().encode())
            if hardware_change:
                warnings.warn(hardware_change, StoreWarning, stacklevel=2)
        self._folder.make(PARTS)
        self._manifest = known

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
            data = parquet.encode(outcomes, self.manifest.identity)
            self._folder.write(f"{PARTS}/{parquet.part_name(data)}", data)

    def done(self, failed: bool = True, needs: Iterable[str] = (), maps: bool = False) -> set[Unit]:
        """The units there are outcomes of.

        Args:
            failed: whether those that failed count.
            needs: the names of the metrics an outcome must hold.
            maps: whether it must hold a map, unless it failed.
        """
        table = self._table(())
        needs = set(needs)
        of_units = table.take(parquet.beginnings(table))
        has_failed = of_units["cause"].is_valid().to_numpy()
        held = _held(table, needs) == len(needs)
        held &= has_failed | of_units["shape"].is_valid().to_numpy() if maps else True
        held &= True if failed else ~has_failed
        return {unit for unit, holds in zip(parquet.units(of_units), held, strict=True) if holds}

    def outcomes(self) -> list[Outcome]:
        """All outcomes, each unit's once, without curves, maps and pictures.

        They are in the order of models, then images, then methods. Of a unit that is there several times the one with
        most of the study's metrics counts, of these one that did not fail, and of these the first.
        """
        return list(self.columns())

    def columns(self, progress: Progress | None = None) -> Outcomes:
        """The same in columns: twenty times as many fit into memory."""
        return parquet.outcomes(self._table(parquet.OUTCOME, progress=progress))

    def errors(self) -> dict[Unit, str]:
        """Why units failed."""
        table = self._table((), holding="cause")
        return dict(zip(parquet.units(table), table["cause"].to_pylist(), strict=True))

    def inputs(self) -> list[StoredInput]:
        """The images as they were when units were made from them."""
        return parquet.inputs(self._table(parquet.INPUT, holding="content"))

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
        """What the model saw, as encoded images, where kept, by image."""
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

    def _read_manifest(self) -> Manifest | None:
        try:
            text = self._folder.read(MANIFEST)
        except FileNotFoundError:
            return None
        return Manifest.from_json(text, f"{self.folder.rstrip('/')}/{MANIFEST}")

    def _table(
        self,
        columns: Iterable[str],
        holding: str | None = None,
        metric: str | None = None,
        progress: Progress | None = None,
        **only: Collection[Any],
    ) -> Any:
        """The long table of all sound parts: each unit's rows once, in the order of the study.

        Args:
            columns: what to read besides the keys.
            holding: keep only the rows of units that have something in this column; of a metric, where one is given.
            metric: which.
            progress: called with the share of the parts that are read.
            only: keep units of these models, methods or images.
        """
        require("pyarrow", "study", "a study's results")
        import pyarrow as pa

        wanted = list(dict.fromkeys((*parquet.KEYS, *columns)))
        identities = self.manifest.identities
        numbers = {parquet.as_text(name): number for number, name in reversed([*enumerate(self.manifest.data.names)])}

        def read(name: str) -> Any:
            table = self._read_part(name, identities, wanted)
            return table if isinstance(table, str) else trimmed(table)

        def trimmed(table: Any) -> Any:
            """What of a part is needed, so that not all of all parts is in memory at once."""
            table = self._weighed(_numbered(table, numbers, only))
            if holding is None:
                return table
            kept = table["metric"].is_null().to_numpy()
            return table.filter(kept if metric is None else kept | _among(table["metric"], [metric]))

        found = self._map(read, self._part_names(), progress)
        faults = [one for one in found if isinstance(one, str)]
        self._warn("damaged parts were left out, their units count as not done", faults)
        # An empty part has all columns, also where nothing else was read.
        nothing = parquet.decode(parquet.encode((), self.manifest.identity), identities, wanted, self.folder)
        sound = [trimmed(nothing), *(one for one in found if not isinstance(one, str))]
        table = pa.concat_tables(sound).unify_dictionaries()
        rows = self._rows(table)
        # Each column is let go once it is in order: there is never twice the table.
        unordered = dict(zip(table.column_names, table.columns, strict=True))
        del table, found, sound
        table = pa.table({name: unordered.pop(name).take(rows) for name in list(unordered)})
        if holding is None:
            return table
        is_unit = table["metric"].is_null().to_numpy()
        return table.filter(table[holding].is_valid().to_numpy() & (is_unit if metric is None else ~is_unit))

    def _weighed(self, table: Any) -> Any:
        """The table with how many of the study's metrics each outcome has a score for, in the row of its unit."""
        import pyarrow as pa

        held = np.zeros(len(table), np.int16)
        held[parquet.beginnings(table)] = _held(table, set(self.manifest.metrics))
        return table.append_column("held", pa.array(held))

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

    def _read_part(self, name: str, identities: frozenset[str], columns: Sequence[str]) -> Any:
        """Columns of a part, or what is wrong with it where it is damaged."""
        path = f"{PARTS}/{name}"
        try:
            data = self._folder.read(path)
            parquet.check(name, data)
        except FileNotFoundError:
            return f"{name}: set aside since it was listed"
        except parquet.DamagedPartError as error:
            return str(error)
        return parquet.decode(data, identities, columns, f"{self.folder.rstrip('/')}/{path}")

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

    def _rows(self, table: Any) -> Any:
        """The numbers of the rows of the outcomes that count, in the order of the study."""
        begins = parquet.beginnings(table)
        lengths = np.diff(begins, append=len(table))
        of_units = table.take(begins)
        model = _ranks(parquet.coded(of_units["model"]), list(self.manifest.models))
        method = _ranks(parquet.coded(of_units["method"]), self.manifest.methods)
        image = of_units["image"].to_numpy()
        failed, mapless = of_units["cause"].is_valid().to_numpy(), of_units["shape"].is_null().to_numpy()
        held = of_units["held"].to_numpy()
        order = np.lexsort((np.arange(len(begins)), mapless, failed, -held, method, image, model))
        keys = np.stack((model, image, method))[:, order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
        kept = order[is_first]
        # Each kept outcome's rows: where it begins, and on from there.
        ends = np.cumsum(lengths[kept])
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins[kept] - ends + lengths[kept], lengths[kept])


def _numbered(table: Any, numbers: Mapping[str, int], only: Mapping[str, Collection[Any]]) -> Any:
    """The table with the numbers that images have by now; those that are not in the data any more are left out.

    So are the rows of other models, methods or images than the chosen ones, where some are.
    """
    from pyarrow import array

    chosen = np.ones(len(table), bool)
    if numbers:
        names = parquet.coded(table["name"])
        image = names.renamed(numbers.get)
        found = np.array([-1 if number is None else number for number in (*image.names, None)], np.int64)[image.codes]
        table = table.set_column(table.column_names.index("image"), "image", array(found))
        chosen &= found >= 0
    for column, values in only.items():
        chosen &= _among(table[column], values)
    return table if chosen.all() else table.filter(chosen)


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


def _held(table: Any, metrics: set[str]) -> Any:
    """How many of the metrics each outcome has a score for."""
    is_held = _among(table["metric"], metrics) & table["value"].is_valid().to_numpy()
    begins = parquet.beginnings(table)
    return np.add.reduceat(is_held.astype(np.int64), begins) if len(begins) else np.zeros(0, np.int64)
