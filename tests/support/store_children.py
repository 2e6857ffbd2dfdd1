"""What child processes do in the tests of the store."""

from __future__ import annotations

import os
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path

from egcam.studies.records import Unit
from egcam.studies.store import Store, StoreError
from support.store_samples import sample_outcome


def write_until_killed(folder: Path, first: int, told: Connection) -> None:
    """Write a part for one image after the other, on a slow disk, and tell each image once it is kept."""
    at_once = os.write

    def in_pieces(descriptor: int, data: memoryview) -> int:
        time.sleep(0.0005)
        return at_once(descriptor, data[:400])

    os.write = in_pieces
    store = Store(folder)
    with store.lock():
        for image in range(first, 10**6):
            store.write([sample_outcome(Unit("vgg16", method, image)) for method in ("grad-cam", "cam")])
            told.send(image)


def hold_lock(folder: Path, shard: tuple[int, int], told: Connection, forks: bool = False) -> None:
    """Hold a shard's lock until killed, or until told to let go."""
    try:
        with Store(folder).lock(shard):
            if forks and os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            told.send("held")
            told.recv()
        told.send("released")
    except StoreError as error:
        told.send(str(error))


def write_with_file_limit(folder: Path, units: list[Unit], limit: int, told: Connection) -> None:
    """Write with files of at most `limit` bytes, then without that limit."""
    store = Store(folder)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        store.write([sample_outcome(unit) for unit in units])
        told.send("written")
    except StoreError as error:
        told.send(str(error))
    told.send(sorted(path.name for path in (folder / "parts").iterdir()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.write([sample_outcome(unit) for unit in units])
    told.send("written")
