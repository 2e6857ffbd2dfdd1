"""Without the password there is nothing to see; with it, everything works."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from egcam.errors import InputError
from egcam.web.login import WRONG_PER_MINUTE, Answer, Login
from egcam.web.server import Running, serve
from support.page_process import command
from support.page_visitor import API, Visitor
from support.tiny_page import encoded, picture, tiny_classifier

pytest.importorskip("gradio", reason="the extra app is not installed")
PASSWORD = "pässword & 100 %; more=less"
ROUTES = [
    *("config", "theme.css", "favicon.ico", "robots.txt", "manifest.json", "assets/index.js", "static/img/logo.svg"),
    *(f"{API}/{name}" for name in ("info", "app_id", "token", "user", "login_check", "startup-events", "theme.css")),
    *(f"{API}/{name}" for name in ("upload", "upload_progress?upload_id=a", "queue/data?session_hash=a")),
    *(f"{API}/{name}" for name in ("heartbeat/a", "file=/etc/passwd", "queue/join", "reset", "cancel", "run/stop")),
    *("", "login", "no-such-page", "login/../config", "//config"),
]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serve(tiny_classifier(), password=PASSWORD) as page:
        yield page


@pytest.fixture
def stranger(running: Running) -> Iterator[httpx.Client]:
    """Somebody without the password."""
    with httpx.Client(base_url=running.url, timeout=60, trust_env=False) as made:
        yield made


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_a_stranger_gets_no_page_no_answer_and_no_file(stranger: httpx.Client, method: str, route: str) -> None:
    assert stranger.request(method, route).status_code == 401


def test_a_stranger_can_neither_upload_nor_download(running: Running, stranger: httpx.Client) -> None:
    owner = Visitor(running.url, password=PASSWORD)
    owner.open(encoded(picture(1)), "one.png")
    file = Visitor.outputs(owner.queued("explained_png", [None, None]))[1]["url"]
    assert owner.http.get(file).status_code == 200
    owner.close()
    before = sorted(running.folder.rglob("*"))
    assert stranger.get(file).status_code == 401
    assert stranger.post(f"{API}/upload", files={"files": ("two.png", encoded(picture(2)))}).status_code == 401
    assert sorted(running.folder.rglob("*")) == before


def test_the_password_lets_in_and_its_cookie_stays(running: Running, stranger: httpx.Client) -> None:
    asked = stranger.get("/")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"] == 'Basic realm="egcam", charset="UTF-8"'
    assert "gradio" not in asked.text.lower()
    for wrong in ("", "password", PASSWORD[:-1], PASSWORD + " "):
        refused = stranger.get("/", auth=("", wrong))
        assert refused.status_code == 401
        assert "set-cookie" not in refused.headers
    taken = stranger.get("/", auth=("anybody", PASSWORD))
    assert taken.status_code == 200
    cookie = taken.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert stranger.get("/config").json()["title"] == "egcam: What did the network look at?"
    visitor = Visitor(running.url, password=PASSWORD)
    visitor.http.auth = None  # type: ignore[assignment]
    visitor.http.cookies = stranger.cookies
    assert "SlopeCAM (egcam) for" in visitor.open(encoded(picture(1)), "one.png")[0]
    visitor.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Basic"},
        {"authorization": "Basic ????"},
        {"authorization": "Basic OnBhc3N3b3Jk"},
        {"authorization": "Bearer x"},
        {"cookie": "egcam=; egcam-00000000=; =; ;;"},
    ],
    ids=str,
)
def test_odd_credentials_open_nothing(stranger: httpx.Client, headers: dict[str, str]) -> None:
    assert stranger.get("/config", headers=headers).status_code == 401


def test_a_foreign_page_cannot_guess(stranger: httpx.Client) -> None:
    for password in (PASSWORD, "guess"):
        answer = stranger.get(f"/{API}/info", auth=("", password), headers={"origin": "http://evil.example"})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_guesses_are_limited_and_the_limit_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("egcam.web.login.time.monotonic", lambda: now)
    login = Login("sesame")
    assert {login.try_password(str(number)) for number in range(WRONG_PER_MINUTE)} == {Answer.WRONG}
    # Else the answer to a guess too many would still tell.
    assert login.try_password("sesame") is Answer.LATER
    assert login.try_headers({b"authorization": b"Basic OnNlc2FtZQ=="}) is Answer.LATER
    assert login.try_headers({}) is Answer.WRONG
    assert login.has_cookie({b"cookie": login.cookie.partition(";")[0].encode()})
    now += 61
    assert login.try_password("sesame") is Answer.RIGHT


def test_the_comparison_takes_the_same_time_for_every_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared has the same length whatever was typed, and by the function made for it."""
    compared: list[tuple[bytes, bytes]] = []

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    login = Login("sesame")
    monkeypatch.setattr("egcam.web.login.hmac", SimpleNamespace(compare_digest=noted))
    for guess in ("", "s", "sesame", "x" * 1000):
        login.try_password(guess)
    assert [len(part) for pair in compared for part in pair] == [32] * 8


def test_every_door_has_a_cookie_of_its_own() -> None:
    one, other = Login("sesame"), Login("sesame")
    assert not other.has_cookie({b"cookie": one.cookie.partition(";")[0].encode()})
    both = b"; ".join(login.cookie.partition(";")[0].encode() for login in (one, other))
    assert one.has_cookie({b"cookie": both})
    assert other.has_cookie({b"cookie": both})


def test_an_empty_password_is_refused() -> None:
    with pytest.raises(InputError, match="the password is empty"), serve(tiny_classifier(), password=""):
        pytest.fail("it was served all the same")


def test_the_command_takes_it_from_the_environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        command(tmp_path, tmp_path_factory.mktemp("home"), EGCAM_PASSWORD="sesame") as page,
        httpx.Client(base_url=page.url, trust_env=False) as stranger,
    ):
        assert stranger.get("/config").status_code == 401
        assert stranger.get("/config", auth=("", "sesame")).status_code == 200
