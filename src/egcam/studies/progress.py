"""How far a study is: what is done, what failed and why, and how much work is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from egcam.progress import Progress as Share
from egcam.studies.columns import arrow, places
from egcam.studies.results import Results, Sourced

if TYPE_CHECKING:
    from rich.console import RenderableType

_YEAR = 365.25 * 86400


@dataclass(frozen=True)
class Progress:
    """How far one method is on one model."""

    model: str  # the model's label
    method: str  # the method's name
    done: int  # units with an outcome, failed ones included
    total: int  # units in all
    failed: int  # units that failed
    seconds: float  # the work done so far
    left: float | None  # seconds of work left, as estimated from the same units; None if nothing is known


@dataclass(frozen=True)
class Status:
    """How far a study is.

    Attributes:
        name: the study's.
        done: units with an outcome, failed ones included.
        total: units in all.
        progress: the same by model and method.
        failures: how many units failed, by cause, the most frequent first.
        gaps: how many scores of units that did not fail are missing, by metric and cause.
        images: by model, how many images every method has finished, and how many there are.
        workers: among how many the work left is divided.
    """

    name: str
    done: int
    total: int
    progress: tuple[Progress, ...]
    failures: tuple[tuple[str, int], ...]
    gaps: tuple[tuple[str, str, int], ...]
    images: tuple[tuple[str, int, int], ...]
    workers: int = 1

    @property
    def failed(self) -> int:
        """How many units failed."""
        return sum(count for _, count in self.failures)

    @property
    def seconds(self) -> float:
        """The work done so far, summed over workers."""
        return sum(one.seconds for one in self.progress)

    @property
    def left(self) -> float | None:
        """Seconds until the end with `workers` at work; None if nothing is known yet."""
        parts = [one.left for one in self.progress]
        return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts) / self.workers

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `json` writes them."""
        return {
            "name": self.name,
            "done": self.done,
            "total": self.total,
            "left": self.total - self.done,
            "failed": self.failed,
            "worker_seconds_done": self.seconds,
            "seconds_left": self.left,
            "workers": self.workers,
            "images": [{"model": model, "complete": done, "total": total} for model, done, total in self.images],
            "progress": [vars(one) for one in self.progress],
            "failures": [{"cause": cause, "units": count} for cause, count in self.failures],
            "missing_scores": [
                {"metric": metric, "cause": cause, "scores": count} for metric, cause, count in self.gaps
            ],
        }

    def render(self) -> RenderableType:
        """For a terminal: a headline, a table by model and method, and the causes of failures."""
        from rich.console import Group

        parts: list[RenderableType] = [_headline(self), _grid(self)]
        parts += [_causes(self)] if self.failures or self.gaps else []
        return Group(*parts)


def status(source: Sourced, workers: int = 1, progress: Share | None = None) -> Status:
    """How far the study in a source or a folder is.

    The time left is an estimate: the mean of the units of the same model and method that are done, times those that
    are not. Where none is done yet it is the mean of the model's, else of the method's, else of all units.

    Args:
        source: the results, or the folder they are in.
        workers: how many are going to share the work that is left.
        progress: called with the share of the results that is read.

    Example:
        >>> status("results/").left                        # doctest: +SKIP
        1261.4
    """
    results = Results.of(source, progress)
    each = results.units // max(1, len(results.models) * len(results.methods))
    failures = Counter(failure.cause for failure in results.failures)
    lacking = results.scores["cause"].is_valid().to_numpy()
    lacking &= results.done["cause"].is_null().to_numpy()[results.scores["unit"].to_numpy()]
    missing = results.scores.filter(arrow().array(lacking))
    gaps = Counter(zip(missing["metric"].to_pylist(), missing["cause"].to_pylist(), strict=True))
    found = _progress(results, each)
    return Status(
        results.study.name,
        sum(one.done for one in found),
        results.units,
        tuple(found),
        tuple(sorted(failures.items(), key=lambda item: (-item[1], item[0]))),
        tuple(sorted(((*key, count) for key, count in gaps.items()), key=lambda gap: (-gap[2], *gap[:2]))),
        tuple((model, len(results.images(model)), each) for model in results.models),
        max(1, workers),
    )


