"""What engines share, without a process: who gets which shard, retries, cores, names."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egcam.errors import EgcamError
from egcam.studies.engines import cores, make_engine
from egcam.studies.engines.dispatch import MOST_FALSE_STARTS, dispatch
from egcam.studies.engines.frames import Frames, pack
from egcam.studies.engines.job import Shard
from egcam.studies.engines.messages import Died, Message, Opened, Refused
from egcam.studies.engines.ray_cluster import Room, Share
from egcam.studies.engines.ray_engine import RayEngine
from egcam.studies.engines.retrying import how_it_ended
from egcam.studies.outcomes import Unit
from studies import engine_factories as factories
from studies.engine_checks import assert_each_once, flat


class ScriptedCrew:
    """Workers that live in a list: every call of `news` is one step of one of them, chosen by chance.

    Images in `deadly` kill their worker as often as they say. With `chance_of_death` any step may be a worker's last.
    """

    def __init__(self, seed: int = 0, deadly: dict[int, int] | None = None, chance_of_death: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.deadly = dict(deadly or {})
        self.chance_of_death = chance_of_death
        self.workers: dict[int, deque[Unit] | None] = {}
        self.hired = 0
        self.dismissed = False
        self.given: list[tuple[int, Shard]] = []
        self.stillborn: set[int] = set()
        self.refusal: str | None = None
        self.most_held = 0

    def hire(self, place: int) -> None:
        assert place not in self.workers
        self.workers[place] = None
        self.hired += 1

    def give(self, place: int, shard: Shard) -> None:
        queue = self.workers[place]
        assert queue is not None, "a worker that has not opened the job was given units"
        queue.extend(shard)
        self.most_held = max(self.most_held, len(queue))
        self.given.append((place, shard))

    def news(self) -> Sequence[tuple[int, Message]]:
        able = [place for place, queue in self.workers.items() if queue is None or queue]
        assert able, "the driver waits, and nobody has anything to do"
        place = self.random.choice(able)
        queue = self.workers[place]
        if queue is None:
            if self.refusal:
                return [(place, Refused(self.refusal))]
            if place in self.stillborn:
                return self._die(place)
            self.workers[place] = deque()
            return [(place, Opened())]
        unit = queue.popleft()
        if self.deadly.get(unit.image, 0) > 0:
            self.deadly[unit.image] -= 1
            return self._die(place)
        done = (place, factories.outcome(unit, factories.number(unit)))
        return [done, *self._die(place)] if self.random.random() < self.chance_of_death else [done]

    def _die(self, place: int) -> list[tuple[int, Message]]:
        del self.workers[place]
        return [(place, Died("by script", "some last words"))]

    def dismiss(self) -> None:
        self.dismissed = True


JOB = factories.job("numbers")


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(0, 40),
    size=st.integers(1, 7),
    workers=st.integers(1, 5),
    deadly=st.dictionaries(st.integers(0, 39), st.integers(1, 5), max_size=5),
)
def test_every_unit_once_whatever_dies(seed, count, size, workers, deadly):
    crew = ScriptedCrew(seed, deadly)
    outcomes = flat(dispatch(JOB, factories.shards(count, size), crew, workers))
    lost = [image for image, times in deadly.items() if times > JOB.retries and image < count]
    assert_each_once(outcomes, count, but=lost)
    for outcome in outcomes:
        if outcome.unit.image in lost:
            assert outcome.error == "its worker died 3 times (by script)"
            assert [score.cause for score in outcome.scores] == [outcome.error] * 2
    assert crew.dismissed


def test_a_death_between_two_units_loses_nothing_and_finds_the_next_unit_alive():
    crew = ScriptedCrew(1, chance_of_death=0.3)
    job = factories.job("numbers", retries=50)
    assert_each_once(flat(dispatch(job, factories.shards(60, 5), crew, 3)), 60)
    assert crew.hired > 3


def test_the_unit_that_killed_a_worker_is_given_back_alone_and_the_rest_together():
    crew = ScriptedCrew(deadly={1: 1})
    flat(dispatch(JOB, factories.shards(4, 4), crew, 1))
    assert [[unit.image for unit in shard] for _, shard in crew.given] == [[0, 1, 2, 3], [1], [2, 3]]


@pytest.mark.parametrize(("retries", "often"), [(0, "once"), (1, "2 times")])
def test_retries_are_the_jobs(retries, often):
    crew = ScriptedCrew(deadly={2: 99})
    outcomes = flat(dispatch(factories.job("numbers", retries=retries), factories.shards(4), crew, 1))
    assert [outcome.error for outcome in outcomes if outcome.error] == [f"its worker died {often} (by script)"]
    assert crew.deadly[2] == 99 - retries - 1


def test_no_more_workers_than_shards_and_none_without():
    for shards, hired in ((0, 0), (1, 1), (3, 3), (20, 4)):
        crew = ScriptedCrew()
        flat(dispatch(JOB, factories.shards(shards * 2, 2), crew, 4))
        assert crew.hired == hired


def test_empty_shards_do_no_harm():
    crew = ScriptedCrew()
    shards = iter([[], factories.units(3), [], []])
    assert_each_once(flat(dispatch(JOB, shards, crew, 2)), 3)


def test_shards_are_fetched_as_they_are_needed():
    fetched = 0

    def endless():
        nonlocal fetched
        for start in range(10**9):
            fetched += 1
            yield [Unit("model", "method", 3 * start + step) for step in range(3)]

    crew = ScriptedCrew()
    running = dispatch(JOB, endless(), crew, 2)
    done = 0
    for _ in range(300):
        done += len(next(running))
        # Two workers with two shards each, and two to size the crew by.
        assert fetched <= done / 3 + 6
    running.close()
    assert crew.most_held <= 4
    assert crew.dismissed


def test_workers_dying_at_the_start_end_the_run_and_are_quoted():
    crew = ScriptedCrew()
    crew.stillborn = {0, 1}
    with pytest.raises(EgcamError, match=r"3 times in a row \(by script\)(.|\n)*some last words"):
        flat(dispatch(JOB, factories.shards(20), crew, 2))
    assert crew.hired <= 2 * MOST_FALSE_STARTS
    assert crew.dismissed


def test_a_place_where_no_worker_can_start_is_left_empty_while_others_work():
    crew = ScriptedCrew(3)
    crew.stillborn = {1}
    assert_each_once(flat(dispatch(JOB, factories.shards(200), crew, 2)), 200)
    assert crew.hired == 1 + MOST_FALSE_STARTS


def test_a_job_nobody_can_open_ends_the_run():
    crew = ScriptedCrew()
    crew.refusal = "no weights"
    with pytest.raises(EgcamError, match=r"^no weights$"):
        flat(dispatch(JOB, factories.shards(20), crew, 2))
    assert crew.dismissed


def test_an_error_in_the_shards_ends_the_run():
    def shards():
        yield factories.units(4)
        raise OSError("the disk is gone")

    crew = ScriptedCrew()
    with pytest.raises(OSError, match="the disk is gone"):
        flat(dispatch(JOB, shards(), crew, 2))
    assert crew.dismissed


def test_work_is_shared():
    crew = ScriptedCrew(5)
    flat(dispatch(JOB, factories.shards(400), crew, 4))
    shares = Counter(place for place, _ in crew.given)
    assert len(shares) == 4
    assert min(shares.values()) > 15


@settings(deadline=None)
@given(things=st.lists(st.binary(max_size=300), max_size=8), pieces=st.lists(st.integers(1, 60), min_size=1))
def test_frames_come_together_from_any_pieces(things, pieces):
    sent, frames, got, step = b"".join(map(pack, things)), Frames(), [], 0
    while sent:
        size = pieces[step % len(pieces)]
        got += frames.feed(sent[:size])
        sent, step = sent[size:], step + 1
    assert got == things


def test_how_processes_end():
    assert how_it_ended(-signal.SIGKILL) == "signal 9: killed, often for lack of memory"
    assert how_it_ended(-signal.SIGABRT) == "signal 6: aborted"
    assert how_it_ended(0) == "exit status 0"


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
    assert cores.available_cores(tmp_path) == expected


def test_room_on_a_cluster():
    room = Room(((3, 0), (4, 2), (1, 0)))
    assert room.for_workers(Share(1, 0)) == 8
    assert room.for_workers(Share(2, 0)) == 3
    assert room.for_workers(Share(1, 1)) == 2
    with pytest.raises(EgcamError, match="no room for a worker with 5 CPUs and 0 GPUs; its machines have: 3 CPUs"):
        room.for_workers(Share(5, 0))
    with pytest.raises(EgcamError, match="its machines have: none"):
        Room(()).for_workers(Share(1, 0))


def test_engines_by_name():
    assert make_engine("local", workers=3).workers == 3
    engine = make_engine("ray", workers=3, address="auto")
    assert (engine.workers, engine.address) == (3, "auto")
    with pytest.raises(EgcamError, match="unknown engine 'rays'; did you mean 'ray'"):
        make_engine("rays")
    with pytest.raises(EgcamError, match="'local' takes no address"):
        make_engine("local", address="auto")
    for name in ("local", "ray"):
        with pytest.raises(EgcamError, match="at least 1 worker, not 0"):
            make_engine(name, workers=0)


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
