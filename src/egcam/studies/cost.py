"""What a study takes: measured on a real unit of each model and method, and extrapolated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from egcam.studies.config import load_study
from egcam.studies.plugins import import_plugins
from egcam.studies.records import Outcome, Unit
from egcam.studies.specs import Study
from egcam.studies.worker import UnitWorker

# A method's first unit also prepares it: its references, the layer. One that takes longer hardly feels that.
_LONG = 20.0
# Measured: seconds of `egcam study report` on results of 9.5 million scores, two cores, before scores were in columns;
# its memory by benchmarks/report_memory.py on a million. Parts of 4,000 to 1.5 million units.
_REPORT_START, _REPORT_ROW = 8.0, 36e-6
_REPORT_BYTES, _REPORT_ROW_BYTES = 980_000_000, 140
_UNIT_BYTES, _SCORE_BYTES, _CURVE_BYTES, _PIXEL_BYTES = 60, 18, 200, 4


@dataclass(frozen=True)
class Estimate:
    """What a study costs."""

    images: int
    units: int
    seconds: Mapping[str, float]  # of one worker's time, by model
    by_method: Mapping[str, float]  # of these seconds, what each method takes, metrics included
    by_metric: Mapping[str, float]  # likewise; work that is shared counts for the first, the rest explains
    failed: Mapping[str, str]  # why units failed that were tried: "method on model"
    disk: int  # bytes of results, about
    report_rows: int  # lines of scores a report reads

    @property
    def total_seconds(self) -> float:
        """All models together, for one worker."""
        return sum(self.seconds.values())

    @property
    def report_seconds(self) -> float:
        """What `status` and `report` take at the end, about."""
        return _REPORT_START + _REPORT_ROW * self.report_rows

    @property
    def report_memory(self) -> int:
        """Bytes a report takes, about."""
        return _REPORT_BYTES + _REPORT_ROW_BYTES * self.report_rows


def estimate(
    study: Study | str | Path, limit: int | None = None, say: Callable[[str], None] = lambda text: None
) -> Estimate:
    """How long a study takes, from real units: each model explains an image or two with each method, all metrics too.

    The second image counts, since the first also prepares what later ones use, such as references; a method that takes
    long runs once. Nothing is kept. So this takes about as long as two images of the study.

    Args:
        study: a study or its TOML file.
        limit: only this many images, the first ones.
        say: called with what is measured next.
    """
    found = study if isinstance(study, Study) else load_study(study)
    import_plugins(found.plugins)
    with _pinned(found.threads):
        worker = UnitWorker(found)
        images = min(len(worker.data), limit or len(worker.data))
        tried = {
            (model.label, name): outcome
            for model in found.models
            for name, outcome in _measured(worker, model.label, min(2, len(worker.data)), say).items()
        }
    by_metric: dict[str, float] = {}
    for score in (score for outcome in tried.values() for score in outcome.scores):
        by_metric[score.metric] = by_metric.get(score.metric, 0.0) + images * score.seconds
    units = images * len(tried)
    return Estimate(
        images,
        units,
        {model.label: images * _seconds(tried, 0, model.label) for model in found.models},
        {method.name: images * _seconds(tried, 1, method.name) for method in found.methods},
        by_metric,
        {f"{method} on {model}": one.error for (model, method), one in tried.items() if one.error is not None},
        images * sum(_bytes(found, outcome) for outcome in tried.values()),
        report_rows=units * len(found.metrics),
    )


def _measured(worker: UnitWorker, model: str, images: int, say: Callable[[str], None]) -> dict[str, Outcome]:
    """What came of each method on one image, after it was prepared on another."""
    found: dict[str, Outcome] = {}
    for image in range(images):
        for method in (one.name for one in worker.study.methods):
            if method not in found or found[method].seconds < _LONG:
                say(f"{model}: {method}")
                found[method] = worker(Unit(model, method, image))
    return found


def _seconds(tried: Mapping[tuple[str, str], Outcome], place: int, name: str) -> float:
    return sum(outcome.seconds for key, outcome in tried.items() if key[place] == name)


def _bytes(study: Study, outcome: Outcome) -> int:
    is_kept = outcome.coarse is not None and (study.maps == "all" or len(outcome.scores) < len(study.metrics))
    cells = outcome.coarse.size if is_kept and outcome.coarse is not None else 0
    scores = _SCORE_BYTES * len(outcome.scores) + _CURVE_BYTES * len(outcome.curves)
    return _UNIT_BYTES + scores + _PIXEL_BYTES * cells


@contextmanager
def _pinned(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
