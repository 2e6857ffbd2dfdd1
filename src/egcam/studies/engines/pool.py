"""Worker processes, each looked after by a thread that replaces it when it dies and tries its unit again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, Queue
from time import monotonic
from typing import Any, Protocol

from egcam.errors import EgcamError
from egcam.studies.engines.base import Job, Shard
from egcam.studies.outcomes import Outcome, Unit, failed

# A worker that dies while it opens the job was not killed by a unit; this many in a row mean that the job is broken.
MOST_FALSE_STARTS = 3
_SECONDS_TO_STOP = 10.0


class WorkerDied(Exception):
    """A worker process is gone: how it ended, and the end of what it printed where that is known."""

    def __init__(self, how: str, last_words: str = "") -> None:
        super().__init__(how)
        self.how, self.last_words = how, last_words


class WorkerProcess(Protocol):
    """A started worker as the driver sees it."""

    def ask(self, request: Job | Unit) -> Any:
        """What `Worker.answer` says to it; raises `WorkerDied` where nobody will answer any more."""

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
    pool = _Pool(job, deque(deque(shard) for shard in shards if len(shard) > 0), start, most)
    try:
        yield from pool.outcomes()
    finally:
        pool.stop()


class _Pool:
    def __init__(self, job: Job, backlog: deque[deque[Unit]], start: Callable[[int], WorkerProcess], most: int) -> None:
        self._job, self._backlog, self._start = job, backlog, start
        self._workers: dict[int, WorkerProcess] = {}
        self._stopped, self._starting = False, threading.Lock()
        size = min(most, len(backlog))
        self._threads = [
            threading.Thread(target=self._run, args=(slot,), name=f"egcam worker {slot}", daemon=True)
            for slot in range(size)
        ]
        # What threads say: outcomes, and at their end why. Bounded: workers must not run ahead of a slow caller.
        self._said: Queue[Outcome | BaseException | None] = Queue(maxsize=max(1, size))

    def outcomes(self) -> Iterator[Sequence[Outcome]]:
        left, running = sum(map(len, self._backlog)), len(self._threads)
        death = WorkerDied("for no known reason")
        for thread in self._threads:
            thread.start()
        while left > 0:
            said = self._said.get()
            if isinstance(said, Outcome):
                left -= 1
                yield [said]
                continue
            if isinstance(said, WorkerDied):
                # With others at work, this worker may have been one too many for the machine.
                death = said
            elif said is not None:
                raise said
            running -= 1
            if running == 0 and left > 0:
                raise EgcamError(_false_start_text(death))

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
        for worker in list(self._workers.values()):
            worker.terminate()
        patience = monotonic() + _SECONDS_TO_STOP
        while any(thread.is_alive() for thread in self._threads) and monotonic() < patience:
            # A thread may be waiting for room to say something that nobody wants to hear any more.
            with suppress(Empty):
                self._said.get(timeout=0.01)

    def _run(self, slot: int) -> None:
        """Work until nothing is left; a shard that could not be finished goes back to the others."""
        shard: deque[Unit] = deque()
        end: BaseException | None = None
        try:
            # Before a shard is taken: on a cluster a worker may have to wait for room.
            self._open_worker(slot)
            while shard := self._next_shard():
                while shard:
                    outcome = self._outcome(slot, shard[0])
                    shard.popleft()
                    self._said.put(outcome)
        except BaseException as error:
            end = error
        if shard:
            self._backlog.append(shard)
        self._said.put(end)

    def _next_shard(self) -> deque[Unit]:
        try:
            return self._backlog.popleft()
        except IndexError:
            return deque()

    def _outcome(self, slot: int, unit: Unit) -> Outcome:
        """A unit's outcome. A worker that dies is replaced and the unit tried again, as often as the job says."""
        deaths = 0
        while True:
            worker = self._workers.get(slot) or self._open_worker(slot)
            try:
                outcome: Outcome = worker.ask(unit)
                return outcome
            except WorkerDied as death:
                del self._workers[slot]
                deaths += 1
                if deaths > self._job.retries:
                    often = "once" if deaths == 1 else f"{deaths} times"
                    return failed(unit, self._job.metrics, f"its worker died {often} ({death.how})")

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


def _false_start_text(death: WorkerDied) -> str:
    text = f"workers die before they have opened the study, {MOST_FALSE_STARTS} times in a row ({death.how})"
    if death.last_words:
        return f"{text}. The last one printed:\n{death.last_words}"
    return f"{text}. With too little memory, fewer workers would help"
