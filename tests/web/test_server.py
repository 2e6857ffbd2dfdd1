"""The served page, spoken to as its script does and as it should not be spoken to."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import egcam
from egcam.errors import InputError, MissingExtraError
from egcam.photos.comparison import explain_one
from egcam.web.limits import Limits
from egcam.web.server import Running, serve
from support.browser import until
from support.page_process import command
from support.page_visitor import API, EXPLAIN, Visitor
from support.small_models import METHODS
from support.tiny_page import CLASSES, bomb, encoded, picture, tiny_classifier

pytest.importorskip("gradio", reason="the extra app is not installed")
LIMITS = Limits(megabytes=2.5, megapixels=5)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serve(tiny_classifier(), limits=LIMITS) as page:
        yield page
    assert not page.folder.exists()


@pytest.fixture
def visitor(running: Running) -> Iterator[Visitor]:
    made = Visitor(running.url)
    yield made
    made.close()


def _right_map(seed: int, target: int | None, samples: int = 4, method: str = "slope-cam") -> np.ndarray:
    classifier = tiny_classifier()
    images = classifier.preprocess(picture(seed))[None]
    taken = {"samples": samples} if "samples" in egcam.attribution.registry.takes(method) else {}
    return egcam.explain(classifier.model, images, method, target, **taken).maps[0].numpy()


def test_an_upload_is_explained_and_the_map_is_right(visitor: Visitor) -> None:
    shown = visitor.open(encoded(picture(1)), "one.png")
    assert "SlopeCAM (egcam) for" in shown[0]
    assert 'alt="SlopeCAM (egcam) for' in shown[5]
    np.testing.assert_array_equal(visitor.maps()["maps/slope-cam"], _right_map(1, None))


@pytest.mark.parametrize("method", ["slope-cam", "integrated-grad-cam"])
def test_unless_told_otherwise_the_page_does_as_egcam_explain(visitor: Visitor, method: str) -> None:
    samples, reference = visitor.component("samples")["value"], visitor.component("reference")["value"]
    visitor.open(encoded(picture(1)), "one.png", (method, None, samples, reference))
    found = visitor.maps()
    classifier = tiny_classifier()
    images = classifier.preprocess(picture(1))[None]
    # What the command does when nothing but the method is given.
    right = explain_one(classifier, images, picture(1), method, int(classifier.model(images).argmax()), {}, None)
    np.testing.assert_array_equal(found[f"maps/{method}"], right.explanation.maps[0].numpy())
    assert json.loads(str(found["facts"]))["methods"][method]["reference"] == right.explanation.reference


def test_another_class_is_another_map(visitor: Visitor) -> None:
    visitor.open(encoded(picture(2)), "two.png")
    for target in range(len(CLASSES)):
        visitor.explain(target)
        np.testing.assert_array_equal(visitor.maps()["maps/slope-cam"], _right_map(2, target))


def test_compare_metrics_and_saturation(visitor: Visitor) -> None:
    visitor.open(encoded(picture(3)), "three.png")
    status, pane, _ = visitor.run("compare", None, 1, ["grad-cam", "cam", "layer-cam"], "4", 4, "usual")
    assert "2 methods in" in status
    assert "CAM is left out" in pane
    found = visitor.maps("compared")
    np.testing.assert_array_equal(found["maps/layer-cam"], _right_map(3, 1, method="layer-cam"))
    status, pane, _ = visitor.run("measure", None, 1, ["grad-cam"], "4", 4, "usual")
    assert pane.count("<td>") == 5
    status, pane = visitor.run("saturate", None, 1, "4")
    assert "Can the plain gradient be trusted here?" in pane
    for name in ("explained_png", "compared_svg", "scores_csv"):
        file = Visitor.outputs(visitor.queued(name, [None, None]))[1]
        assert visitor.http.get(file["url"]).status_code == 200


def test_visitors_at_once_get_their_own_maps(running: Running) -> None:
    def visit(number: int) -> bool:
        one = Visitor(running.url)
        one.open(encoded(picture(number)), "same-name.png")
        one.explain(number % 3)
        found = one.maps()["maps/slope-cam"]
        one.close()
        return np.array_equal(found, _right_map(number, number % 3))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(visit, range(10, 22)))


@pytest.mark.parametrize(
    ("content", "name", "told"),
    [
        (b"a shopping list", "list.png", "“list.png” is text, not an image"),
        (b"<svg><script>alert(1)</script></svg>", "a.svg", "is text, not an image"),
        (encoded(picture(1), "JPEG")[:500], "cut.jpg", "is damaged or cut short"),
        (encoded(picture(1, (3000, 2000)), "JPEG"), "large.jpg", "6 megapixels, and the limit is 5"),
        (b"", "empty.png", "is empty"),
        (b"x", "<img src=x onerror=alert(1)>.png", "&lt;img src=x onerror=alert(1)&gt;.png”"),
    ],
)
def test_what_is_no_image_is_told_in_a_sentence(visitor: Visitor, content: bytes, name: str, told: str) -> None:
    shown = visitor.open(content, name)
    assert told in shown[0]
    assert 'role="alert"' in shown[0]
    assert "Traceback" not in shown[0]
    assert "/tmp" not in shown[0]


def test_a_bomb_is_refused(visitor: Visitor) -> None:
    assert "is too large" in visitor.open(bomb(), "bomb.png")[0]


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000)])
def test_a_strip_is_refused_without_taking_the_memory_of_all(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    resize = Image.Image.resize

    def counted(image: Image.Image, size: tuple[int, int], *more: Any, **options: Any) -> Image.Image:
        assert size[0] * size[1] <= 1024 * 1024
        return resize(image, size, *more, **options)

    monkeypatch.setattr(Image.Image, "resize", counted)
    strip = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    assert "is too long for a network that sees" in visitor.open(encoded(strip), "strip.png")[0]


def test_a_refused_image_leaves_the_one_before_alone(visitor: Visitor) -> None:
    visitor.open(encoded(picture(4)), "four.png")
    visitor.open(b"text", "text.png")
    visitor.explain(1)
    np.testing.assert_array_equal(visitor.maps()["maps/slope-cam"], _right_map(4, 1))


def test_a_file_over_the_limit_is_refused_before_it_is_kept(running: Running, visitor: Visitor) -> None:
    def kept() -> int:
        return sum(file.stat().st_size for file in running.folder.rglob("*") if file.is_file())

    before = kept()
    answer = visitor.upload(bytes(4_000_000), "large.png")
    assert answer.status_code == 413
    assert "the limit is 2.5 megabytes" in answer.text

    # A sender who does not say how much is coming is cut off.
    def endless() -> Iterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        for _ in range(100):
            yield bytes(100_000)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    try:
        status = visitor.http.post(f"{visitor.url}/{API}/upload", content=endless(), headers=headers).status_code
    except httpx.TransportError:
        status = 499
    assert status >= 400
    assert kept() - before < 3_000_000


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/../etc/passwd",
        "{folder}/../../etc/passwd",
        "http://127.0.0.1:1/a.png",
        "file:///etc/passwd",
    ],
)
def test_a_path_or_address_that_was_not_uploaded_is_refused(visitor: Visitor, running: Running, path: str) -> None:
    visitor.open(encoded(picture(1)), "one.png")
    file = {"path": path.format(folder=running.folder), "orig_name": "a.png", "meta": {"_type": "gradio.FileData"}}
    shown = visitor.run("open_upload", file, *visitor.filled(EXPLAIN))
    # Gradio refuses a foreign path without a word, the page an address with some; neither tells where files are.
    told = "That is an address, not an uploaded file: drop an image on the page."
    assert shown == [told if path.startswith("http") else None]
    # Without the mark of a file it is no file at all.
    shown = visitor.run("open_upload", {"path": "/etc/passwd"}, *visitor.filled(EXPLAIN))
    assert shown[0] is None or "That is no uploaded file" in shown[0]
    assert str(Path.cwd()) not in str(shown)


@pytest.mark.parametrize(
    "route",
    [
        "gradio_api/file=/etc/passwd",
        "gradio_api/file=../../../../etc/passwd",
        "gradio_api/file=%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "gradio_api/proxy=http://127.0.0.1:1/",
        "gradio_api/deep_link?session_hash=a",
        "gradio_api/process_recording",
        "gradio_api/vibe-code",
        "gradio_api/call/explain",
        "monitoring",
        "docs",
        "openapi.json",
        "assets/../../../../../etc/passwd",
        "static/..%2f..%2f..%2fetc/passwd",
    ],
)
def test_routes_the_page_does_not_need_and_files_it_does_not_own_are_closed(visitor: Visitor, route: str) -> None:
    answer = visitor.http.get(f"{visitor.url}/{route}")
    assert answer.status_code in (403, 404)
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    ("target", "choices", "told"),
    [
        (99, EXPLAIN, "There is no class 99"),
        (None, EXPLAIN, "No class is chosen"),
        (1, ("grad-kam", None, 4, "usual"), "did you mean"),
        (1, (["grad-cam", 5], None, 4, "usual"), "There is no method 5"),
        (1, ("grad-cam", "fc", 4, "usual"), "This page has no layer"),
        (1, ("grad-cam", "4.__class__", 4, "usual"), "This page has no layer"),
        (1, ("grad-cam", None, 10**12, "usual"), "from 1 to 64"),
        (1, ("grad-cam", None, "many", "usual"), "from 1 to 64"),
        (1, ("grad-cam", None, 4, "/etc"), "There is no reference"),
    ],
)
def test_values_no_control_offers_are_told_in_a_sentence(
    visitor: Visitor, target: Any, choices: tuple[Any, ...], told: str
) -> None:
    visitor.open(encoded(picture(5)), "five.png")
    shown = visitor.explain(target, choices)
    assert told in shown[0]
    assert "Traceback" not in shown[0]


def _begin_class(visitor: Visitor, typed: Any) -> list[Any]:
    """What the page is shown when a class is chosen or typed: status, ticket, Stop, class, top class, turn."""
    status, ticket, stop, shown, _, top, changed = visitor.at_once("begin_explain_class", [None, None, typed, None])
    return [status, ticket, stop, shown, top, changed]


def _explain_class(visitor: Visitor, ticket: Any) -> list[Any]:
    return Visitor.outputs(visitor.queued("explain_class", [ticket, None, None, None, *visitor.filled(EXPLAIN)]))


def _is_text_shown(shown: list[Any]) -> bool:
    return any(isinstance(one, str) for one in shown)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("dgo", "No class is called &#39;dgo&#39;; did you mean &#39;dog&#39;?"),
        ("<b>", "No class is called &#39;&lt;b&gt;&#39;"),
        ("x" * 10_000, "No class is called"),
        (7, "There is no class 7"),
        ({"a": 1}, "No class is chosen"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_class_there_is_not_leaves_the_former_one(visitor: Visitor, typed: Any, told: str) -> None:
    visitor.open(encoded(picture(2)), "two.png")
    _, ticket, *_ = _begin_class(visitor, 1)
    _explain_class(visitor, ticket)
    status, _, _, shown, top, changed = _begin_class(visitor, typed)
    assert told in status
    assert "The class is still “dog”." in status
    assert len(status) < 500
    kept = {"__type__": "update"}
    assert (shown, top, changed) == (1, kept, kept)
    # The page asks for the map all the same, with the ticket it has: nothing is done.
    assert not _is_text_shown(_explain_class(visitor, ticket))
    np.testing.assert_array_equal(visitor.maps()["maps/slope-cam"], _right_map(2, 1))


@pytest.mark.parametrize("typed", [2, "2", "bird", " BIRD"])
def test_a_class_can_be_typed_by_name_or_number(visitor: Visitor, typed: Any) -> None:
    visitor.open(encoded(picture(2)), "two.png")
    assert _begin_class(visitor, 0)[3] == 0
    _, ticket, _, shown, top, changed = _begin_class(visitor, typed)
    assert (shown, top, changed) == (2, 2, ticket)
    _explain_class(visitor, ticket)
    np.testing.assert_array_equal(visitor.maps()["maps/slope-cam"], _right_map(2, 2))
    # Gradio tells of a choice twice, and once more when the list is left.
    for again in (typed, shown, "", None):
        assert _begin_class(visitor, again)[3] == 2
        assert not _is_text_shown(_explain_class(visitor, ticket))


def test_without_an_image_there_is_a_sentence(visitor: Visitor) -> None:
    assert "There is no image yet" in visitor.explain(1)[0]
    for name in ("explained_png", "scores_csv"):
        assert "There is no image yet" in Visitor.outputs(visitor.queued(name, [None, None]))[0]


def test_requests_with_too_few_values_or_too_large_ones_do_no_harm(visitor: Visitor) -> None:
    assert not visitor.queued("explain", [])["success"]
    assert not visitor.queued("explain", [0, None, None, "x" * 300_000])["success"]
    visitor.open(encoded(picture(6)), "six.png")
    np.testing.assert_array_equal(visitor.maps()["maps/slope-cam"], _right_map(6, None))


def test_work_of_an_earlier_turn_is_not_done(visitor: Visitor) -> None:
    visitor.open(encoded(picture(7)), "seven.png")
    _, ticket, _ = visitor.at_once("begin_explain", [None])
    visitor.at_once("stop", [None])
    shown = Visitor.outputs(visitor.queued("explain", [ticket, None, None, 1, *visitor.filled(EXPLAIN)]))
    assert "Stopped" in shown[0]


def test_stop_ends_running_work_soon() -> None:
    """Stopped in the middle of a pass, the work takes no further ones: counted, since fast machines leave no time."""
    classifier = tiny_classifier()
    passes = threading.Semaphore(0)
    is_inside, may_leave = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        passes.release()
        is_inside.set()
        assert may_leave.wait(60)

    methods = [name for name in METHODS if name != "cam"]
    with serve(classifier) as page, ThreadPoolExecutor(1) as pool:
        visitor, other = Visitor(page.url), Visitor(page.url)
        other.session = visitor.session
        visitor.open(encoded(picture(8)), "eight.png")
        holding = classifier.model.register_forward_pre_hook(hold)
        shown = pool.submit(visitor.run, "compare", None, 1, methods, "0", 64, "usual")
        assert is_inside.wait(60)
        other.at_once("stop", [None])
        may_leave.set()
        assert "Stopped" in shown.result(60)[0]
        holding.remove()
        # The network is free again, and what is asked next is answered.
        assert "SlopeCAM (egcam) for" in visitor.explain(1)[0]
        visitor.close()
        other.close()
    taken = sum(passes.acquire(blocking=False) for _ in range(1000))
    # A look at the network, which the hook has changed, and the first method's first step; in all it would be hundreds.
    assert 1 <= taken <= 8


def test_another_host_name_is_refused(visitor: Visitor) -> None:
    answer = visitor.http.get(visitor.url, headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "this machine only" in answer.text


def test_the_page_loads_nothing_from_elsewhere(visitor: Visitor) -> None:
    answer = visitor.http.get(visitor.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_all_files_lie_in_the_own_folder(running: Running, visitor: Visitor) -> None:
    path = visitor.upload(encoded(picture(9)), "../../nine.png").json()[0]
    assert Path(path).resolve().is_relative_to(running.folder.resolve())


def test_an_idle_page_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Gradio waits for in a loop, it does not look more often than a few dozen times a second."""
    pauses: dict[str, float] = {}
    sleep = asyncio.sleep

    async def noted(seconds: float, *more: Any) -> Any:
        place = sys._getframe(1).f_code
        pauses[f"{place.co_filename}: {place.co_name}"] = seconds
        return await sleep(seconds, *more)

    monkeypatch.setattr(asyncio, "sleep", noted)
    with serve(tiny_classifier()):
        until(lambda: len([place for place in pauses if "queueing" in place]) >= 2, "Gradio's two loops")
    assert min(pauses.values()) >= 0.02, pauses


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(InputError, match="choose another with --port"),
            serve(tiny_classifier(), port=taken.getsockname()[1]),
        ):
            pytest.fail("it was served all the same")


