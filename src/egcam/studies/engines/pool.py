"""Worker processes, each supervised by a thread that replaces it when it dies and retries its unit."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, LifoQueue, Queue
from time import monotonic
from typing import Any, Protocol

from egcam.errors import EgcamError
from egcam.studies.engines.base import Job, Shard
from egcam.studies.records import Outcome, Unit, failed

# A worker that dies while it opens the job was not killed by a unit; this many in a row mean that the job is broken.
MOST_FALSE_STARTS = 3
_SECONDS_TO_STOP = 10.0


class WorkerDied(Exception):
    """A worker process is gone: how it ended, and the end of what it printed if that is known."""

    def __init__(self, how: str, last_words: str = "") -> None:
        super().__init__(how)
        self.how, self.last_words = how, last_words


class TimedOut(WorkerDied):
    """A worker was given up since it took too long, and is gone."""


class WorkerProcess(Protocol):
    """A started worker as the driver sees it."""

    def ask(self, request: Job | Unit, timeout: float | None = None) -> Any:
        """What `Worker.answer` says to it; raises `WorkerDied` where nobody will answer any more.

        After `timeout` seconds the worker is ended, and `TimedOut` raised; None waits for ever.
        """

    def terminate(self) -> None:
        """End it, whatever it is doing. A thread that waits for its answer then gets `WorkerDied`."""


class _Stopped(Exception):
    """No more workers are wanted."""


def outcomes_of(
    job: Job, shards: Iterator[Shard], start: Callable[[int], WorkerProcess], most: int
) -> Iterator[Sequence[Outcome]]:
    """Outcomes as they come in, each unit's exactly once; the workers are stopped at the end, however it comes.

    Args:
        job: what the workers open.
        shards: the units; those of a shard are done one after the other by the same worker.
        start: starts a worker in the slot of that number.
        most: how many workers; there are never more than shards.
    """
    pool = _Pool(job, [deque(shard) for shard in shards if len(shard) > 0], start, most)
    try:
        yield from pool.outcomes()
    finally:
        pool.stop()


class _Pool:
    def __init__(self, job: Job, shards: list[deque[Unit]], start: Callable[[int], WorkerProcess], most: int) -> None:
        self._job, self._start = job, start
        self._units = sum(map(len, shards))
        # The last one put in is the next one taken, so that what a dead worker leaves behind is done first.
        self._backlog: LifoQueue[deque[Unit] | None] = LifoQueue()
        for shard in reversed(shards):
            self._backlog.put(shard)
        self._deaths: Counter[Unit] = Counter()
        self._workers: dict[int, WorkerProcess] = {}
        self._stopped, self._starting = False, threading.Lock()
        size = min(most, len(shards))
        self._threads = [
            threading.Thread(target=self._run, args=(slot,), name=f"egcam worker {slot}", daemon=True)
            for slot in range(size)
        ]
        # Outcomes, and the errors of threads. Bounded: workers must not run ahead of a caller who is slow to save.
        self._arrived: Queue[Outcome | BaseException] = Queue(maxsize=max(1, size))

    def outcomes(self) -> Iterator[Sequence[Outcome]]:
        left, running = self._units, len(self._threads)
        for thread in self._threads:
            thread.start()
        while left > 0:
            arrived = self._arrived.get()
            if isinstance(arrived, Outcome):
                left -= 1
                yield [arrived]
            elif isinstance(arrived, WorkerDied):
                # With others at work, this worker may have been one too many for the machine.
                running -= 1
                if running == 0:
                    raise EgcamError(_false_start_text(arrived))
            else:
                raise arrived

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
        for worker in self._workers.values():
            worker.terminate()
        for _ in self._threads:
            self._backlog.put(None)
        patience = monotonic() + _SECONDS_TO_STOP
        while any(thread.is_alive() for thread in self._threads) and monotonic() < patience:
            # A thread may be waiting for room in the queue, which nobody reads any more.
            with suppress(Empty):
                self._arrived.get(timeout=0.01)

    def _run(self, slot: int) -> None:
        try:
            # Before a shard is taken: on a cluster a worker may have to wait for room.
            worker = self._open_worker(slot)
            while shard := self._backlog.get():
                try:
                    while shard:
                        outcome = worker.ask(shard[0], self._job.timeout)
                        shard.popleft()
                        self._arrived.put(outcome)
                except WorkerDied as death:
                    self._on_worker_exit(shard, death)
                    worker = self._open_worker(slot)
        except BaseException as error:
            self._arrived.put(error)

    def _on_worker_exit(self, shard: deque[Unit], death: WorkerDied) -> None:
        """Give back what the worker leaves, its unit included unless that has used up its tries.

        A unit that took too long would most likely do so again: it is not tried again in this run.
        """
        unit = shard[0]
        self._deaths[unit] += 1
        deaths = self._deaths[unit]
        if deaths > self._job.retries or isinstance(death, TimedOut):
            shard.popleft()
            often = "once" if deaths == 1 else f"{deaths} times"
            cause = death.how if isinstance(death, TimedOut) else f"its worker died {often} ({death.how})"
            self._arrived.put(failed(unit, self._job.metrics, cause))
        if shard:
            self._backlog.put(shard)

    def _open_worker(self, slot: int, false_starts: int = 0) -> WorkerProcess:
        """A worker that has opened the job; raises `WorkerDied` where one after the other dies of that."""
        with self._starting:
            if self._stopped:
                raise _Stopped
            worker = self._workers[slot] = self._start(slot)
        try:
            error = worker.ask(self._job)
        except WorkerDied:
            if false_starts + 1 == MOST_FALSE_STARTS:
                raise
            return self._open_worker(slot, false_starts + 1)
        if error is not None:
            raise EgcamError(error)
        return worker


def too_long(timeout: float) -> str:
    """Why a unit that was given up has failed.

    >>> too_long(90)
    'it took longer than the timeout of 90 s; --timeout sets a longer one'
    """
    return f"it took longer than the timeout of {timeout:g} s; --timeout sets a longer one"


def _false_start_text(death: WorkerDied) -> str:
    text = f"workers die before they have opened the study, {MOST_FALSE_STARTS} times in a row ({death.how})"
    if death.last_words:
        return f"{text}. The last one printed:\n{death.last_words}"
    return f"{text}. With too little memory, fewer workers would help"
