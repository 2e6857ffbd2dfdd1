"""What engines share, without a process: who gets which shard, retries, cores, names."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egcam.errors import EgcamError
from egcam.studies.engines import Job, Shard, base, engines, make_engine, register_engine, unregister_engine
from egcam.studies.engines.pool import MOST_FALSE_STARTS, WorkerDied, outcomes_of
from egcam.studies.engines.ray import RayEngine, room
from egcam.studies.records import Outcome, Unit
from support import engine_factories as factories
from support.engine_checks import assert_each_once, flat

JOB = factories.job("numbers")


class Scripted:
    """Workers without a process.

    Images in `deadly` kill their worker as often as they say; with `chance_of_death` any unit may. Workers in the
    slots of `stillborn` die before they have opened the job.
    """

    def __init__(self, deadly: dict[int, int] | None = None, chance_of_death: float = 0.0) -> None:
        self.deadly = dict(deadly or {})
        self.chance_of_death = chance_of_death
        self.random = random.Random(0)
        self.stillborn: set[int] = set()
        self.refusal: str | None = None
        self.nap = 0.0
        self.started: list[ScriptedWorker] = []

    def start(self, slot: int) -> ScriptedWorker:
        self.started.append(ScriptedWorker(self, slot))
        return self.started[-1]

    def run(self, shards: Iterator[Shard], most: int, **job: Any) -> Iterator[Sequence[Outcome]]:
        return outcomes_of(factories.job("numbers", **job), shards, self.start, most)

    def assert_all_stopped(self) -> None:
        assert all(worker.terminated.is_set() or worker.dead for worker in self.started)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("egcam worker")]


class ScriptedWorker:
    def __init__(self, script: Scripted, slot: int) -> None:
        self.script, self.slot = script, slot
        self.dead = self.finds_no_room = False
        self.terminated = threading.Event()
        self.done: list[int] = []

    def ask(self, request: Job | Unit, timeout: float | None = None) -> Any:
        assert not self.dead, "a dead worker was asked"
        return self._open() if isinstance(request, Job) else self._outcome(request)

    def _open(self) -> str | None:
        if self.finds_no_room:
            self.terminated.wait()
            self._die()
        if self.slot in self.script.stillborn:
            self._die()
        return self.script.refusal

    def _outcome(self, unit: Unit) -> Outcome:
        if self.terminated.wait(self.script.nap) or self.script.random.random() < self.script.chance_of_death:
            self._die()
        if self.script.deadly.get(unit.image, 0) > 0:
            self.script.deadly[unit.image] -= 1
            self._die()
        self.done.append(unit.image)
        return factories.outcome(unit, factories.number(unit))

    def terminate(self) -> None:
        self.terminated.set()

    def _die(self) -> None:
        self.dead = True
        raise WorkerDied("by script", "some last words")


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(0, 40),
    size=st.integers(1, 7),
    workers=st.integers(1, 5),
    deadly=st.dictionaries(st.integers(0, 39), st.integers(1, 5), max_size=5),
)
def test_every_unit_once_whatever_dies(count, size, workers, deadly):
    script = Scripted(deadly)
    outcomes = flat(script.run(factories.shards(count, size), workers))
    lost = [image for image, times in deadly.items() if times > 2 and image < count]
    assert_each_once(outcomes, count, but=lost)
    for outcome in outcomes:
        if outcome.unit.image in lost:
            assert outcome.error == "its worker died 3 times (by script)"
            assert [score.cause for score in outcome.scores] == [outcome.error] * 2
    # Nothing is done a second time because a neighbour's worker died.
    assert len([image for worker in script.started for image in worker.done]) == count - len(lost)
    script.assert_all_stopped()


def test_deaths_by_chance_lose_nothing():
    script = Scripted(chance_of_death=0.3)
    assert_each_once(flat(script.run(factories.shards(60, 5), 3, retries=50)), 60)
    assert len(script.started) > 3


def test_tries_are_counted_for_each_unit_alone():
    script = Scripted(deadly={0: 2, 1: 2, 2: 2})
    assert_each_once(flat(script.run(factories.shards(4, 4), 1, retries=2)), 4)
    assert len(script.started) == 1 + 6
    assert [worker.done for worker in script.started] == [[], [], [0], [], [1], [], [2, 3]]


@pytest.mark.parametrize(("retries", "often"), [(0, "once"), (1, "2 times")])
def test_retries_are_the_jobs(retries, often):
    script = Scripted(deadly={2: 99})
    outcomes = flat(script.run(factories.shards(4), 1, retries=retries))
    assert [outcome.error for outcome in outcomes if outcome.error] == [f"its worker died {often} (by script)"]
    assert script.deadly[2] == 99 - retries - 1


def test_no_more_workers_than_shards_and_none_without():
    for shards, started in ((0, 0), (1, 1), (3, 3), (20, 4)):
        script = Scripted()
        flat(script.run(factories.shards(shards * 2, 2), 4))
        assert len(script.started) == started


def test_units_of_a_shard_meet_in_one_worker_in_their_order():
    script = Scripted()
    script.nap = 0.001
    flat(script.run(factories.shards(60, 6), 3))
    for worker in script.started:
        assert all(image % 6 == place % 6 for place, image in enumerate(worker.done))


def test_empty_shards_do_no_harm():
    assert_each_once(flat(Scripted().run(iter([[], factories.units(3), [], []]), 2)), 3)


def test_workers_do_not_run_ahead_of_a_slow_caller():
    script = Scripted()
    running = script.run(factories.shards(3000, 3), 2)
    for taken in range(1, 20):
        next(running)
        time.sleep(0.01)
        # Two outcomes wait, and each of two workers has another in hand.
        assert sum(len(worker.done) for worker in script.started) <= taken + 4
    running.close()
    script.assert_all_stopped()


def test_a_caller_who_leaves_is_not_waited_for():
    script = Scripted()
    script.nap = 3600.0
    running = script.run(factories.shards(40), 4, retries=0)
    threading.Timer(0.2, lambda: script.started[0].terminate()).start()
    assert next(running)[0].error == "its worker died once (by script)"
    running.close()
    script.assert_all_stopped()


def test_workers_dying_at_the_start_end_the_run_and_are_quoted():
    script = Scripted()
    script.stillborn = {0, 1}
    with pytest.raises(EgcamError, match=r"3 times in a row \(by script\)(.|\n)*some last words"):
        flat(script.run(factories.shards(20), 2))
    assert len(script.started) <= 2 * MOST_FALSE_STARTS
    script.assert_all_stopped()


def test_a_slot_where_no_worker_can_start_is_left_empty_while_others_work():
    script = Scripted()
    script.nap = 0.001
    script.stillborn = {1}
    assert_each_once(flat(script.run(factories.shards(200), 2)), 200)
    assert len(script.started) == 1 + MOST_FALSE_STARTS


def test_the_shard_of_a_slot_that_is_given_up_is_done_by_others():
    script = Scripted(deadly={5: 1})
    script.nap = 0.001
    start = script.start

    def only_once(slot: int) -> ScriptedWorker:
        worker = start(slot)
        if 5 not in script.deadly or script.deadly[5] == 0:
            script.stillborn = {slot}
        return worker

    script.start = only_once  # type: ignore[method-assign]
    assert_each_once(flat(script.run(factories.shards(200), 2)), 200)
    assert len(script.started) == 2 + MOST_FALSE_STARTS


def test_a_unit_is_not_held_by_a_slot_that_waits_for_room():
    script = Scripted(deadly={7: 1})
    first = script.start

    def start(slot: int) -> ScriptedWorker:
        worker = first(slot)
        if len(script.started) > 2:
            worker.finds_no_room = True
        return worker

    script.start = start  # type: ignore[method-assign]
    assert_each_once(flat(script.run(factories.shards(8), 2)), 8)
    script.assert_all_stopped()


def test_a_job_nobody_can_open_ends_the_run():
    script = Scripted()
    script.refusal = "no weights"
    with pytest.raises(EgcamError, match=r"^no weights$"):
        flat(script.run(factories.shards(20), 2))
    script.assert_all_stopped()


def test_an_error_in_the_shards_ends_the_run():
    def shards() -> Iterator[Shard]:
        yield from factories.shards(12)
        raise OSError("the disk is gone")

    script = Scripted()
    with pytest.raises(OSError, match="the disk is gone"):
        flat(script.run(shards(), 2))
    script.assert_all_stopped()


def test_work_is_shared():
    script = Scripted()
    script.nap = 0.001
    flat(script.run(factories.shards(400), 4))
    shares = [len(worker.done) for worker in script.started]
    assert len(shares) == 4
    assert min(shares) > 60


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "300000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_cores_of_a_container(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert base.available_cores(tmp_path) == expected


def test_room_on_a_cluster():
    machines = [(3, 0), (4, 2), (1, 0)]
    assert room(machines, cpus=1, gpus=0) == 8
    assert room(machines, cpus=2, gpus=0) == 3
    assert room(machines, cpus=1, gpus=1) == 2
    with pytest.raises(EgcamError, match="no room for a worker with 5 CPUs and 0 GPUs; its machines have: 3 CPUs"):
        room(machines, cpus=5, gpus=0)
    with pytest.raises(EgcamError, match="its machines have: none"):
        room([], cpus=1, gpus=0)


def test_engines_by_name():
    assert make_engine("local", workers=3).workers == 3
    engine = make_engine("ray", workers=3, address="auto")
    assert (engine.workers, engine.address) == (3, "auto")
    with pytest.raises(EgcamError, match="there is no engine 'rays'; did you mean 'ray'"):
        make_engine("rays")
    with pytest.raises(EgcamError, match="'local' takes no address"):
        make_engine("local", address="auto")
    for name in ("local", "ray"):
        with pytest.raises(EgcamError, match="at least 1 worker, not 0"):
            make_engine(name, workers=0)


class OneByOne:
    """An engine of the user's, in this process."""

    def __init__(self, workers: int | None, address: str | None) -> None:
        self.workers, self.address = workers, address

    def outcomes(self, job, shards):
        work = job.open()
        for shard in shards:
            yield [work(unit) for unit in shard]


