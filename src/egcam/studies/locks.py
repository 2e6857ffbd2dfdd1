"""Who may write into a folder now: one run alone, or the shards 1/n to n/n of one run side by side.

Two runs exclude each other when they are the same shard, or shards of different n; a run without shards is 1/1.

A folder on a disk is locked by the operating system, so a lock ends with its process, however that ends. Network file
systems pass such locks between machines where they are set up to (NFS 4, Lustre with `flock`); where they are not, two
machines do not see each other's locks.

Behind an fsspec URL there are no locks. There a run leaves a lease, a small file it renews every 20 seconds, and one
that was not renewed for 120 seconds is void. This is advice among runs whose clocks agree, not a guarantee.

In either case the worst that two runs at once can do is work on a unit twice: parts never overwrite each other, and a
unit that is there twice counts once.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from egcam.studies.storage import Folder, LocalFolder, StoreError

Shard: TypeAlias = tuple[int, int]
Release: TypeAlias = Callable[[], None]

LOCKS = "locks"
RENEWED_EVERY = 20.0
VOID_AFTER = 120.0
_POLL = 0.2
_GUARDED_AT_MOST = 30.0
_TIES = 20


@dataclass(frozen=True)
class Holder:
    """A run that holds a folder, or wants to.

    Attributes:
        shard: which part of the study it works on.
        pid: its process.
        host: its machine.
        since: when it began, in seconds since 1970.
        owner: tells it from all others.
        renewed: when it last showed that it lives; for leases.
        settled: whether it holds the folder, or is still looking whether it may; for leases.
    """

    shard: Shard
    pid: int
    host: str
    since: float
    owner: str
    renewed: float
    settled: bool = True

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        shard = "" if self.shard == (1, 1) else f" (shard {self.shard[0]}/{self.shard[1]})"
        return f"process {self.pid} on {self.host}{shard} since {since}"


def excludes(one: Shard, other: Shard) -> bool:
    """Whether two runs may not write at once.

    Example:
        >>> excludes((1, 2), (2, 2)), excludes((1, 2), (1, 2)), excludes((1, 2), (2, 3)), excludes((1, 1), (1, 2))
        (False, True, True, True)
    """
    return one == other or one[1] != other[1]


@contextmanager
def locked(folder: Folder, shard: Shard = (1, 1), wait: float | None = None) -> Iterator[None]:
    """Hold the folder for a shard; what killed runs left behind is swept up when nobody else is at work.

    Args:
        folder: where.
        shard: (i, n), counted from 1.
        wait: for how many seconds others are waited for; None refuses at once.
    """
    number, count = shard
    if not 1 <= number <= count:
        raise StoreError(f"there is no shard {number}/{count}: shards are counted from 1/n to n/n")
    folder.make(LOCKS)
    attempt = _lock_files if isinstance(folder, LocalFolder) else _leases
    deadline = time.monotonic() + (wait or 0.0)
    while not callable(taken := attempt(folder, shard)):  # type: ignore[arg-type]
        if time.monotonic() >= deadline:
            raise StoreError(f"{folder.name} is in use by {taken}; wait for it, or use another --out")
        time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))
    try:
        yield
    finally:
        taken()


def guarded(folder: Folder) -> AbstractContextManager[Any]:
    """Hold a folder on a disk for a moment, against all others that look at it this way."""
    return _guard(folder) if isinstance(folder, LocalFolder) else nullcontext()


@contextmanager
def _guard(folder: LocalFolder) -> Iterator[None]:
    folder.make(LOCKS)
    guard = _lock_file(folder, "guard.lock")
    if not _taken(guard, folder, _GUARDED_AT_MOST):
        raise StoreError(f"{folder.name} is in use by a process that does not go on; end it, or use another --out")
    try:
        yield
    finally:
        guard.release()


def _lock_files(folder: LocalFolder, shard: Shard) -> Release | str:
    """Take the shard's lock file, or say who is in the way."""
    with _guard(folder):
        others = [other for other in _known_shards(folder) if other != shard]
        at_work = [other for other in others if _is_held(folder, other)]
        for other in at_work:
            if excludes(other, shard):
                return _holder(folder, other)
        own = _lock_file(folder, _lock_name(shard))
        if not _taken(own, folder, 0.0):
            return _holder(folder, shard)
        try:
            if not at_work:
                for place in ("", LOCKS, "parts"):
                    folder.sweep(place)
            folder.write(_holder_name(shard), _as_json(_myself(shard)))
        except BaseException:
            own.release()
            raise

    def release() -> None:
        # First the name, then the lock: the next one's name must not be removed.
        with suppress(StoreError):
            folder.remove(_holder_name(shard))
        own.release()

    return release


