"""Outcomes on their way to the store: written together, every now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import Self

from egcam.studies.records import Outcome

SOONEST, LATEST = 1.0, 30.0
_SHARE = 0.01
_MOST = 2000


class Saver:
    """Collects outcomes and writes them together, so that neither a kill loses much nor parts become many.

    They are written as one comes in and the last write was a hundredth of the run's time ago, at least `SOONEST` and at
    most `LATEST` seconds; and when the block ends, however it ends. So an outcome waits for the next one at most, and a
    run of a day makes a few thousand parts.

    Args:
        write: takes outcomes to where they are kept; raises where it cannot.
        clock: seconds that pass.
    """

    def __init__(self, write: Callable[[Sequence[Outcome]], None], clock: Callable[[], float] = monotonic) -> None:
        self._write, self._clock = write, clock
        self._began = self._written = clock()
        self._waiting: list[Outcome] = []

    def __enter__(self) -> Self:
        return self

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes, and write what has waited long enough."""
        self._waiting.extend(outcomes)
        now = self._clock()
        patience = min(LATEST, max(SOONEST, _SHARE * (now - self._began)))
        if len(self._waiting) >= _MOST or now - self._written >= patience:
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What could not be written is not tried again: its units are done again by the next run.
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(waiting)
            self._written = self._clock()
