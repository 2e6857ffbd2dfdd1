"""Chromium for the page's tests, found where systems put it; without it the tests skip and say so."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

T = TypeVar("T")

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Spent only by what fails, or on a machine that has much else to do.
PATIENCE = 240.0


def programs() -> tuple[str, str]:
    """The browser and its driver."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        missing = "chromium" if browser is None else "chromedriver"
        pytest.skip(f"{missing} is not installed (Debian: apt-get install chromium chromium-driver)")
    return browser, driver


@contextmanager
def chromium(folder: Path, width: int = 1280, height: int = 1000, dark: bool = False) -> Iterator[Any]:
    """A browser window; what it downloads goes into `folder`."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = programs()
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.add_argument(f"--window-size={width},{height}")
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    window = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    try:
        window.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        if dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield window
    finally:
        window.quit()


def until(check: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """What `check` gives as soon as it gives something."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            found = check()
        except Exception as error:
            # Gradio replaces elements while it works; the next look finds the new ones.
            if type(error).__module__.partition(".")[0] != "selenium":
                raise
            found = None  # type: ignore[assignment]
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {patience:.0f} s in vain for {what}")


def text(window: Any, selector: str) -> str:
    """The text of an element, empty while it is not there."""
    found = window.find_elements("css selector", selector)
    return found[0].text if found else ""


def opened(window: Any, url: str) -> None:
    """Load the page, and wait until its own script has run: before that it hears neither pastes nor presses."""
    window.get(url)
    is_heard = "return document.querySelector('#status')?.getAttribute('role') === 'status'"
    until(lambda: window.execute_script(is_heard) and "to begin" in text(window, "#status"), "the page")


def click(window: Any, selector: str) -> None:
    """Press a control, scrolled into view, once it can be pressed: a press on a disabled one would be lost."""

    def press() -> bool:
        element = window.find_element("css selector", selector)
        window.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        if not element.is_enabled():
            return False
        element.click()
        return True

    until(press, f"{selector} to be pressed")


def open_tab(window: Any, name: str) -> None:
    """Show one of the page's tabs, and wait until it is shown."""

    def tab() -> Any:
        tabs = window.find_elements("css selector", "button[role=tab]")
        return next((tab for tab in tabs if tab.text == name and tab.is_displayed()), None)

    is_shown = f"return !!document.querySelector('#{name.lower()}-pane')?.closest('[role=tabpanel]').checkVisibility()"

    def is_open() -> bool:
        return tab().get_attribute("aria-selected") == "true" and window.execute_script(is_shown)

    until(lambda: tab() and (tab().click() or True), f"the tab {name}")
    until(is_open, f"what is in the tab {name}")


def settled(window: Any) -> None:
    """Wait until what was asked of the page by now is drawn: pictures read, places worked out, two frames shown."""
    window.execute_async_script(
        "const done = arguments[0];"
        "const pictures = [...document.images].filter((one) => one.checkVisibility()).map((one) => one.decode());"
        "Promise.allSettled([document.fonts.ready, ...pictures])"
        ".then(() => requestAnimationFrame(() => requestAnimationFrame(() => done())));"
    )


def foreign_requests(window: Any, own: str) -> list[str]:
    """The addresses outside the page's own server that the browser asked for."""
    asked = []
    for entry in window.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    server = urlsplit(own).hostname, urlsplit(own).port
    parts = [(url, urlsplit(url)) for url in asked if url.startswith(("http:", "https:", "ws:", "wss:"))]
    return [url for url, part in parts if (part.hostname, part.port) != server]
