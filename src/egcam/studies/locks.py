"""Who may write into a folder now: one run alone, or the shards 1/n to n/n of one run side by side.

Two runs exclude each other when they are the same shard, or shards of different n; a run without shards is 1/1.

A folder on a disk is locked by the operating system, so a lock ends with its process, however that ends. Network file
systems pass such locks between machines where they are set up to (NFS 4, Lustre with `flock`); where they are not, two
machines do not see each other's locks. Behind an fsspec URL there are no locks at all.

The worst that two runs at once can do is work on a unit twice: parts never overwrite each other, and a unit that is
there twice counts once.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from egcam.errors import require
from egcam.studies.storage import Folder, StoreError

Shard: TypeAlias = tuple[int, int]

LOCKS = "locks"
_POLL = 0.2
_GUARDED_AT_MOST = 30.0


def excludes(one: Shard, other: Shard) -> bool:
    """Whether two runs may not write at once.

    Example:
        >>> excludes((1, 2), (2, 2)), excludes((1, 2), (1, 2)), excludes((1, 2), (2, 3)), excludes((1, 1), (1, 2))
        (False, True, True, True)
    """
    return one == other or one[1] != other[1]


@contextmanager
def locked(folder: Folder, shard: Shard = (1, 1), wait: float | None = None) -> Iterator[None]:
    """Hold the folder for a shard; leftovers of killed runs are removed if no other run is active.

    Args:
        folder: where; one behind a URL is not locked.
        shard: (i, n), counted from 1.
        wait: for how many seconds others are waited for; None refuses at once.
    """
    number, count = shard
    if not 1 <= number <= count:
        raise StoreError(f"there is no shard {number}/{count}: shards are counted from 1/n to n/n")
    if folder.path is None:
        yield
        return
    own = _lock(folder, shard)
    deadline = time.monotonic() + (wait or 0.0)
    while other := _in_the_way(folder, shard, own):
        if time.monotonic() >= deadline:
            raise StoreError(f"{folder.name} is in use by {_holder(folder, other)}; wait for it, or use another --out")
        time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))
    try:
        yield
    finally:
        own.release()


@contextmanager
def guarded(folder: Folder) -> Iterator[None]:
    """Hold a folder on a disk for a moment, against all others that look at it this way."""
    if folder.path is None:
        yield
        return
    guard = _file_lock(folder, "guard.lock")
    if not _taken(guard, folder, _GUARDED_AT_MOST):
        raise StoreError(f"{folder.name} is locked by a process that no longer responds; end it, or use another --out")
    try:
        yield
    finally:
        guard.release()


def _in_the_way(folder: Folder, shard: Shard, own: Any) -> Shard | None:
    """Take the shard's lock, or say which shard is at work and excludes it."""
    with guarded(folder):
        at_work = [other for other in _known_shards(folder) if other != shard and _is_held(folder, other)]
        for other in at_work:
            if excludes(other, shard):
                return other
        if not _taken(own, folder):
            return shard
        try:
            for place in () if at_work else ("", LOCKS, "parts"):
                folder.sweep(place)
            folder.write(_holder_file(shard), f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BaseException:
            own.release()
            raise
    return None


def _holder(folder: Folder, shard: Shard) -> str:
    """Which process holds a shard's lock."""
    which = "" if shard == (1, 1) else f" (shard {shard[0]}/{shard[1]})"
    try:
        return folder.read(_holder_file(shard)).decode() + which
    except FileNotFoundError:
        return "another process" + which


def _holder_file(shard: Shard) -> str:
    # A file of its own: older versions of filelock empty the lock file when they try to take it.
    return f"{LOCKS}/{shard[0]}-of-{shard[1]}.txt"


def _known_shards(folder: Folder) -> list[Shard]:
    found = (re.fullmatch(r"(\d+)-of-(\d+)\.lock", name) for name in folder.names(LOCKS))
    return [(int(match[1]), int(match[2])) for match in found if match]


def _is_held(folder: Folder, shard: Shard) -> bool:
    lock = _lock(folder, shard)
    if not _taken(lock, folder):
        return True
    lock.release()
    return False


def _lock(folder: Folder, shard: Shard) -> Any:
    return _file_lock(folder, f"{shard[0]}-of-{shard[1]}.lock")


def _file_lock(folder: Folder, name: str) -> Any:
    require("filelock", "study", "writing a study's results")
    from filelock import FileLock

    folder.make(LOCKS)
    assert folder.path is not None
    # Not bound to a thread: a lock taken in one may be given back in another.
    return FileLock(folder.path / LOCKS / name, thread_local=False)


def _taken(lock: Any, folder: Folder, wait: float = 0.0) -> bool:
    from filelock import Timeout

    try:
        lock.acquire(timeout=wait, poll_interval=0.02)
    except Timeout:
        return False
    except NotImplementedError as error:
        raise StoreError(f"the file system of {folder.name} has no locks; use another --out") from error
    except OSError as error:
        raise StoreError(f"cannot lock {folder.name}: {error.strerror or error}; use another --out") from error
    return True
