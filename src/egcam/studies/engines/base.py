"""What an engine is given and what it gives back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from egcam.studies.records import Outcome, Unit

_CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Cores this process may run on, at least 1: its affinity, and no more than its group's share of time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(_granted(cgroup) or allowed)))


def _granted(cgroup: Path) -> float | None:
    """Cores' worth of time the control group grants, where it sets a limit: version 2 of its files, else version 1."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / file).read_text() for file in files).split()
            if float(quota) > 0:
                return max(1.0, float(quota) / float(period))
        except (OSError, ValueError):
            # No such file, or "max" for no limit.
            continue
    return None


Shard: TypeAlias = Sequence[Unit]
Work: TypeAlias = Callable[[Unit], Outcome]


@dataclass(frozen=True)
class Job:
    """A study as a worker gets it: plain data that can be sent anywhere.

    Attributes:
        factory: "package.module:function"; called with `config` it returns what turns a unit into its outcome.
        config: plain data, as `json` could write it.
        metrics: names of the metrics, for units that fail without the worker's doing.
        threads: how many threads a worker computes with; it changes the last digits of results, so it is fixed.
        retries: how often a unit is tried again after its worker died.
        device: where the models run, as in the study; None is a GPU if there is one.
        timeout: seconds after which a unit is given up and counts as failed; None waits for ever.
    """

    factory: str
    config: Mapping[str, Any]
    metrics: tuple[str, ...]
    threads: int = 1
    retries: int = 2
    device: str | None = None
    timeout: float | None = None

    def imported(self) -> Callable[[Mapping[str, Any]], Work]:
        """The factory itself."""
        module, _, function = self.factory.partition(":")
        factory: Callable[[Mapping[str, Any]], Work] = getattr(import_module(module), function)
        return factory

    def open(self) -> Work:
        """What turns a unit into its outcome, made in the worker."""
        return self.imported()(self.config)


class Engine(Protocol):
    """Works on shards in whatever order suits it.

    A unit's failure is an outcome, never an exception. Leaving the iterator early (an interrupt, an error in the
    caller) must stop the workers.
    """

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Outcomes as they come in, each unit's exactly once."""
        ...