def test_an_engine_of_ones_own():
    before = engines()
    register_engine("slurm", OneByOne)
    try:
        assert engines() == [*before, "slurm"]
        engine = make_engine("slurm", workers=3, address="login-node")
        assert (engine.workers, engine.address) == (3, "login-node")
        assert_each_once(flat(engine.outcomes(JOB, factories.shards(9))), 9)
        with pytest.raises(EgcamError, match="there is no engine 'slrum'; did you mean 'slurm'"):
            make_engine("slrum")
        with pytest.raises(EgcamError, match="'slurm' is registered already"):
            register_engine("slurm", OneByOne)
    finally:
        unregister_engine("slurm")
    assert engines() == before
    with pytest.raises(EgcamError, match="there is no engine 'slurm'"):
        unregister_engine("slurm")


def test_a_factory_that_makes_no_engine():
    register_engine("nothing", lambda workers, address: None)
    try:
        with pytest.raises(EgcamError, match="'nothing' returned None, which has no method 'outcomes'"):
            make_engine("nothing")
    finally:
        unregister_engine("nothing")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("somewhere", "is not one of 'auto', 'host:6379'"),
        ("ray://127.0.0.1:1", "no Ray cluster at"),
        ("127.0.0.1:1", "ray start --head"),
    ],
)
def test_a_cluster_that_is_not_there(address, text):
    pytest.importorskip("ray", reason="needs the package ray (extra 'ray')")
    with pytest.raises(EgcamError, match=text):
        next(RayEngine(address).outcomes(JOB, factories.shards(4)))


def test_ray_is_not_started_for_nothing():
    pytest.importorskip("ray", reason="needs the package ray (extra 'ray')")
    assert list(RayEngine("127.0.0.1:1").outcomes(JOB, iter([]))) == []
