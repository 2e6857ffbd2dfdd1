"""Outcomes as Parquet: a part holds some of them, one row each, and its name holds its checksum.

Columns: model, method, image, name, target, prediction, seconds, error, batch_size;
holds: the names of the metrics with a score, and "(map)" with a map: what the unit need not be done for again;
content, stamp: what the image was (see `egcam.studies.inputs`), "" where it could not be read;
scores: list of (metric, value, seconds, cause); curves: list of (metric, values);
coarse: shape and float32 values, row by row, little-endian; picture: an encoded image.
Every bit of a number comes back, those of NaN included.
"""

from __future__ import annotations

import gc
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from egcam.errors import require
from egcam.studies.inputs import Seen
from egcam.studies.records import Floats, Outcome, Score, Unit
from egcam.studies.storage import StoreError

FORMAT = "3"
MAP = "(map)"
KEYS = ("model", "method", "image", "name")
OUTCOME = (*KEYS, "target", "prediction", "seconds", "error", "scores", "batch_size")
INPUT = ("content", "stamp")
_FORMAT_KEY, _IDENTITY_KEY = b"egcam.format", b"egcam.identity"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}-([0-9a-f]{32})\.parquet")
# Dictionaries hold each text once. Not for numbers: they seldom repeat, and one NaN is not to stand for another.
_REPEATED = (
    "model",
    "method",
    "error",
    "holds",
    "content",
    "stamp",
    "scores.list.element.metric",
    "scores.list.element.cause",
    "curves.list.element.metric",
)


class DamagedPartError(Exception):
    """A part whose content is not what was written."""


def part_name(data: bytes) -> str:
    """A new name for a part: the time, chance, and a checksum of its content; names sort by time.

    Example:
        >>> checksum_in(part_name(b"content")) == checksum_in(part_name(b"content"))
        True
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{now}-{secrets.token_hex(4)}-{_checksum(data)}.parquet"


def checksum_in(name: str) -> str | None:
    """The checksum in a part's name; None where it is no part's name."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def check(name: str, data: bytes) -> None:
    """Raise `DamagedPartError` where the content does not fit the name."""
    if _checksum(data) != checksum_in(name):
        raise DamagedPartError(f"{name}: {len(data)} bytes that do not fit its checksum")


def encode(outcomes: Sequence[Outcome], identity: str) -> bytes:
    """A part with these outcomes, for the study with this identity."""
    pa, parquet = _arrow()
    units = [outcome.unit for outcome in outcomes]
    columns = {
        "model": texts(unit.model for unit in units),
        "method": texts(unit.method for unit in units),
        "image": pa.array([int(unit.image) for unit in units], pa.int64()),
        "name": texts(outcome.name for outcome in outcomes),
        "target": pa.array([int(outcome.target) for outcome in outcomes], pa.int64()),
        "prediction": pa.array([int(outcome.prediction) for outcome in outcomes], pa.int64()),
        "seconds": _doubles(outcome.seconds for outcome in outcomes),
        "error": texts(outcome.error for outcome in outcomes),
        "batch_size": pa.array([outcome.batch_size for outcome in outcomes], pa.int64()),
        "holds": texts(map(_holds, outcomes)),
        "content": texts(outcome.content for outcome in outcomes),
        "stamp": texts(outcome.stamp for outcome in outcomes),
        "scores": _scores(outcomes),
        "curves": _curves(outcomes),
        "coarse": _maps(outcomes),
        "picture": pa.array([outcome.picture for outcome in outcomes], pa.binary()),
    }
    table = pa.table(columns).replace_schema_metadata({_FORMAT_KEY: FORMAT, _IDENTITY_KEY: identity})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=list(_REPEATED), write_statistics=False)
    return bytes(sink.getvalue())


def decode(data: bytes, identities: Collection[str], columns: Iterable[str], where: str) -> Any:
    """Columns of a part as an Arrow table; an error where it is of another study. `where` is for errors."""
    pa, parquet = _arrow()
    file = parquet.ParquetFile(pa.BufferReader(data))
    said = file.metadata.metadata or {}
    written_in, owner = (said.get(key, b"").decode() for key in (_FORMAT_KEY, _IDENTITY_KEY))
    if owner not in identities:
        text = f"{where} belongs to another study ({owner[:12] or 'none'}…)"
        raise StoreError(f"{text}: results of two studies do not mix; move it to where it came from")
    if written_in != FORMAT:
        raise StoreError(f"{where} has format {written_in}, this egcam reads {FORMAT}: use the egcam it was made by")
    return file.read(list(columns), use_threads=False)


def units(table: Any) -> list[Unit]:
    """The units of a table's rows."""
    columns = (_shared_texts(table["model"]), _shared_texts(table["method"]), table["image"].to_pylist())
    return [Unit(*row) for row in zip(*columns, strict=True)]


def outcomes(table: Any) -> list[Outcome]:
    """The outcomes of a table's rows, from the columns `OUTCOME`: without curves, maps and pictures."""
    rest = (table[name].to_pylist() for name in ("name", "target", "prediction", "seconds"))
    with _collector_paused():
        batches, errors = table["batch_size"].to_pylist(), _shared_texts(table["error"])
        rows = zip(units(table), *rest, _score_rows(table["scores"]), errors, batches, strict=True)
        return [
            Outcome(unit, name, target, prediction, seconds, scores, error, batch_size=batch)
            for unit, name, target, prediction, seconds, scores, error, batch in rows
        ]


