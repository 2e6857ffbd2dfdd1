"""`egcam study run` killed with -9 wherever it hurts, then finished: the table is that of a run nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from egcam.studies.results import Results
from egcam.studies.runner import run_study
from egcam.studies.store import Store
from support.engine_checks import gone, wait_until
from support.tiny_study import MODEL, InProcess, numbers, write_study

pytestmark = pytest.mark.slow

IMAGES = 16
UNITS = IMAGES * 2 * 3
# Without a nap in every pass the study would be over before anybody can be killed. It changes no number.
NAP = 0.01
NAPPING = MODEL.replace(
    "def make():",
    """
import time
from pathlib import Path

class Nap(nn.Sigmoid):
    def forward(self, x):
        time.sleep(float(Path(__file__).with_name("nap").read_text()))
        return super().forward(x)

def make():""",
).replace("nn.Sigmoid(), nn.MaxPool2d(2)", "Nap(), nn.MaxPool2d(2)")


def set_nap(study: Path, seconds: float) -> None:
    """From now on, also in runs under way; whole at any instant, as workers read it in every pass."""
    new = study.with_name("new nap")
    new.write_text(str(seconds))
    new.replace(study.with_name("nap"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As the study's workers have."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    file = write_study(folder, IMAGES)
    (folder / "model.py").write_text(NAPPING)
    set_nap(file, 0)
    return file


@pytest.fixture(scope="module")
def undisturbed(study) -> list:
    return numbers(run_study(study, study.parent / "undisturbed", engine=InProcess()))


@pytest.fixture
def _slowly(study) -> Iterator[None]:
    set_nap(study, NAP)
    yield
    set_nap(study, 0)


def start(study: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """`egcam study run` with two workers."""
    command = [sys.executable, "-c", "from egcam.cli import main; main()", "study", "run", str(study)]
    command += ["--out", str(out), "--workers", "2", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(run: subprocess.Popen[str]) -> str:
    """What a run that must succeed said."""
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    return said


def parts(out: Path) -> int:
    """How many parts the store has; a part is what was saved at once."""
    return len([part for part in (out / "parts").glob("*") if not part.name.startswith(".")])


def done(out: Path) -> int:
    return len(list(Store(out).done()))


def wait_for_progress(run: subprocess.Popen[str], out: Path) -> None:
    """Wait until the run has saved something."""
    before = parts(out)
    wait_until(lambda: parts(out) > before or run.poll() is not None, 120)
    assert run.poll() is None, f"the run ended too early: {run.communicate()[0]}"


def kill_driver_several_times(study: Path, out: Path, *options: str, times: int) -> None:
    source = random.Random(0)
    before = 0
    for _ in range(times):
        run = start(study, out, *options)
        wait_for_progress(run, out)
        time.sleep(source.uniform(0.0, 0.8))
        run.kill()
        run.communicate()
        assert before < done(out) < UNITS
        before = done(out)


def table(out: Path) -> list:
    return numbers(Results.of(Store(out)))


@pytest.mark.usefixtures("_slowly")
def test_driver_killed(study, undisturbed, tmp_path):
    kill_driver_several_times(study, tmp_path / "out", times=3)
    set_nap(study, 0)
    finish(start(study, tmp_path / "out"))
    assert done(tmp_path / "out") == UNITS
    assert table(tmp_path / "out") == undisturbed


@pytest.mark.usefixtures("_slowly")
def test_driver_killed_before_anything_is_saved(study, undisturbed, tmp_path):
    out = tmp_path / "out"
    for seconds in (0.5, 2.5):
        run = start(study, out)
        time.sleep(seconds)
        run.kill()
        run.communicate()
    set_nap(study, 0)
    finish(start(study, out))
    assert table(out) == undisturbed


@pytest.mark.usefixtures("_slowly")
def test_workers_killed(study, undisturbed, tmp_path):
    out = tmp_path / "out"
    run = start(study, out)
    killed = []
    for _ in range(2):
        wait_for_progress(run, out)
        workers = [child.pid for child in psutil.Process(run.pid).children() if "worker" in " ".join(child.cmdline())]
        killed.append(max(workers))
        os.kill(killed[-1], signal.SIGKILL)
    set_nap(study, 0)
    finish(run)
    assert gone(killed)
    assert table(out) == undisturbed


@pytest.mark.usefixtures("_slowly")
def test_two_runs_into_one_folder(study, undisturbed, tmp_path):
    out = tmp_path / "out"
    set_nap(study, 10 * NAP)
    first = start(study, out)
    wait_for_progress(first, out)
    second, patient = start(study, out), start(study, out, "--wait", "200")
    said, _ = second.communicate(timeout=60)
    assert second.returncode not in (0, None)
    assert f"in use by process {first.pid}" in " ".join(said.split())
    assert first.poll() is None
    set_nap(study, 0)
    finish(first)
    finish(patient)
    assert table(out) == undisturbed


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A Ray cluster of two machines with a core each."""
    pytest.importorskip("ray", reason="needs the package ray (extra 'ray')")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        small = {"num_cpus": 1, "object_store_memory": 100 << 20}
        made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        made.second = made.add_node(**small)
        yield made
        made.shutdown()


def ray_workers() -> list[int]:
    """The cluster's processes are this one's children; the workers among them bear the actor's name."""
    family = psutil.Process().children(recursive=True)
    return [one.pid for one in family if "ray::_Worker" in " ".join(one.cmdline())]


@pytest.mark.usefixtures("_slowly")
def test_ray_driver_and_worker_killed(cluster, study, undisturbed, tmp_path):
    out = tmp_path / "out"
    on_ray = ("--engine", "ray", "--address", cluster.address)
    kill_driver_several_times(study, out, *on_ray, times=1)
    run = start(study, out, *on_ray)
    wait_for_progress(run, out)
    os.kill(max(ray_workers()), signal.SIGKILL)
    set_nap(study, 0)
    finish(run)
    assert table(out) == undisturbed


@pytest.mark.usefixtures("_slowly")
def test_ray_machine_killed(cluster, study, undisturbed, tmp_path):
    out = tmp_path / "out"
    run = start(study, out, "--engine", "ray", "--address", cluster.address)
    wait_for_progress(run, out)
    wait_until(lambda: len(ray_workers()) == 2)
    cluster.remove_node(cluster.second, allow_graceful=False)
    set_nap(study, 0)
    finish(run)
    assert table(out) == undisturbed
