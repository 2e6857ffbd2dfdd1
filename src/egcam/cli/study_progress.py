"""What is seen of a study while it runs."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from egcam.cli.console import note, say
from egcam.evaluation.numbers import counted
from egcam.studies.cost import Estimate
from egcam.studies.progress import duration
from egcam.studies.records import Outcome
from egcam.studies.runner import Agenda, Watcher

_TOLD_EVERY = 30.0
_SILENCE = 120.0


def estimate_lines(found: Estimate, workers: int, memory: int | None) -> list[str]:
    """What a study takes, and of what."""
    lines = [f"{label}: about {duration(seconds)} of worker time" for label, seconds in found.seconds.items()]
    total = max(found.total_seconds, 1e-9)
    for what, parts in (("methods", found.by_method), ("metrics", found.by_metric)):
        most = sorted(parts.items(), key=lambda item: -item[1])[:5]
        lines.append(f"dearest {what}: " + ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in most))
    lines += [f"failed: {name}: {cause}" for name, cause in found.failed.items()]
    if memory is not None:
        lines.append(f"memory: {_size(memory)} for this estimate; a worker takes about as much")
    lines.append(
        f"disk: about {_size(found.disk)}; report: about {duration(found.report_seconds)} and "
        f"{_size(found.report_memory)} of memory"
    )
    size = f"{counted(found.images, 'image')}, {counted(found.units, 'unit')}"
    return [*lines, f"{size}: about {duration(found.total_seconds / workers)} with {counted(workers, 'worker')}"]


def peak_memory() -> int | None:
    """The most bytes this process has held; None if the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _size(count: float) -> str:
    """Bytes in words.

    >>> _size(12), _size(345_000), _size(2.5e9)
    ('12 B', '345 kB', '2.5 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2g} {unit}" if count < 10 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def typical(taken: Mapping[tuple[str, str], tuple[int, float]], key: tuple[str, str]) -> float:
    """Seconds of a unit of a model and method, from how many there were and how long they took by model and method.

    That is the mean of the same, or where there is none of the model's, of the method's, of all.

    >>> typical({("m", "a"): (2, 4.0), ("m", "b"): (1, 8.0)}, ("m", "a"))
    2.0
    >>> typical({("m", "a"): (2, 4.0), ("m", "b"): (1, 8.0)}, ("n", "b"))
    8.0
    """
    model, method = key
    tests = (lambda one: one == key, lambda one: one[0] == model, lambda one: one[1] == method, lambda one: True)
    for is_like in tests:
        alike = [taken[one] for one in taken if is_like(one)]
        if alike:
            return sum(seconds for _, seconds in alike) / sum(count for count, _ in alike)
    return 0.0


class Bar(Watcher):
    """A bar on stderr with units, rate and time left; a line now and then where nobody sees a bar.

    The share done is one of time, not of units: a unit of Score-CAM takes hundreds of times as long as Grad-CAM's. What
    is left is reckoned from the units of the same model and method that came in, or from those most like them.
    A separate thread keeps it alive: it also reports while no unit finishes, and for how long.

    Args:
        wanted: whether to print anything at all.
        clock: seconds that pass.
        every: seconds between two lines.
    """

    def __init__(self, wanted: bool, clock: Callable[[], float] = monotonic, every: float = _TOLD_EVERY) -> None:
        self.failed = self.smaller = 0
        console = Console(stderr=True)
        self._wanted, self._clock, self._every = wanted, clock, every
        self._seen = wanted and console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[units]}"),
            TextColumn("· left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._seen,
            speed_estimate_period=600,
        )
        self._left: Counter[tuple[str, str]] = Counter()
        self._taken: dict[tuple[str, str], tuple[int, float]] = {}
        self._done = self._total = 0
        self._began = self._last = clock()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="egcam heartbeat", daemon=True)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._heart.is_alive():
            self._heart.join()
        self._bar.stop()

    def begins(self, agenda: Agenda) -> None:
        """Say what there is to do."""
        for part in agenda.damaged:
            note(f"{part} was damaged and put aside; its units are done again")
        self._left = Counter(unit[:2] for unit in agenda.todo)
        self._total, self._began, self._last = len(agenda.todo), self._clock(), self._clock()
        if self._wanted:
            shared = f" with {counted(agenda.workers, 'worker')}" if agenda.workers else ""
            done = f"{counted(agenda.done, 'unit')} {'is' if agenda.done == 1 else 'are'} done"
            say(f"{counted(agenda.images, 'image')}: {done}, {self._total:,} to do{shared}")
        self._task = self._bar.add_task(agenda.study.name, total=1.0, units="")
        if self._wanted and agenda.todo:
            self._heart.start()

    def came(self, outcomes: Sequence[Outcome]) -> None:
        """Move on."""
        self._done += len(outcomes)
        self._last = self._clock()
        self.failed += sum(one.error is not None for one in outcomes)
        self.smaller += sum(one.batch_size is not None for one in outcomes)
        for outcome in outcomes:
            key = outcome.unit[:2]
            count, seconds = self._taken.get(key, (0, 0.0))
            self._left[key] -= 1
            self._taken[key] = count + 1, seconds + outcome.seconds
        self._bar.update(self._task, completed=self._share(), units=self._text())

    def _share(self) -> float:
        """How much of the work is done."""
        done = sum(seconds for _, seconds in self._taken.values())
        left = sum(count * typical(self._taken, key) for key, count in self._left.items() if count)
        return done / (done + left) if done + left else 0.0

    def line(self) -> str:
        """How far the run is, with the time left, for where nobody sees a bar."""
        share = self._share()
        left = (self._clock() - self._began) * (1 - share) / share if share else None
        told = f"about {duration(left)} left" if left is not None else "time left unknown until a unit is done"
        return f"{self._text()}, {share:.0%}, {told}"

    def _text(self) -> str:
        now = self._clock()
        rate = self._done / max(1e-9, now - self._began)
        text = f"{self._done:,}/{self._total:,} units, {_rate(rate)}"
        text += f", {self.failed:,} failed" if self.failed else ""
        silent = now - self._last
        return text + (f", no unit for {duration(silent)}" if silent >= _SILENCE else "")

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            if self._seen:
                self._bar.update(self._task, units=self._text())
            else:
                say(self.line())


def _rate(units_per_second: float) -> str:
    if units_per_second >= 1:
        return f"{units_per_second:.1f}/s"
    return f"{60 * units_per_second:.1f}/min"
