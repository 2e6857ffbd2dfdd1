"""The Ray engine on a cluster of two machines, both this one, with workers, a machine and a driver that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from egcam.errors import EgcamError
from egcam.studies.engines.local import LocalEngine
from egcam.studies.engines.ray import RayEngine
from support import engine_factories as factories
from support import torch_factories
from support.engine_checks import SLEEPY, assert_each_once, flat, gone, start_driver, wait_until
from support.engine_driver import TERMINATED

ray = pytest.importorskip("ray", reason="needs the package ray (extra 'ray')")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """Ray's test clusters start without the token that other clusters have by now, and would not mix with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield


@pytest.fixture(scope="module")
def cluster(_environment: None) -> Iterator[object]:
    """Two machines with a core each."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    made.second = made.add_node(**small)
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def _ray_is_left_as_it_was():
    yield
    assert not ray.is_initialized()


def test_same_numbers_as_the_local_engine_to_the_last_bit(cluster):
    job = torch_factories.job("network")
    local = {one.unit: one for one in flat(LocalEngine(workers=1).outcomes(job, factories.shards(12, 3)))}
    remote = {one.unit: one for one in flat(RayEngine(cluster.address).outcomes(job, factories.shards(12, 5)))}
    assert len(local) == len(remote) == 12
    for unit, one in local.items():
        assert remote[unit].scores[0].value == one.scores[0].value != 0
        assert remote[unit].coarse.tobytes() == one.coarse.tobytes()


def test_a_ray_of_its_own_with_threads_pinned():
    outcomes = flat(RayEngine(workers=1).outcomes(torch_factories.job("settings", threads=2), factories.shards(8, 2)))
    assert sorted(outcome.unit.image for outcome in outcomes) == list(range(8))
    for outcome in outcomes:
        np.testing.assert_array_equal(outcome.curves["threads"], [2, 1, 2, 2, 2, 2, 2])
    assert len({outcome.scores[0].value for outcome in outcomes}) == 1


def test_failures_are_outcomes_and_what_cannot_be_opened_ends_the_run(cluster):
    engine = RayEngine(cluster.address)
    outcomes = flat(engine.outcomes(factories.job("raising"), factories.shards(8)))
    assert_each_once(outcomes, 8, but=[1, 3, 5, 7])
    errors = {outcome.unit.image: outcome.error for outcome in outcomes}
    assert errors[7].startswith("ZeroDivisionError: image 7 (engine_factories.py, line ")
    assert errors[3].startswith("SystemExit: I leave")
    with pytest.raises(EgcamError, match=r"^the weights 'no-such-file.pt' are not there; download them first$"):
        flat(engine.outcomes(factories.job("refusing"), factories.shards(8)))
    with pytest.raises(EgcamError, match="no room for a worker with 3 CPUs"):
        flat(engine.outcomes(factories.job("numbers", threads=3), factories.shards(8)))


def test_units_that_kill_their_worker(cluster, tmp_path):
    job = factories.job("deadly", retries=0, images=[5], times=99, marks=str(tmp_path))
    outcomes = flat(RayEngine(cluster.address, workers=1).outcomes(job, factories.shards(10)))
    assert_each_once(outcomes, 10, but=[5])
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors == ["its worker died once (killed, often for lack of memory, or out of reach)"]


def test_a_unit_that_hangs_is_given_up(cluster, tmp_path):
    job = replace(factories.job("hanging", images=[1], diary=str(tmp_path / "diary")), timeout=3.0)
    outcomes = flat(RayEngine(cluster.address, workers=1).outcomes(job, factories.shards(3)))
    assert_each_once(outcomes, 3, but=[1])
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors == ["it took longer than the timeout of 3 s; --timeout sets a longer one"]


def test_a_worker_killed_from_outside_in_mid_run(cluster, tmp_path):
    diary = tmp_path / "diary"
    job = factories.job("sleeping", diary=str(diary), seconds=SLEEPY)
    outcomes, killed = [], []
    for batch in RayEngine(cluster.address).outcomes(job, factories.shards(60)):
        outcomes += batch
        if len(outcomes) >= 10 and not killed:
            killed.append(factories.read_diary(diary)[-1][0])
            os.kill(killed[0], signal.SIGKILL)
    assert_each_once(outcomes, 60)
    assert len(factories.read_diary(diary)) <= 60 + 1
    # Ray ends its processes in its own time.
    wait_until(lambda: gone({process for process, _ in factories.read_diary(diary)}))


def test_a_driver_killed_leaves_no_worker_and_the_cluster_usable(cluster, tmp_path):
    diary = tmp_path / "diary"
    driver = start_driver("ray", diary, cluster.address)
    wait_until(lambda: len({process for process, _ in factories.read_diary(diary)}) == 2)
    driver.kill()
    driver.wait()
    wait_until(lambda: gone({process for process, _ in factories.read_diary(diary)}))
    engine = RayEngine(cluster.address)
    assert_each_once(flat(engine.outcomes(factories.job("numbers"), factories.shards(10))), 10)


def test_the_drivers_own_handler_of_a_polite_kill_is_the_one_that_is_called(cluster, tmp_path):
    diary = tmp_path / "diary"
    driver = start_driver("ray", diary, cluster.address)
    wait_until(lambda: factories.read_diary(diary), 120)
    driver.terminate()
    assert driver.wait() == TERMINATED
    wait_until(lambda: gone({process for process, _ in factories.read_diary(diary)}))


def test_a_machine_killed_in_mid_run(cluster, tmp_path):
    diary = tmp_path / "diary"
    job = factories.job("sleeping", diary=str(diary), seconds=0.2)
    outcomes = []
    killed = False
    for batch in RayEngine(cluster.address).outcomes(job, factories.shards(80, 3)):
        outcomes += batch
        workers = {process for process, _ in factories.read_diary(diary)}
        if not killed and len(workers) == 2:
            cluster.remove_node(cluster.second, allow_graceful=False)
            killed = True
    assert killed
    assert_each_once(outcomes, 80)
    # One unit was at work on the machine that went; all others were done once.
    assert len(factories.read_diary(diary)) <= 80 + 1
