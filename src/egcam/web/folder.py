"""The page's temporary folder: visitors' files lie in it for about an hour at most, and it goes with the page."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PREFIX = "egcam-app-"
_LOCK = "in-use.lock"
_FILES = "files"
# A folder this young may belong to a page that has not locked it yet.
_YOUNG_SECONDS = 10.0
_LONGEST_BETWEEN_SWEEPS = 60.0
_TRIES = 5
_MEASURED_EVERY, _TIMES_AS_LONG = 1.0, 20.0


@contextmanager
def temporary_folder(keep_seconds: float) -> Iterator[Path]:
    """A folder for the length of a `with` block, from which files vanish when they are old.

    It is locked for as long as the process lives. Folders of pages that could not clean up are known by their free
    lock, and removed.

    Example:
        >>> with temporary_folder(3600) as folder:
        ...     _ = (folder / "photo.png").write_bytes(b"")
        >>> folder.exists()
        False
    """
    whole = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = _lock(whole)
    try:
        lock.acquire(timeout=0)
        files = whole / _FILES
        files.mkdir()
        with _swept(files, keep_seconds):
            yield files
    finally:
        lock.release()
        _remove(whole)


class Usage:
    """Whether a folder is full, measured in a thread, and not for each that asks.

    Args:
        folder: what is measured.
        most_bytes: in all its files.
        most_files: files and folders in it.
        clock: seconds that pass.

    Example:
        >>> with temporary_folder(3600) as folder:
        ...     _ = (folder / "photo.png").write_bytes(b"1234")
        ...     asyncio.run(Usage(folder, 4, 1).is_full()), asyncio.run(Usage(folder, 3, 1).is_full())
        (False, True)
    """

    def __init__(
        self, folder: Path, most_bytes: float, most_files: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._most_bytes, self._most_files, self._clock = folder, most_bytes, most_files, clock
        self._again, self._was_full = 0.0, False

    async def is_full(self) -> bool:
        """Whether it is, or was a moment ago."""
        began = self._clock()
        if began >= self._again:
            # Whoever asks meanwhile gets the last answer.
            self._again = math.inf
            try:
                self._was_full = await asyncio.to_thread(self._measured)
            finally:
                now = self._clock()
                self._again = now + max(_MEASURED_EVERY, _TIMES_AS_LONG * (now - began))
        return self._was_full

    def _measured(self) -> bool:
        used = count = 0
        for file in self._folder.rglob("*"):
            count += 1
            try:
                used += file.stat().st_size if file.is_file() else 0
            except OSError:
                continue
            if used > self._most_bytes or count > self._most_files:
                return True
        return False


def sweep(folder: Path, seconds: float) -> None:
    """Delete what has lain in the folder for longer than some seconds, and folders left empty by that.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "old.png").write_bytes(b"")
        >>> sweep(folder, -1)
        >>> list(folder.iterdir())
        []
    """
    latest = time.time() - seconds
    for path in sorted(folder.rglob("*"), reverse=True):
        try:
            if path.is_dir():
                path.rmdir() if path.stat().st_mtime < latest else None
            elif path.stat().st_mtime < latest:
                path.unlink()
        except OSError:
            # Another request was quicker, or the folder is not empty.
            continue


def remove_left_behind(place: Path | None = None) -> None:
    """Remove the folders of this user's pages that were killed; those of living pages are locked.

    Args:
        place: where they lie; None is where the system keeps temporary files.
    """
    for whole in (place or Path(tempfile.gettempdir())).glob(_PREFIX + "*"):
        try:
            if _may_be_left(whole) and _is_free(whole):
                _remove(whole)
        except OSError:
            # Another page is removing it.
            continue


@contextmanager
def _swept(files: Path, keep_seconds: float) -> Iterator[None]:
    """Sweep again and again in a thread of its own, whether or not anybody uses the page."""
    ended = threading.Event()
    pause = min(_LONGEST_BETWEEN_SWEEPS, keep_seconds / 4)

    def repeat() -> None:
        while True:
            remove_left_behind()
            sweep(files, keep_seconds)
            if ended.wait(pause):
                return

    thread = threading.Thread(target=repeat, name="egcam sweep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LONGEST_BETWEEN_SWEEPS)


def _may_be_left(whole: Path) -> bool:
    """Whether it is an own folder, made by a page, and not just now."""
    found = whole.lstat()
    is_own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    is_old = time.time() - found.st_mtime > _YOUNG_SECONDS
    return is_own and is_old and not whole.is_symlink() and (whole / _LOCK).is_file()


def _is_free(whole: Path) -> bool:
    from filelock import Timeout

    lock = _lock(whole)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    lock.release()
    return True


def _lock(whole: Path) -> Any:
    from filelock import FileLock

    # Not bound to a thread: the page may be ended in another than it was begun in.
    return FileLock(whole / _LOCK, thread_local=False)


def _remove(whole: Path) -> None:
    """Remove a folder, also one into which an upload is still being written."""
    for _ in range(_TRIES):
        shutil.rmtree(whole, ignore_errors=True)
        if not whole.exists():
            return
        time.sleep(0.1)
