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


def test_patience_grows_with_the_run():
    """A hundredth of the time the run has taken, from 1 to 30 seconds, counted from the last write."""
    now, parts = [0.0], []
    with Saver(parts.append, clock=lambda: now[0]) as saver:
        for moment in (0.5, 1.0, 1.9, 2.0, 500.0, 504.9, 505.1, 100_000.0, 100_029.0, 100_031.0):
            now[0] = moment
            saver.add([outcome(int(10 * moment))])
    assert images(parts) == [[5, 10], [19, 20], [5000], [5049, 5051], [1_000_000], [1_000_290, 1_000_310]]


def test_many_are_written_at_once(monkeypatch):
    monkeypatch.setattr(buffer, "_MOST", 3)
    parts = []
    with Saver(parts.append) as saver:
        for number in range(7):
            saver.add([outcome(number)])
        before = images(parts)
    assert before == [[0, 1, 2], [3, 4, 5]]
    assert images(parts) == [[0, 1, 2], [3, 4, 5], [6]]


def test_what_cannot_be_written_is_told_and_not_tried_again():
    tried = []

    def full(outcomes):
        tried.append(len(outcomes))
        raise OSError("no space left")

    moments = iter((0.0, 0.5, 1.5))

    def add_two():
        with Saver(full, clock=lambda: next(moments)) as saver:
            saver.add([outcome(0)])
            saver.add([outcome(1)])

    with pytest.raises(OSError, match="no space left"):
        add_two()
    assert tried == [2]


def test_a_failing_last_write_is_told_too():
    def full(outcomes):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), Saver(full) as saver:
        saver.add([outcome(0)])
