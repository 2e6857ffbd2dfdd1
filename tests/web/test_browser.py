"""The page in a real browser, with the embedded network: what a person does with a mouse, with keys, on a phone."""

from __future__ import annotations

import io
import itertools
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from egcam.attribution.explanation import Explanation
from egcam.attribution.registry import create
from egcam.errors import MissingExtraError
from egcam.models.zoo import Classifier, load
from egcam.photos.demo import PHOTOGRAPHS
from egcam.web.server import Running, serve
from support.browser import (
    PATIENCE,
    chromium,
    click,
    foreign_requests,
    open_tab,
    opened,
    programs,
    settled,
    text,
    until,
)
from support.tiny_page import bomb

pytest.importorskip("gradio", reason="the extra app is not installed")
pytest.importorskip("skimage", reason="the extra demo is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    programs()
    try:
        return load()
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def running(classifier: Classifier) -> Iterator[Running]:
    with serve(classifier) as page:
        yield page


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(running: Running, downloads: Path) -> Iterator[Any]:
    with chromium(downloads) as window:
        yield window


@pytest.fixture
def window(browser: Any, running: Running) -> Iterator[Any]:
    """The page, freshly loaded, on a desktop's width."""
    opened(browser, running.url)
    yield browser
    assert foreign_requests(browser, running.url) == []


def _explained(window: Any) -> str:
    """The heading of the first explanation, once all that comes with it has come, the buttons last."""

    def heading() -> str:
        is_over = "took" in text(window, "#status") and _can_be_pressed(window, "#stop", "#explain-png") == [
            False,
            True,
        ]
        return text(window, "#explain-pane h3") if is_over else ""

    return until(heading, "the explanation")


def _can_be_pressed(window: Any, *selectors: str) -> list[bool]:
    return [window.find_element("css selector", one).is_enabled() for one in selectors]


def _class_shown(window: Any, name: str) -> str:
    """The class in the list of all, if it is this one."""
    shown: str = window.find_element("css selector", "#target input").get_attribute("value")
    return shown if shown.startswith(name) else ""


def _pixels(window: Any, selector: str) -> np.ndarray:
    """A picture as the browser shows it."""
    address = window.find_element("css selector", selector).get_attribute("src")
    content = io.BytesIO(b64decode(address.split(",", 1)[1]))
    with Image.open(content) as image:
        return np.asarray(image.convert("RGB"), dtype=float)


def _photo(folder: Path, name: str = "coffee") -> Path:
    file = folder / f"{name}.jpg"
    next(one for one in PHOTOGRAPHS if one.name == name).read().save(file, quality=95)
    return file


def _send(window: Any, file: Path) -> None:
    until(lambda: window.find_elements("css selector", "#drop input[type=file]"), "the drop zone")[0].send_keys(
        str(file)
    )


def _right(classifier: Classifier, file: Path, target: int | None, method: str) -> Explanation:
    with Image.open(file) as image:
        images = classifier.preprocess(image.convert("RGB"))[None]
    return create(method, classifier.model)(images, target)


def _tick(window: Any, group: str, *wanted: str) -> None:
    """Tick these methods and no others."""
    boxes = until(lambda: window.find_elements("css selector", f"{group} label"), f"the boxes of {group}")
    assert set(wanted) <= {box.text for box in boxes}
    for box in boxes:
        is_ticked, is_wanted = box.find_element("css selector", "input").is_selected, box.text in wanted
        if is_ticked() != is_wanted:
            box.click()
            until(lambda ticked=is_ticked, wanted=is_wanted: ticked() == wanted, f"the box of {box.text}")


def _few_samples(window: Any) -> None:
    """Type a number of samples; over when the page has found that there is no picture yet, and nothing to stop."""
    click(window, "#settings button")
    box = until(lambda: window.find_element("css selector", "#samples input[type=number]"), "the samples")
    until(lambda: box.is_displayed(), "the settings")
    # The line says the same before and after: the mark goes with the old one.
    window.execute_script("document.querySelector('#status p').classList.add('before')")
    box.clear()
    box.send_keys("4\t")
    until(
        lambda: (
            not window.find_elements("css selector", "#status .before")
            and "to begin" in text(window, "#status")
            and _can_be_pressed(window, "#stop", "#explain-png") == [False, False]
        ),
        "nothing to stop or save",
    )


def _downloaded(folder: Path, kind: str) -> list[Path]:
    """Files that are there as a whole: Chromium makes an empty one first, and fills another in the meantime."""
    if list(folder.glob("*.crdownload")):
        return []
    return [file for file in folder.glob(f"*.{kind}") if file.stat().st_size > 0]


def test_upload_explain_change_class_compare_saturation_download(
    window: Any, classifier: Classifier, tmp_path: Path, downloads: Path
) -> None:
    _few_samples(window)
    file = _photo(tmp_path)
    _send(window, file)
    assert _explained(window).startswith("Why “espresso”")
    labels = until(lambda: window.find_elements("css selector", "#top label"), "the top classes")
    assert len(labels) == 5
    assert "espresso" in labels[0].text
    before = _pixels(window, "#explain-pane .eg-ours img")

    labels[1].click()
    second = labels[1].text.split("  ")[0].rsplit(" ", 1)[0]
    until(lambda: second in text(window, "#explain-pane h3"), f"{second} explained")
    after = _pixels(window, "#explain-pane .eg-ours img")
    assert np.abs(before - after).mean() > 1
    shown = until(lambda: _class_shown(window, second), "the class in the list of all")

    open_tab(window, "Compare")
    _tick(window, "#methods", "Grad-CAM", "LayerCAM")
    click(window, "#compare")
    # The downloads can be pressed when all that the comparison brings has come.
    until(lambda: "2 methods in" in text(window, "#status"), "the comparison")
    until(lambda: _can_be_pressed(window, "#stop", "#compare-png") == [False, True], "the buttons")
    pictures = window.find_elements("css selector", "#compare-pane img")
    methods = [one.get_attribute("data-method") for one in pictures]
    assert methods == ["", "grad-cam", "layer-cam"]
    assert all(one.get_attribute("alt") for one in pictures)

    click(window, "#compare-maps")
    saved = until(lambda: _downloaded(downloads, "npz"), "the download")[0]
    target = int(shown.rsplit("(", 1)[1].rstrip(")"))
    with np.load(saved, allow_pickle=False) as arrays:
        for method in methods[1:]:
            right = _right(classifier, file, target, method).maps[0].numpy()
            np.testing.assert_allclose(arrays[f"maps/{method}"], right, rtol=1e-3, atol=1e-5 * np.abs(right).max())
    for kind in ("png", "svg"):
        click(window, f"#compare-{kind}")
        until(lambda kind=kind: _downloaded(downloads, kind), f"the {kind}")

    open_tab(window, "Saturation")
    click(window, "#saturate")
    until(lambda: "Can the plain gradient be trusted here?" in text(window, "#saturation-pane"), "the verdict")
    settled(window)
    assert window.find_element("css selector", "#saturation-pane img").size["width"] > 300


@contextmanager
def _held(classifier: Classifier, first: int) -> Iterator[threading.Event]:
    """The network waits at this pass, whatever the machine's speed, until the event is set."""
    passes, may_go = itertools.count(1), threading.Event()

    def hold(*_: Any) -> None:
        if next(passes) >= first:
            may_go.wait(PATIENCE)

    holding = classifier.model.register_forward_pre_hook(hold)
    try:
        yield may_go
    finally:
        may_go.set()
        holding.remove()


def test_metrics_and_stop(window: Any, classifier: Classifier) -> None:
    click(window, "#sample-chelsea")
    _explained(window)
    open_tab(window, "Metrics")
    _tick(window, "#measured", "Grad-CAM", "LayerCAM")
    click(window, "#measure")
    until(lambda: text(window, "#status") == "Measured.", "the scores")
    until(lambda: _can_be_pressed(window, "#stop", "#metrics-csv") == [False, True], "the buttons")
    cells = [float(cell.text) for cell in window.find_elements("css selector", ".eg-scores td")]
    assert len(cells) == 10
    assert all(0 <= value <= 12 for value in cells)

    open_tab(window, "Compare")
    _tick(window, "#methods", "Grad-CAM", "Score-CAM")
    # The hook makes egcam look at the network again, and Grad-CAM takes a pass: fewer than forty, Score-CAM many more.
    with _held(classifier, 40) as may_go:
        click(window, "#compare")
        until(lambda: "Score-CAM" in text(window, "#status"), "Score-CAM")
        click(window, "#stop")
        until(lambda: "Stopped" in text(window, "#status"), "the stop")
        may_go.set()
    # The network is free again, and explains another picture.
    click(window, "#sample-coffee")
    until(lambda: "took" in text(window, "#status"), "the next explanation")
    open_tab(window, "Explain")
    until(lambda: "espresso" in text(window, "#explain-pane h3"), "the next explanation's heading")


def test_what_is_no_image_is_told_on_the_page(window: Any, tmp_path: Path) -> None:
    (tmp_path / "list.png").write_text("a shopping list")
    _send(window, tmp_path / "list.png")
    until(lambda: "“list.png” is text, not an image" in text(window, "#status .eg-error"), "the sentence")
    (tmp_path / "bomb.png").write_bytes(bomb())
    _send(window, tmp_path / "bomb.png")
    until(lambda: "“bomb.png” is too large" in text(window, "#status .eg-error"), "the sentence")
    _send(window, _photo(tmp_path, "coffee"))
    assert _explained(window).startswith("Why “espresso”")


def _choose(window: Any, control: str, words: str) -> None:
    """Take the option with these words from a drop-down."""
    click(window, f"{control} input")

    def take() -> bool:
        options = window.find_elements("css selector", f"{control} [role=option]")
        chosen = next((one for one in options if words in one.text), None)
        if chosen is not None:
            chosen.click()
        return chosen is not None

    until(take, f"{words} among the options of {control}")


def test_settings_that_change_make_a_new_map_and_mark_old_results(window: Any) -> None:
    _few_samples(window)
    click(window, "#sample-coffee")
    _explained(window)
    assert "layer _blocks.10" in text(window, "#explain-pane")
    open_tab(window, "Compare")
    assert _can_be_pressed(window, "#compare-png") == [False]
    _tick(window, "#methods", "Grad-CAM")
    click(window, "#compare")
    until(lambda: "1 method in" in text(window, "#status"), "the comparison")
    until(lambda: _can_be_pressed(window, "#stop", "#compare-png") == [False, True], "the buttons")
    assert not window.find_elements("css selector", "#compare-pane.eg-old")
    _choose(window, "#layer", "_blocks.5")
    until(lambda: window.find_elements("css selector", "#compare-pane.eg-old"), "the mark")
    open_tab(window, "Explain")
    until(lambda: "layer _blocks.5" in text(window, "#explain-pane"), "the new map")
    open_tab(window, "Compare")
    click(window, "#compare")
    until(lambda: not window.find_elements("css selector", "#compare-pane.eg-old"), "the new comparison")


@pytest.mark.parametrize("leaving", ["\ue007", "\t"], ids=["Enter", "Tab"])
def test_what_is_typed_and_no_class_is_told_and_the_former_class_comes_back(window: Any, leaving: str) -> None:
    click(window, "#sample-coffee")
    before = _explained(window)
    shown = until(lambda: _class_shown(window, "espresso"), "the class in the list of all")
    click(window, "#target input")
    _retype(window, "xyzzyq", leaving)
    until(lambda: "No class is called 'xyzzyq'" in text(window, "#status .eg-error"), "the sentence")
    assert "The class is still “espresso”." in text(window, "#status")
    until(lambda: _class_shown(window, shown), "the former class")
    assert text(window, "#explain-pane h3") == before
    assert window.find_element("css selector", "#top label input").is_selected()
    # A name typed in full is as good as a choice, and so is the first that the list has for a part of it.
    for typed in ("Tabby", "tiger shark"):
        click(window, "#target input")
        _retype(window, typed, leaving)
        until(lambda typed=typed: typed.lower() in text(window, "#explain-pane h3"), f"{typed} explained")
        until(lambda typed=typed: _class_shown(window, typed.lower()), f"{typed} in the list")


def _retype(window: Any, typed: str, leaving: str) -> None:
    from selenium.webdriver.common.keys import Keys

    box = window.switch_to.active_element
    for keys in (Keys.CONTROL + "a", typed, leaving):
        box.send_keys(keys)


def _asked(window: Any) -> int:
    """How often the page has asked its server to do something."""
    asked = "performance.getEntriesByType('resource').filter(({name}) => /queue.join|api.run/.test(name)).length"
    return int(window.execute_script(f"return {asked}"))


def test_the_focus_stays_on_a_drop_down_after_a_choice(window: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    def has_focus(control: str) -> bool:
        return bool(window.execute_script(f"return document.activeElement.matches('{control} input')"))

    def is_open(control: str) -> bool:
        return window.find_element("css selector", f"{control} input").get_attribute("aria-expanded") == "true"

    click(window, "#sample-coffee")
    _explained(window)
    _choose(window, "#method", "LayerCAM")
    until(lambda: "LayerCAM" in text(window, "#explain-pane .eg-maps"), "the chosen method's map")
    assert has_focus("#method")
    assert not is_open("#method")
    # The list opens again with a press, a letter or an arrow, and the next choice is explained, too.
    click(window, "#method input")
    until(lambda: is_open("#method"), "the list")
    window.switch_to.active_element.send_keys(Keys.ESCAPE)
    until(lambda: not is_open("#method"), "the list to close")
    window.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    until(lambda: is_open("#method"), "the list by an arrow")
    _retype(window, "HiRes", Keys.ENTER)
    until(lambda: "HiResCAM" in text(window, "#explain-pane .eg-maps"), "the typed method's map")
    assert has_focus("#method")
    # The next control is the next one on the page, and nothing is asked by walking past one.
    until(lambda: _can_be_pressed(window, "#stop") == [False], "the end of it")
    asked = _asked(window)
    window.switch_to.active_element.send_keys(Keys.TAB)
    until(lambda: window.execute_script("return document.activeElement.id") == "explain", "the next control")
    settled(window)
    assert _asked(window) == asked


PASTE = """
const [file] = arguments;
const canvas = document.createElement('canvas');
canvas.width = canvas.height = 64;
canvas.toBlob((blob) => {
  const data = new DataTransfer();
  data.items.add(new File([blob], file, {type: 'image/png'}));
  document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true}));
});
"""


def test_an_image_can_be_pasted(window: Any) -> None:
    window.execute_script(PASTE, "pasted.png")
    _explained(window)
    assert "pasted.png" in text(window, "#explain-pane figcaption")


def test_two_tabs_do_not_mix(window: Any, running: Running, tmp_path: Path) -> None:
    first = window.current_window_handle
    window.switch_to.new_window("tab")
    second = window.current_window_handle
    opened(window, running.url)
    click(window, "#sample-rocket")
    window.switch_to.window(first)
    click(window, "#sample-chelsea")
    assert "cat" in _explained(window)
    window.switch_to.window(second)
    assert "cat" not in _explained(window)
    assert "rocket" in text(window, "#explain-pane figcaption")
    window.close()
    window.switch_to.window(first)
    assert "cat" in text(window, "#explain-pane h3")


def test_with_the_keyboard_alone(window: Any) -> None:
    """Tab reaches the drop zone, samples, classes and tabs; Enter and Space work them."""
    from selenium.webdriver.common.keys import Keys

    def press_until(check: str, most: int = 40) -> Any:
        for _ in range(most):
            window.switch_to.active_element.send_keys(Keys.TAB)
            active = window.switch_to.active_element
            if window.execute_script(f"return arguments[0].matches({check!r})", active):
                return active
        raise AssertionError(f"the keyboard never reached {check}")

    reached = press_until("#drop button")
    assert window.execute_script("return getComputedStyle(arguments[0]).outlineStyle", reached) == "solid"
    press_until("#sample-chelsea").send_keys(Keys.ENTER)
    before = _explained(window)
    press_until("#top label:nth-child(2) input").send_keys(Keys.SPACE)
    until(lambda: text(window, "#explain-pane h3") not in ("", before), "the next class")
    press_until("button[role=tab]").send_keys(Keys.ENTER)
    press_until("#explain")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_nothing_runs_over_the_side(running: Running, tmp_path: Path, dark: bool) -> None:
    with chromium(tmp_path, 390, 844, dark) as window:
        opened(window, running.url)
        click(window, "#sample-chelsea")
        _explained(window)
        place = "const {top, bottom} = document.querySelector('#explain-pane .eg-ours img').getBoundingClientRect();"
        until(lambda: window.execute_script(f"{place} return top >= 0 && bottom <= innerHeight"), "the map in view")
        for tab in ("Compare", "Metrics", "Saturation", "Explain"):
            open_tab(window, tab)
            settled(window)
            wide = window.execute_script(
                "return [...document.querySelectorAll('.gradio-container *')].filter((one) => one.checkVisibility() && "
                "!one.closest('.eg-wide, .visually-hidden, svg') && one.getBoundingClientRect().right > innerWidth + 1)"
                ".map((one) => one.outerHTML.slice(0, 120))"
            )
            assert wide == []
            assert window.execute_script("return document.documentElement.scrollWidth") <= 390
        assert window.execute_script("return document.body.classList.contains('dark')") == dark


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_file_name_breaks_only_at_its_own_signs(running: Running, tmp_path: Path, width: int) -> None:
    name = "IMG_20240317_WhatsAppImageFromTheHolidayInPortugal-and-more-of-it.final_version.jpg"
    file = _photo(tmp_path).rename(tmp_path / name)
    with chromium(tmp_path, width, 900) as window:
        opened(window, running.url)
        _send(window, file)
        _explained(window)
        settled(window)
        caption = window.find_element("css selector", "#explain-pane figcaption strong")
        assert caption.get_attribute("title") == name
        pieces = caption.find_elements("css selector", "span")
        assert "".join(piece.text for piece in pieces) == f"{name[:30]}…{name[-30:]}"
        assert [piece.text for piece in pieces][:2] == ["IMG_", "20240317_"]
        for piece in pieces:
            lines, outside = window.execute_script(
                "const box = arguments[0].closest('figure').getBoundingClientRect();"
                "const own = [...arguments[0].getClientRects()];"
                "return [own.length, own.some(({right}) => right > box.right)]",
                piece,
            )
            assert (lines, outside) == (1, False)


def test_every_control_has_a_name(window: Any) -> None:
    click(window, "#sample-coffee")
    _explained(window)
    settled(window)
    nameless = window.execute_script(
        "return [...document.querySelectorAll('button, input, select, textarea, img')].filter((one) => "
        "one.checkVisibility({visibilityProperty: true}) && one.type !== 'file' && !(one.getAttribute('aria-label') || "
        "one.alt || one.innerText?.trim() || one.labels?.length || one.title || one.closest('label')))"
        ".map((one) => one.outerHTML.slice(0, 160))"
    )
    assert nameless == []
