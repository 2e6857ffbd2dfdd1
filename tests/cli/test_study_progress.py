"""What is said of a study while it runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from egcam.cli.study_progress import Bar, cost_line
from egcam.studies.cost import Estimate
from egcam.studies.networks import NetworkFacts
from egcam.studies.records import Unit, failed
from egcam.studies.runner import Agenda, run_study, usual_timeout
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
    facts = NetworkFacts(None, 98, 224, "cpu", 0.01, None)  # type: ignore[arg-type]
    todo = [Unit("net", method, image) for image in range(images) for method in ("grad-cam", "score-cam")]
    return Agenda(STUDY, images, todo, 0, {"net": facts}, workers=workers)


def outcome(unit: Unit, error: str | None = None):
    return replace(failed(unit, (), "x"), error=error)


def test_the_time_left_is_by_passes_and_silence_is_said(capsys):
    now = [0.0]
    bar = Bar(True, clock=lambda: now[0], every=3600.0)
    with bar:
        bar.begins(agenda())
        assert "time left unknown until a unit is done" in bar.line()
        now[0] = 100.0
        bar.came([outcome(Unit("net", "grad-cam", 0)), outcome(Unit("net", "score-cam", 0))])
        # Half the passes took 100 s, whatever the number of units.
        assert bar.line() == "2/4 units, 1.2/min, 50%, about 1 min 40 s left"
        now[0] = 500.0
        assert ", no unit for 6 min 40 s, 50%," in bar.line()
        bar.came([outcome(Unit("net", "grad-cam", 1), error="broken")])
        assert "3/4 units" in bar.line()
        assert "1 failed" in bar.line()
    assert "with 2 workers; 0 units are done, 4 to do" in capsys.readouterr().err


def test_a_line_comes_also_while_no_unit_does(capsys):
    bar = Bar(True, every=0.01)
    with bar:
        bar.begins(agenda())
        said = ""
        while "0/4 units" not in said:
            said += capsys.readouterr().err
    assert not bar._heart.is_alive()


@pytest.mark.parametrize(
    ("workers", "said"), [(None, "of one worker's time"), (1, "with 1 worker"), (3, "with 3 workers")]
)
def test_the_cost_in_a_line(workers, said):
    line = cost_line(Estimate(1, 2, {"a": 30}, {"a": 90.0}), workers)
    assert line.startswith("1 image, 2 units, 30 passes: about ")
    assert line.endswith(said)


def test_a_unit_may_take_an_hour_or_fifty_times_what_it_should():
    facts = agenda().networks["net"]
    assert usual_timeout(STUDY, {"net": facts}) == 3600
    slow = replace(facts, seconds_per_pass=100.0)
    passes = usual_timeout(STUDY, {"net": slow}) / (50 * 100)
    # Score-CAM: a pass for each of the 98 channels, and some.
    assert 98 < passes < 110


def test_a_timeout_reaches_the_workers_and_nonsense_is_refused(tmp_path):
    given = []

    class Asked(InProcess):
        def outcomes(self, job, shards):
            given.append(job.timeout)
            return super().outcomes(job, shards)

    file = write_study(tmp_path, images=1)
    run_study(file, tmp_path / "out", engine=Asked(), timeout=7.5)
    run_study(file, tmp_path / "other", engine=Asked())
    assert given == [7.5, 3600.0]
    with pytest.raises(Exception, match=re.escape("a timeout is a number of seconds above 0, not -1")):
        run_study(file, tmp_path / "third", timeout=-1)
