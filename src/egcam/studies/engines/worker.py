"""A local worker's process: `python -m egcam.studies.engines.worker FD`, started by `LocalEngine`.

FD is a socket to the driver. Standard input, output and error stay free for whatever a method or plugin does with
them. The socket brings the job, then shards; outcomes go back on it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from socket import socket

from egcam.studies.engines.frames import pack, received
from egcam.studies.engines.job import Shard
from egcam.studies.engines.serving import serve


def main() -> None:
    """Serve until the driver hangs up."""
    faulthandler.enable()
    connection = socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    incoming = received(connection)
    job = next(incoming, None)
    if job is None:
        return
    shards: SimpleQueue[Shard] = SimpleQueue()
    threading.Thread(target=_listen, args=(incoming, shards), daemon=True).start()
    serve(job, iter(shards.get, None), lambda message: connection.sendall(pack(message)))


def _listen(incoming: Iterator[Shard], shards: SimpleQueue[Shard]) -> None:
    for shard in incoming:
        shards.put(shard)
    # The driver is gone: nobody waits for what is being computed, so end in the middle of it.
    os._exit(0)


if __name__ == "__main__":
    main()
