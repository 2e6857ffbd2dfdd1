"""The local engine, with real processes that crash, are killed, and are orphaned."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from egcam.errors import EgcamError
from egcam.studies.engines.local import LocalEngine, _gpus, _suitable_workers
from support import engine_factories as factories
from support import torch_factories
from support.engine_checks import SLEEPY, assert_each_once, flat, gone, start_driver, wait_until


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    before = children()
    yield
    assert children() <= before


def test_numbers_from_two_workers_with_threads_pinned():
    job = torch_factories.job("settings", threads=2)
    outcomes = flat(LocalEngine(workers=2).outcomes(job, factories.shards(40, 2)))
    assert sorted(outcome.unit.image for outcome in outcomes) == list(range(40))
    for outcome in outcomes:
        # torch's threads, its pool for whole operations, then the variables.
        np.testing.assert_array_equal(outcome.curves["threads"], [2, 1, 2, 2, 2, 2, 2])
    assert os.getpid() not in {outcome.scores[0].value for outcome in outcomes}


def test_failures_are_outcomes():
    outcomes = flat(LocalEngine(workers=1).outcomes(factories.job("raising"), factories.shards(8)))
    assert_each_once(outcomes, 8, but=[1, 3, 5, 7])
    errors = {outcome.unit.image: outcome.error for outcome in outcomes}
    assert errors[1].startswith("ZeroDivisionError: image 1 (engine_factories.py, line ")
    assert errors[3].startswith("SystemExit: I leave")
    assert "the worker gave Unit(model='model', method='method', image=4)" in errors[5]
    assert all(np.isnan(score.value) for outcome in outcomes if outcome.error for score in outcome.scores)


def test_printing_does_not_disturb():
    outcomes = flat(LocalEngine(workers=1).outcomes(factories.job("printing"), factories.shards(5)))
    assert_each_once(outcomes, 5)


def test_large_outcomes_arrive_whole():
    outcomes = flat(LocalEngine(workers=2).outcomes(factories.job("huge"), factories.shards(12)))
    assert_each_once(outcomes, 12)
    for outcome in outcomes:
        expected = np.random.default_rng(outcome.unit.image).random((224, 224), dtype=np.float32)
        np.testing.assert_array_equal(outcome.coarse, expected)
        assert outcome.picture == bytes([outcome.unit.image]) * 1_000_000


def test_a_unit_that_kills_its_worker_once_is_tried_again(tmp_path):
    job = factories.job("deadly", images=[5], times=1, marks=str(tmp_path))
    assert_each_once(flat(LocalEngine(workers=2).outcomes(job, factories.shards(10))), 10)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_unit_that_always_kills_its_worker_fails_alone(tmp_path):
    job = factories.job("deadly", retries=1, images=[5], times=99, marks=str(tmp_path))
    outcomes = flat(LocalEngine(workers=1).outcomes(job, factories.shards(10)))
    assert_each_once(outcomes, 10, but=[5])
    failed = next(outcome for outcome in outcomes if outcome.unit.image == 5)
    assert failed.error == "its worker died 2 times (signal 9: killed, often for lack of memory)"
    assert [score.cause for score in failed.scores] == [failed.error] * 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_unit_that_hangs_is_given_up_and_the_others_are_done(tmp_path):
    job = replace(factories.job("hanging", images=[5], diary=str(tmp_path / "diary")), timeout=2.0)
    outcomes = flat(LocalEngine(workers=1).outcomes(job, factories.shards(10)))
    assert_each_once(outcomes, 10, but=[5])
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors == ["it took longer than the timeout of 2 s; --timeout sets a longer one"]
    tried = factories.read_diary(tmp_path / "diary")
    assert len(tried) == 1
    assert gone(process for process, _ in tried)


def test_a_segmentation_fault_is_named():
    outcomes = flat(LocalEngine(workers=1).outcomes(factories.job("crashing", retries=0), factories.shards(3)))
    assert_each_once(outcomes, 3, but=[1])
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors == ["its worker died once (signal 11: segmentation fault)"]


def test_workers_killed_from_outside_in_mid_run(tmp_path):
    diary = tmp_path / "diary"
    job = factories.job("sleeping", diary=str(diary), seconds=SLEEPY)
    outcomes, killed = [], []
    for batch in LocalEngine(workers=2).outcomes(job, factories.shards(60)):
        outcomes += batch
        if len(outcomes) >= 10 * (len(killed) + 1) and len(killed) < 2:
            killed.append(factories.read_diary(diary)[-1][0])
            os.kill(killed[-1], signal.SIGKILL)
    assert_each_once(outcomes, 60)
    assert len(set(killed)) == 2
    # Nothing is done twice but what was at work in a worker that was killed.
    assert len(factories.read_diary(diary)) <= 60 + 2


def test_a_worker_killed_while_it_sends(tmp_path):
    diary = tmp_path / "diary"
    outcomes = flat(LocalEngine(workers=2).outcomes(factories.job("cut_off", diary=str(diary)), factories.shards(8, 2)))
    assert_each_once(outcomes, 8)
    assert len(next(outcome for outcome in outcomes if outcome.unit.image == 1).picture) == 100_000_000
    assert [image for _, image in factories.read_diary(diary)].count(1) == 2


def test_a_worker_whose_pipe_is_held_by_what_it_started(tmp_path):
    done, late = tmp_path / "done", tmp_path / "late"
    job = factories.job("forking", retries=0, done=str(done), late=str(late))
    outcomes = flat(LocalEngine(workers=1).outcomes(job, factories.shards(3)))
    done.touch()
    assert not late.exists()
    assert_each_once(outcomes, 3, but=[1])
    assert [outcome.error for outcome in outcomes if outcome.error] == [
        "its worker died once (signal 9: killed, often for lack of memory)"
    ]


def test_a_job_that_cannot_be_opened_ends_the_run():
    for factory, text in (
        ("refusing", "^the weights 'no-such-file.pt' are not there; download them first$"),
        ("broken", "KeyError: 'no such setting'"),
    ):
        with pytest.raises(EgcamError, match=text):
            flat(LocalEngine(workers=1).outcomes(factories.job(factory), factories.shards(8)))


def test_workers_that_die_at_the_start_are_quoted():
    with pytest.raises(EgcamError, match=r"\(exit status 7\)(.|\n)*the library cannot be loaded"):
        flat(LocalEngine(workers=1).outcomes(factories.job("stillborn"), factories.shards(8)))


@pytest.mark.parametrize("factory", ["sleeping", "stubborn"])
def test_leaving_early_ends_the_workers(tmp_path, factory):
    before = children()
    job = factories.job(factory, diary=str(tmp_path / "diary"), seconds=0.2)
    running = LocalEngine(workers=2).outcomes(job, factories.shards(1000))
    next(running)
    workers = children() - before
    assert len(workers) == 2
    running.close()
    assert gone(workers)


def test_an_error_in_the_caller_ends_the_workers(tmp_path):
    before = children()
    job = factories.job("sleeping", diary=str(tmp_path / "diary"), seconds=0.2)

    def consume() -> None:
        for _ in LocalEngine(workers=1).outcomes(job, factories.shards(1000)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert gone(children() - before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_no_worker_outlives_its_driver(tmp_path, number):
    diary = tmp_path / "diary"
    driver = start_driver("local", diary)
    wait_until(lambda: len({process for process, _ in factories.read_diary(diary)}) == 2)
    workers = [process for process, _ in factories.read_diary(diary)]
    assert not gone(workers)
    driver.send_signal(number)
    assert driver.wait() != 0
    wait_until(lambda: gone(workers), 10)
    # Not even the units they were at are finished: nothing is written any more.
    written = len(factories.read_diary(diary))
    time.sleep(0.5)
    assert len(factories.read_diary(diary)) == written


def test_workers_by_cores_and_gpus(monkeypatch):
    monkeypatch.setattr("egcam.studies.engines.local.available_cores", lambda: 6)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _gpus("cpu") == _gpus("cuda:1") == _gpus("mps") == []
    assert _gpus(None) == _gpus("cuda") == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert _gpus(None) == ["3", "5"]
    job = factories.job("numbers", threads=2)
    assert _suitable_workers(job, []) == 3
    assert _suitable_workers(job, ["3", "5"]) == 2
    assert _suitable_workers(factories.job("numbers", threads=8), []) == 1


@pytest.mark.parametrize("then", ["go on", "die"])
def test_what_a_unit_started_ends_with_its_worker(tmp_path, then):
    job = factories.job("leaving", diary=str(tmp_path / "pids"), then=then, retries=0)
    assert len(flat(LocalEngine(workers=1).outcomes(job, factories.shards(2)))) == 2
    started = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(started) == 2
    wait_until(lambda: gone(started))


def test_windows_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("egcam.studies.engines.local.os", SimpleNamespace(name="nt"))
    with pytest.raises(EgcamError, match="studies run on Linux and macOS: on Windows use the Windows Subsystem"):
        LocalEngine()
