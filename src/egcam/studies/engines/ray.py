"""Workers on a Ray cluster: an actor each, with a model copy of its own."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from typing import Any

from egcam.errors import EgcamError, require
from egcam.studies.engines.base import Job, Shard, available_cores
from egcam.studies.engines.pool import TimedOut, WorkerDied, outcomes_of, too_long
from egcam.studies.engines.worker import Worker, thread_environment
from egcam.studies.records import Outcome, Unit

_ADDRESSES = "'auto', 'host:6379' (the head's address, from a machine of the cluster) or 'ray://host:10001'"
_SECONDS_TO_CONNECT = 5.0
_SECONDS_OF_SILENCE = 60.0
# Outcomes are small and taken off at once; Ray would otherwise reserve a third of the memory for them.
_STORE_BYTES = 256 << 20


def _ray() -> Any:
    """Ray, imported when first needed. Its own types cover it in part only, and are left aside."""
    return import_module("ray")


class RayEngine:
    """Actors on a Ray cluster, or on a Ray started on this machine for as long as the study runs.

    Every machine of the cluster needs egcam and whatever the study's plugins import, and finds data and weights under
    the paths the study names: on a shared file system, or copied to the same place. A worker or machine that dies is
    replaced and its unit is tried again. Workers that find no room wait for it, so machines that join later are used
    if `workers` asks for more than there was room for.

    Args:
        address: None for a Ray of its own on this machine; "auto" for the cluster this machine is part of,
            "host:6379" likewise by its head's address; "ray://host:10001" for one it is not part of, which needs the
            package `ray[client]`.
        workers: how many; None for as many as the cluster has room for.
        cpus_per_worker: what Ray sets aside for each; None is the job's threads.
        gpus_per_worker: likewise; None is a GPU each where the cluster has any and the job may use it.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        cpus_per_worker: float | None = None,
        gpus_per_worker: float | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise EgcamError(f"a study needs at least 1 worker, not {workers}")
        self.address, self.workers = address, workers
        self.cpus_per_worker, self.gpus_per_worker = cpus_per_worker, gpus_per_worker

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Outcomes as they come in, each unit's exactly once."""
        require("ray", "ray", "the engine 'ray'")
        first = next(shards, None)
        if first is None:
            return
        cpus = self.cpus_per_worker or job.threads
        own_cores = int(self.workers * cpus + 0.999) if self.workers else max(available_cores(), int(cpus))
        with _connected(self.address, own_cores) as machines:
            gpus = self._gpus(job, machines)
            environment = {"env_vars": thread_environment(job.threads)}
            actor = _ray().remote(num_cpus=cpus, num_gpus=gpus, runtime_env=environment)(_Worker)
            workers = self.workers or room(machines, cpus, gpus)
            yield from outcomes_of(job, chain([first], shards), lambda slot: _Actor(actor), workers)

    def _gpus(self, job: Job, machines: Sequence[tuple[float, float]]) -> float:
        if self.gpus_per_worker is not None:
            return self.gpus_per_worker
        return 1 if any(gpus for _, gpus in machines) and (job.device or "cuda").startswith("cuda") else 0


class _Worker(Worker):
    """What runs in an actor's process."""

    def __init__(self, paths: Sequence[str]) -> None:
        # At the end, where they can hide nothing that is installed here.
        sys.path.extend(path for path in paths if path not in sys.path)


class _Actor:
    """A `_Worker` as the driver sees it. A unit that kills it is tried again by the pool, as on the local engine."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor.remote([path or os.getcwd() for path in sys.path])

    def ask(self, request: Job | Unit, timeout: float | None = None) -> Any:
        ray = _ray()
        answer = self._actor.answer.remote(request)
        try:
            if isinstance(request, Job) and not ray.wait([answer], timeout=_SECONDS_OF_SILENCE)[0]:
                _warn_of_silence()
            return ray.get(answer, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            self.terminate()
            raise TimedOut(too_long(timeout or 0.0)) from error
        except ray.exceptions.RayError as error:
            self.terminate()
            raise WorkerDied(_how_it_died(error), _without_colour(str(error))[-4000:]) from error

    def terminate(self) -> None:
        with suppress(Exception):
            _ray().kill(self._actor)


def _how_it_died(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, _ray().exceptions.OutOfMemoryError) or "memory monitor" in text:
        return "Ray killed it for lack of memory"
    if "its node has died" in text:
        return "its machine left the cluster"
    return "killed, often for lack of memory, or out of reach"


def _without_colour(text: str) -> str:
    """Text without a terminal's colour codes, which Ray puts into its errors.

    >>> _without_colour("\\x1b[36mray::_Worker.open()\\x1b[39m (pid=7)")
    'ray::_Worker.open() (pid=7)'
    """
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _warn_of_silence() -> None:
    there, free = (resources.get("CPU", 0) for resources in (_ray().cluster_resources(), _ray().available_resources()))
    warnings.warn(
        f"a worker has not started within {_SECONDS_OF_SILENCE:.0f} s: the Ray cluster has {there:g} CPUs, "
        f"{free:g} of them free; still waiting",
        stacklevel=2,
    )


def room(machines: Sequence[tuple[float, float]], cpus: float, gpus: float) -> int:
    """How many workers with that many CPUs and GPUs fit on machines of (CPUs, GPUs), each on one machine.

    >>> room([(3, 0), (4, 1), (1, 0)], cpus=2, gpus=0)
    3
    """
    count = sum(int(min(has // cpus, has_gpus // gpus if gpus else has // cpus)) for has, has_gpus in machines)
    if count < 1:
        there = ", ".join(f"{has:g} CPUs and {has_gpus:g} GPUs" for has, has_gpus in machines) or "none"
        raise EgcamError(
            f"the Ray cluster has no room for a worker with {cpus:g} CPUs and {gpus:g} GPUs; "
            f"its machines have: {there}. Lower the study's threads or add a machine"
        )
    return count


@contextmanager
def _connected(address: str | None, own_cores: int) -> Iterator[list[tuple[float, float]]]:
    """The machines, as (CPUs, GPUs), of the Ray this process uses: the one it has, that at `address`, or a new one."""
    ray = _ray()
    connected = ray.is_initialized()
    if not connected:
        with _signal_handlers_kept():
            _init(address, own_cores)
    try:
        there = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
        yield [(has.get("CPU", 0.0), has.get("GPU", 0.0)) for has in there]
    finally:
        if not connected:
            ray.shutdown()


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray handles SIGTERM by aborting the process; whoever handled it before may have something to save."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                # None: not set by Python, and cannot be restored.
                if handler is not None:
                    signal.signal(number, handler)


def _init(address: str | None, own_cores: int) -> None:
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if not sys.stderr.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"address": "local", "num_cpus": own_cores, "include_dashboard": False}
        options |= {"object_store_memory": _STORE_BYTES}
    elif address != "auto":
        _check_that_somebody_listens(address)
    try:
        _ray().init(**options)
    except (ConnectionError, RuntimeError, ValueError, _ray().exceptions.RayError) as error:
        if address is None:
            raise
        raise EgcamError(f"no Ray cluster at {address!r}: {error}. An address is {_ADDRESSES}") from error


def _check_that_somebody_listens(address: str) -> None:
    """Find out in seconds what takes Ray minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        raise EgcamError(f"the Ray address {address!r} is not one of {_ADDRESSES}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise EgcamError(
            f"no Ray cluster at {address!r}: {error}. Start one with 'ray start --head', or give its address as "
            f"{_ADDRESSES}; without an address Ray is started on this machine"
        ) from error
