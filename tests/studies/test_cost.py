"""An estimate is measured: on real units, and so right about what takes how long."""

from __future__ import annotations

import pytest
import torch

from egcam.studies.config import load_study
from egcam.studies.cost import estimate
from egcam.studies.records import Unit
from egcam.studies.worker import UnitWorker
from support.tiny_study import STUDY, write_study

SLOW = """
import time

import egcam
from egcam import GradCAM


class Slow(GradCAM):
    def __call__(self, *arguments, **options):
        time.sleep({seconds} * (1 + 9 * first.pop()) if first else {seconds})
        return super().__call__(*arguments, **options)


first = [True]
egcam.register("slow-{name}", Slow, label="Slow", summary="for tests")
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_what_is_said_is_what_it_takes(tmp_path):
    """Of the sleep of a method, whose first call is ten times as long, ten images take ten sleeps."""
    text = STUDY.replace('["grad-cam", "expected", "layer-cam"]', '["grad-cam", "slow-one", "slow-two"]')
    text = text.replace('[method.expected]\nmethod = "slope-cam"\nsamples = 4\n', "")
    text = text.replace('"insertion", "deletion", "sparseness", "sufficiency", "max-sensitivity"', '"sparseness"')
    text = text.replace("[metric.max-sensitivity]\nsamples = 2\n", "")
    text += '[run]\nplugins = ["one.py", "two.py"]\n'
    (tmp_path / "one.py").write_text(SLOW.format(seconds=0.3, name="one"))
    (tmp_path / "two.py").write_text(SLOW.format(seconds=0.6, name="two"))
    said = []
    found = estimate(load_study(write_study(tmp_path, 10, text)), say=said.append)
    assert said[:3] == ["a: grad-cam", "a: slow-one", "a: slow-two"]
    assert (found.images, found.units, found.report_rows) == (10, 60, 60)
    # Sleeping alone; a machine that is busy only adds to it.
    assert 6 <= found.by_method["slow-one"] < found.by_method["slow-two"]
    assert found.by_method["slow-two"] >= 12
    assert found.total_seconds == pytest.approx(sum(found.by_method.values()))
    assert found.by_metric["sparseness"] < found.by_method["slow-one"]
    assert found.failed == {}


def test_units_that_fail_are_named_and_limits_count(tmp_path):
    file = write_study(tmp_path, 3, STUDY.replace('"layer-cam"]', '"layer-cam", "cam"]'))
    found = estimate(file, limit=2)
    assert (found.images, found.units) == (2, 2 * 2 * 4)
    assert set(found.failed) == {"cam on a", "cam on b"}
    assert found.disk > 0


def test_the_second_image_counts_and_a_long_unit_runs_once(tmp_path, monkeypatch):
    seen = []

    def call(self, unit):
        seen.append(unit)
        outcome = answer(self, unit)
        object.__setattr__(outcome, "seconds", {"grad-cam": 1.0, "expected": 30.0, "layer-cam": 2.0}[unit.method])
        return outcome

    answer = UnitWorker.__call__
    monkeypatch.setattr(UnitWorker, "__call__", call)
    found = estimate(write_study(tmp_path, 4))
    assert [unit for unit in seen if unit.model == "a"] == [
        *(Unit("a", method, 0) for method in ("grad-cam", "expected", "layer-cam")),
        *(Unit("a", method, 1) for method in ("grad-cam", "layer-cam")),
    ]
    assert found.by_method == {"grad-cam": 2 * 4 * 1.0, "expected": 2 * 4 * 30.0, "layer-cam": 2 * 4 * 2.0}
    assert found.seconds == {"a": 4 * 33.0, "b": 4 * 33.0}
