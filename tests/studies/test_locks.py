"""Who may write into a folder at once, and what happens to those who may not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from itertools import count
from pathlib import Path

import pytest

from egcam.studies.locks import excludes, locked
from egcam.studies.storage import Folder, StoreError
from support.store_children import hold_lock

_names = count()
children = multiprocessing.get_context("forkserver")
children.set_forkserver_preload(["egcam.studies.store", "pyarrow.parquet", "pandas", "filelock", "pytest"])

# Which runs may be at work side by side.
RULES = [
    ((1, 1), (1, 1), False),
    ((1, 1), (1, 2), False),
    ((2, 2), (1, 1), False),
    ((1, 2), (1, 2), False),
    ((1, 2), (2, 2), True),
    ((3, 3), (1, 3), True),
    ((1, 2), (1, 3), False),
    ((2, 2), (3, 3), False),
    ((10, 11), (1, 11), True),
]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "results")


class Child:
    """A process that holds a lock."""

    def __init__(self, folder, shard=(1, 1), forks=False):
        self.ear, theirs = children.Pipe()
        self.process = children.Process(target=hold_lock, args=(Path(folder), shard, theirs, forks))
        self.process.start()
        theirs.close()
        self.said = self.ear.recv()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


@pytest.mark.parametrize(("one", "other", "together"), RULES)
def test_rules(folder, one, other, together):
    assert excludes(one, other) == excludes(other, one) == (not together)
    with locked(folder, one):
        if together:
            with locked(folder, other):
                pass
        else:
            with pytest.raises(StoreError, match="is in use by process"), locked(folder, other):
                pass
    with locked(folder, other):
        pass


def test_all_shards_at_once_exclude_a_whole_run(folder):
    with locked(folder, (1, 3)), locked(folder, (2, 3)), locked(folder, (3, 3)), pytest.raises(StoreError, match="1/3"):
        locked(folder).__enter__()


def test_the_message_says_who(folder):
    with locked(folder, (2, 2)), pytest.raises(StoreError) as caught, locked(folder):
        pass
    who = f"process {os.getpid()} on {os.uname().nodename} (shard 2/2)"
    assert str(caught.value) == f"{folder.name} is in use by {who}; wait for it, or use another --out"


def test_released_after_an_error(folder):
    with pytest.raises(ZeroDivisionError), locked(folder):
        raise ZeroDivisionError
    with locked(folder):
        pass


def test_waits(folder):
    order = []
    with locked(folder):

        def later():
            with locked(folder, wait=20):
                order.append("second")

        thread = threading.Thread(target=later)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]


def test_waits_no_longer_than_told(folder):
    with locked(folder), pytest.raises(StoreError, match="is in use"), locked(folder, wait=0.3):
        pass


@pytest.mark.parametrize("shard", [(0, 1), (2, 1), (-1, 2), (1, 0)])
def test_shards_that_do_not_exist(folder, shard):
    with pytest.raises(StoreError, match=rf"there is no shard {shard[0]}/{shard[1]}"), locked(folder, shard):
        pass


def test_only_one_of_many_threads_at_a_time(folder):
    inside, most, turns = [], [], []

    def work():
        with locked(folder, wait=60):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()
            turns.append(1)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(turns), max(most)) == (5, 1)


class TestProcesses:
    def test_two(self, tmp_path):
        holder = Child(tmp_path)
        assert holder.said == "held"
        folder = Folder(tmp_path)
        with pytest.raises(StoreError, match=f"is in use by process {holder.process.pid} on "), locked(folder):
            pass
        refused = Child(tmp_path, (1, 2))
        assert f"is in use by process {holder.process.pid} on " in refused.said
        holder.ear.send("let go")
        assert holder.ear.recv() == "released"
        with locked(folder):
            pass
        holder.process.join()
        refused.process.join()

    def test_shards_side_by_side(self, tmp_path):
        held = [Child(tmp_path, (number, 2)) for number in (1, 2)]
        assert [child.said for child in held] == ["held", "held"]
        with pytest.raises(StoreError, match=r"shard 1/2"), locked(Folder(tmp_path)):
            pass
        held[0].kill()
        with pytest.raises(StoreError, match=r"shard 2/2"), locked(Folder(tmp_path)):
            pass
        with locked(Folder(tmp_path), (1, 2)):
            pass
        held[1].kill()
        with locked(Folder(tmp_path)):
            pass

    def test_a_killed_holder_holds_nothing(self, tmp_path):
        for _ in range(3):
            holder = Child(tmp_path)
            assert holder.said == "held"
            holder.kill()
            with locked(Folder(tmp_path)):
                pass

    def test_forked_children_of_a_killed_holder_hold_nothing(self, tmp_path):
        holder = Child(tmp_path, forks=True)
        assert holder.said == "held"
        with pytest.raises(StoreError), locked(Folder(tmp_path)):
            pass
        holder.kill()
        with locked(Folder(tmp_path), wait=5):
            pass


def test_behind_a_url_nothing_is_locked():
    folder = Folder(f"memory://test-locks-{next(_names)}")
    with locked(folder), locked(folder, (1, 2)):
        assert folder.names("locks") == []
    with pytest.raises(StoreError, match="there is no shard 0/1"), locked(folder, (0, 1)):
        pass
