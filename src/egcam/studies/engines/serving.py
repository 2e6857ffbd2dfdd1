"""The worker's side of every engine: open the job once, then turn units into outcomes one by one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from egcam.errors import EgcamError
from egcam.studies.engines.job import Job, Shard, Worker
from egcam.studies.engines.messages import Message, Opened, Refused
from egcam.studies.outcomes import Outcome, Unit, failed

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


def serve(job: Job, shards: Iterable[Shard], send: Callable[[Message], None]) -> None:
    """Work on `shards` as they come, and `send` what there is to tell."""
    _pin_threads(job.threads)
    try:
        work = job.open()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        send(Refused(cause_of(error)))
        return
    send(Opened())
    for shard in shards:
        for unit in shard:
            send(_outcome(work, unit, job.metrics))


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


def _outcome(work: Worker, unit: Unit, metrics: tuple[str, ...]) -> Outcome:
    try:
        outcome = work(unit)
        if outcome.unit != unit:
            raise RuntimeError(f"asked for {unit}, the worker gave {outcome.unit}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failed(unit, metrics, cause_of(error))
    return outcome


def _pin_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    # Allowed once in a process and only before the first operation; the variables above do the rest.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(1)
