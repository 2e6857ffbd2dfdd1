"""What is said of a study while it runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from egcam.cli.study_progress import Bar
from egcam.studies.records import Unit, failed
from egcam.studies.runner import Agenda, run_study
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, Study
from support.tiny_study import InProcess, write_study

STUDY = Study(
    "two",
    (ModelSpec("net"),),
    DataSpec("folder", "photos"),
    methods=(MethodSpec("grad-cam", "grad-cam"), MethodSpec("score-cam", "score-cam")),
    metrics=(MetricSpec("sparseness"),),
)


def agenda(images: int = 2, workers: int | None = 2) -> Agenda:
    todo = [Unit("net", method, image) for image in range(images) for method in ("grad-cam", "score-cam")]
    return Agenda(STUDY, images, todo, 0, workers=workers)


def outcome(unit: Unit, seconds: float, error: str | None = None):
    return replace(failed(unit, (), "x"), error=error, seconds=seconds)


def test_the_time_left_is_by_what_units_took_and_silence_is_said(capsys):
    now = [0.0]
    bar = Bar(True, clock=lambda: now[0], every=3600.0)
    with bar:
        bar.begins(agenda())
        assert "time left unknown until a unit is done" in bar.line()
        now[0] = 60.0
        bar.came([outcome(Unit("net", "grad-cam", 0), 10.0)])
        # Nothing is known of Score-CAM yet: it is taken to be like the other.
        assert bar.line() == "1/4 units, 1.0/min, 25%, about 3 min 0 s left"
        now[0] = 100.0
        bar.came([outcome(Unit("net", "score-cam", 0), 190.0)])
        # Half the work took 100 s with two workers.
        assert bar.line() == "2/4 units, 1.2/min, 50%, about 1 min 40 s left"
        now[0] = 500.0
        assert ", no unit for 6 min 40 s, 50%," in bar.line()
        bar.came([outcome(Unit("net", "score-cam", 1), 190.0, error="broken")])
        assert "3/4 units" in bar.line()
        assert "98%" in bar.line()
        assert "1 failed" in bar.line()
        bar.came([outcome(Unit("net", "grad-cam", 1), 3.0)])
        assert "100%" in bar.line()
    assert "2 images: 0 units are done, 4 to do with 2 workers" in capsys.readouterr().err


def test_a_line_comes_also_while_no_unit_does(capsys):
    bar = Bar(True, every=0.01)
    with bar:
        bar.begins(agenda())
        said = ""
        while "0/4 units" not in said:
            said += capsys.readouterr().err
    assert not bar._heart.is_alive()


def test_a_timeout_reaches_the_workers_and_nonsense_is_refused(tmp_path):
    given = []

    class Asked(InProcess):
        def outcomes(self, job, shards):
            given.append(job.timeout)
            return super().outcomes(job, shards)

    file = write_study(tmp_path, images=1)
    run_study(file, tmp_path / "out", engine=Asked(), timeout=7.5)
    run_study(file, tmp_path / "other", engine=Asked())
    assert given == [7.5, 6 * 3600.0]
    with pytest.raises(Exception, match=re.escape("a timeout is a number of seconds above 0, not -1")):
        run_study(file, tmp_path / "third", timeout=-1)
