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
        typer.Option("--quick", help="Take fewer samples, and leave out all methods but Grad-CAM and SlopeCAM."),
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Run every method in full on all four photographs, not with few samples on one."),
    ] = False,
    open_page: opt.Open = False,
    as_json: opt.Json = False,
) -> None:
    """Grad-CAM and SlopeCAM on four photographs, and where the answer is known; needs no model or images of your own.

    Explains the built-in EfficientNet-Lite0 on photographs that come with scikit-image, and asks both methods about
    networks that cannot see a part of them. Writes gallery.png and a self-contained web page, index.html, which has all
    other methods, too.
    """
    from egcam.cli.output import comparison_dict
    from egcam.photos.demo import run_demo

    with short_warnings("demo"), progress_bar("explaining four photographs", wanted=not as_json) as share:
        made = run_demo(out, quick, full, share)
    if open_page:
        webbrowser.open(made.web_page.resolve().as_uri())
    if as_json:
        shown = [one for section in made.sections for one in (section.found, section.others) if one is not None]
        files = {"gallery": str(made.gallery), "page": str(made.web_page)}
        print_json({**files, "photographs": [comparison_dict(one) for one in shown]})
        return
    say = console().print
    for section in made.sections:
        target = section.found.target
        said = f"the network says {target.name} ({target.probability:.0%})"
        say(f"[bold]{section.photograph.shows}[/bold]: {said}. {section.photograph.note}")
        say(f"  With the lower part hidden: {'; '.join(f'{one.title}, {one.detail}' for one in section.walled[1:])}.")
    say(f"Gallery: {made.gallery}", markup=False)
    say(f"Web page: {made.web_page}", markup=False)
