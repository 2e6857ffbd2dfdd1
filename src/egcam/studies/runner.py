"""Run a study: what is not done yet, on an engine, into a folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from egcam.metrics.registry import metric
from egcam.studies.buffer import Saver
from egcam.studies.config import StudyError, load_study
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import Dataset
from egcam.studies.engines import Engine, Job, Shard, make_engine
from egcam.studies.keys import contents_of, settings_of
from egcam.studies.manifest import DataRecord, Manifest, versions
from egcam.studies.networks import NetworkFacts, describe_networks
from egcam.studies.plan import WHOLE, Part, planned, shard_size, shards
from egcam.studies.records import Outcome, Unit
from egcam.studies.results import Results
from egcam.studies.specs import Study
from egcam.studies.store import Store, StoreWarning
from egcam.studies.worker import check_data

FACTORY = "egcam.studies.worker:open_worker"
_NAMED = 10
# How many there are is the engine's business; shards for this many suit a cluster and cost a small machine little.
_MANY_WORKERS = 64
_SURELY_HANGS = 6 * 3600.0


@dataclass(frozen=True)
class Agenda:
    """What a run is about to do.

    Attributes:
        study: what it belongs to.
        images: how many images it takes, from the first.
        todo: the units it will do.
        done: how many units of its part were done before.
        damaged: parts of the store that were unreadable and set aside; their units are repeated.
        workers: how many share the work; None if only the engine will know.
    """

    study: Study
    images: int
    todo: Sequence[Unit]
    done: int
    damaged: Sequence[str] = ()
    workers: int | None = None


class Watcher:
    """Told how a run goes; this one keeps silent."""

    def begins(self, agenda: Agenda) -> None:
        """Just before the first unit."""

    def came(self, outcomes: Sequence[Outcome]) -> None:
        """Some units are done."""


def run_study(
    study: Study | str | Path,
    out: str | Path,
    *,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    limit: int | None = None,
    part: Part = WHOLE,
    retry_failed: bool = False,
    mix_versions: bool = False,
    wait: float | None = None,
    timeout: float | None = None,
    watcher: Watcher | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Results:
    """Run what is missing of a study, and return all results.

    It may be stopped or killed at any time; the same call resumes it. Each unit (one model explaining one image with
    one method) is done as a whole and independently, so the results do not depend on interruptions, the engine or the
    number of workers.

    What is missing is what the folder does not hold under its key: model, image, method and metrics with all that
    determines their numbers. So a study may grow or change in its folder: what is the same counts as done, also if you
    go back; what has changed is done, and the old stays beside it. Adding a metric repeats units as a whole. What
    changes under way, such as an image that is replaced, is kept under its own key, and a warning names it: the next
    run does what then is missing.

    Args:
        study: a study or its TOML file.
        out: the folder for results: a path, or a URL that fsspec understands.
        engine: "local", "ray", the name of an engine registered with `register_engine`, or an engine.
        workers: how many processes; None is one per available core or GPU.
        address: of a Ray cluster.
        limit: only this many images, the first ones; the same call without it does the rest.
        part: (i, n) does every n-th image; other parts may run elsewhere into the same folder at the same time.
        retry_failed: repeat units that failed.
        mix_versions: accept results of other versions of egcam, torch and so on in the folder.
        wait: seconds to wait for another run to leave the folder; None refuses at once.
        timeout: seconds after which a unit fails, so that one that hangs does not stop the rest; None is six hours.
            Engines with their own processes enforce it.
        watcher: is called as the work proceeds.
        say: called with what happens before the first unit.

    Example:
        >>> results = run_study("study.toml", "results/", limit=10)        # doctest: +SKIP
        >>> print(results.tables["vgg16"].to_markdown())                   # doctest: +SKIP
    """
    found = study if isinstance(study, Study) else load_study(study)
    _check_timeout(timeout)
    workers = _alone(found, engine, workers)
    # After the plugins, which may register an engine; before the folder, which a mistyped name should not leave behind.
    made = make_engine(engine, workers=workers, address=address) if isinstance(engine, str) else engine
    data = open_dataset(found.data)
    check_data(found, data)
    store = Store(out)
    images = min(len(data), limit or len(data))
    say(f"{data.description}; looking at models and images")
    networks = describe_networks(found, data)
    contents = contents_of(data, range(part[0] - 1, images, part[1]))
    with store.lock(part, wait=wait):
        _warn_of_vanished_images(store, data)
        store.begin(manifest_of(found, data, networks, contents), mix_versions=mix_versions)
        damaged = store.set_damaged_aside()
        mine = list(planned(found, images, part))
        each = _each(found)
        done = store.done(not retry_failed, each, maps=len(each) < len(found.metrics))
        todo = [unit for unit in mine if unit not in done]
        job = Job(FACTORY, found.model_dump(), each, found.threads, device=found.device)
        job = replace(job, timeout=timeout or _SURELY_HANGS)
        count = workers or _workers_of(made, job)
        agenda = Agenda(found, images, todo, len(mine) - len(todo), damaged, count)
        (watcher or Watcher()).begins(agenda)
        if todo:
            _work(agenda, job, store, made, workers, watcher or Watcher())
    return Results.of(store)


def _work(agenda: Agenda, job: Job, store: Store, engine: Engine, workers: int | None, watcher: Watcher) -> None:
    size = shard_size(len(agenda.todo), workers or _MANY_WORKERS, len(agenda.study.methods))
    changed: dict[str, None] = {}
    try:
        with Saver(store.write) as saver, closing(_stream(engine, job, shards(agenda.todo, size))) as stream:
            for outcomes in stream:
                saver.add(outcomes)
                changed |= {f"{one.name} on {one.unit.model}": None for one in outcomes if not store.is_as_begun(one)}
                watcher.came(outcomes)
    finally:
        if changed:
            names = ", ".join(list(changed)[:_NAMED]) + (f" and {len(changed) - _NAMED} more" * (len(changed) > _NAMED))
            text = f"image, model or references changed during the run: {names}; run it again for what is missing now"
            warnings.warn(text, StoreWarning, stacklevel=4)


def _alone(study: Study, engine: str | Engine, workers: int | None) -> int | None:
    """One worker if time is measured, since others would distort the times."""
    timed = [one.name for one in study.metrics if metric(one.name).timed]
    asked = workers if isinstance(engine, str) else getattr(engine, "workers", 1)
    if not timed or asked == 1:
        return workers
    if asked is None and isinstance(engine, str):
        return 1
    many = asked or "as many as there are cores"
    raise StudyError(f"{timed[0]} is measured while nothing else runs: it takes 1 worker, not {many}")


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not timeout > 0:
        raise StudyError(f"a timeout is a number of seconds above 0, not {timeout:g}")


def _workers_of(engine: Engine, job: Job) -> int | None:
    """How many workers an engine will take, where it can say so beforehand."""
    ask = getattr(engine, "worker_count", None)
    return int(ask(job)) if callable(ask) else None


def _stream(engine: Engine, job: Job, work: Iterator[Shard]) -> Generator[Sequence[Outcome], None, None]:
    """The engine's outcomes as something that can be closed, which stops its workers."""
    yield from engine.outcomes(job, work)


def _each(study: Study) -> tuple[str, ...]:
    """The metrics that each image has by itself."""
    return tuple(one.name for one in study.metrics if not metric(one.name).whole_set)


def _warn_of_vanished_images(store: Store, data: Dataset) -> None:
    """Name the images with results that are gone from the data; not those that are merely not chosen."""
    there = set(data.whole.names)
    gone = [name for name in store.known_images() if name not in there]
    if gone:
        more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
        text = f"no longer in the data: {', '.join(gone[:_NAMED])}{more}; results of it in {store.folder} are left out"
        warnings.warn(text, StoreWarning, stacklevel=3)


def manifest_of(study: Study, data: Dataset, networks: dict[str, NetworkFacts], contents: dict[str, str]) -> Manifest:
    """What the folder says about itself; `contents` are the keys of the images of this run, by name."""
    return Manifest(
        study=study.model_dump(),
        data=DataRecord(data.description, {name: contents.get(name) for name in data.names}),
        models={label: network.record for label, network in networks.items()},
        units=len(data) * len(study.models) * len(study.methods),
        recipes={label: network.recipes for label, network in networks.items()},
        settings=settings_of(study),
        versions=versions(next(iter(networks.values())).device),
    )