def inputs(table: Any) -> list[Seen]:
    """The images of a table's rows as they were when read, each way once; from the columns `INPUT`."""
    distinct = table.select(["image", *INPUT]).group_by(["image", *INPUT]).aggregate([])
    columns = (distinct[name].to_pylist() for name in ("image", *INPUT))
    return sorted((Seen(*row) for row in zip(*columns, strict=True) if row[1]), key=lambda one: one.image)


def curves(table: Any, metric: str) -> Iterator[Floats | None]:
    """For each row its curve of a metric, None where it has none; from the column "curves"."""
    column = _whole(table["curves"])
    entries = column.values
    names, ends = _shared_texts(entries.field("metric")), column.offsets.to_pylist()
    lists = entries.field("values")
    values, bounds = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_pylist()
    for start, end in pairwise(ends):
        found = next((entry for entry in range(start, end) if names[entry] == metric), None)
        yield None if found is None else values[bounds[found] : bounds[found + 1]].copy()


def maps(table: Any) -> Iterator[Floats | None]:
    """For each row its coarse map, None where it has none; from the column "coarse"."""
    for one in table["coarse"].to_pylist():
        yield None if one is None else np.frombuffer(one["values"], "<f4").reshape(one["shape"]).astype(np.float32)


def _holds(outcome: Outcome) -> str:
    kept = [] if outcome.coarse is None else [MAP]
    return " ".join([*(score.metric for score in outcome.scores), *kept])


def _scores(outcomes: Sequence[Outcome]) -> Any:
    pa, _ = _arrow()
    scores = [score for outcome in outcomes for score in outcome.scores]
    entries = {
        "metric": texts(score.metric for score in scores),
        "value": _doubles(score.value for score in scores),
        "seconds": _doubles(score.seconds for score in scores),
        "cause": texts(score.cause for score in scores),
    }
    return _lists([len(outcome.scores) for outcome in outcomes], _struct(pa, entries))


def _curves(outcomes: Sequence[Outcome]) -> Any:
    pa, _ = _arrow()
    named = [curve for outcome in outcomes for curve in outcome.curves.items()]
    values = [np.asarray(curve, np.float32).ravel() for _, curve in named]
    joined = np.concatenate(values) if values else np.empty(0, np.float32)
    entries = {
        "metric": texts(metric for metric, _ in named),
        "values": _lists([len(one) for one in values], pa.array(joined, pa.float32())),
    }
    return _lists([len(outcome.curves) for outcome in outcomes], _struct(pa, entries))


def _maps(outcomes: Sequence[Outcome]) -> Any:
    pa, _ = _arrow()
    kind = pa.struct([("shape", pa.list_(pa.int32())), ("values", pa.binary())])
    coarse = (None if outcome.coarse is None else np.asarray(outcome.coarse) for outcome in outcomes)
    return pa.array(
        [None if one is None else {"shape": one.shape, "values": one.astype("<f4").tobytes()} for one in coarse], kind
    )


def _score_rows(column: Any) -> Iterator[tuple[Score, ...]]:
    column = _whole(column)
    entries = column.values
    numbers = (entries.field(name).to_numpy(zero_copy_only=False).tolist() for name in ("value", "seconds"))
    columns = (_shared_texts(entries.field("metric")), *numbers, _shared_texts(entries.field("cause")))
    scores = [Score(*one) for one in zip(*columns, strict=True)]
    ends = column.offsets.to_pylist()
    return (tuple(scores[start:end]) for start, end in pairwise(ends))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of small objects are made and none is garbage: to look for it all the while would double the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _whole(column: Any) -> Any:
    """A chunked column as one array."""
    pa, _ = _arrow()
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _shared_texts(column: Any) -> list[Any]:
    """A column of texts as a list in which equal texts are one object."""
    pa, _ = _arrow()
    column = _whole(column) if isinstance(column, pa.ChunkedArray) else column
    coded = column.dictionary_encode()
    known = [*coded.dictionary.to_pylist(), None]
    return [known[code] for code in coded.indices.fill_null(len(known) - 1).to_pylist()]


def _lists(lengths: Sequence[int], entries: Any) -> Any:
    pa, _ = _arrow()
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries)


def _struct(pa: Any, entries: dict[str, Any]) -> Any:
    return pa.StructArray.from_arrays(list(entries.values()), list(entries))


def _doubles(values: Iterable[float]) -> Any:
    pa, _ = _arrow()
    return pa.array(np.fromiter(values, np.float64), pa.float64())


def texts(values: Iterable[str | None]) -> Any:
    """An Arrow array of texts."""
    pa, _ = _arrow()
    listed = list(values)
    try:
        return pa.array(listed, pa.string())
    except UnicodeEncodeError:
        # File names need not be text. A name that reads a little differently is better than a lost result.
        safe = [None if one is None else one.encode("utf-8", "backslashreplace").decode() for one in listed]
        return pa.array(safe, pa.string())


def _checksum(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


def _arrow() -> tuple[Any, Any]:
    require("pyarrow", "study", "a study's results")
    import pyarrow
    from pyarrow import parquet

    return pyarrow, parquet
