"""Workers on a Ray cluster: an actor each, with a model copy of its own."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from queue import Queue, SimpleQueue
from typing import Any

from egcam.errors import EgcamError, require
from egcam.studies.engines.cores import available_cores
from egcam.studies.engines.dispatch import dispatch
from egcam.studies.engines.job import Job, Shard
from egcam.studies.engines.messages import Died, Message, Opened
from egcam.studies.engines.ray_cluster import Share, cluster, ray_module
from egcam.studies.engines.serving import serve, thread_environment
from egcam.studies.outcomes import Outcome

_SECONDS_OF_SILENCE = 60.0
# Each has a thread of its own in the actor: an open question must not keep shards from arriving.
_GIVE, _NEWS = "give", "news"


class RayEngine:
    """Actors on a Ray cluster, or on a Ray started on this machine for as long as the study runs.

    Every machine of the cluster needs egcam and whatever the study's plugins import, and finds data and weights under
    the paths the study names: on a shared file system, or copied to the same place. A worker or machine that dies is
    made good for: its units are done again by others. Workers that find no room wait for it, so machines that join
    later are used if `workers` asks for more than there was room for.

    Args:
        address: None for a Ray of its own on this machine; "auto" for the cluster this machine is part of,
            "host:6379" likewise by its head's address; "ray://host:10001" for one it is not part of, which needs the
            package `ray[client]`.
        workers: how many; None for as many as the cluster has room for.
        cpus_per_worker: what Ray sets aside for each; None is the job's threads.
        gpus_per_worker: likewise; None is a GPU each where the cluster has any and the job may use it.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        cpus_per_worker: float | None = None,
        gpus_per_worker: float | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise EgcamError(f"a study needs at least 1 worker, not {workers}")
        self.address, self.workers = address, workers
        self.cpus_per_worker, self.gpus_per_worker = cpus_per_worker, gpus_per_worker

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Outcomes as they come in, each unit's exactly once."""
        require("ray", "ray", "the engine 'ray'")
        first = next(shards, None)
        if first is None:
            return
        cpus = self.cpus_per_worker or job.threads
        own_cores = int(self.workers * cpus + 0.999) if self.workers else max(available_cores(), int(cpus))
        with cluster(self.address, own_cores) as room:
            share = Share(cpus, self._gpus(job, room.gpus()))
            workers = self.workers or room.for_workers(share)
            yield from dispatch(job, chain([first], shards), _Actors(job, share), workers)

    def _gpus(self, job: Job, there: float) -> float:
        if self.gpus_per_worker is not None:
            return self.gpus_per_worker
        return 1 if there and (job.device or "cuda").startswith("cuda") else 0


class _Worker:
    """What runs in an actor's process: the same loop as in a local worker, in a thread, so that it can be talked to.

    A message is only known to have arrived when the driver asks for the next. The loop waits for that before it starts
    another unit: a unit that kills its worker then takes no finished one with it, nor the blame to another.
    """

    def __init__(self, job: Job, paths: Sequence[str]) -> None:
        # At the end, where they can hide nothing that is installed here.
        sys.path.extend(path for path in paths if path not in sys.path)
        self._shards: SimpleQueue[Shard] = SimpleQueue()
        self._messages: Queue[Message] = Queue()
        self._told = False
        threading.Thread(target=serve, args=(job, iter(self._shards.get, None), self._tell), daemon=True).start()

    def give(self, shard: Shard) -> None:
        self._shards.put(shard)

    def news(self) -> Message:
        """Wait for the next message; the one before has arrived."""
        if self._told:
            self._messages.task_done()
        self._told = True
        return self._messages.get()

    def _tell(self, message: Message) -> None:
        self._messages.put(message)
        self._messages.join()


class _Actors:
    """The crew: an actor in each place, asked for news all the time."""

    def __init__(self, job: Job, share: Share) -> None:
        self._job = job
        self._paths = [path or os.getcwd() for path in sys.path]
        self._actor_class = ray_module().remote(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,
            concurrency_groups={_GIVE: 1, _NEWS: 1},
            runtime_env={"env_vars": thread_environment(job.threads)},
        )(_Worker)
        self._actors: dict[int, Any] = {}
        self._questions: dict[Any, int] = {}
        self._silent = True

    def hire(self, place: int) -> None:
        self._actors[place] = self._actor_class.remote(self._job, self._paths)
        self._ask(place)

    def give(self, place: int, shard: Shard) -> None:
        self._actors[place].give.options(concurrency_group=_GIVE).remote(list(shard))

    def news(self) -> list[tuple[int, Message]]:
        heard: list[tuple[int, Message]] = []
        for question in self._answered():
            place, message = self._questions.pop(question), _answer(question)
            heard.append((place, message))
            if isinstance(message, Died):
                self._bury(place)
            else:
                self._ask(place)
        self._silent = self._silent and not any(isinstance(message, Opened) for _, message in heard)
        return heard

    def dismiss(self) -> None:
        for place in list(self._actors):
            self._bury(place)

    def _ask(self, place: int) -> None:
        question = self._actors[place].news.options(concurrency_group=_NEWS).remote()
        self._questions[question] = place

    def _answered(self) -> list[Any]:
        """Wait until there is an answer; all there are, so that no worker is overheard for another."""
        ray = ray_module()
        questions = list(self._questions)
        while not ray.wait(questions, num_returns=1, timeout=_SECONDS_OF_SILENCE)[0]:
            if self._silent:
                self._silent = False
                _warn_of_silence()
        answered: list[Any] = ray.wait(questions, num_returns=len(questions), timeout=0)[0]
        return answered

    def _bury(self, place: int) -> None:
        """Forget an actor; end it if it only seemed dead."""
        with suppress(Exception):
            ray_module().kill(self._actors.pop(place))


def _answer(question: Any) -> Message:
    ray = ray_module()
    try:
        message: Message = ray.get(question)
        return message
    except ray.exceptions.RayError as error:
        return Died(_how_it_died(error), str(error)[-4000:])


def _how_it_died(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, ray_module().exceptions.OutOfMemoryError) or "memory monitor" in text:
        return "Ray killed it for lack of memory"
    if "its node has died" in text:
        return "its machine left the cluster"
    return "killed, often for lack of memory, or out of reach"


def _warn_of_silence() -> None:
    ray = ray_module()
    there, free = ray.cluster_resources().get("CPU", 0), ray.available_resources().get("CPU", 0)
    warnings.warn(
        f"no worker has started within {_SECONDS_OF_SILENCE:.0f} s: the Ray cluster has {there:g} CPUs, "
        f"{free:g} of them free; still waiting",
        stacklevel=2,
    )
