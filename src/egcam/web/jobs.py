"""Work that tells how far it is, and that its owner can stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from egcam.progress import Progress

T = TypeVar("T")

_INTERVAL = 0.15
_ENDS_WITHIN = 5.0


class Stopped(Exception):
    """The work was stopped on request."""


class Unchanged(Exception):
    """There is nothing to do: nothing has changed since."""


class Turn:
    """Whose turn it is within one session: work that was begun in an earlier turn ends at its next step."""

    def __init__(self) -> None:
        self.number = self.begun = self.ended = 0

    def take(self, ticket: object) -> None:
        """Begin the work of the turn.

        Raises:
            Stopped: another turn has begun since the ticket was given out.
            Unchanged: the work of this turn was begun before.
        """
        if ticket != self.number:
            raise Stopped
        if self.begun == self.number:
            raise Unchanged
        self.begun = self.number

    def next(self) -> None:
        """End what is running."""
        self.number += 1

    def end(self, number: object) -> None:
        """The work of a turn is over."""
        if isinstance(number, int):
            self.ended = max(self.ended, min(number, self.number))

    @property
    def is_busy(self) -> bool:
        """Whether there is something to stop: the last turn's work waits or runs."""
        return self.ended < self.number


class Waiting:
    """How many pieces of work wait for the network, or run on it, over all visitors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Turn, int] = {}

    def enter(self, turn: Turn) -> int:
        """A turn has begun; how many others are before it."""
        with self._lock:
            self._turns.pop(turn, None)
            self._turns[turn] = turn.number
            return len(self._turns) - 1

    def leave(self, turn: Turn, number: object = None) -> None:
        """The turn's work is over, unless another one has begun since."""
        with self._lock:
            if number is None or self._turns.get(turn) == number:
                self._turns.pop(turn, None)


class _Job(Generic[T]):
    """One piece of work in a thread of its own."""

    def __init__(self, work: Callable[[Progress], T], turn: Turn) -> None:
        self.share = 0.0
        self.is_abandoned = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._work, self._turn, self._number = work, turn, turn.number
        self.thread = threading.Thread(target=self._run, daemon=True)
        _jobs.add(self)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._report(0.0)
            self.result = self._work(self._report)
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.is_abandoned or self._turn.number != self._number

    def _report(self, share: float) -> None:
        if self.is_over:
            raise Stopped
        self.share = share


_jobs: WeakSet[_Job[Any]] = WeakSet()


def end_all(seconds: float = _ENDS_WITHIN) -> None:
    """End all work at its next step, and wait for that: a process that ends in the middle of a pass crashes."""
    until = time.monotonic() + seconds
    running = list(_jobs)
    for job in running:
        job.is_abandoned = True
    for job in running:
        job.thread.join(max(0.0, until - time.monotonic()))


def shares(work: Callable[[Progress], T], turn: Turn) -> Generator[float, None, T]:
    """Run `work(progress)` and yield the share done while it runs; its result is the generator's.

    A visitor who leaves closes the generator, and the work ends at its next step; so it does when the turn passes on,
    and then the generator raises `Stopped`.

    Example:
        >>> def follow():
        ...     result = yield from shares(lambda progress: progress(0.5) or "done", Turn())
        ...     print(result)
        >>> for share in follow():
        ...     assert 0 <= share <= 1
        done
    """
    job = _Job(work, turn)
    try:
        while job.thread.is_alive():
            if job.is_over:
                # The thread may be waiting for the network: it ends by itself as soon as it gets it.
                raise Stopped
            yield job.share
            job.thread.join(_INTERVAL)
    finally:
        job.is_abandoned = True
    if job.error is not None:
        raise job.error
    return job.result  # type: ignore[return-value]
