"""A folder for results, on a disk or behind an fsspec URL: whole files appear in it at once or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
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
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreError(EgcamError):
    """Results that cannot be written, read, or mixed with those that are there."""


class NoSpaceError(StoreError):
    """Results that cannot be written since the disk, the quota or the file is full."""

    exit_code = 4


class UnreachableError(StoreError):
    """Results in remote storage that cannot be reached: the network, the service, or permissions there."""

    exit_code = 5


class StoreWarning(UserWarning):
    """Results that were left out, or that may differ in their last digits."""


class Folder(ABC):
    """Named files, each written as a whole. Paths are relative to the folder, with '/' between parts.

    Attributes:
        name: as the user wrote it.
    """

    name: str

    @abstractmethod
    def make(self, *folders: str) -> None:
        """Make the folder, and folders in it, where they are not there yet."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Put `data` at `path`: after an error or a crash at any instant the old file is there, or the new one."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file; FileNotFoundError where there is none."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of the files that lie in `folder`, sorted; none where it is not there."""

    @abstractmethod
    def move(self, path: str, to: str) -> None:
        """Give a file another path, in a folder that is there."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; nothing where it is not there."""

    @abstractmethod
    def sweep(self, folder: str) -> None:
        """Remove what writes that were killed have left in `folder`. Only when nobody else is writing."""


class LocalFolder(Folder):
    """A folder of this machine's file system."""

    def __init__(self, where: str | Path) -> None:
        self.name = str(where)
        self.path = Path(where).expanduser()

    def make(self, *folders: str) -> None:
        """See `Folder.make`."""
        for folder in ("", *folders):
            path = self.path / folder
            with self._explained(f"cannot make the folder {self._shown(folder)}"):
                if not path.is_dir():
                    path.mkdir(parents=True, exist_ok=True)
                    _flush_folder(path.parent)

    def write(self, path: str, data: bytes) -> None:
        """See `Folder.write`: a file beside it, flushed to the disk, takes the name."""
        target = self.path / path
        prefix, suffix = _UNFINISHED
        unfinished = target.parent / f"{prefix}{secrets.token_hex(8)}{suffix}"
        try:
            with self._explained(f"cannot write {self._shown(path)}"):
                _write_through(unfinished, data)
                os.replace(unfinished, target)
                _flush_folder(target.parent)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def read(self, path: str) -> bytes:
        """See `Folder.read`."""
        with self._explained(f"cannot read {self._shown(path)}", missing=True):
            return (self.path / path).read_bytes()

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`."""
        with self._explained(f"cannot list {self._shown(folder)}"):
            if not (self.path / folder).is_dir():
                return []
            with os.scandir(self.path / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())

    def move(self, path: str, to: str) -> None:
        """See `Folder.move`."""
        with self._explained(f"cannot move {self._shown(path)}"):
            os.replace(self.path / path, self.path / to)

    def remove(self, path: str) -> None:
        """See `Folder.remove`."""
        with self._explained(f"cannot remove {self._shown(path)}"):
            (self.path / path).unlink(missing_ok=True)

    def sweep(self, folder: str) -> None:
        """See `Folder.sweep`."""
        prefix, suffix = _UNFINISHED
        for name in self.names(folder):
            if name.startswith(prefix) and name.endswith(suffix):
                self.remove(f"{folder}/{name}")

    def _shown(self, path: str) -> str:
        return str(Path(self.name) / path)

    @contextmanager
    def _explained(self, what: str, missing: bool = False) -> Iterator[None]:
        """Say what failed and what helps; with `missing`, a missing file stays a FileNotFoundError."""
        try:
            yield
        except OSError as error:
            if missing and isinstance(error, FileNotFoundError):
                raise
            advice = _ADVICE.get(error.errno or 0, f"{error.strerror or error}. {_KEPT}")
            raise (NoSpaceError if error.errno in _FULL else StoreError)(f"{what}: {advice}") from error


class RemoteFolder(Folder):
    """A folder behind an fsspec URL, such as s3://bucket/results. Object stores put an object as a whole."""

    def __init__(self, url: str) -> None:
        require("fsspec", "study", f"a folder such as {url}")
        from fsspec.core import url_to_fs

        self.name = url
        try:
            self._system, self._root = url_to_fs(url)
        except ImportError as error:
            raise StoreError(f"{url} needs another package: {error}") from error
        except ValueError as error:
            raise StoreError(f"{url} cannot be opened: {error}; {_near_protocols(url)}") from error

    def make(self, *folders: str) -> None:
        """See `Folder.make`."""
        for folder in ("", *folders):
            with self._explained("cannot make the folder", folder):
                self._system.makedirs(self._at(folder), exist_ok=True)

    def write(self, path: str, data: bytes) -> None:
        """See `Folder.write`."""
        with self._explained("cannot write", path):
            self._system.pipe_file(self._at(path), data)

    def read(self, path: str) -> bytes:
        """See `Folder.read`."""
        with self._explained("cannot read", path, missing=True):
            return bytes(self._system.cat_file(self._at(path)))

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`."""
        with self._explained("cannot list", folder):
            # Listings are cached by some file systems; others write here too.
            self._system.invalidate_cache(self._at(folder))
            try:
                found: list[dict[str, Any]] = self._system.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return []
            return sorted(str(entry["name"]).rpartition("/")[2] for entry in found if entry["type"] == "file")

    def move(self, path: str, to: str) -> None:
        """See `Folder.move`."""
        with self._explained("cannot move", path):
            self._system.mv(self._at(path), self._at(to))

    def remove(self, path: str) -> None:
        """See `Folder.remove`."""
        with self._explained("cannot remove", path), suppress(FileNotFoundError):
            self._system.rm_file(self._at(path))

    def sweep(self, folder: str) -> None:
        """Nothing to do: an object that was not put completely is not there."""

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def _explained(self, what: str, path: str, missing: bool = False) -> Iterator[None]:
        # Each file system has exceptions of its own for what goes wrong on the way, so none can be named here.
        try:
            yield
        except Exception as error:
            if missing and isinstance(error, FileNotFoundError):
                raise
            where = f"{self.name.rstrip('/')}/{path}"
            raise UnreachableError(f"{what} {where}: {type(error).__name__}: {error}. {_KEPT}") from error


def open_folder(where: str | Path) -> Folder:
    """The folder at a path or an fsspec URL; nothing is touched yet.

    Example:
        >>> type(open_folder("results")).__name__, type(open_folder("memory://results")).__name__
        ('LocalFolder', 'RemoteFolder')
    """
    text = str(where)
    for scheme in ("file://", "local://"):
        if text.startswith(scheme):
            return LocalFolder(text.removeprefix(scheme))
    return RemoteFolder(text) if isinstance(where, str) and "://" in text else LocalFolder(where)


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
