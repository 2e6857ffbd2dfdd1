"""Workers on this machine: one process each, sized so that they share its cores and never fight for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector

from egcam.errors import EgcamError
from egcam.studies.engines.cores import available_cores
from egcam.studies.engines.dispatch import dispatch
from egcam.studies.engines.frames import Frames, pack, receive
from egcam.studies.engines.job import Job, Shard
from egcam.studies.engines.messages import Died, Message
from egcam.studies.engines.retrying import how_it_ended
from egcam.studies.engines.serving import thread_environment
from egcam.studies.outcomes import Outcome

_SECONDS_TO_END = 2.0
_SECONDS_BETWEEN_LOOKS = 1.0


class LocalEngine:
    """Processes on this machine (Linux or macOS).

    Without `workers` there are as many as the cores this process may use, divided by the job's threads; with CUDA one
    for each GPU. There are never more than shards. A worker that dies is replaced and its units are done again; all
    workers end with the driver, also when that is killed.

    Example:
        >>> engine = LocalEngine(workers=1)
        >>> list(engine.outcomes(Job("module:function", {}, ()), iter([])))
        []
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise EgcamError(f"a study needs at least 1 worker, not {workers}")
        self.workers = workers

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Outcomes as they come in, each unit's exactly once."""
        gpus = _gpus(job.device)
        return dispatch(job, shards, _Processes(job, gpus), self.workers or _suitable_workers(job, gpus))


def _suitable_workers(job: Job, gpus: Sequence[str]) -> int:
    if gpus:
        return len(gpus)
    one_device = job.device not in (None, "cpu", "cuda")
    return 1 if one_device else max(1, available_cores() // job.threads)


def _gpus(device: str | None) -> list[str]:
    """The GPUs to share out among workers, as CUDA_VISIBLE_DEVICES names them; none where the job names its own."""
    if device not in (None, "cuda"):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    count = torch.cuda.device_count()
    return named[:count] if len(named) >= count and named[0] else [str(index) for index in range(count)]


class _Processes:
    """The crew: a process in each place, with a socket to it."""

    def __init__(self, job: Job, gpus: Sequence[str]) -> None:
        self._job, self._gpus = job, gpus
        self._selector = DefaultSelector()
        self._processes: dict[int, _Process] = {}

    def hire(self, place: int) -> None:
        gpu = self._gpus[place % len(self._gpus)] if self._gpus else None
        process = _Process.start(self._job, gpu)
        self._processes[place] = process
        self._selector.register(process.connection, EVENT_READ)

    def give(self, place: int, shard: Shard) -> None:
        self._processes[place].send(list(shard))

    def news(self) -> list[tuple[int, Message]]:
        while True:
            self._selector.select(_SECONDS_BETWEEN_LOOKS)
            heard = [(place, said) for place, process in self._processes.items() for said in process.heard()]
            for place, message in heard:
                if isinstance(message, Died):
                    self._selector.unregister(self._processes[place].connection)
                    self._processes.pop(place).close()
            if heard:
                return heard

    def dismiss(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
            process.close()
        for process in self._processes.values():
            process.end()
        self._processes.clear()
        self._selector.close()


@dataclass
class _Process:
    """A worker's process as the driver sees it."""

    popen: subprocess.Popen[bytes]
    connection: socket.socket
    tail: _Tail
    frames: Frames = field(default_factory=Frames)

    @classmethod
    def start(cls, job: Job, gpu: str | None) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            popen = subprocess.Popen(
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
        process = cls(popen, ours, _Tail(popen))
        process.send(job)
        return process

    def send(self, thing: object) -> None:
        """Send a frame; a worker that is gone is noticed when it is next listened to."""
        self.connection.setblocking(True)
        with suppress(ConnectionError):
            self.connection.sendall(pack(thing))
        self.connection.setblocking(False)

    def heard(self) -> list[Message]:
        """What has come in since; `Died` when nothing more can come."""
        # Asked before reading: what a worker sent before it died is then sure to be read.
        gone = self.popen.poll() is not None
        messages: list[Message] = []
        try:
            while data := receive(self.connection):
                messages += self.frames.feed(data)
            gone = True
        except BlockingIOError:
            pass
        if gone:
            messages.append(Died(how_it_ended(self.end()), self.tail.text()))
        return messages

    def close(self) -> None:
        """Hang up, on which the worker ends by itself."""
        self.connection.close()

    def end(self) -> int:
        """Wait for its end, which is due, or bring it about; how it ended."""
        try:
            return self.popen.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            return self.popen.wait()

    def signal(self, number: int) -> None:
        """Signal the worker's whole group, so that what it started does not outlive it."""
        if self.popen.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)


def _environment(job: Job, gpu: str | None) -> dict[str, str]:
    """The driver's environment and import path, with threads and GPU pinned."""
    # The whole path in the driver's order, the standard library included: whatever the driver imports, workers do too.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return {**os.environ, "PYTHONPATH": paths, **thread_environment(job.threads), **visible}


class _Tail:
    """The end of what a process prints, read by a thread so that it never waits to be heard."""

    _most = 4000

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._read, args=(popen,), daemon=True)
        self._thread.start()

    def _read(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        with popen.stdout as printed:
            while data := os.read(printed.fileno(), 1 << 16):
                self._end = (self._end + data)[-self._most :]

    def text(self) -> str:
        """What there is; complete where the process is dead."""
        self._thread.join(0.5)
        return self._end.decode(errors="replace").strip()
