"""Outcomes on their way to the store: written in batches, and retried if the network fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from egcam.studies.records import Outcome
from egcam.studies.storage import StoreWarning, UnreachableError

SOONEST, LATEST = 1.0, 30.0
_SHARE = 0.01
_MOST = 2000
# Failing remote storage is retried after 1, 2, 4, … and at most 60 seconds; after this long the run ends.
GIVEN_UP_AFTER = 600.0
_LONGEST_PAUSE = 60.0


class Saver:
    """Collects outcomes and writes them together, so that neither a kill loses much nor parts become many.

    They are written as one comes in and the last write was a hundredth of the run's time ago, at least `SOONEST` and at
    most `LATEST` seconds; and when the block ends, however it ends. So an outcome waits for the next one at most, and a
    run of a day makes a few thousand parts.

    Where remote storage cannot be reached for a while, outcomes wait, the work goes on, and writing is tried again with
    growing pauses, for ten minutes at most. At the end of the block there is nothing else to do meanwhile: it waits.

    Args:
        write: takes outcomes to where they are kept; raises where it cannot.
        clock: seconds that pass.
        pause: waits for so many seconds.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Outcome]], None],
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._write, self._clock, self._pause = write, clock, pause
        self._began = self._written = clock()
        self._waiting: list[Outcome] = []
        self._failing_since: float | None = None
        self._tries, self._again_at = 0, 0.0

    def __enter__(self) -> Self:
        return self

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes, and write what has waited long enough."""
        self._waiting.extend(outcomes)
        now = self._clock()
        patience = min(LATEST, max(SOONEST, _SHARE * (now - self._began)))
        due = len(self._waiting) >= _MOST or now - self._written >= patience
        if due and now >= self._again_at:
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The next run repeats what could not be written.
        self._flush()
        while self._waiting:
            self._pause(max(0.0, self._again_at - self._clock()))
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._write(waiting)
        except UnreachableError as error:
            self._postpone(error)
            self._waiting = waiting
            return
        self._written = self._clock()
        self._failing_since, self._tries = None, 0

    def _postpone(self, error: UnreachableError) -> None:
        """Decide when to try again; raises if that is no use, or no longer."""
        now = self._clock()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not error.may_pass or now - self._failing_since >= GIVEN_UP_AFTER:
            raise error
        if self._tries == 0:
            told = f"{error}; work continues, and writing is retried for {GIVEN_UP_AFTER / 60:.0f} minutes"
            warnings.warn(told, StoreWarning, stacklevel=2)
        self._again_at = now + min(_LONGEST_PAUSE, 2.0**self._tries)
        self._tries += 1
