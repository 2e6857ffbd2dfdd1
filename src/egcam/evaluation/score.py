"""One score, the row of every table of scores; and millions of them, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from egcam.evaluation.comparable import Values

Whole = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

_AT_ONCE = 50_000


class Score(NamedTuple):
    """What a metric says of one map.

    Attributes:
        model: the model's label in a study; "" where there is only one.
        image: the image's number or name.
        method: the method's name.
        metric: the metric's name.
        value: NaN if there is none.
        seconds: how long it took; work that metrics share counts for the first that needs it.
        cause: why there is no value.
    """

    model: str
    image: int | str
    method: str
    metric: str
    value: float
    seconds: float
    cause: str | None = None


@dataclass(frozen=True, eq=False)
class Coded:
    """A column in which few things stand often: each is kept once.

    Attributes:
        codes: (N,) the place of each row's thing among `names`; -1 where there is none.
        names: the things, no two alike.

    Example:
        >>> column = Coded.of(["b", "a", None, "b"])
        >>> column.codes.tolist(), column.names, column.listed()
        ([0, 1, -1, 0], ('b', 'a'), ['b', 'a', None, 'b'])
        >>> column.placed(["a", "c"]).tolist()
        [-1, 0, -1, -1]
    """

    codes: Whole
    names: tuple[Any, ...]

    @classmethod
    def of(cls, things: Iterable[Any]) -> Coded:
        """A column of these things, None where there is none."""
        known: dict[Any, int] = {}
        codes = [-1 if thing is None else known.setdefault(thing, len(known)) for thing in things]
        return cls(np.array(codes, smallest(len(known))), tuple(known))

    @classmethod
    def joined(cls, columns: Sequence[Coded]) -> Coded:
        """The rows of several columns, one column after the other."""
        names = tuple(dict.fromkeys(name for column in columns for name in column.names))
        return cls(np.concatenate([column.placed(names) for column in columns]), names)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Coded:
        """Some of the rows."""
        return Coded(self.codes[rows], self.names)

    def listed(self) -> list[Any]:
        """Each row's thing, None where there is none."""
        names = (*self.names, None)
        return [names[code] for code in self.codes.tolist()]

    def placed(self, names: Iterable[Any]) -> Whole:
        """(N,) the place of each row's thing among other names; -1 where it is not among them, or there is none."""
        places = {name: place for place, name in enumerate(names)}
        found = [places.get(name, -1) for name in (*self.names, None)]
        return np.array(found, smallest(len(places)))[self.codes]

    def renamed(self, name: Callable[[Any], Any]) -> Coded:
        """The same rows by other names."""
        return Coded(self.codes, tuple(map(name, self.names)))


@dataclass(frozen=True, eq=False)
class Scores(Sequence[Score]):
    """Scores in columns of N rows each: some 25 bytes a score, where Python's objects take 500.

    Example:
        >>> scores = Scores.of([Score("", 0, "a", "deletion", 0.1, 0.0), Score("", 0, "b", "deletion", 0.3, 0.0)])
        >>> scores.value.tolist(), scores[1].method, scores.metric.names
        ([0.1, 0.3], 'b', ('deletion',))
    """

    model: Coded
    image: Coded
    method: Coded
    metric: Coded
    value: Values
    seconds: Values
    cause: Coded

    @classmethod
    def of(cls, rows: Sequence[Score]) -> Scores:
        """The same scores in columns."""
        if isinstance(rows, Scores):
            return rows
        columns = tuple(zip(*rows, strict=True)) or ((),) * len(Score._fields)
        *keys, value, seconds, cause = columns
        model, image, method, metric = map(Coded.of, keys)
        return cls(model, image, method, metric, np.array(value, float), np.array(seconds, float), Coded.of(cause))

    @classmethod
    def joined(cls, several: Sequence[Scores]) -> Scores:
        """One after the other."""
        return cls(*map(joined, zip(*(one.columns for one in several), strict=True)))

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns in the order of a score's fields."""
        return tuple(getattr(self, name) for name in Score._fields)

    def __len__(self) -> int:
        return len(self.value)

    @overload
    def __getitem__(self, rows: int) -> Score: ...
    @overload
    def __getitem__(self, rows: Any) -> Scores: ...
    def __getitem__(self, rows: Any) -> Score | Scores:
        """One score; or some of them, by a slice, numbers or truth values."""
        if isinstance(rows, int):
            place = range(len(self))[rows]
            return next(iter(self[place : place + 1]))
        return Scores(*(column[rows] for column in self.columns))

    def __iter__(self) -> Iterator[Score]:
        for start in range(0, len(self), _AT_ONCE):
            some = self[start : start + _AT_ONCE].columns
            yield from map(Score, *(one.listed() if isinstance(one, Coded) else one.tolist() for one in some))


def joined(columns: Sequence[Any]) -> Any:
    """The rows of several columns of a kind, one column after the other."""
    return Coded.joined(columns) if isinstance(columns[0], Coded) else np.concatenate(columns)


def smallest(count: int) -> np.dtype[Any]:
    """The smallest whole numbers that hold -1 and so many places."""
    return np.min_scalar_type(-max(1, count))
