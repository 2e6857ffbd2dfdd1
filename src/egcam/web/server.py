"""Serve the page: on this machine only by default, from a temporary folder that goes when it ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egcam.errors import InputError, require
from egcam.models.zoo import Classifier
from egcam.web.folder import temporary_folder
from egcam.web.jobs import end_all
from egcam.web.limits import Limits
from egcam.web.login import Login

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Running:
    """A page that is being served."""

    url: str
    folder: Path


@contextmanager
def serve(
    classifier: Classifier,
    *,
    layer: str | None = None,
    host: str = LOCAL,
    port: int | None = None,
    limits: Limits | None = None,
    password: str | None = None,
) -> Iterator[Running]:
    """Serve the page for the length of a `with` block.

    Args:
        classifier: the network to explain.
        layer: where to explain unless the visitor chooses otherwise; each method's own layer if not given.
        host: the address to listen at; only this machine can reach the default.
        port: None or 0 takes a free one.
        limits: what the page accepts.
        password: without it there is no page, no file and no answer; None lets everybody in.
    """
    require("gradio", "app", "the page")
    limits = limits or Limits()
    login = None if password is None else Login(password)
    with temporary_folder() as folder, _environment(folder):
        blocks = _launch(classifier, layer, host, port, limits, folder, login)
        try:
            yield Running(str(blocks.local_url), folder)
        finally:
            end_all()
            blocks.close(verbose=False)


def wait() -> None:
    """Wait until Ctrl-C."""
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


def _launch(
    classifier: Classifier,
    layer: str | None,
    host: str,
    port: int | None,
    limits: Limits,
    folder: Path,
    login: Login | None,
) -> Any:
    from starlette.middleware import Middleware

    from egcam.web.actions import Actions
    from egcam.web.connections import bounded
    from egcam.web.middleware import Guard
    from egcam.web.page import build
    from egcam.web.shared_model import share

    chosen = _free_port(host, port)
    page = build(Actions(share(classifier, layer), limits, folder))
    guard = Middleware(Guard, limits=limits, folder=folder, host=host, login=login)
    page.blocks.launch(
        server_name=host,
        server_port=chosen,
        app_kwargs={"middleware": [guard], "docs_url": None, "redoc_url": None, "openapi_url": None},
        prevent_thread_lock=True,
        quiet=True,
        inbrowser=False,
        inline=False,
        share=False,
        # Actions tell their errors themselves; what Gradio raises around them would tell where files are.
        show_error=False,
        max_file_size=limits.bytes,
        allowed_paths=[],
        state_session_capacity=limits.sessions,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        theme=page.theme,
        css=page.css,
        js=page.script,
    )
    bounded(page.blocks.server)
    if login is not None:
        login.is_started = True
    return page.blocks


def _free_port(host: str, port: int | None) -> int:
    """The port, if nothing listens there yet; or any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port or 0))
            return int(probe.getsockname()[1])
    except OverflowError:
        raise InputError(f"a port is a number from 0 to 65535, not {port}") from None
    except OSError as error:
        raise InputError(
            f"the page cannot be served at {host}, port {port or 'any'} ({error.strerror or error}): choose another "
            "with --port, or an address of this machine with --host"
        ) from None


# Read by Gradio when it is imported or launched; a proxy must not be asked for this machine's own page.
_SETTINGS: Mapping[str, Callable[[Path], str]] = {
    "GRADIO_TEMP_DIR": str,
    "GRADIO_ANALYTICS_ENABLED": lambda folder: "False",
    "GRADIO_ALLOWED_PATHS": lambda folder: "",
    "HF_HUB_OFFLINE": lambda folder: os.environ.get("HF_HUB_OFFLINE", "1"),
    "NO_PROXY": lambda folder: ",".join(filter(None, (os.environ.get("NO_PROXY"), "localhost", LOCAL))),
    "no_proxy": lambda folder: ",".join(filter(None, (os.environ.get("no_proxy"), "localhost", LOCAL))),
}


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Gradio's settings for the length of a `with` block."""
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update({name: value(folder) for name, value in _SETTINGS.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
