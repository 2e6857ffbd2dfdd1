"""`egcam demo`: make the gallery and say what to look at."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from egcam.attribution.registry import records
from egcam.cli.compare import comparison_dict
from egcam.cli.console import out, print_json, progress_bar, told_warnings
from egcam.photos.demo import PATIENCE, PHOTOGRAPHS, run_demo


def show_demo(folder: Path, quick: bool, full: bool, open_page: bool, as_json: bool) -> None:
    """Run the demonstration and print where it is."""
    what = "explaining four photographs"
    with told_warnings("demo"), progress_bar(what, wanted=not as_json) as share:
        made = run_demo(folder, quick, float("inf") if full else PATIENCE, share)
    if open_page:
        webbrowser.open(made.web_page.resolve().as_uri())
    if as_json:
        photographs = [comparison_dict(one) for one in made.comparisons]
        print_json(
            {
                "gallery": str(made.gallery),
                "page": str(made.web_page),
                "once": list(made.once),
                "photographs": photographs,
            }
        )
        return
    console = out()
    for photograph, one in zip(PHOTOGRAPHS, made.comparisons, strict=True):
        said = f"{one.target.name} ({one.target.probability:.0%})"
        console.print(f"[bold]{photograph.shows}[/bold]: the network says {said}. {photograph.note}")
    if quick:
        slow = ", ".join(one.name for one in records() if one.is_slow)
        console.print(f"With --quick, {slow} is left out and the others take fewer samples.")
    if made.once:
        slow = ", ".join(made.once)
        console.print(f"On the first photograph only, for want of time: {slow}. With --full they are on all.")
    console.print(f"Gallery: {made.gallery}", markup=False)
    console.print(f"Web page: {made.web_page}", markup=False)
