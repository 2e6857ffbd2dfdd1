"""Who may write into a folder at once, and what happens to those who may not."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from itertools import count
from pathlib import Path

import pytest

from egcam.studies import locks
from egcam.studies.locks import excludes, locked
from egcam.studies.storage import StoreError, open_folder
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


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    return open_folder(tmp_path / "results" if request.param == "local" else f"memory://test-locks-{next(_names)}")


@pytest.fixture
def lease():
    """A folder without locks of the system."""
    return open_folder(f"memory://test-leases-{next(_names)}")


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
    started = time.strftime("%Y-%m-%d %H:", time.gmtime())
    with locked(folder, (2, 2)), pytest.raises(StoreError) as caught, locked(folder):
        pass
    host = os.uname().nodename
    text = str(caught.value)
    assert text.startswith(f"{folder.name} is in use by process {os.getpid()} on {host} (shard 2/2) since {started}")
    assert text.endswith(" UTC; wait for it, or use another --out")


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
        folder = open_folder(tmp_path)
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
        with pytest.raises(StoreError, match=r"shard 1/2"), locked(open_folder(tmp_path)):
            pass
        held[0].kill()
        with pytest.raises(StoreError, match=r"shard 2/2"), locked(open_folder(tmp_path)):
            pass
        with locked(open_folder(tmp_path), (1, 2)):
            pass
        held[1].kill()
        with locked(open_folder(tmp_path)):
            pass

    def test_a_killed_holder_holds_nothing(self, tmp_path):
        for _ in range(3):
            holder = Child(tmp_path)
            assert holder.said == "held"
            holder.kill()
            with locked(open_folder(tmp_path)):
                pass

    def test_forked_children_of_a_killed_holder_hold_nothing(self, tmp_path):
        holder = Child(tmp_path, forks=True)
        assert holder.said == "held"
        with pytest.raises(StoreError), locked(open_folder(tmp_path)):
            pass
        holder.kill()
        with locked(open_folder(tmp_path), wait=5):
            pass


class TestLeases:
    def files(self, folder):
        return {name: json.loads(folder.read(f"locks/{name}")) for name in folder.names("locks")}

    def test_renewed_while_held_and_gone_after(self, lease, monkeypatch):
        monkeypatch.setattr(locks, "RENEWED_EVERY", 0.05)
        with locked(lease, (2, 3)):
            ((name, first),) = self.files(lease).items()
            assert name == f"2-of-3-{first['owner']}.lease"
            assert first["settled"] is True
            deadline = time.monotonic() + 20
            while self.files(lease)[name]["renewed"] == first["renewed"] and time.monotonic() < deadline:
                time.sleep(0.02)
            assert self.files(lease)[name]["renewed"] > first["renewed"]
        assert self.files(lease) == {}

    @pytest.mark.parametrize(("age", "void"), [(119, False), (121, True)])
    def test_void_after_two_minutes(self, lease, age, void):
        lease.make("locks")
        now = time.time()
        left = {
            "shard": [1, 1],
            "pid": 5,
            "host": "far",
            "since": 0,
            "owner": "x",
            "renewed": now - age,
            "settled": True,
        }
        lease.write("locks/1-of-1-x.lease", json.dumps(left).encode())
        if void:
            with locked(lease):
                assert "1-of-1-x.lease" not in self.files(lease)
        else:
            with (
                pytest.raises(StoreError, match="in use by process 5 on far since 1970-01-01 00:00 UTC"),
                locked(lease),
            ):
                pass
            assert list(self.files(lease)) == ["1-of-1-x.lease"]

    def test_two_that_want_it_at_once(self, lease, monkeypatch):
        """While we look who is there another says it wants the folder, and steps back: we try again."""
        monkeypatch.setattr(locks, "_POLL", 0.01)
        looks = []
        living = locks._living

        def looked(folder):
            looks.append(1)
            found = living(folder)
            if len(looks) < 3:
                found.append(locks.Holder((1, 1), 7, "far", 0.0, "other", time.time(), settled=False))
            return found

        monkeypatch.setattr(locks, "_living", looked)
        with locked(lease):
            assert len(looks) == 3
            assert len(lease.names("locks")) == 1

    def test_a_lease_that_cannot_be_read_is_void(self, lease):
        lease.make("locks")
        lease.write("locks/1-of-1-x.lease", b"{")
        with locked(lease):
            assert len(lease.names("locks")) == 1

    def test_a_network_that_fails_makes_no_lease_void(self, lease, monkeypatch):
        with locked(lease):
            monkeypatch.setattr(type(lease), "read", lambda *_: (_ for _ in ()).throw(StoreError("no network")))
            with pytest.raises(StoreError, match="no network"), locked(lease, (1, 2)):
                pass
            assert len(lease.names("locks")) == 1
