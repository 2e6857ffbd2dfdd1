"""A folder for results, on a disk or behind an fsspec URL: whole files appear in it at once or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from egcam.errors import EgcamError, near_misses, require

_UNFINISHED = ".egcam-", ".tmp"

_KEPT = "Finished work is kept: run the same command again"
_NOT_A_FOLDER = "a file is where the folder should be; use another --out"
_ADVICE = {
    errno.ENOSPC: f"the disk is full; free some space. {_KEPT}",
    errno.EDQUOT: f"the disk quota is used up; free some space. {_KEPT}",
    errno.EFBIG: f"the file would be larger than this process may write; raise the limit (ulimit -f). {_KEPT}",
    errno.EROFS: f"the file system is read-only; mount it writable, or use another --out. {_KEPT}",
    errno.EACCES: f"it is not permitted; change the permissions, or use another --out. {_KEPT}",
    errno.EPERM: f"it is not permitted; change the permissions, or use another --out. {_KEPT}",
    errno.ENOENT: "the folder was removed while it was in use",
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
}
# Errors of a remote file system that retrying does not cure.
_LASTING = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, NotImplementedError, TypeError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreError(EgcamError):
    """Results that cannot be written, read, or mixed with those that are there."""


class NoSpaceError(StoreError):
    """Results that cannot be written since the disk, the quota or the file is full."""

    exit_code = 4


class UnreachableError(StoreError):
    """Results in remote storage that cannot be reached: the network, the service, or permissions there.

    Attributes:
        may_pass: whether trying again can help: not where something is forbidden or missing.
    """

    exit_code = 5
    may_pass = True


class StoreWarning(UserWarning):
    """Results that were left out, or that may differ in their last digits."""


def listed(lines: Sequence[str], most: int = 20) -> str:
    """Lines of an error, indented, and how many more there are."""
    more = [f"  … and {len(lines) - most:,} more"] if len(lines) > most else []
    return "\n".join([*(f"  {line}" for line in lines[:most]), *more])


class Folder:
    """Named files, each written as a whole, on a disk or behind an fsspec URL such as s3://bucket/results.

    Paths are relative to the folder, with '/' between parts. Nothing is touched before a file is.

    Attributes:
        name: as the user wrote it.
        path: where on this machine; None behind a URL.

    Example:
        >>> Folder("results").path, Folder("file:///tmp/results").path, Folder("memory://results").path
        (PosixPath('results'), PosixPath('/tmp/results'), None)
    """

    def __init__(self, where: str | Path) -> None:
        require("fsspec", "study", "a study's results")
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.name = str(where).removeprefix("file://").removeprefix("local://")
        self.path: Path | None = None
        if isinstance(where, Path) or "://" not in self.name:
            self.path = Path(self.name).expanduser()
            self._system, self._root = LocalFileSystem(), str(self.path)
            return
        try:
            self._system, self._root = url_to_fs(self.name)
        except ImportError as error:
            raise StoreError(f"{self.name} needs another package: {error}") from error
        except ValueError as error:
            raise StoreError(f"{self.name} cannot be opened: {error}; {_near_protocols(self.name)}") from error

    def make(self, *folders: str) -> None:
        """Make the folder, and folders in it, where they are not there yet."""
        for folder in ("", *folders):
            with self._explained("cannot make the folder", folder):
                if self.path is None:
                    self._system.makedirs(self._at(folder), exist_ok=True)
                elif not (self.path / folder).is_dir():
                    (self.path / folder).mkdir(parents=True, exist_ok=True)
                    _flush_folder((self.path / folder).parent)

    def write(self, path: str, data: bytes) -> None:
        """Put `data` at `path`: after an error or a crash at any instant the old file is there, or the new one.

        Object stores put an object as a whole; on a disk a file beside it, flushed to the disk, takes the name.
        """
        with self._explained("cannot write", path):
            if self.path is None:
                self._system.pipe_file(self._at(path), data)
            else:
                _replace(self.path / path, data)

    def read(self, path: str) -> bytes:
        """The whole file; FileNotFoundError if there is none."""
        with self._explained("cannot read", path, missing=True):
            return bytes(self._system.cat_file(self._at(path)))

    def names(self, folder: str) -> list[str]:
        """The names of the files that lie in `folder`, sorted; none if it is not there."""
        with self._explained("cannot list", folder):
            # Listings are cached by some file systems; others write here too.
            self._system.invalidate_cache(self._at(folder))
            try:
                found: list[dict[str, Any]] = self._system.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return []
            return sorted(str(entry["name"]).rpartition("/")[2] for entry in found if entry["type"] == "file")

    def move(self, path: str, to: str) -> None:
        """Give a file another path, in a folder that is there."""
        with self._explained("cannot move", path):
            self._system.mv(self._at(path), self._at(to))

    def remove(self, path: str) -> None:
        """Remove a file; nothing if it is not there."""
        with self._explained("cannot remove", path), suppress(FileNotFoundError):
            self._system.rm_file(self._at(path))

    def sweep(self, folder: str) -> None:
        """Remove what writes that were killed have left in `folder`. Only when nobody else is writing."""
        prefix, suffix = _UNFINISHED
        for name in self.names(folder):
            if name.startswith(prefix) and name.endswith(suffix):
                self.remove(f"{folder}/{name}")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def _explained(self, what: str, path: str, missing: bool = False) -> Iterator[None]:
        """Say what failed and what helps; with `missing`, a missing file stays a FileNotFoundError."""
        try:
            yield
        except Exception as error:
            if missing and isinstance(error, FileNotFoundError):
                raise
            if self.path is None:
                # Each file system has exceptions of its own for what goes wrong on the way, so none can be named here.
                where = f"{self.name.rstrip('/')}/{path}"
                told = UnreachableError(f"{what} {where}: {type(error).__name__}: {error}. {_KEPT}")
                told.may_pass = not isinstance(error, _LASTING)
                raise told from error
            if not isinstance(error, OSError):
                raise
            advice = _ADVICE.get(error.errno or 0, f"{error.strerror or error}. {_KEPT}")
            kind = NoSpaceError if error.errno in _FULL else StoreError
            raise kind(f"{what} {Path(self.name) / path}: {advice}") from error


def _replace(target: Path, data: bytes) -> None:
    """Write a file beside the target, wait until the disk has it, and give it the target's name."""
    prefix, suffix = _UNFINISHED
    unfinished = target.parent / f"{prefix}{secrets.token_hex(8)}{suffix}"
    try:
        _write_through(unfinished, data)
        os.replace(unfinished, target)
        _flush_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def _write_through(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(path: Path) -> None:
    """Wait until the disk has a folder's names. Windows cannot, and needs not."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder; the file itself is already safe.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _near_protocols(url: str) -> str:
    from fsspec import available_protocols

    return near_misses(url.partition("://")[0], available_protocols())
