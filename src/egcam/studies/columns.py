"""Outcomes in Arrow's columns: a table of units, and one of their scores with the row of each one's unit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from egcam.errors import require
from egcam.evaluation.comparable import Chosen, Whole

_OF_UNITS = ("metric", "setting", "value", "curve")
_OF_SCORES = ("unit", "metric", "setting", "value", "seconds", "cause", "curve")


def arrow() -> Any:
    """Arrow, imported when first needed."""
    require("pyarrow", "study", "a study's results")
    import pyarrow
    import pyarrow.compute

    return pyarrow


def split(table: Any) -> tuple[Any, Any]:
    """The units and the scores of a long table, in which a unit's row has no metric and its scores' follow."""
    pa = arrow()
    is_unit = table["metric"].is_null()
    unit = pa.array(np.cumsum(is_unit.to_numpy(), dtype=np.int32) - 1, pa.int32())
    scores = table.append_column("unit", unit)
    scores = scores.select([name for name in _OF_SCORES if name in scores.column_names])
    units = table.select([name for name in table.column_names if name not in _OF_UNITS])
    return units.filter(is_unit), scores.filter(pa.compute.invert(is_unit))


def joined(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The units and scores of several parts, which follow one another."""
    pa = arrow()
    begins = np.cumsum([0, *(len(units) for units, _ in parts)])
    moved = [
        scores.set_column(0, "unit", pa.array(scores["unit"].to_numpy() + np.int32(begin)))
        for (_, scores), begin in zip(parts, begins, strict=False)
    ]
    return tuple(pa.concat_tables(tables).unify_dictionaries() for tables in ([units for units, _ in parts], moved))


def taken(units: Any, scores: Any, rows: Whole) -> tuple[Any, Any]:
    """Some of the units, in the order of their rows, with their scores."""
    if np.array_equal(rows, np.arange(len(units))):
        return units, scores
    place = np.full(len(units), -1, np.int32)
    place[rows] = np.arange(len(rows))
    place = place[scores["unit"].to_numpy()]
    kept = np.argsort(place, kind="stable")[np.count_nonzero(place < 0) :]
    columns = {"unit": arrow().array(place[kept])}
    # Column by column, each let go once it is in order: there is never twice as much in memory.
    for name in scores.column_names[1:]:
        columns[name], scores = scores[name].take(arrow().array(kept)), scores.drop_columns(name)
    return units.take(arrow().array(rows)), arrow().table(columns)


def places(column: Any, names: Collection[Any]) -> Whole:
    """(N,) the place of each row's value among some; -1 where it is not among them, or there is none.

    Example:
        >>> import pyarrow
        >>> places(pyarrow.chunked_array([["b", "a", None, "b"]]).dictionary_encode(), ["a", "c"]).tolist()
        [-1, 0, -1, -1]
    """
    pa = arrow()
    column = column.unify_dictionaries().combine_chunks()
    is_coded = pa.types.is_dictionary(column.type)
    values = column.dictionary if is_coded else column
    known = names if isinstance(names, pa.Array) else pa.array(list(names), values.type)
    found = np.asarray(pa.compute.index_in(values, known).fill_null(-1))
    return np.append(found, np.int32(-1))[column.indices.fill_null(-1)] if is_coded else found


def texts(column: Any) -> Any:
    """(N,) each row's text, each distinct text once in memory; None where there is none."""
    column = column.unify_dictionaries().combine_chunks()
    return np.array([*column.dictionary.to_pylist(), None], object)[column.indices.fill_null(-1)]


def among(column: Any, names: Collection[Any]) -> Chosen:
    """(N,) whether each row has one of the values."""
    return places(column, names) >= 0