def _lock_file(folder: LocalFolder, name: str) -> Any:
    from filelock import FileLock

    # Not bound to a thread: a lock taken in one may be given back in another.
    return FileLock(folder.path / LOCKS / name, thread_local=False)


def _taken(lock: Any, folder: LocalFolder, wait: float) -> bool:
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


def _is_held(folder: LocalFolder, shard: Shard) -> bool:
    lock = _lock_file(folder, _lock_name(shard))
    if not _taken(lock, folder, 0.0):
        return True
    lock.release()
    return False


def _known_shards(folder: LocalFolder) -> list[Shard]:
    found = (re.fullmatch(r"(\d+)-of-(\d+)\.lock", name) for name in folder.names(LOCKS))
    return [(int(match[1]), int(match[2])) for match in found if match]


def _holder(folder: LocalFolder, shard: Shard) -> str:
    try:
        return str(_from_json(folder.read(_holder_name(shard))))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return "another process"


def _lock_name(shard: Shard) -> str:
    return f"{shard[0]}-of-{shard[1]}.lock"


def _holder_name(shard: Shard) -> str:
    # A file of its own: older versions of filelock empty the lock file when they try to take it.
    return f"{LOCKS}/{shard[0]}-of-{shard[1]}.json"


def _leases(folder: Folder, shard: Shard) -> Release | str:
    """Leave a lease, or say who is in the way.

    A run first says that it wants the folder, then looks who else is there. Of two that want it at the same time at
    least one sees the other, and steps back for a random while.
    """
    in_the_way: list[Holder] = []
    for _ in range(_TIES):
        own = _Lease(folder, replace(_myself(shard), settled=False))
        own.renew()
        try:
            in_the_way = [other for other in _living(folder) if _in_the_way(other, own.holder)]
            if not in_the_way:
                return own.settle()
        except BaseException:
            own.drop()
            raise
        own.drop()
        if any(other.settled for other in in_the_way):
            break
        time.sleep(random.uniform(0.0, 2 * _POLL))
    return str(in_the_way[0])


def _in_the_way(other: Holder, own: Holder) -> bool:
    return other.owner != own.owner and excludes(other.shard, own.shard)


class _Lease:
    """A file that says who is at work, renewed by a thread for as long as the process lives."""

    def __init__(self, folder: Folder, holder: Holder) -> None:
        self.holder = holder
        self._folder = folder
        self._name = f"{LOCKS}/{holder.shard[0]}-of-{holder.shard[1]}-{holder.owner}.lease"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_for_ever, name="egcam lease", daemon=True)

    def renew(self) -> None:
        self.holder = replace(self.holder, renewed=time.time())
        self._folder.write(self._name, _as_json(self.holder))

    def settle(self) -> Release:
        self.holder = replace(self.holder, settled=True)
        self.renew()
        self._thread.start()
        return self.end

    def end(self) -> None:
        self._ended.set()
        # A renewal under way would put the lease back after it was dropped.
        self._thread.join(RENEWED_EVERY)
        self.drop()

    def drop(self) -> None:
        with suppress(StoreError):
            self._folder.remove(self._name)

    def _renew_for_ever(self) -> None:
        while not self._ended.wait(RENEWED_EVERY):
            # A network that fails now and then costs a renewal, not the run: five more come before the lease is void.
            with suppress(StoreError):
                self.renew()


def _living(folder: Folder) -> list[Holder]:
    """Who has a lease. Void ones are removed, those that cannot be read are void."""
    holders = []
    for name in folder.names(LOCKS):
        if not name.endswith(".lease"):
            continue
        try:
            holder = _from_json(folder.read(f"{LOCKS}/{name}"))
        except FileNotFoundError:
            continue
        except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError):
            holder = None
        if holder is None or time.time() - holder.renewed > VOID_AFTER:
            with suppress(StoreError):
                folder.remove(f"{LOCKS}/{name}")
        else:
            holders.append(holder)
    return holders


def _myself(shard: Shard) -> Holder:
    now = time.time()
    return Holder(shard, os.getpid(), socket.gethostname(), now, secrets.token_hex(8), now)


def _as_json(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode()


def _from_json(data: bytes) -> Holder:
    values = json.loads(data)
    number, count = values.pop("shard")
    return Holder(shard=(int(number), int(count)), **values)
