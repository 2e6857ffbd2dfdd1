"""Outcomes on their way to the store: saved every now and then, whether or not another comes in."""

from __future__ import annotations

import threading
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

    They are written once they have waited for a hundredth of the time the run has taken, at least `SOONEST` and at
    most `LATEST` seconds, and when the block ends, however it ends. A run of a day makes a few thousand parts.

    Args:
        write: takes outcomes to where they are kept; raises where it cannot.
        clock: seconds that pass.
    """

    def __init__(self, write: Callable[[Sequence[Outcome]], None], clock: Callable[[], float] = monotonic) -> None:
        self._write = write
        self._clock = clock
        self._began = clock()
        self._waiting: list[Outcome] = []
        self._oldest = 0.0
        self._error: BaseException | None = None
        self._turn = threading.Condition()
        self._ended = False
        self._watch = threading.Thread(target=self._watch_over, name="egcam saver", daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes; raises what an earlier write could not do."""
        with self._turn:
            self._raise()
            if outcomes and not self._waiting:
                self._oldest = self._clock()
            self._waiting.extend(outcomes)
            if self._is_due():
                self._flush()
            self._turn.notify()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._turn:
            self._ended = True
            self._turn.notify()
        self._watch.join()
        if self._error is None:
            self._flush()
        elif error is None:
            self._raise()

    def _watch_over(self) -> None:
        with self._turn:
            while not self._ended:
                self._turn.wait(self._patience() / 2)
                if self._error is None and self._is_due():
                    try:
                        self._flush()
                    except BaseException as error:
                        # Told at the next `add`: an error in this thread would reach nobody.
                        self._error = error

    def _patience(self) -> float:
        return min(LATEST, max(SOONEST, _SHARE * (self._clock() - self._began)))

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        return len(self._waiting) >= _MOST or self._clock() - self._oldest >= self._patience()

    def _flush(self) -> None:
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
