"""The worker's side of every engine: open the job once, then turn units into outcomes one by one.

`python -m egcam.studies.engines.worker FD` is a local worker's process. FD is a pipe to the driver; standard input,
output and error stay free for whatever a method or plugin does with them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from egcam.errors import EgcamError
from egcam.studies.engines.base import Job
from egcam.studies.records import Outcome, Unit, failed

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold numeric libraries to `threads`; they are read when a library is imported.

    >>> thread_environment(2)["OMP_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


class Worker:
    """Opens a job, then does its units."""

    def answer(self, request: Job | Unit) -> str | Outcome | None:
        """To a job: why it cannot be opened, or None if it can. To a unit: its outcome, failed if it raised."""
        try:
            if isinstance(request, Job):
                self._open(request)
                return None
            outcome = self._work(request)
            if outcome.unit != request:
                raise RuntimeError(f"asked for {request}, the worker gave {outcome.unit}")
            return outcome
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            cause = cause_of(error)
            return cause if isinstance(request, Job) else failed(request, self._metrics, cause)

    def _open(self, job: Job) -> None:
        factory = job.imported()
        # A factory whose module does without torch is not made to wait seconds for it.
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(job.threads)
            # Allowed once in a process and only before the first operation; the environment's variables do the rest.
            with suppress(RuntimeError):
                torch.set_num_interop_threads(1)
        self._metrics, self._work = job.metrics, factory(job.config)


def cause_of(error: BaseException) -> str:
    """An exception in a line: its kind, text and place. Errors egcam raises on purpose need no more than their text.

    >>> cause_of(EgcamError("no weights"))
    'no weights'
    >>> cause_of(ValueError("no weights"))
    'ValueError: no weights'
    """
    if isinstance(error, EgcamError):
        return str(error)
    kind, text = type(error).__name__, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return (f"{kind}: {text}" if text else kind) + place


def main() -> None:
    """Answer what comes in until the driver hangs up."""
    faulthandler.enable()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    requests: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    worker = Worker()
    while True:
        connection.send(worker.answer(requests.get()))


def _listen(connection: Connection, requests: SimpleQueue[Any]) -> None:
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        # The driver is gone: nobody waits for what is being computed, so end in the middle of it, with all that units
        # have started.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":
    main()
