"""`egcam demo`: make the gallery and say what to look at."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from egcam.cli import options as opt
from egcam.cli.console import out as console
from egcam.cli.console import print_json, progress_bar, short_warnings


def demo(
    out: opt.Out = Path("egcam-demo"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take fewer samples, and do not score the maps."),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Run every method on every photograph, even if one takes over three minutes.")
    ] = False,
    open_page: opt.Open = False,
    as_json: opt.Json = False,
) -> None:
    """Run every method on four photographs; needs no model or images of your own.

    Explains the built-in EfficientNet-Lite0 on photographs that come with scikit-image. Writes gallery.png and a
    self-contained web page, index.html.
    """
    from egcam.cli.output import comparison_dict
    from egcam.photos.demo import PATIENCE, PHOTOGRAPHS, run_demo

    with short_warnings("demo"), progress_bar("explaining four photographs", wanted=not as_json) as share:
        made = run_demo(out, quick, float("inf") if full else PATIENCE, share)
    if open_page:
        webbrowser.open(made.web_page.resolve().as_uri())
    if as_json:
        photographs = [comparison_dict(one) for one in made.comparisons]
        files = {"gallery": str(made.gallery), "page": str(made.web_page)}
        print_json({**files, "once": list(made.once), "photographs": photographs})
        return
    say = console().print
    for photograph, one in zip(PHOTOGRAPHS, made.comparisons, strict=True):
        said = f"{one.target.name} ({one.target.probability:.0%})"
        say(f"[bold]{photograph.shows}[/bold]: the network says {said}. {photograph.note}")
    if quick:
        say("With --quick, methods take fewer samples, and maps are not scored.")
    if made.once:
        say(f"Too slow to repeat, shown on the first photograph only: {', '.join(made.once)}. --full repeats them.")
    say(f"Gallery: {made.gallery}", markup=False)
    say(f"Web page: {made.web_page}", markup=False)
