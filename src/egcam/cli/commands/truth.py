"""`egcam truth`: methods judged by tests whose answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egcam.cli import options as opt
from egcam.cli.console import out as console
from egcam.cli.console import print_json, progress_bar, say


def truth(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and only the usual methods: a few minutes on two cores.")
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(metavar="a,b,c", help="Which methods; default: all that work at a layer, and the controls."),
    ] = None,
    out: opt.Out = Path("egcam-truth"),
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Test methods on cases whose answer is known, offline.

    The tests are networks that cannot see part of the image, grids in which one cell decides, a patch that decides,
    shapes with exact masks, networks with weights set by hand, and the Shapley values of a layer's cells. Writes a
    table (truth.md, scores.csv) and a picture (truth.png). The first run trains a small network and keeps it in the
    cache folder.
    """
    from egcam.cli.inputs import check_folder
    from egcam.truth.suite import run_truth

    check_folder(out)
    chosen = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    with progress_bar("truth", wanted=not as_json) as share:
        found = run_truth(chosen, quick, seed=seed, progress=share)
    files = found.save(out)
    if as_json:
        means = {name: {test: _number(found.mean(name, test)) for test in found.tests} for name in found.methods}
        not_ahead = {test: sorted(found.not_ahead(test)) for test in found.tests}
        print_json({"means": means, "not_ahead_of_controls": not_ahead, "files": [str(file) for file in files]})
        return
    console().print(found.render())
    say(f"wrote {', '.join(map(str, files))}")


def _number(value: float) -> float | None:
    return None if value != value else round(value, 6)
