"""A method or metric that raises fails its unit: counted, named, tried again on request. Undefined scores do not."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import egcam
from egcam.cli import app
from egcam.errors import FailedEvaluationWarning
from egcam.evaluation.failures import is_out_of_memory
from egcam.studies.config import load_study
from egcam.studies.progress import status
from egcam.studies.records import Unit
from egcam.studies.runner import run_study
from egcam.studies.store import Store
from egcam.studies.worker import open_worker
from support.tiny_study import STUDY, InProcess, numbers, write_study

PLUGIN = """
import builtins
from pathlib import Path
import torch
import egcam
from egcam.attribution.cam import GradCAM

HERE = Path(__file__).parent

class Trouble(GradCAM):
    def __call__(self, images, target=None, **more):
        with (HERE / "batches").open("a") as file:
            file.write(f"{self.batch_size}\\n")
        trouble = HERE / "trouble"
        if trouble.exists():
            kind, most = trouble.read_text().split()
            if (self.batch_size or 8) > int(most):
                raise (getattr(torch, kind, None) or getattr(builtins, kind))("no room: out of memory")
        return super().__call__(images, target, **more)

def make(model, layer=None, batch_size=None):
    return Trouble(model, layer, batch_size=batch_size)

if "NAME" not in egcam.methods():
    egcam.register("NAME", make)
"""


def troubled(folder, request, metrics='["deletion", "sparseness"]', images=2):
    """A study of Grad-CAM and of a copy that raises while the file "trouble" is there."""
    name = f"trouble-{abs(hash(request.node.nodeid))}"
    (folder / "plugin.py").write_text(PLUGIN.replace("NAME", name))
    text = f"""
