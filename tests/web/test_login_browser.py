"""The password in a real browser, on this machine and through an address that others can reach."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from egcam.web.server import serve
from support.browser import chromium, foreign_requests, programs, text, until
from support.tiny_page import encoded, picture, tiny_classifier

pytest.importorskip("gradio", reason="the extra app is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]
PASSWORD = "pässword & 100 %"


@pytest.fixture(params=["this machine", "the network"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the page is; outside this machine browsers do not send Sec-Fetch-Site without encryption."""
    programs()
    is_local = request.param == "this machine"
    host = "127.0.0.1" if is_local else _own_address()
    with serve(tiny_classifier(), host="127.0.0.1" if is_local else "0.0.0.0", password=PASSWORD) as page:
        yield f"http://{host}:{page.url.rstrip('/').rpartition(':')[2]}"


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it only asks by which address this machine would.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address in a network")
        return str(probe.getsockname()[0])


def test_the_password_opens_the_page_and_the_page_works(address: str, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(encoded(picture(1)))
    with chromium(tmp_path) as window:
        window.get(address)
        assert not window.find_elements("css selector", ".gradio-container")
        # As if it were typed into the browser's own window. Scripts may ask for nothing under such an address.
        window.get(address.replace("//", f"//anybody:{quote(PASSWORD)}@"))
        window.get(address)
        until(lambda: "to begin" in text(window, "#status"), "the page")
        until(lambda: window.find_elements("css selector", "#drop input[type=file]"), "the drop zone")[0].send_keys(
            str(photo)
        )
        until(lambda: "took" in text(window, "#status"), "the explanation")
        # The cookie is kept, and no script can read it.
        window.refresh()
        until(lambda: "to begin" in text(window, "#status"), "the page")
        assert window.execute_script("return document.cookie") == ""
        assert foreign_requests(window, address) == []
