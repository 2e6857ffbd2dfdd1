"""Objects as length-prefixed bytes: how the driver and its local workers talk over a socket."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 18


def pack(thing: Any) -> bytes:
    """A frame: eight bytes of length, then the pickled object."""
    content = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Puts frames together again from bytes in pieces of any size.

    Example:
        >>> frames = Frames()
        >>> sent = pack("one") + pack("two")
        >>> list(frames.feed(sent[:-2])), list(frames.feed(sent[-2:]))
        (['one'], ['two'])
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The objects that `data` completes."""
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            content = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield pickle.loads(content)


def received(connection: socket.socket) -> Iterator[Any]:
    """Objects as they come in on a blocking socket, until the other side is gone."""
    frames = Frames()
    while data := receive(connection):
        yield from frames.feed(data)


def receive(connection: socket.socket) -> bytes:
    """Some bytes; none when the other side is gone, cleanly or not."""
    try:
        return connection.recv(_CHUNK)
    except ConnectionError:
        return b""
