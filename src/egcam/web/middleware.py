"""What reaches the page at all: known hosts, own requests, who has the password, known routes, bodies within
the size limit; and what a browser may load.

Gradio serves more than this page needs (proxies, recordings, editing): only what it needs is let through. Gradio
limits uploads (`max_file_size`), but no other body; it takes uploads that other web pages send (their scripts may
only not read the answer) and requests for any host name.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from egcam.web.connections import Receive, timely
from egcam.web.folder import Usage
from egcam.web.limits import Limits
from egcam.web.login import Answer, Login
from egcam.web.origin import is_foreign

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_API = "/gradio_api"
_ROUTES = re.compile(
    r"/|/config/?|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json|/(?:assets|static|svelte)/.+"
    rf"|{_API}/(?:info|app_id|token|user|login_check|startup-events|theme\.css|upload|upload_progress|reset|cancel)/?"
    rf"|{_API}/queue/(?:join|data)/?|{_API}/heartbeat/[^/]+|{_API}/file=.+|{_API}/run/.+"
)
_UPLOAD = f"{_API}/upload"
_STARTUP = f"{_API}/startup-events"
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
    # Under "no-referrer" a form would not say that it comes from the own page.
    (b"referrer-policy", b"same-origin"),
)
_TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)
_ASKED = (*_TEXT, (b"www-authenticate", b'Basic realm="egcam", charset="UTF-8"'), (b"cache-control", b"no-store"))


_REFUSED: dict[Answer, tuple[int, str, tuple[tuple[bytes, bytes], ...]]] = {
    Answer.WRONG: (
        401,
        "This page has a password: open it in a browser, which asks for it; any user name will do.",
        _ASKED,
    ),
    Answer.LATER: (429, "Too many wrong passwords: try again in a minute.", _TEXT),
}


class Guard:
    """Checks every request before it reaches the page's web application.

    Args:
        application: what is guarded.
        limits: how large a body may be.
        folder: the page's own temporary folder; uploads are refused while it is full.
        host: where the page is served. On this machine alone, requests that name another host are refused: a foreign
            web page could point its own name at this machine and read answers.
        login: asks for the password; None where there is none.
    """

    def __init__(
        self, application: Application, limits: Limits, folder: Path, host: str, login: Login | None = None
    ) -> None:
        self.application, self.limits, self.login = application, limits, login
        self._usage = Usage(folder, limits.folder_megabytes * 2**20, limits.folder_files)
        self.is_local = is_local(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.application(scope, receive, send)
            return
        headers = dict(scope["headers"])
        receive = timely(receive)
        more: Sequence[tuple[bytes, bytes]] = ()
        refusal: tuple[Any, ...] | None = self._foreign(scope, headers)
        if refusal is None and self._needs_password(scope, headers):
            assert self.login is not None
            more = ((b"set-cookie", self.login.cookie.encode()),)
            refusal = _REFUSED.get(self.login.try_headers(headers))
        refusal = refusal or await self._unfit(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        most = self._most(scope["path"])
        await self.application(scope, _counted(receive, most), _with_headers(send, more))

    def _foreign(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Why a request has no business here, whoever sends it."""
        if self.is_local and not is_local(_host_of(headers.get(b"host", b"").decode("latin-1"))):
            return 421, "This page is for this machine only: open it as http://127.0.0.1."
        # Anyone may link to the page itself.
        is_visit = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith(_API)
        if not is_visit and is_foreign(headers):
            return 403, "This was sent by another web page: open this one itself."
        return None

    def _needs_password(self, scope: Scope, headers: Headers) -> bool:
        if self.login is None or self.login.has_cookie(headers):
            return False
        # Gradio asks itself for this while it starts.
        return self.login.is_started or scope["path"] != _STARTUP

    async def _unfit(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Why a request is not passed on, though its sender may use the page."""
        path = scope["path"]
        if not _ROUTES.fullmatch(path):
            return 404, "There is no such page here."
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if length.isdecimal() and int(length) > self._most(path):
            return 413, f"The file is too large: the limit is {self.limits.megabytes:g} megabytes."
        if path.startswith(_UPLOAD) and scope["method"] == "POST" and await self._usage.is_full():
            return 507, "The server's temporary folder is full: try again in an hour."
        return None

    def _most(self, path: str) -> int:
        return self.limits.bytes + _FORM if path.rstrip("/") == _UPLOAD else _SMALL


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


def _with_headers(send: Send, more: Sequence[tuple[bytes, bytes]] = ()) -> Send:
    async def guarded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS, *more]
        await send(message)

    return guarded


async def _answer(send: Send, status: int, text: str, more: Sequence[tuple[bytes, bytes]] = _TEXT) -> None:
    body = text.encode()
    headers = [(b"content-length", str(len(body)).encode()), *more, *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