name = "troubled"
methods = ["grad-cam", "copy"]
metrics = {metrics}
[method.copy]
method = "{name}"
[data]
kind = "folder"
path = "photos"
[[models]]
name = "model.py:make"
label = "a"
layer = "4"
[run]
plugins = ["plugin.py"]
"""
    return write_study(folder, images=images, text=text)


def trouble(folder, kind="RuntimeError", most=0):
    (folder / "trouble").write_text(f"{kind} {most}")


def command(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["OutOfMemoryError", "RuntimeError", "KeyError", "ValueError", "MemoryError"])
def test_a_method_that_raises_is_a_failed_unit_until_it_works(tmp_path, request, kind):
    file = troubled(tmp_path, request)
    trouble(tmp_path, kind)
    results = run_study(file, tmp_path / "out", engine=InProcess())
    assert {failure.unit for failure in results.failures} == {Unit("a", "copy", 0), Unit("a", "copy", 1)}
    assert ["no room" in failure.cause for failure in results.failures] == [True, True], results.failures
    found = status(tmp_path / "out")
    assert (found.failed, found.done, found.total) == (2, 4, 4)

    (tmp_path / "trouble").unlink()
    idle = InProcess()
    run_study(file, tmp_path / "out", engine=idle)
    assert idle.units == []
    again = InProcess()
    results = run_study(file, tmp_path / "out", engine=again, retry_failed=True)
    assert sorted(again.units) == [Unit("a", "copy", 0), Unit("a", "copy", 1)]
    assert not results.failures
    assert status(tmp_path / "out").failed == 0
    table = results.tables["a"]
    np.testing.assert_array_equal(table.values("copy", "deletion"), table.values("grad-cam", "deletion"))


def test_the_command_says_so_and_ends_with_1_until_it_works(tmp_path, request):
    file, out = troubled(tmp_path, request), tmp_path / "out"
    trouble(tmp_path)
    first = command("run", file, "--out", out, "--workers", 1)
    assert first.exit_code == 1
    assert "2 units failed" in first.stderr
    said = json.loads(command("status", out, "--json").stdout)
    assert (said["failed"], said["left"]) == (2, 0)
    assert said["failures"] == [{"cause": "RuntimeError: no room: out of memory", "units": 2}]

    again = command("run", file, "--out", out, "--workers", 1)
    assert again.exit_code == 1, "nothing was left to do, and two units are still failed"
    assert "2 units failed" in again.stderr
    assert command("run", file, "--out", out, "--workers", 1, "--limit", 1, "--json").exit_code == 1

    (tmp_path / "trouble").unlink()
    assert command("run", file, "--out", out, "--workers", 1, "--retry-failed").exit_code == 0
    assert command("run", file, "--out", out, "--workers", 1).exit_code == 0


def test_the_exit_code_is_that_of_the_part_that_was_asked_for(tmp_path):
    file = write_study(tmp_path, images=3, text=STUDY.replace('source = "data"', 'source = "mixed"'))
    bad = load_study(file)
    from egcam.studies.datasets import open_dataset

    number = open_dataset(bad.data).names.index("001.png")
    (tmp_path / "photos" / "001.png").write_text("no image")
    run_study(file, tmp_path / "out", engine=InProcess())
    codes = [command("run", file, "--out", tmp_path / "out", "--shard", f"{i}/3").exit_code for i in (1, 2, 3)]
    assert codes == [int(place == number) for place in range(3)]


def test_a_metric_that_raises_fails_the_unit_and_the_other_scores_stay(tmp_path, request, monkeypatch):
    file = troubled(tmp_path, request)
    usual = run_study(file, tmp_path / "usual", engine=InProcess())
    from egcam.metrics.faithfulness import Deletion

    def broken(*arguments, **options):
        raise RuntimeError("no curve today")

    with monkeypatch.context() as patch:
        patch.setattr(Deletion, "curve", broken)
        results = run_study(file, tmp_path / "out", engine=InProcess())
    assert {failure.cause for failure in results.failures} == {"deletion: RuntimeError: no curve today"}
    assert len(results.failures) == 4
    table, expected = results.tables["a"], usual.tables["a"]
    assert np.isnan(table.values("copy", "deletion")).all()
    np.testing.assert_array_equal(table.values("copy", "sparseness"), expected.values("copy", "sparseness"))
    repaired = run_study(file, tmp_path / "out", engine=InProcess(), retry_failed=True)
    assert numbers(repaired) == numbers(usual)


def test_an_undefined_score_fails_nothing(tmp_path):
    """A network that does not look at the image: the map is zero, and relative changes of it have no size."""
    file = write_study(tmp_path, images=2)
    model = (tmp_path / "model.py").read_text()
    blind = model.replace("return Classifier(", "nn.init.zeros_(head[1].weight); return Classifier(")
    (tmp_path / "model.py").write_text(blind)
    results = run_study(file, tmp_path / "out", engine=InProcess())
    rows = [row for row in results.tables["a"].rows if row.metric == "max-sensitivity" and row.method == "grad-cam"]
    assert rows
    assert all(math.isnan(row.value) and row.cause for row in rows)
    assert not results.failures
    assert command("run", file, "--out", tmp_path / "out").exit_code == 0
    assert status(tmp_path / "out").gaps


@pytest.mark.parametrize(("most", "batch"), [(4, 4), (2, 2), (1, 1)])
def test_too_little_memory_halves_the_batch(tmp_path, request, most, batch):
    study = load_study(troubled(tmp_path, request))
    bench = open_worker(study.model_dump())
    usual = bench(Unit("a", "copy", 0))
    trouble(tmp_path, "OutOfMemoryError", most)
    (tmp_path / "batches").unlink()
    outcome = bench(Unit("a", "copy", 0))
    tried = (tmp_path / "batches").read_text().split()
    assert list(dict.fromkeys(tried)) == ["None", *(str(size) for size in (4, 2, 1) if size >= batch)]
    assert outcome.error is None
    assert outcome.batch_size == batch
    assert usual.batch_size is None
    for ours, theirs in zip(outcome.scores, usual.scores, strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-5)
    (tmp_path / "trouble").unlink()
    after = bench(Unit("a", "copy", 0))
    assert after.batch_size is None
    assert [score.value for score in after.scores] == [score.value for score in usual.scores]


def test_a_smaller_batch_is_kept_with_the_outcome_and_said(tmp_path, request):
    file, out = troubled(tmp_path, request), tmp_path / "out"
    trouble(tmp_path, "OutOfMemoryError", 2)
    said = command("run", file, "--out", out, "--workers", 1)
    assert said.exit_code == 0
    assert "2 units ran out of memory" in said.stderr
    assert {one.unit.method: one.batch_size for one in Store(out).outcomes()} == {"grad-cam": None, "copy": 2}


def test_an_error_that_is_none_of_memory_is_not_tried_in_smaller_batches(tmp_path, request):
    bench = open_worker(load_study(troubled(tmp_path, request)).model_dump())
    trouble(tmp_path, "KeyError")
    assert bench(Unit("a", "copy", 0)).error == "KeyError: 'no room: out of memory'"
    assert set((tmp_path / "batches").read_text().split()) == {"None"}


def test_what_counts_as_too_little_memory():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))
    wrapped = egcam.EgcamError("the model failed")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3)), torch.rand(3, 1, 8, 8)


def test_evaluate_warns_of_what_fails():
    model, images = network()

    def picky(batch, target):
        if any(torch.equal(image, images[1]) for image in batch):
            raise RuntimeError("not this one")
        return batch[:, 0]

    with pytest.warns(FailedEvaluationWarning, match="picky failed on image 1: RuntimeError: not this one") as caught:
        table = egcam.evaluate(model, images, {"picky": picky}, ["sparseness"])
    assert caught[0].filename == __file__
    assert np.isnan(table.values("picky", "sparseness")).tolist() == [False, True, False]


def test_evaluate_does_not_warn_of_undefined_scores():
    model, images = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FailedEvaluationWarning)
        table = egcam.evaluate(model, images, {"nothing": lambda batch, target: 0 * batch[:, 0]}, ["max-sensitivity"])
    assert np.isnan(table.values("nothing", "max-sensitivity")).all()
