"""What is seen of a study while it runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from egcam.cli.console import note, say
from egcam.studies.cost import unit_passes
from egcam.studies.estimation import Estimate, estimated
from egcam.studies.progress import duration
from egcam.studies.records import Outcome
from egcam.studies.runner import Agenda, Watcher

_TOLD_EVERY = 30.0


def cost_line(found: Estimate, workers: int) -> str:
    """How much a study is, in a line."""
    shared = "one worker" if workers == 1 else f"{workers} workers"
    return (
        f"{found.images:,} images, {found.units:,} units, {found.total_passes:,} passes: "
        f"about {duration(found.total_seconds / workers)} with {shared}"
    )


class Bar(Watcher):
    """A bar on stderr with units, rate and time left; a line now and then where nobody sees a bar.

    The share done is that of passes, not of units: Score-CAM's units take hundreds of times as many as Grad-CAM's.
    """

    def __init__(self, wanted: bool) -> None:
        self.failed = self.smaller = 0
        console = Console(stderr=True)
        self._wanted = wanted
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
        self._costs: dict[tuple[str, str], int] = {}
        self._done = self._total = 0
        self._began = self._told = monotonic()

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begins(self, agenda: Agenda) -> None:
        """Say what there is to do."""
        study, networks = agenda.study, agenda.networks
        for part in agenda.damaged:
            note(f"{part} was damaged and put aside; its units are done again")
        self._costs = {
            (model.label, method.name): unit_passes(
                study, method, networks[model.label].channels, networks[model.label].size
            )
            for model in study.models
            for method in study.methods
        }
        self._total, self._began = len(agenda.todo), monotonic()
        passes = sum(self._costs[unit.model, unit.method] for unit in agenda.todo)
        if self._wanted:
            whole = estimated(study, networks, agenda.images)
            say(f"{cost_line(whole, 1)}; {agenda.done:,} units are done, {self._total:,} to do")
        self._task = self._bar.add_task(study.name, total=max(1, passes), units="")

    def came(self, outcomes: Sequence[Outcome]) -> None:
        """Move on."""
        self._done += len(outcomes)
        self.failed += sum(one.error is not None for one in outcomes)
        self.smaller += sum(one.batch_size is not None for one in outcomes)
        passes = sum(self._costs[one.unit.model, one.unit.method] for one in outcomes)
        rate = self._done / max(1e-9, monotonic() - self._began)
        text = f"{self._done:,}/{self._total:,} units, {_rate(rate)}"
        text += f", {self.failed:,} failed" if self.failed else ""
        self._bar.update(self._task, advance=passes, units=text)
        if self._wanted and not self._seen and monotonic() - self._told >= _TOLD_EVERY:
            self._told = monotonic()
            say(f"{text}, {self._bar.tasks[0].percentage:.0f} %")


def _rate(units_per_second: float) -> str:
    if units_per_second >= 1:
        return f"{units_per_second:.1f}/s"
    return f"{60 * units_per_second:.1f}/min"


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """A polite kill, or a terminal that is gone, ends the run like Ctrl-C: what is done is saved."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    polite = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # What is ignored stays so: under nohup a run is to outlive its terminal.
    before = {one: signal.getsignal(one) for one in polite if signal.getsignal(one) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
