"""`egcam app`: the page in the browser, until Ctrl-C."""

from __future__ import annotations

import os
import socket
import webbrowser
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

import typer

from egcam.cli import options as opt
from egcam.cli.console import ended_by_signals, note, say
from egcam.errors import InputError, require

PASSWORD_VARIABLE = "EGCAM_PASSWORD"
_LARGEST_UPLOAD = 1000.0


def web(
    model: opt.Model = opt.DEFAULT_MODEL,
    weights: opt.Weights = None,
    classes: opt.Classes = None,
    texts: opt.Texts = None,
    layer: opt.Layer = None,
    device: opt.Device = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Where to listen: 127.0.0.1 for this machine only, 0.0.0.0 for others, too."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 picks a free one.")] = 7860,
    max_upload: Annotated[
        float, typer.Option("--max-upload", metavar="MB", help="The largest image file accepted.")
    ] = 20.0,
    open_page: opt.Open = False,
    password: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Visitors must enter it. Other users of this machine can read what you type here: prefer "
            "EGCAM_PASSWORD or --ask-password.",
        ),
    ] = None,
    ask_password: Annotated[bool, typer.Option("--ask-password", help="Prompt for the password.")] = False,
) -> None:
    """Explain images in the browser: drop one, choose class, layer and methods, compare, measure, download.

    Serves one page until Ctrl-C, to this machine only unless --host says otherwise. Uploads are kept in a temporary
    folder for about an hour, at most until the page stops. Needs the extra 'app' (Gradio).
    """
    require("gradio", "app", "the page")
    if not 0 < max_upload <= _LARGEST_UPLOAD:
        raise InputError(f"--max-upload is in megabytes, up to {_LARGEST_UPLOAD:g}; not {max_upload:g}")
    from egcam.models.class_names import read_classes
    from egcam.models.zoo import load_for_photographs
    from egcam.web.limits import Limits
    from egcam.web.middleware import is_local
    from egcam.web.server import serve, wait

    password = _wanted_password(password, ask_password)
    classifier = load_for_photographs(model, weights, device, read_classes(classes), texts or None)
    if not is_local(host):
        note(_warning(host, password))
    limits = Limits(megabytes=max_upload)
    page = serve(classifier, layer=layer, host=host, port=port, limits=limits, password=password)
    with ended_by_signals(), page as running:
        say(f"egcam: {classifier.name} is at {running.url}{_elsewhere(host, running.url)}   (Ctrl-C ends it)")
        if open_page:
            webbrowser.open(running.url)
        wait()
    # The terminal may be gone.
    with suppress(OSError):
        say("egcam: the page is closed, and its temporary files are gone")


def _wanted_password(given: str | None, ask: bool) -> str | None:
    """The password that was typed, asked for, or set in the environment; None if none is wanted."""
    if ask and given is not None:
        raise InputError("--password and --ask-password: choose one")
    if ask:
        given = typer.prompt("Password for the page", hide_input=True, confirmation_prompt=True, err=True)
    if given is None:
        given = os.environ.get(PASSWORD_VARIABLE)
    if given == "":
        raise InputError(f"the password is empty: choose one that is hard to guess, or leave {PASSWORD_VARIABLE} unset")
    return given


def _elsewhere(host: str, url: str) -> str:
    """Where other machines find a page that listens at all addresses: by number, which needs nobody to know its name.

    >>> _elsewhere("127.0.0.1", "http://127.0.0.1:7860/")
    ''
    """
    if host not in ("0.0.0.0", "::"):
        return ""
    address = _own_address(host)
    shown = f"[{address}]" if ":" in address else address
    return f", from other machines at http://{shown}:{urlsplit(url).port}/"


def _own_address(host: str) -> str:
    """The address by which this machine speaks to others; its name where it is in no network."""
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if host == "::" else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Sends nothing: it only asks by which address this machine would.
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _warning(host: str, password: str | None) -> str:
    if password is None:
        return f"anyone who can reach {host} can use this page: set a password with --password; nothing is encrypted"
    return f"nothing sent to {host} is encrypted, not even the password: put a proxy with TLS in front of it"
