"""Where the outcomes of a study are kept: one folder, safe against whatever ends a run.

    results/
      manifest.json            configuration, checksums, versions
      parts/20260101T…parquet  some outcomes each; written once, as a whole, never changed
      parts/damaged/           parts that no longer fit their checksum, set aside
      locks/                   who is at work

A part is there as a whole or not at all, so finished work survives a kill, a full disk or a crash, and units that are
in no part are simply done again. What is read does not depend on the order in which parts came in.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from egcam.errors import require
from egcam.evaluation.comparable import Chosen
from egcam.evaluation.score import Coded, Whole, joined
from egcam.progress import Progress, part_of
from egcam.studies import parquet
from egcam.studies.columns import Outcomes
from egcam.studies.inputs import StoredInput
from egcam.studies.locks import Shard, guarded, locked
from egcam.studies.manifest import Manifest
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
        """The names of the images of the run before; none if there was none."""
        found = self._read_manifest()
        return () if found is None else found.data.names

    def begin(self, manifest: Manifest, mix_versions: bool = False) -> None:
        """Make the folder, or check that the study in it may be resumed.

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
                # A file name need not be text: what is not is escaped, as JSON reads it back.
                self._folder.write(MANIFEST, known.to_json().encode("utf-8", "backslashreplace"))
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
        identities = self.manifest.identities
        numbers = {parquet.as_text(name): number for number, name in reversed([*enumerate(self.manifest.data.names)])}

        def read(name: str) -> str | Made:
            table = self._read_part(name, identities, wanted)
            return table if isinstance(table, str) else made(_numbered(table, numbers))

        found = self._map(read, self._part_names(), progress)
        faults = [one for one in found if isinstance(one, str)]
        self._warn("damaged parts were left out; their units count as not done", faults)
        # An empty part has all columns, also where nothing else was read.
        nothing = parquet.decode(parquet.encode((), self.manifest.identity), identities, wanted, self.folder)
        return [made(nothing), *(one for one in found if not isinstance(one, str))]

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

    def _chosen(self, model: Coded, method: Coded, image: Whole, held: Whole, failed: Chosen, has_map: Chosen) -> Whole:
        """The places of the outcomes that count among all there are, (U,) each, in the order of the study."""
        of_model, of_method = _ranks(model, list(self.manifest.models)), _ranks(method, self.manifest.methods)
        order = np.lexsort((np.arange(len(image)), ~has_map, failed, -held, of_method, image, of_model))
        keys = np.stack((of_model, image, of_method))[:, order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
        return order[is_first]


def _numbered(table: Any, numbers: Mapping[str, int]) -> Any:
    """The table with the numbers that images have by now; those that are not in the data any more are left out."""
    from pyarrow import array

    if not numbers:
        return table
    names = parquet.coded(table["name"])
    found = np.array([numbers.get(name, -1) for name in (*names.names, None)], np.int64)[names.codes]
    table = table.set_column(table.column_names.index("image"), "image", array(found))
    return table.filter(found >= 0)


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
