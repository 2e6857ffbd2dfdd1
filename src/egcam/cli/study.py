"""`egcam study`: make, run, watch and report a study."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from egcam.cli.console import DONE, SOME_FAILED, note, out, print_json, say
from egcam.studies.config import StudyError, load_study
from egcam.studies.cost import unit_passes
from egcam.studies.estimation import Estimate, estimate, estimated
from egcam.studies.plan import WHOLE, belongs, read_part
from egcam.studies.preset_files import preset, presets
from egcam.studies.progress import duration, status
from egcam.studies.records import Outcome
from egcam.studies.runner import Agenda, Watcher, run_study

STOPPED = 130
_TOLD_EVERY = 30.0


def new_study(name: str, data: str | None, annotations: str | None, images: int | None) -> None:
    """Print a study file."""
    print(preset(name, data, annotations, images), end="")


def list_presets(as_json: bool) -> None:
    """Print the presets."""
    found = presets()
    if as_json:
        print_json({"presets": [{"name": name, "title": title} for name, title in found.items()]})
        return
    width = max(map(len, found))
    for name, title in found.items():
        out().print(f"[bold]{name:<{width}}[/bold]  {title}")


def estimate_study(file: Path, limit: int | None, workers: int, as_json: bool) -> None:
    """Print what a study costs."""
    found = estimate(file, limit)
    if as_json:
        print_json(
            {
                "images": found.images,
                "units": found.units,
                "passes": found.passes,
                "worker_seconds": found.seconds,
                "seconds": found.total_seconds / workers,
            }
        )
        return
    for label, passes in found.passes.items():
        out().print(f"{label}: {passes:,} passes, about {duration(found.seconds[label])} of worker time")
    out().print(_cost_line(found, workers))


def _cost_line(found: Estimate, workers: int) -> str:
    shared = "one worker" if workers == 1 else f"{workers} workers"
    return (
        f"{found.images:,} images, {found.units:,} units, {found.total_passes:,} passes: "
        f"about {duration(found.total_seconds / workers)} with {shared}"
    )


def run(
    file: Path,
    folder: str,
    engine: str,
    address: str | None,
    workers: int | None,
    limit: int | None,
    shard: str | None,
    retry_failed: bool,
    mix_versions: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """Run a study to its end, or until it is stopped."""
    _check_lasting(folder)
    study = load_study(file)
    part = read_part(shard) if shard is not None else WHOLE
    watcher = Bar(not as_json)
    try:
        with _terminated_as_interrupted(), watcher:
            results = run_study(
                study,
                folder,
                engine=engine,
                workers=workers,
                address=address,
                limit=limit,
                part=part,
                retry_failed=retry_failed,
                mix_versions=mix_versions,
                wait=wait,
                watcher=watcher,
                say=say,
            )
    except KeyboardInterrupt:
        say(f"egcam: stopped; what was done is kept in {folder}: the same command goes on from there")
        return STOPPED
    found = status(folder)
    if as_json:
        print_json(found.as_dict())
    else:
        for label, table in results.tables.items():
            out().print(f"\n[bold]{label}[/bold]")
            out().print(table.render())
        say(f"{found.done:,} of {found.total:,} units are in {folder}; `egcam study report {folder}` makes the report")
    if watcher.smaller:
        note(
            f"memory did not suffice for {watcher.smaller:,} units; they were done in smaller batches, which may "
            "change their last digits"
        )
    # Also those that failed in an earlier run: a script that runs this until it succeeds must not take them for done.
    failed = sum(belongs(failure.unit, limit, part) for failure in results.failures)
    if failed:
        note(f"{failed:,} units failed; `egcam study status {folder}` says why, --retry-failed does them again")
    return SOME_FAILED if failed else DONE


def show_status(folder: str, workers: int, as_json: bool) -> None:
    """Print how far a study is."""
    _check_lasting(folder)
    found = status(folder, workers)
    if as_json:
        print_json(found.as_dict())
    else:
        out().print(found.render())


def report(folder: str, target: Path | None, baseline: str | None, sharpness: float, as_json: bool) -> None:
    """Write a study's report."""
    from egcam.studies.report import write_report

    _check_lasting(folder)

    where = target if target is not None else _beside(folder)
    written = write_report(folder, where, baseline=baseline, sharpness=sharpness)
    if as_json:
        print_json({"files": [str(file) for file in written]})
    else:
        for file in written:
            out().print(str(file), markup=False)


def _check_lasting(folder: str) -> None:
    """What is in memory ends with the command, and no other command can find it."""
    if "memory://" in folder:
        raise StudyError(
            f"{folder} would be gone when this command ends: name a folder, or a URL of storage that lasts"
        )


def _beside(folder: str) -> Path:
    """In the folder of results, unless that is somewhere in the cloud."""
    return Path("report") if "://" in folder else Path(folder) / "report"


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
            say(f"{_cost_line(whole, 1)}; {agenda.done:,} units are done, {self._total:,} to do")
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
def _terminated_as_interrupted() -> Iterator[None]:
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
