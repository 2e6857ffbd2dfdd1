import threading
import time

import pytest

from egcam.studies import buffer
from egcam.studies.buffer import Saver
from egcam.studies.records import Unit, failed


def outcome(number):
    return failed(Unit("m", "c", number), (), "x")


def images(parts):
    return [[one.unit.image for one in part] for part in parts]


def test_the_rest_is_written_at_the_end():
    parts = []
    with Saver(parts.append) as saver:
        saver.add([outcome(0)])
        saver.add([outcome(1), outcome(2)])
    assert images(parts) == [[0, 1, 2]]


def test_and_also_after_an_error_or_interrupt():
    parts = []

    def interrupted():
        with Saver(parts.append) as saver:
            saver.add([outcome(0)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert images(parts) == [[0]]


def test_outcomes_do_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(buffer, "SOONEST", 0.02)
    written = threading.Event()
    with Saver(lambda outcomes: written.set()) as saver:
        saver.add([outcome(0)])
        assert written.wait(10)


def test_patience_grows_with_the_run():
    now = [0.0]
    saver = Saver(lambda outcomes: None, clock=lambda: now[0])
    for passed, patience in ((0, 1.0), (50, 1.0), (500, 5.0), (100_000, 30.0)):
        now[0] = passed
        assert saver._patience() == patience


def test_many_are_written_at_once(monkeypatch):
    monkeypatch.setattr(buffer, "_MOST", 3)
    parts = []
    with Saver(parts.append) as saver:
        for number in range(7):
            saver.add([outcome(number)])
        before = images(parts)
    assert before == [[0, 1, 2], [3, 4, 5]]
    assert images(parts) == [[0, 1, 2], [3, 4, 5], [6]]


def test_what_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setattr(buffer, "SOONEST", 0.01)

    def full(outcomes):
        raise OSError("no space left")

    def add_for_long():
        with Saver(full) as saver:
            for number in range(500):
                saver.add([outcome(number)])
                time.sleep(0.01)
            pytest.fail("nobody was told")

    with pytest.raises(OSError, match="no space left"):
        add_for_long()


def test_a_failing_last_write_is_told_too():
    def full(outcomes):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), Saver(full) as saver:
        saver.add([outcome(0)])
