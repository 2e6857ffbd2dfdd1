import pytest

from egcam.studies import buffer
from egcam.studies.buffer import Saver
from egcam.studies.records import Unit, failed
from egcam.studies.storage import Folder, StoreWarning, UnreachableError


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


class _Flaky:
    """Remote storage that fails while `down` says so, and a clock that only pauses move."""

    def __init__(self, down, error=UnreachableError):
        self.down, self.error = down, error
        self.now, self.parts, self.tries = 0.0, [], []

    def write(self, outcomes):
        self.tries.append(self.now)
        if self.down(self.now):
            raise self.error("reset by peer")
        self.parts.append(outcomes)

    def pause(self, seconds):
        self.now += seconds

    def saver(self):
        return Saver(self.write, clock=lambda: self.now, pause=self.pause)


def test_storage_that_fails_for_a_while_is_tried_again_while_the_work_goes_on():
    remote = _Flaky(down=lambda now: now < 20)

    def run():
        with remote.saver() as saver:
            for number in range(40):
                remote.now = float(number)
                saver.add([outcome(number)])

    with pytest.warns(StoreWarning, match="reset by peer"):
        run()
    assert sorted(image for part in images(remote.parts) for image in part) == list(range(40))
    assert remote.tries[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert images(remote.parts)[0] == list(range(33))


def test_at_the_end_it_waits_for_the_storage_with_growing_pauses():
    remote = _Flaky(down=lambda now: now < 5)
    with pytest.warns(StoreWarning), remote.saver() as saver:
        saver.add([outcome(0)])
    assert images(remote.parts) == [[0]]
    assert remote.tries == [0.0, 1.0, 3.0, 7.0]


def test_storage_that_stays_away_ends_the_run_after_ten_minutes():
    remote = _Flaky(down=lambda now: True)

    def run():
        with remote.saver() as saver:
            saver.add([outcome(0)])

    with pytest.warns(StoreWarning), pytest.raises(UnreachableError):
        run()
    assert buffer.GIVEN_UP_AFTER <= remote.now <= buffer.GIVEN_UP_AFTER + 60


def test_what_is_forbidden_is_not_tried_again(tmp_path):
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Forbidden(MemoryFileSystem):
        protocol = "forbidden"

        def pipe_file(self, *arguments, **options):
            raise PermissionError("no write access")

    fsspec.register_implementation("forbidden", Forbidden, clobber=True)
    folder, tries = Folder("forbidden://results"), []

    def write(outcomes):
        tries.append(outcomes)
        folder.write("part", b"")

    def run():
        with Saver(write, clock=lambda: 0.0) as saver:
            saver.add([outcome(0)])

    with pytest.raises(UnreachableError, match="no write access"):
        run()
    assert len(tries) == 1
