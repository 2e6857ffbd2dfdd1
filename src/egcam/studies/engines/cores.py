"""How many cores this process may really use: a container or a batch system often grants fewer than the machine has."""

from __future__ import annotations

import os
from pathlib import Path

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
