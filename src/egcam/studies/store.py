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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from egcam.errors import require
from egcam.studies import parquet
from egcam.studies.inputs import Seen
from egcam.studies.locks import Shard, guarded, locked
from egcam.studies.manifest import Manifest
from egcam.studies.records import Floats, Outcome, Unit
from egcam.studies.storage import LocalFolder, StoreError, StoreWarning, open_folder

__all__ = ["Store", "StoreError", "StoreWarning"]

MANIFEST = "manifest.json"
PARTS = "parts"
DAMAGED = "parts/damaged"
_READ_AT_ONCE = 16


class Store:
    """The results of a study, in a folder or behind an fsspec URL such as s3://bucket/results.

    Example:
        >>> from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
        >>> from egcam.studies.records import Score
        >>> models = {"vgg16": ModelRecord("no checksum", 0, "features.30")}
        >>> manifest = Manifest({"methods": [{"name": "cam"}]}, DataRecord("a dog"), models, units=1)
        >>> store = Store("memory://docstring-of-store")
        >>> store.begin(manifest)
        >>> unit = Unit("vgg16", "cam", 0)
        >>> with store.lock():
        ...     store.write([Outcome(unit, "dog.jpg", 3, 3, 0.1, (Score("insertion", 0.7, 0.1),))])
        >>> unit in store.done(), store.outcomes()[0].scores[0].value
        (True, 0.7)
    """

    def __init__(self, folder: str | Path) -> None:
        """A store in `folder`; nothing is touched yet."""
        self._folder = open_folder(folder)
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
                doubts = None if known is None else known.doubts(manifest, self.folder)
                known = manifest if known is None else known.joined(manifest, self.folder, mix_versions)
                self._folder.write(MANIFEST, known.to_json().encode())
            if doubts:
                warnings.warn(doubts, StoreWarning, stacklevel=2)
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

    def done(self, failed: bool = True, needs: Iterable[str] = ()) -> set[Unit]:
        """The units there are outcomes of.

        Args:
            failed: whether those that failed count.
            needs: what an outcome must hold: names of metrics, and `parquet.MAP` unless it failed.
        """
        table = self._table(())
        if not failed:
            table = table.filter(table["error"].is_null())
        has_map = _lacking(table, {parquet.MAP} & set(needs)) == 0
        has_scores = _lacking(table, set(needs) - {parquet.MAP}) == 0
        held = has_scores & (has_map | table["error"].is_valid().to_numpy())
        return {unit for unit, holds in zip(parquet.units(table), held, strict=True) if holds}

    def outcomes(self) -> list[Outcome]:
        """All outcomes, each unit's once, without curves, maps and pictures.

        They are in the order of models, then images, then methods. Of a unit that is there several times the one with
        most of the study's metrics counts, of these one that did not fail, and of these the first.
        """
        return parquet.outcomes(self._table(parquet.OUTCOME))

    def errors(self) -> dict[Unit, str]:
        """Why units failed."""
        table = self._table(())
        reasons = zip(parquet.units(table), table["error"].to_pylist(), strict=True)
        return {unit: reason for unit, reason in reasons if reason is not None}

    def inputs(self) -> list[Seen]:
        """The images as they were when units were made from them."""
        return parquet.inputs(self._table(parquet.INPUT))

    def curves(self, model: str, metric: str) -> dict[str, dict[int, Floats]]:
        """Perturbation curves: by method, then image."""
        table = self._table(("curves",), model=model)
        found: dict[str, dict[int, Floats]] = {}
        for unit, curve in zip(parquet.units(table), parquet.curves(table, metric), strict=True):
            if curve is not None:
                found.setdefault(unit.method, {})[unit.image] = curve
        return found

    def maps(self, model: str, method: str) -> dict[int, Floats]:
        """The coarse maps that were kept, by image."""
        table = self._table(("coarse",), model=model, method=method)
        pairs = zip(parquet.units(table), parquet.maps(table), strict=True)
        return {unit.image: coarse for unit, coarse in pairs if coarse is not None}

    def pictures(self, model: str) -> dict[int, bytes]:
        """What the model saw, as encoded images, where kept, by image."""
        table = self._table(("picture",), model=model)
        found: dict[int, bytes] = {}
        for unit, picture in zip(parquet.units(table), table["picture"].to_pylist(), strict=True):
            if picture is not None:
                found.setdefault(unit.image, picture)
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

    def _table(self, columns: Iterable[str], model: str | None = None, method: str | None = None) -> Any:
        """Columns of all sound parts, with the keys and the error: each unit once, in the order of the study."""
        require("pyarrow", "study", "a study's results")
        import pyarrow as pa

        wanted = list(dict.fromkeys((*parquet.KEYS, "error", "holds", *columns)))
        identities = self.manifest.identities

        def read(name: str) -> Any:
            table = self._read_part(name, identities, wanted)
            return table if isinstance(table, str) else _only(_only(table, "model", model), "method", method)

        found = self._map(read, self._part_names())
        faults = [one for one in found if isinstance(one, str)]
        self._warn("damaged parts were left out, their units count as not done", faults)
        # An empty part has all columns, also where nothing else was read.
        nothing = parquet.decode(parquet.encode((), self.manifest.identity), identities, wanted, self.folder)
        joined = self._numbered(pa.concat_tables([nothing, *(one for one in found if not isinstance(one, str))]))
        return joined.take(self._rows(joined))

    def _numbered(self, table: Any) -> Any:
        """The table with the numbers that images have by now; those that are not in the data any more are left out."""
        from pyarrow import compute, int64

        names = self.manifest.data.names
        if not names:
            return table
        numbers = compute.index_in(table["name"], value_set=parquet.texts(names)).cast(int64())
        table = table.set_column(table.column_names.index("image"), "image", numbers)
        return table.filter(numbers.is_valid())

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

    def _map(self, function: Any, names: Sequence[str]) -> list[Any]:
        """`function` of each name, several at a time: hashing uses all cores, and a network's delays overlap."""
        workers = min(os.cpu_count() or 1, 8) if isinstance(self._folder, LocalFolder) else _READ_AT_ONCE
        with ThreadPoolExecutor(workers, "egcam store") as pool:
            return list(pool.map(function, names))

    def _rows(self, table: Any) -> Any:
        """The numbers of the rows that count, in the order of the study."""
        model = _ranks(table["model"], list(self.manifest.models))
        method = _ranks(table["method"], self.manifest.methods)
        lacking, mapless = _lacking(table, set(self.manifest.metrics)), _lacking(table, {parquet.MAP})
        image = table["image"].to_numpy()
        failed = table["error"].is_valid().to_numpy()
        order = np.lexsort((np.arange(len(table)), mapless, failed, lacking, method, image, model))
        keys = np.stack((model, image, method))[:, order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
        return order[is_first]


def _only(table: Any, column: str, value: str | None) -> Any:
    from pyarrow import compute

    return table if value is None else table.filter(compute.equal(table[column], value))


def _ranks(column: Any, known: Sequence[str]) -> Any:
    """Each name's place among the known ones; others come after them, by name."""
    others = sorted(set(column.unique().to_pylist()) - set(known))
    place = {name: number for number, name in enumerate([*known, *others])}
    return _ranked(column, place.__getitem__)


def _lacking(table: Any, needs: set[str]) -> Any:
    """How many of the needs each row does not hold."""
    return _ranked(table["holds"], lambda holds: len(needs.difference(holds.split())))


def _ranked(column: Any, rank: Callable[[str], int]) -> Any:
    """The rank of each text of a column."""
    coded = column.combine_chunks().dictionary_encode()
    return np.array([rank(text) for text in coded.dictionary.to_pylist()], np.int64)[coded.indices.to_numpy()]