def _progress(results: Results, each: int) -> list[Progress]:
    """How far each method is on each model, of whole outcomes."""
    whole = results.done.filter(arrow().array(results.whole))
    shape = len(results.models), len(results.methods)
    places_of = places(whole["model"], results.models), places(whole["method"], results.methods)
    place, worked = np.ravel_multi_index(places_of, shape), whole["cause"].is_null().to_numpy()
    taken_by_unit = whole["seconds"].to_numpy()

    def counted(chosen: Any, weights: Any = None) -> Any:
        found = np.bincount(place[chosen], None if weights is None else weights[chosen], np.prod(shape))
        return found.reshape(shape)

    every = np.ones(len(whole), bool)
    done, failed, seconds = counted(every), counted(~worked), counted(every, taken_by_unit)
    # A unit that failed says little about how long one takes.
    units, taken = counted(worked), counted(worked, taken_by_unit)
    found = []
    for row, model in enumerate(results.models):
        for column, method in enumerate(results.methods):
            alike = ((row, column), (row, slice(None)), (slice(None), column), (slice(None), slice(None)))
            means = (taken[one].sum() / units[one].sum() for one in alike if units[one].sum())
            typical = next(means, None)
            remaining = each - int(done[row, column])
            left = 0.0 if remaining == 0 else None if typical is None else float(typical * remaining)
            counts = int(done[row, column]), each, int(failed[row, column])
            found.append(Progress(model, method, *counts, float(seconds[row, column]), left))
    return found


def duration(seconds: float) -> str:
    """A length of time in words.

    Example:
        >>> duration(42.3), duration(754), duration(7980), duration(200000), duration(1e9)
        ('42 s', '12 min 34 s', '2 h 13 min', '2 d 7 h', '31.7 years')
    """
    whole = round(seconds)
    if whole >= 2 * _YEAR:
        return f"{whole / _YEAR:,.1f} years" if whole < 100 * _YEAR else f"{round(whole / _YEAR):,} years"
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def _headline(state: Status) -> RenderableType:
    from rich.text import Text

    share = state.done / state.total if state.total else 0.0
    text = Text(f"{state.name}: ", style="bold")
    text.append(f"{state.done:,} of {state.total:,} units done ({share:.0%}), {state.failed:,} failed, ")
    text.append(f"{duration(state.seconds)} of worker time spent; ")
    if state.done >= state.total:
        text.append("complete", style="green")
    elif state.left is None:
        text.append("time left unknown until a unit is done")
    else:
        shared = "one worker" if state.workers == 1 else f"{state.workers} workers"
        text.append(f"about {duration(state.left)} left with {shared}")
    return text


def _grid(state: Status) -> RenderableType:
    """A heading for each model and a line for each of its methods: no name is broken at 80 columns."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for model, done, total in state.images:
        parts.append(Text.assemble((model, "bold"), (f"  {done:,} of {total:,} images by all", "dim")))
        parts.append(_methods([one for one in state.progress if one.model == model]))
    return Group(*parts)


def _methods(progress: Sequence[Progress]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column("  method", no_wrap=True)
    for head in ("done", "failed", "s/unit", "time left"):
        grid.add_column(head, justify="right", no_wrap=True)
    for one in progress:
        counted = one.done - one.failed
        grid.add_row(
            Text(f"  {one.method}"),
            f"{one.done:,}/{one.total:,}",
            Text(f"{one.failed:,}" if one.failed else "-", style="red" if one.failed else "dim"),
            f"{one.seconds / counted:.2f}" if counted else "-",
            "?" if one.left is None else "-" if one.left == 0 else duration(one.left),
        )
    return grid


def _causes(state: Status) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column("what", no_wrap=True)
    grid.add_column("count", justify="right")
    grid.add_column("cause", overflow="fold")
    for cause, count in state.failures:
        grid.add_row("units failed", f"{count:,}", Text(cause))
    for metric, cause, count in state.gaps:
        grid.add_row(Text(f"{metric} missing"), f"{count:,}", Text(cause))
    return grid
