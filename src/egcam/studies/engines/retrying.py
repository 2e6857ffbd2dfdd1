"""How often a unit may take its worker down before it is given up."""

from __future__ import annotations

import signal
from collections import Counter

from egcam.studies.engines.job import Job
from egcam.studies.outcomes import Outcome, Unit, failed


class Tries:
    """Counts the deaths each unit was at work in.

    Example:
        >>> tries = Tries(Job("module:function", {}, ("insertion",), retries=1))
        >>> tries.died(Unit("vgg16", "grad-cam", 3), "signal 11: segmentation fault") is None
        True
        >>> tries.died(Unit("vgg16", "grad-cam", 3), "signal 11: segmentation fault").error
        'its worker died 2 times (signal 11: segmentation fault)'
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._deaths: Counter[Unit] = Counter()

    def died(self, unit: Unit, how: str) -> Outcome | None:
        """The unit's failure when it has used up its tries, None when it may be tried again."""
        self._deaths[unit] += 1
        times = self._deaths[unit]
        if times <= self._job.retries:
            return None
        del self._deaths[unit]
        often = "once" if times == 1 else f"{times} times"
        return failed(unit, self._job.metrics, f"its worker died {often} ({how})")


def how_it_ended(status: int) -> str:
    """A process's end in words, from the status `subprocess` reports.

    >>> how_it_ended(-9), how_it_ended(-11), how_it_ended(3)
    ('signal 9: killed, often for lack of memory', 'signal 11: segmentation fault', 'exit status 3')
    """
    if status >= 0:
        return f"exit status {status}"
    if -status == signal.SIGKILL:
        return "signal 9: killed, often for lack of memory"
    return f"signal {-status}: {(signal.strsignal(-status) or 'unknown').lower()}"
