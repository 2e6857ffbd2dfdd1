"""Connections to the page: visitors who send nothing, or too slowly, do not keep others out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_MOST = 400
_HEADERS_WITHIN = 10.0
_BODY_WITHIN = 300.0


def bounded(server: Any, most: int = _MOST, seconds: float = _HEADERS_WITHIN) -> None:
    """Count and time the new connections of a uvicorn server.

    A connection on which no request is complete or being answered for `seconds` is closed. Where there are more than
    `most`, or than half of the files that the process may open, the one that has been silent for longest is closed.

    Args:
        server: that runs.
        most: how many connections there may be.
        seconds: for the head of a request.
    """
    most = min(most, _files() // 2)
    usual: Any = server.config.http_protocol_class

    class Bounded(usual):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.since = time.monotonic()
            if len(self.connections) > most:
                silent = [one for one in self.connections if isinstance(one, Bounded) and one.is_silent]
                min(silent, key=lambda one: one.since).transport.abort()
            self.loop.call_later(seconds, self.check, self.cycle)

        @property
        def is_silent(self) -> bool:
            """Whether no request is being answered."""
            return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

        def check(self, before: object) -> None:
            """Close it if no request came since; else look again later."""
            if self.transport.is_closing():
                return
            if self.cycle is before and self.is_silent:
                self.transport.abort()
            else:
                self.loop.call_later(seconds, self.check, self.cycle)

    server.config.http_protocol_class = Bounded


def timely(receive: Receive, seconds: float = _BODY_WITHIN) -> Receive:
    """The same body, cut off as if the visitor had left when it is not whole so many seconds after it is first read."""
    end, is_whole = 0.0, False

    async def received() -> MutableMapping[str, Any]:
        nonlocal end, is_whole
        if is_whole:
            return await receive()
        end = end or time.monotonic() + seconds
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
        except TimeoutError:
            return {"type": "http.disconnect"}
        is_whole = not message.get("more_body", False)
        return message

    return received


def _files() -> int:
    """How many files the process may open."""
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:
        return 2 * _MOST
    return getrlimit(RLIMIT_NOFILE)[0]
