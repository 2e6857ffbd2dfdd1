"""A study's long table of scores as Parquet: a part holds some outcomes, and its name holds its checksum.

An outcome is a row for the unit itself, with no metric, and after it a row for each score:

    model, image, method, name   of every row, for people
    recipe, content   of every row: the keys it is known by (`egcam.studies.keys`)
    metric, setting, value, seconds, cause, curve   of a score; value is null where only a curve was kept
    seconds, cause   of a unit: how long it took, and why it failed
    target, prediction, batch_size, shape, map, picture   of a unit (see `Outcome`)

`map` holds float32 values, row by row, little-endian. Every bit of a number comes back, those of NaN included.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from egcam.studies.columns import arrow, split
from egcam.studies.records import Floats, Outcome
from egcam.studies.storage import StoreError

FORMAT = "5"
KEYS = ("model", "image", "method", "name", "recipe", "content", "metric", "setting", "value", "cause", "shape")
OUTCOME = ("seconds", "target", "prediction", "batch_size")
_FORMAT_KEY, _VERSIONS_KEY = b"egcam.format", b"egcam.versions"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}-([0-9a-f]{32})\.parquet")
# Dictionaries hold each text once. Not for numbers: they seldom repeat, and NaNs must not be merged.
_TEXTS = ("model", "method", "name", "recipe", "content", "metric", "setting", "cause")


# What a part may unpack to. Results may be somebody else's: a megabyte can hold gigabytes of the same byte.
_UNPACKED, _TIMES_AS_LARGE = 2**28, 100
_CELLS, _POINTS, _LETTERS = 2**24, 100_000, 10_000


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
    """The checksum in a part's name; None if it is no part's name."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def check(name: str, data: bytes) -> None:
    """Raise `DamagedPartError` where the content does not fit the name."""
    if _checksum(data) != checksum_in(name):
        raise DamagedPartError(f"{name}: {len(data)} bytes that do not fit its checksum")


def encode(outcomes: Sequence[Outcome], settings: Mapping[str, str], versions: Mapping[str, str]) -> bytes:
    """A part with these outcomes.

    Args:
        outcomes: with their keys.
        settings: the keys of their metrics.
        versions: of the packages they were made with.
    """
    pa, parquet = _arrow()
    metadata = {_FORMAT_KEY: FORMAT, _VERSIONS_KEY: json.dumps(dict(versions))}
    table = _long_table(outcomes, settings).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=list(_TEXTS), write_statistics=False)
    return bytes(sink.getvalue())


def _long_table(outcomes: Iterable[Outcome], settings: Mapping[str, str]) -> Any:
    pa, _ = _arrow()
    rows = [row for outcome in outcomes for row in _rows(outcome, settings)]
    try:
        return pa.Table.from_pylist(rows, _schema())
    except UnicodeEncodeError:
        # File names need not be text. A name that reads a little differently is better than a lost result.
        safe = [{key: as_text(value) for key, value in row.items()} for row in rows]
        return pa.Table.from_pylist(safe, _schema())


