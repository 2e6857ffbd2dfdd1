"""The `egcam study` commands, their options and their help. What they do is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egcam.cli.console import clear_errors

_CODES = (
    "Exit codes: 0 all done; 1 some units failed, the others are done; 2 wrong use; 3 an extra is not installed; "
    "4 the disk is full; 5 remote storage is out of reach; 130 stopped. What was done is kept."
)

study = typer.Typer(
    help="Studies: models x methods x metrics over many images. They can be stopped and go on, here or on Ray.",
    epilog="Start with:  egcam study new > study.toml   then:  egcam study run study.toml\n\n" + _CODES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.", show_default=False)]
Folder = Annotated[
    str, typer.Argument(metavar="RESULTS", help="The folder (or fsspec URL) of results.", show_default=False)
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N images; the rest can follow.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


@study.command(
    epilog="Example:  egcam study new --preset paper-faithfulness --data ILSVRC2012/ > study.toml\n\n" + _CODES
)
def new(
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="What to begin with; see: egcam study presets")
    ] = "own-images",
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Where the images are.")] = None,
    annotations: Annotated[
        str | None, typer.Option(metavar="FILE", help="COCO's instances, ImageNet's labels, where they are elsewhere.")
    ] = None,
    images: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many images.")] = None,
) -> None:
    """Print a study's file: plain TOML to change as you like."""
    with clear_errors():
        from egcam.cli.study import new_study

        new_study(preset, data, annotations, images)


@study.command(epilog="Example:  egcam study presets\n\n" + _CODES)
def presets(as_json: Json = False) -> None:
    """List the study files to begin with: one for each of the paper's tables, and one for own images."""
    with clear_errors(as_json):
        from egcam.cli.study import list_presets

        list_presets(as_json)


@study.command(epilog="Example:  egcam study estimate study.toml --workers 8\n\n" + _CODES)
def estimate(
    file: File,
    limit: Limit = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="How many share the work.")] = 1,
    as_json: Json = False,
) -> None:
    """Say how many passes a study takes and, after a short probe of each model, about how long."""
    with clear_errors(as_json):
        from egcam.cli.study import estimate_study

        estimate_study(file, limit, workers, as_json)


@study.command(epilog="Example:  egcam study run study.toml --out results --workers 4\n\n" + _CODES)
def run(
    file: File,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="RESULTS", help="The folder for results, or an fsspec URL.")
    ] = "results",
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where the work is done; plugins may add more.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="A", help="A Ray cluster: auto, host:port or ray://host:port.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many processes; as many as suit if not given.")
    ] = None,
    limit: Limit = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Every N-th image from the I-th; the other parts may run elsewhere."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Do failed units again.")] = False,
    mix_versions: Annotated[
        bool, typer.Option("--mix-versions", help="Go on although egcam, torch, … have other versions than before.")
    ] = False,
    wait: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Wait for another run in the same folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a study, or go on with it.

    Stop it with Ctrl-C or kill it at any instant: the same command goes on, and the results are the same.
    """
    with clear_errors(as_json):
        from egcam.cli.study import run as run_command

        code = run_command(file, out, engine, address, workers, limit, shard, retry_failed, mix_versions, wait, as_json)
        raise typer.Exit(code)


@study.command(epilog="Example:  egcam study status results\n\n" + _CODES)
def status(
    results: Folder,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="How many share the work left.")] = 1,
    as_json: Json = False,
) -> None:
    """Say what is done, what is left, what failed and why, and the time to go."""
    with clear_errors(as_json):
        from egcam.cli.study import show_status

        show_status(results, workers, as_json)


@study.command(epilog="Example:  egcam study report results --out report\n\n" + _CODES)
def report(
    results: Folder,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where the report goes; RESULTS/report if not given."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="METHOD", help="What others are compared with; grad-cam if not given.")
    ] = None,
    sharpness: Annotated[
        float, typer.Option(metavar="P", min=1, help="Show the examples' maps to the power of P.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Write the report: Markdown, LaTeX, CSV and one web page with tables, intervals, ranks, curves and maps."""
    with clear_errors(as_json):
        from egcam.cli.study import report as report_command

        report_command(results, out, baseline, sharpness, as_json)
