"""Workers on this machine: one process each, sized so that they do not compete for cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Pipe
from time import monotonic
from typing import Any

from egcam.errors import EgcamError
from egcam.studies.engines.base import Job, Shard, available_cores
from egcam.studies.engines.pool import TimedOut, WorkerDied, outcomes_of, too_long
from egcam.studies.engines.worker import thread_environment
from egcam.studies.records import Outcome, Unit

_SECONDS_TO_END = 2.0
# A dead worker's pipe closes at once, unless a process that the worker started still holds it.
_SECONDS_BETWEEN_CHECKS = 1.0


class LocalEngine:
    """Processes on this machine (Linux or macOS).

    Without `workers` there are as many as the cores this process may use, divided by the job's threads; with CUDA one
    for each GPU. There are never more than shards. A worker that dies is replaced and its unit is tried again; all
    workers end with the driver, also when that is killed.

    Example:
        >>> engine = LocalEngine(workers=1)
        >>> list(engine.outcomes(Job("module:function", {}, ()), iter([])))
        []
    """

    def __init__(self, workers: int | None = None) -> None:
        if os.name == "nt":
            raise EgcamError("studies run on Linux and macOS: on Windows use the Windows Subsystem for Linux")
        if workers is not None and workers < 1:
            raise EgcamError(f"a study needs at least 1 worker, not {workers}")
        self.workers = workers

    def worker_count(self, job: Job) -> int:
        """How many there are going to be, if the shards are that many."""
        return self.workers or _suitable_workers(job, _gpus(job.device))

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Outcomes as they come in, each unit's exactly once."""
        gpus = _gpus(job.device)

        def start(slot: int) -> _Process:
            return _Process(job, gpus[slot % len(gpus)] if gpus else None)

        return outcomes_of(job, shards, start, self.workers or _suitable_workers(job, gpus))


def _suitable_workers(job: Job, gpus: Sequence[str]) -> int:
    if gpus:
        return len(gpus)
    one_device = job.device not in (None, "cpu", "cuda")
    return 1 if one_device else max(1, available_cores() // job.threads)


def _gpus(device: str | None) -> list[str]:
    """The GPUs to share out among workers, as CUDA_VISIBLE_DEVICES names them; none if the job names its own."""
    if device not in (None, "cuda"):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    count = torch.cuda.device_count()
    return named[:count] if len(named) >= count and named[0] else [str(index) for index in range(count)]


class _Process:
    """A `Worker` in a process of its own, behind a pipe that nobody else uses."""

    def __init__(self, job: Job, gpu: str | None) -> None:
        self._is_over = False
        self._connection, theirs = Pipe()
        with theirs:
            self._popen = subprocess.Popen(
                # -P: the current folder is importable if it is for the driver, not because of -m.
                [sys.executable, "-P", "-m", "egcam.studies.engines.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(job, gpu),
                # A group of its own: an interrupt from the keyboard reaches the driver alone, which ends the workers.
                start_new_session=True,
            )
        # Read by a thread, so that a worker never waits for somebody to read what it prints; only the end is kept.
        self._printed: deque[bytes] = deque(maxlen=100)
        chunks = iter(partial(self._popen.stdout.read1, 4096), b"")  # type: ignore[union-attr]
        self._reader = threading.Thread(target=self._printed.extend, args=(chunks,), daemon=True)
        self._reader.start()

    def ask(self, request: Job | Unit, timeout: float | None = None) -> Any:
        until = None if timeout is None else monotonic() + timeout
        with suppress(EOFError, OSError):
            self._connection.send(request)
            alive = True
            while alive:
                if timeout is not None and until is not None and monotonic() > until:
                    self.terminate()
                    self._connection.close()
                    raise TimedOut(too_long(timeout))
                # Asked before reading: what a worker sent before it died is then sure to be read.
                alive = self._popen.poll() is None
                if self._connection.poll(_SECONDS_BETWEEN_CHECKS if alive else 0):
                    return self._connection.recv()
        self._connection.close()
        how = _how_it_ended(self._ended())
        self._reader.join(0.5)
        raise WorkerDied(how, b"".join(self._printed.copy()).decode(errors="replace")[-4000:].strip())

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._ended()

    def _ended(self) -> int:
        """How it ended, which it does by itself or else is made to."""
        try:
            status = self._popen.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            status = self._popen.wait()
        self._signal(signal.SIGKILL)
        # From now on the number may be that of another process.
        self._is_over = True
        return status

    def _signal(self, number: int) -> None:
        """Signal the worker's whole group, also once it has ended itself: what it started must not outlive it."""
        if not self._is_over:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)


def _environment(job: Job, gpu: str | None) -> dict[str, str]:
    """The driver's environment and import path, with threads and GPU pinned."""
    # The whole path in the driver's order, the standard library included: whatever the driver imports, workers do too.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return {**os.environ, "PYTHONPATH": paths, **thread_environment(job.threads), **visible}


def _how_it_ended(status: int) -> str:
    """A process's end in words, from the status `subprocess` reports.

    >>> _how_it_ended(-9), _how_it_ended(-11), _how_it_ended(3)
    ('signal 9: killed, often for lack of memory', 'signal 11: segmentation fault', 'exit status 3')
    """
    if status >= 0:
        return f"exit status {status}"
    if -status == signal.SIGKILL:
        return "signal 9: killed, often for lack of memory"
    return f"signal {-status}: {(signal.strsignal(-status) or 'unknown').lower()}"
