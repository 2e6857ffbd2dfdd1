"""How far work is, reported to a function that takes the share done, from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[float], None]


def part_of(progress: Progress | None, start: float, end: float) -> Progress:
    """Progress of a part of the work, from `start` to `end` of the whole; with None nothing is reported.

    Example:
        >>> seen = []
        >>> part_of(seen.append, 0.5, 1.0)(0.5)
        >>> seen
        [0.75]
    """

    def report(share: float) -> None:
        if progress is not None:
            progress(start + (end - start) * min(share, 1.0))

    return report


def piece_of(progress: Progress | None, number: int, count: int) -> Progress:
    """Progress of piece `number` of `count` pieces of the same length, counted from 0."""
    return part_of(progress, number / count, (number + 1) / count)
