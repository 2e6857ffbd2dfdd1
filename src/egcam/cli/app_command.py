"""`egcam app`: the page in the browser, until Ctrl-C."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path

from egcam.cli.console import note, say
from egcam.cli.inputs import read_classes
from egcam.cli.lists import method_summary
from egcam.errors import InputError, require

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
) -> None:
    """Serve the page until Ctrl-C; nothing of it is left then."""
    require("gradio", "app", "the page")
    if not 0 < max_upload <= _LARGEST_UPLOAD:
        raise InputError(f"--max-upload is in megabytes, up to {_LARGEST_UPLOAD:g}; not {max_upload:g}")
    from egcam.app.guard import is_local
    from egcam.app.limits import Limits
    from egcam.app.server import ended_by_signals, serve, wait
    from egcam.models.zoo import load
    from egcam.registry import methods

    classifier = load(model, weights, device, read_classes(classes))
    if not is_local(host):
        note(f"anyone who can reach {host} can use this page: there is no password, and nothing is encrypted")
    summaries = {name: method_summary(name) for name in methods()}
    limits = Limits(megabytes=max_upload)
    page = serve(classifier, layer=layer, host=host, port=port, limits=limits, summaries=summaries)
    with ended_by_signals(), page as running:
        say(f"egcam: {classifier.name} is at {running.url}   (Ctrl-C ends it)")
        if open_page:
            webbrowser.open(running.url)
        wait()
    # The terminal may be gone.
    with suppress(OSError):
        say("egcam: the page is closed, and its temporary files are gone")
