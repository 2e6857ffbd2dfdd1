"""Other web pages in the visitor's browser cannot use this one."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from egcam.web.origin import is_foreign
from egcam.web.server import Running, serve
from support.page_visitor import API, Visitor
from support.tiny_page import encoded, picture, tiny_classifier

pytest.importorskip("gradio", reason="the extra app is not installed")


@pytest.fixture(scope="module", params=["127.0.0.1", "0.0.0.0"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serve(tiny_classifier(), host=request.param) as page:
        yield page


@pytest.fixture
def visitor(running: Running) -> Iterator[Visitor]:
    made = Visitor(running.url)
    yield made
    made.close()


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
]
REQUESTS = [
    ("POST", f"{API}/upload"),
    ("POST", f"{API}/queue/join"),
    ("POST", f"{API}/run/stop"),
    ("POST", f"{API}/reset"),
    ("POST", f"{API}/cancel"),
    ("POST", ""),
    ("DELETE", ""),
    ("GET", f"{API}/queue/data?session_hash=a"),
    ("GET", f"{API}/heartbeat/a"),
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_foreign_page_can_neither_upload_nor_ask(
    running: Running, visitor: Visitor, headers: dict[str, str], method: str, path: str
) -> None:
    before = sorted(running.folder.rglob("*"))
    files = {"files": ("a.png", encoded(picture(1)))} if path.endswith("upload") else None
    answer = visitor.http.request(method, f"{visitor.url}/{path}", headers=headers, files=files)
    assert answer.status_code == 403
    assert "sent by another web page" in answer.text
    assert sorted(running.folder.rglob("*")) == before


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "{own}"}, {"sec-fetch-site": "same-origin"}, {"origin": "{own}", "sec-fetch-site": "same-origin"}],
    ids=str,
)
def test_the_own_page_and_programs_can(visitor: Visitor, headers: dict[str, str]) -> None:
    visitor.http.headers.update({name: value.format(own=visitor.url) for name, value in headers.items()})
    assert "SlopeCAM (egcam) for" in visitor.open(encoded(picture(1)), "one.png")[0]


def test_a_link_from_elsewhere_opens_the_page(visitor: Visitor) -> None:
    answer = visitor.http.get(visitor.url, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200


def test_a_foreign_websocket_is_not_taken(visitor: Visitor) -> None:
    headers = {
        "origin": "http://evil.example",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    try:
        status = visitor.http.get(f"{visitor.url}/{API}/queue/join", headers=headers).status_code
    except httpx.TransportError:
        status = 499
    assert status >= 400


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({b"host": b"lab.example", b"origin": b"http://lab.example"}, False),
        ({b"host": b"lab.example:80", b"origin": b"http://lab.example"}, False),
        ({b"host": b"LAB.example", b"origin": b"https://lab.example:443"}, False),
        ({b"host": b"[::1]:7860", b"origin": b"http://[::1]:7860"}, False),
        ({b"host": b"[::1]:7860", b"origin": b"http://[::2]:7860"}, True),
        ({b"host": b"lab.example:7860", b"origin": b"http://lab.example"}, True),
        ({b"host": b"lab.example", b"origin": b"http://lab.example.evil.example"}, True),
        ({b"host": b"lab.example", b"origin": b"http://evil.example/lab.example"}, True),
        ({b"host": b"lab.example", b"origin": b"file://lab.example"}, True),
        ({b"host": b"lab.example", b"origin": b"http://lab.example:x"}, True),
        ({b"host": b"", b"origin": b""}, True),
        # A proxy that encrypts may ask for another host than the browser did.
        ({b"host": b"127.0.0.1:7860", b"origin": b"https://lab.example", b"sec-fetch-site": b"same-origin"}, False),
    ],
    ids=str,
)
def test_hosts_and_ports_are_compared(headers: dict[bytes, bytes], foreign: bool) -> None:
    assert is_foreign(headers) is foreign
