"""The page's temporary folder, which goes with the page, and whether it is full.

Gradio's `delete_cache` removes old uploads and downloads from it while the page is served; that no more are taken than
the disk holds, and that a page that was killed leaves nothing for good, is seen to here.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "egcam-app-"
_LOCK = "in-use.lock"
# A folder this young may belong to a page that has not locked it yet.
_YOUNG_SECONDS = 10.0
_MEASURED_EVERY, _TIMES_AS_LONG = 1.0, 20.0


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the length of a `with` block, locked for as long as the process lives.

    Folders of pages that could not clean up are known by their free lock, and removed.

    Example:
        >>> with temporary_folder() as folder:
        ...     _ = (folder / "photo.png").write_bytes(b"")
        >>> folder.exists()
        False
    """
    from filelock import FileLock

    remove_left_behind()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as whole,
        # Not bound to a thread: the page may be ended in another than it was begun in.
        FileLock(Path(whole, _LOCK), thread_local=False),
    ):
        files = Path(whole, "files")
        files.mkdir()
        yield files


def remove_left_behind(place: Path | None = None) -> None:
    """Remove the folders of this user's pages that were killed; those of living pages are locked.

    Args:
        place: where they lie; None is where the system keeps temporary files.
    """
    import shutil

    from filelock import FileLock, Timeout

    for whole in (place or Path(tempfile.gettempdir())).glob(_PREFIX + "*"):
        try:
            if _may_be_left(whole):
                with FileLock(whole / _LOCK, timeout=0):
                    shutil.rmtree(whole, ignore_errors=True)
        except (OSError, Timeout):
            # A living page's, or another page is removing it.
            continue


def _may_be_left(whole: Path) -> bool:
    """Whether it is an own folder, made by a page, and not just now."""
    found = whole.lstat()
    is_own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    is_old = time.time() - found.st_mtime > _YOUNG_SECONDS
    return is_own and is_old and not whole.is_symlink() and (whole / _LOCK).is_file()


class Usage:
    """Whether a folder is full, measured in a thread, and not for each that asks.

    Args:
        folder: what is measured.
        most_bytes: in all its files.
        most_files: files and folders in it.
        clock: seconds that pass.

    Example:
        >>> with temporary_folder() as folder:
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
        used = 0
        for count, file in enumerate(self._folder.rglob("*"), start=1):
            try:
                used += file.stat().st_size if file.is_file() else 0
            except OSError:
                continue
            if used > self._most_bytes or count > self._most_files:
                return True
        return False
