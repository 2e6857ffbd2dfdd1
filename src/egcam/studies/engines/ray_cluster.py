"""Reach a Ray cluster, or start one on this machine, and say how many workers it has room for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from egcam.errors import EgcamError

_ADDRESSES = "'auto', 'host:6379' (the head's address, from a machine of the cluster) or 'ray://host:10001'"
_SECONDS_TO_CONNECT = 5.0
# Outcomes are small and taken off at once; Ray would otherwise reserve a third of the memory for them.
_STORE_BYTES = 256 << 20


def ray_module() -> Any:
    """Ray, imported when first needed. Its own types cover it in part only, and are left aside."""
    return import_module("ray")


@dataclass(frozen=True)
class Share:
    """What one worker needs."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Room:
    """What each machine of the cluster has: (CPUs, GPUs)."""

    machines: tuple[tuple[float, float], ...]

    def gpus(self) -> float:
        """All GPUs."""
        return sum(gpus for _, gpus in self.machines)

    def for_workers(self, share: Share) -> int:
        """How many workers fit, each on one machine.

        >>> Room(((3, 0), (4, 1), (1, 0))).for_workers(Share(2, 0))
        3
        """
        count = sum(
            int(min(cpus // share.cpus, gpus // share.gpus if share.gpus else cpus // share.cpus))
            for cpus, gpus in self.machines
        )
        if count < 1:
            has = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in self.machines) or "none"
            raise EgcamError(
                f"the Ray cluster has no room for a worker with {share.cpus:g} CPUs and {share.gpus:g} GPUs; "
                f"its machines have: {has}. Lower the study's threads or add a machine"
            )
        return count


@contextmanager
def cluster(address: str | None, own_cores: int) -> Iterator[Room]:
    """Be connected to Ray: as this process is already, else to `address`, else to one started with `own_cores`."""
    ray = ray_module()
    connected = ray.is_initialized()
    if not connected:
        with _own_handlers():
            _connect(address) if address is not None else _start(own_cores)
    try:
        yield Room(
            tuple(
                (machine["Resources"].get("CPU", 0.0), machine["Resources"].get("GPU", 0.0))
                for machine in ray.nodes()
                if machine["Alive"]
            )
        )
    finally:
        if not connected:
            ray.shutdown()


def _start(cores: int) -> None:
    ray = ray_module()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=cores,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _connect(address: str) -> None:
    ray = ray_module()
    if address != "auto":
        _knock(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise EgcamError(f"no Ray cluster at {address!r}: {error}. An address is {_ADDRESSES}") from error


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this program's signal handlers: Ray puts its own in their place, which end it before it has saved."""
    in_main = threading.current_thread() is threading.main_thread()
    polite = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {one: signal.getsignal(one) for one in polite} if in_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)


def _knock(address: str) -> None:
    """Find out in seconds what takes Ray minutes: whether anybody listens there."""
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
