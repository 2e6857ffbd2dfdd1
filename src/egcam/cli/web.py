"""`egcam app`: the page in the browser, until Ctrl-C."""

from __future__ import annotations

import os
import webbrowser
from contextlib import suppress
from pathlib import Path

import typer

from egcam.cli.console import note, say
from egcam.cli.inputs import read_classes
from egcam.errors import InputError, require

PASSWORD_VARIABLE = "EGCAM_PASSWORD"
_LARGEST_UPLOAD = 1000.0


def run_app(
    *,
    model: str,
    weights: str | None,
    classes: Path | None,
    device: str | None,
    layer: str | None,
    host: str,
    port: int,
    max_upload: float,
    open_page: bool,
    password: str | None,
    ask_password: bool,
) -> None:
    """Serve the page until Ctrl-C; nothing of it is left then."""
    require("gradio", "app", "the page")
    if not 0 < max_upload <= _LARGEST_UPLOAD:
        raise InputError(f"--max-upload is in megabytes, up to {_LARGEST_UPLOAD:g}; not {max_upload:g}")
    from egcam.models.zoo import load
    from egcam.web.limits import Limits
    from egcam.web.middleware import is_local
    from egcam.web.server import ended_by_signals, serve, wait

    password = _wanted_password(password, ask_password)
    classifier = load(model, weights, device, read_classes(classes))
    if not is_local(host):
        note(_warning(host, password))
    limits = Limits(megabytes=max_upload)
    page = serve(classifier, layer=layer, host=host, port=port, limits=limits, password=password)
    with ended_by_signals(), page as running:
        say(f"egcam: {classifier.name} is at {running.url}   (Ctrl-C ends it)")
        if open_page:
            webbrowser.open(running.url)
        wait()
    # The terminal may be gone.
    with suppress(OSError):
        say("egcam: the page is closed, and its temporary files are gone")


def _wanted_password(given: str | None, ask: bool) -> str | None:
    """The password that was typed, asked for, or set in the environment; None where none is wanted."""
    if ask and given is not None:
        raise InputError("--password and --ask-password: choose one")
    if ask:
        given = typer.prompt("Password for the page", hide_input=True, confirmation_prompt=True, err=True)
    if given is None:
        given = os.environ.get(PASSWORD_VARIABLE)
    if given == "":
        raise InputError(f"the password is empty: choose one that is hard to guess, or leave {PASSWORD_VARIABLE} unset")
    return given


def _warning(host: str, password: str | None) -> str:
    if password is None:
        return f"anyone who can reach {host} can use this page: set a password with --password; nothing is encrypted"
    return f"nothing is encrypted on the way to {host}, the password neither: put a proxy with TLS before it"