def test_without_gradio_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gradio" else find(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'egcam\[app\]'"), serve(tiny_classifier()):
        pytest.fail("it was served all the same")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_what_ends_a_process_ends_it_and_nothing_is_left(tmp_path: Path, ending: signal.Signals) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with command(tmp_path, home) as page:
        one = Visitor(page.url)
        one.open(encoded(picture(1)), "one.png")
        one.close()
        assert [file.name for file in page.space.rglob("*.png")] == ["one.png"]
        page.process.send_signal(ending)
        _, rest = page.process.communicate(timeout=60)
        assert page.process.returncode == 0
    space = page.space
    assert "Traceback" not in rest
    assert "its temporary files are gone" in rest
    # torch may leave an empty cache of its own; the page's folder is gone.
    assert not [file for file in space.iterdir() if not file.name.startswith("torchinductor")]
    # matplotlib keeps a list of fonts in its owner's home; nothing else was written.
    left = [file.relative_to(home).parts[:2] for file in home.rglob("*") if file.is_file()]
    assert {part for parts in left for part in parts} <= {".cache", ".config", "matplotlib"}
    names = {file.name for file in tmp_path.iterdir()} - {"__pycache__"}
    assert names == {"own.py", "space", "home"}


def test_a_half_sent_request_is_closed(running: Running) -> None:
    host, port = running.url.split("//")[1].rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
        half.settimeout(40)
        with suppress(ConnectionResetError):
            assert half.recv(100) == b""