def _rows(outcome: Outcome, settings: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    unit, coarse = outcome.unit, outcome.coarse
    keys = {"model": unit.model, "image": int(unit.image), "method": unit.method, "name": outcome.name}
    keys |= {"recipe": outcome.recipe, "content": outcome.content}
    yield {
        **keys,
        "seconds": outcome.seconds,
        "cause": outcome.error,
        "target": int(outcome.target),
        "prediction": int(outcome.prediction),
        "batch_size": outcome.batch_size,
        "shape": None if coarse is None else coarse.shape,
        "map": None if coarse is None else np.asarray(coarse).astype("<f4").tobytes(),
        "picture": outcome.picture,
    }
    curves = {metric: np.asarray(curve, np.float32).ravel() for metric, curve in outcome.curves.items()}
    for score in outcome.scores:
        more = {"setting": settings[score.metric], "curve": curves.pop(score.metric, None)}
        yield {**score._asdict(), **keys, **more}
    for metric, curve in curves.items():
        yield {**keys, "metric": metric, "setting": settings.get(metric, ""), "curve": curve}


def _schema() -> Any:
    pa, _ = _arrow()
    kinds = {
        **dict.fromkeys(_TEXTS, pa.string()),
        **dict.fromkeys(("image", "target", "prediction", "batch_size"), pa.int64()),
        **dict.fromkeys(("value", "seconds"), pa.float64()),
        "curve": pa.list_(pa.float32()),
        "shape": pa.list_(pa.int32()),
        **dict.fromkeys(("map", "picture"), pa.binary()),
    }
    columns = dict.fromkeys((*KEYS[:-1], "seconds", "curve", *OUTCOME[1:], "shape", "map", "picture"))
    return pa.schema([(name, kinds[name]) for name in columns])


def decode(data: bytes, columns: Collection[str], where: str) -> tuple[Any, dict[str, str]]:
    """Columns of a part as an Arrow table, and the versions it was made with; an error where it is no part of egcam's.

    `where` is for errors.
    """
    pa, parquet = _arrow()
    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        said = file.metadata.metadata or {}
        written_in, versions = said.get(_FORMAT_KEY, b"").decode(), json.loads(said.get(_VERSIONS_KEY, b"{}"))
        if written_in != FORMAT:
            raise StoreError(
                f"{where} has format {written_in}, this egcam reads {FORMAT}: use the egcam it was made by"
            )
        _check_unpacked(file.metadata, len(data))
        texts = [name for name in _TEXTS if name in columns]
        table = parquet.ParquetFile(pa.BufferReader(data), read_dictionary=texts).read(list(columns), use_threads=False)
        table = table.cast(pa.schema([_as_code(_schema().field(name)) for name in columns]))
        _check_rows(table)
        if "cause" in columns:
            table = table.set_column(table.column_names.index("cause"), "cause", _shortened(table["cause"]))
        return table, dict(versions)
    except StoreError:
        raise
    except (pa.ArrowException, ValueError, OSError, KeyError, TypeError, OverflowError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(f"{where} is not as egcam writes parts ({said}): move it elsewhere") from error


def _check_unpacked(metadata: Any, packed: int) -> None:
    """Refuse what takes far more memory than a part of egcam's, before it is unpacked."""
    chunks = [
        metadata.row_group(group).column(place)
        for group in range(metadata.num_row_groups)
        for place in range(metadata.num_columns)
    ]
    for chunk in chunks:
        # What stands in a dictionary once is unpacked for each row.
        if chunk.path_in_schema in ("map", "picture") and any("DICTIONARY" in one for one in chunk.encodings):
            raise ValueError(f"the column {chunk.path_in_schema} is a dictionary")
    unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
    if unpacked > max(_UNPACKED, _TIMES_AS_LARGE * packed):
        raise ValueError(f"{packed:,} bytes unpack to {unpacked:,}")


def _check_rows(table: Any) -> None:
    """A unit's row comes before those of its scores, and says what every unit has."""
    for name in ("model", "image", "method"):
        if name in table.column_names and table[name].null_count:
            raise ValueError(f"a row has no {name}")
    if len(table) and table["metric"][0].is_valid:
        raise ValueError("a score stands before its unit")
    units, _ = split(table)
    for name in ("target", "prediction", "seconds"):
        if name in units.column_names and units[name].null_count:
            raise ValueError(f"a unit has no {name}")


def _shortened(column: Any) -> Any:
    """A column of texts of which none is endless: a cause may be, and stands on every page."""
    pa, _ = _arrow()
    chunks = []
    for chunk in column.chunks:
        texts = [text if len(text) <= _LETTERS else text[:_LETTERS] + "…" for text in chunk.dictionary.to_pylist()]
        chunks.append(pa.DictionaryArray.from_arrays(chunk.indices, pa.array(texts, pa.string())))
    return pa.chunked_array(chunks, column.type)


def _as_code(field: Any) -> Any:
    """Texts as they are read: each once, and a number in every row."""
    pa, _ = _arrow()
    return field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in _TEXTS else field


def curves(table: Any) -> Iterator[Floats]:
    """The curve of each row, from the column "curve"; all are pieces of one array."""
    lists = table["curve"].combine_chunks()
    values = lists.values.to_numpy()
    for start, end in pairwise(lists.offsets.to_numpy().tolist()):
        if end - start > _POINTS:
            raise StoreError(f"a curve in the results has {end - start:,} points, which is no curve of egcam's")
        yield values[start:end]


def maps(table: Any) -> Iterator[Floats]:
    """The coarse map of each row, from the columns "shape" and "map"."""
    for shape, values in zip(table["shape"].to_pylist(), table["map"].to_pylist(), strict=True):
        if min(shape) < 1 or prod(shape) > _CELLS or 4 * prod(shape) != len(values):
            raise StoreError(f"a map in the results says that it is {shape}, and has {len(values):,} bytes")
        yield np.frombuffer(values, "<f4").reshape(shape).astype(np.float32)


def as_text(value: Any) -> Any:
    """As parts hold it."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _checksum(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


def _arrow() -> tuple[Any, Any]:
    pa = arrow()
    from pyarrow import parquet

    return pa, parquet
