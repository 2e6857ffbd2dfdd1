"""How far a study is, and how much work is left."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from egcam.studies.progress import duration, status
from egcam.studies.records import Unit
from support.results_in_memory import METHODS, made, study


def value(model, method, metric, image):
    return "the map is zero everywhere" if (method, metric, image) == ("layer-cam", "deletion", 0) else 1.0


def timed(source, seconds):
    """The same source whose units took `seconds(unit)`."""
    source.done = [replace(one, seconds=seconds(one.unit)) for one in source.done]
    return source


def partial():
    without = [Unit("net", "grad-cam", image) for image in (2, 3)] + [Unit("net", "layer-cam", 3)]
    source = made(study(), 4, value, without, {Unit("net", "slope-cam", 1): "out of [memory]"})
    return timed(source, lambda unit: {"grad-cam": 2.0, "layer-cam": 3.0, "slope-cam": 10.0}[unit.method])


def test_counts_and_time_left():
    found = status(partial())
    assert (found.done, found.total, found.failed) == (9, 12, 1)
    assert found.images == (("net", 2, 4),)
    by_method = {one.method: one for one in found.progress}
    assert [by_method[method].done for method in METHODS] == [2, 3, 4]
    assert found.seconds == 2 * 2 + 3 * 3 + 4 * 10
    # Two units of 2 s and one of 3 s.
    assert [by_method[method].left for method in METHODS] == [4, 3, 0]
    assert found.left == 7
    assert status(partial(), workers=2).left == 3.5
    assert found.failures == (("out of [memory]", 1),)
    assert found.gaps == (("deletion", "the map is zero everywhere", 1),)


def test_a_method_not_begun_is_judged_by_its_model_then_by_itself():
    source = made(
        study(models=("a", "b")), 2, value, [Unit("b", method, image) for method in METHODS for image in (0, 1)]
    )
    timed(source, lambda unit: 1.0 + METHODS.index(unit.method))
    found = {(one.model, one.method): one.left for one in status(source).progress}
    assert found["b", "grad-cam"] == 2 * 1
    assert found["b", "slope-cam"] == 2 * 3
    source.done = [one for one in source.done if one.unit.method == "grad-cam" or one.unit.image]
    source.done = [one for one in source.done if one.unit.method != "layer-cam"]
    found = {(one.model, one.method): one.left for one in status(source).progress}
    # Of layer-cam nothing is known; a's done units took 1, 1 and 3 seconds.
    assert found["a", "layer-cam"] == pytest.approx(2 * 5 / 3)


def test_an_empty_study_has_no_estimate():
    source = made(study(), 3, value)
    source.done = []
    found = status(source)
    assert (found.done, found.left, found.total) == (0, None, 9)
    assert shown(found).startswith("tiny: 0 of 9 units done (0%), 0 failed")
    assert "unknown until a unit is done" in shown(found)


def shown(found, width=120):
    console = Console(width=width, record=True, file=open("/dev/null", "w"), color_system=None)  # noqa: SIM115
    console.print(found.render())
    return console.export_text()


def test_the_terminal_shows_everything():
    text = shown(partial_status := status(partial()))
    assert "tiny: 9 of 12 units done (75%), 1 failed, 53 s of worker time spent; about 7 s left with one worker" in text
    assert "2 of 4 images by all" in text
    # Square brackets are not taken for markup.
    assert "out of [memory]" in text
    assert "deletion missing" in text
    assert "complete" in shown(status(made(study(), 1, value)))
    assert max(len(line) for line in shown(partial_status, 80).splitlines()) <= 80


def test_json_is_plain():
    found = status(partial())
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["done"] == 9
    assert plain["left"] == 3
    assert plain["seconds_left"] == 7
    assert plain["images"] == [{"model": "net", "complete": 2, "total": 4}]
    assert plain["failures"] == [{"cause": "out of [memory]", "units": 1}]
    assert plain["progress"][1] == {
        "model": "net", "method": "layer-cam", "done": 3, "total": 4, "failed": 0, "seconds": 9.0, "left": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (90000, "1 d 1 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
