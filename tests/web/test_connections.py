"""Visitors who send half of something, or very many small things, do not keep others out."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egcam.web.connections import bounded, timely
from egcam.web.folder import Usage

uvicorn = pytest.importorskip("uvicorn", reason="the extra app is not installed")


async def _application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def served(most: int, seconds: float) -> Iterator[tuple[str, int]]:
    server = uvicorn.Server(uvicorn.Config(_application, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    bounded(server, most, seconds)
    try:
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join()


def _half(address: tuple[str, int]) -> socket.socket:
    sent = socket.create_connection(address)
    sent.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-")
    return sent


def _answer(address: tuple[str, int], path: str = "/") -> bytes:
    with socket.create_connection(address) as asked:
        asked.settimeout(20)
        asked.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        found = b""
        while part := asked.recv(4096):
            found += part
        return found


def _is_closed(asked: socket.socket) -> bool:
    asked.settimeout(20)
    try:
        return asked.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_request_that_is_never_finished_is_closed_and_a_slow_answer_is_not() -> None:
    with served(most=100, seconds=0.3) as address:
        half = _half(address)
        assert _is_closed(half)
        assert _answer(address, "/slow").endswith(b"ok")
        # The second request of a connection, too.
        with socket.create_connection(address) as kept:
            kept.settimeout(20)
            kept.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            found = b""
            while not found.endswith(b"ok"):
                found += kept.recv(4096)
            kept.sendall(b"GET / HT")
            assert _is_closed(kept)


def test_many_half_requests_keep_nobody_out() -> None:
    with served(most=20, seconds=600) as address:
        halves = [_half(address) for _ in range(60)]
        assert all(_answer(address).endswith(b"ok") for _ in range(5))
        # Those that had been silent for longest had to go.
        assert all(_is_closed(half) for half in halves[:40])
        for half in halves:
            half.close()


def test_a_body_that_never_ends_is_cut_off() -> None:
    async def trickle() -> dict[str, Any]:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def read() -> int:
        receive, count = timely(trickle, 0.5), 0
        while (await receive())["type"] == "http.request":
            count += 1
        return count

    assert 1 <= asyncio.run(asyncio.wait_for(read(), 20)) <= 10


def test_a_whole_body_may_be_followed_by_a_long_wait() -> None:
    messages = [{"type": "http.request", "body": b"x", "more_body": False}, {"type": "http.disconnect", "late": True}]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.2 if len(messages) == 1 else 0)
        return messages.pop(0)

    async def read() -> list[Any]:
        timed = timely(receive, 0.05)
        return [await timed(), await timed()]

    assert asyncio.run(read())[1] == {"type": "http.disconnect", "late": True}


def test_files_are_counted_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, walks = [0.0], []
    usual = Usage._measured
    monkeypatch.setattr(Usage, "_measured", lambda self: walks.append(1) or usual(self))
    usage = Usage(tmp_path, most_bytes=1000, most_files=3, clock=lambda: now[0])

    def is_full() -> bool:
        return asyncio.run(usage.is_full())

    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"")
    assert [is_full() for _ in range(50)] == [False] * 50
    assert len(walks) == 1
    (tmp_path / "one more").write_bytes(b"")
    now[0] = 1.5
    assert is_full()
    (tmp_path / "one more").unlink()
    (tmp_path / "0").write_bytes(bytes(1001))
    now[0] = 3.0
    assert is_full()
    assert len(walks) == 3
