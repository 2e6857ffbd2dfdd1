"""What reaches the page at all: known hosts, known routes, bodies of a bearable size; and what a browser may load.

Gradio serves more than this page needs (proxies, recordings, editing). Only what it needs is let through.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from egcam.app.limits import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_API = "/gradio_api"
_ROUTES = re.compile(
    r"/|/config/?|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json|/(?:assets|static|svelte)/.+"
    rf"|{_API}/(?:info|app_id|token|user|login_check|startup-events|theme\.css|upload|upload_progress|reset|cancel)/?"
    rf"|{_API}/queue/(?:join|data)/?|{_API}/heartbeat/[^/]+|{_API}/file=.+|{_API}/run/.+"
)
_UPLOAD = f"{_API}/upload"
# A request other than an upload holds a few choices.
_SMALL = 200_000
# The form around an uploaded file.
_FORM = 10_000
# Gradio's own page holds inline scripts and builds templates at run time; nothing comes from elsewhere.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Guard:
    """Stands before the page's web application.

    Args:
        application: what is guarded.
        limits: how large a body may be.
        folder: the page's own temporary folder; uploads are refused while it is full.
        host: where the page is served. On this machine alone, requests that name another host are refused: a foreign
            web page could point its own name at this machine and read answers.
    """

    def __init__(self, application: Application, limits: Limits, folder: Path, host: str) -> None:
        self.application, self.limits, self.folder = application, limits, folder
        self.is_local = is_local(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.application(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        most = self._most(scope["path"])
        await self.application(scope, _counted(receive, most), _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if self.is_local and not is_local(_host_of(headers.get(b"host", b"").decode("latin-1"))):
            return 421, "This page is for this machine only: open it as http://127.0.0.1."
        path = scope["path"]
        if not _ROUTES.fullmatch(path):
            return 404, "There is no such page here."
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if length.isdecimal() and int(length) > self._most(path):
            return 413, f"The file is too large: the limit is {self.limits.megabytes:g} megabytes."
        if path.startswith(_UPLOAD) and scope["method"] == "POST" and self._is_full():
            return 507, "The server's temporary folder is full: try again in an hour."
        return None

    def _most(self, path: str) -> int:
        return self.limits.bytes + _FORM if path.rstrip("/") == _UPLOAD else _SMALL

    def _is_full(self) -> bool:
        used = 0
        for file in self.folder.rglob("*"):
            try:
                used += file.stat().st_size
            except OSError:
                continue
        return used > self.limits.folder_megabytes * 10**6


def is_local(host: str) -> bool:
    """Whether a host name or address is this machine itself.

    Example:
        >>> is_local("127.0.0.1"), is_local("localhost"), is_local("::1"), is_local("0.0.0.0"), is_local("example.org")
        (True, True, True, False, False)
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_of(header: str) -> str:
    """The host in a Host header, without its port.

    >>> _host_of("127.0.0.1:7860"), _host_of("[::1]:7860"), _host_of("localhost")
    ('127.0.0.1', '[::1]', 'localhost')
    """
    return re.sub(r":\d+$", "", header)


def _counted(receive: Receive, most: int) -> Receive:
    """The same body, cut off as if the visitor had left when it is longer than it may be."""
    seen = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > most else message

    return counted


def _with_headers(send: Send) -> Send:
    async def guarded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return guarded


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
