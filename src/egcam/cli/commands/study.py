"""`egcam study`: make, run, watch and report a study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from egcam.cli import options as opt
from egcam.cli.console import (
    DONE,
    SOME_FAILED,
    STOPPED,
    answering,
    ended_by_signals,
    note,
    print_json,
    progress_bar,
    say,
)
from egcam.cli.console import out as console
from egcam.cli.help_texts import PlainCommand, PlainGroup, flowing
from egcam.evaluation.numbers import counted

_CODES = (
    "Exit codes: 0 all done; 1 some units failed, the others are done; 2 wrong usage; 3 an extra is not installed; "
    "4 the disk is full; 5 remote storage is unreachable; 130 stopped. Finished work is kept."
)

study = typer.Typer(
    cls=PlainGroup,
    help="Run methods and metrics on many images; stop and resume at any time, here or on Ray.",
    epilog="Start with:  egcam study new > study.toml   then:  egcam study run study.toml\n\n" + _CODES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Command = TypeVar("Command", bound=Callable[..., Any])


def _command(example: str) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        epilog = f"Example:  {example}\n\n{_CODES}"
        study.command(cls=PlainCommand, help=flowing(command), epilog=epilog)(answering(command))
        return command

    return add


File = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.", show_default=False)]
Folder = Annotated[
    str, typer.Argument(metavar="RESULTS", help="The folder (or fsspec URL) of results.", show_default=False)
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Only the first N images; the rest can follow later.")
]


@_command("egcam study new --preset paper-faithfulness --data ILSVRC2012/ > study.toml")
def new(
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="The preset to start from; see: egcam study presets")
    ] = "own-images",
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Where the images are.")] = None,
    annotations: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="COCO's instances or ImageNet's labels, if not in the usual place."),
    ] = None,
    images: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many images.")] = None,
) -> None:
    """Print a study file, as TOML to edit."""
    from egcam.studies.preset_files import preset as filled_in

    print(filled_in(preset, data, annotations, images), end="")


@_command("egcam study presets")
def presets(as_json: opt.Json = False) -> None:
    """List the presets: one for each of the paper's tables, and one for your own images."""
    from egcam.studies.preset_files import presets as known

    found = known()
    if as_json:
        print_json({"presets": [{"name": name, "title": title} for name, title in found.items()]})
        return
    width = max(map(len, found))
    for name, title in found.items():
        console().print(f"[bold]{name:<{width}}[/bold]  {title}")


@_command("egcam study estimate study.toml --workers 8")
def estimate(
    file: File,
    limit: Limit = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="How many workers share the work.")] = 1,
    as_json: opt.Json = False,
) -> None:
    """Estimate how long a study takes: run a real unit or two of each model and method, all metrics too.

    It takes about as long as two images of the study, and keeps nothing. Also shows what costs most, how much memory a
    worker needs and disk the results, and what the report takes.
    """
    from egcam.cli.study_progress import estimate_lines, peak_memory
    from egcam.studies.cost import estimate as estimated

    found = estimated(file, limit, say=lambda text: None if as_json else say(text))
    if as_json:
        print_json(
            {
                "images": found.images,
                "units": found.units,
                "worker_seconds": dict(found.seconds),
                "seconds": found.total_seconds / workers,
                "seconds_by_method": dict(found.by_method),
                "seconds_by_metric": dict(found.by_metric),
                "failed": dict(found.failed),
                "worker_memory_bytes": peak_memory(),
                "disk_bytes": found.disk,
                "report_seconds": found.report_seconds,
                "report_memory_bytes": found.report_memory,
            }
        )
        return
    for line in estimate_lines(found, workers, peak_memory()):
        console().print(line, markup=False)


@_command("egcam study run study.toml --out results --workers 4")
def run(
    file: File,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="RESULTS", help="The folder for results, or an fsspec URL.")
    ] = "results",
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where units run; plugins may add engines.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="A", help="A Ray cluster: auto, host:port or ray://host:port.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many processes; default: one per core or GPU.")
    ] = None,
    limit: Limit = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Every N-th image, starting from the I-th; run the other shards elsewhere."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat failed units.")] = False,
    mix_versions: Annotated[
        bool, typer.Option("--mix-versions", help="Resume even if the versions of egcam, torch, … have changed.")
    ] = False,
    wait: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Wait for another run in the same folder.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="A unit that takes longer fails. Default: six hours.",
        ),
    ] = None,
    as_json: opt.Json = False,
) -> int:
    """Run or resume a study.

    Stop it with Ctrl-C or kill it at any time: the same command resumes it, and the results are the same.
    """
    from egcam.cli.study_progress import Bar
    from egcam.studies.config import load_study
    from egcam.studies.plan import WHOLE, read_part
    from egcam.studies.progress import status as status_of
    from egcam.studies.runner import run_study

    _check_lasting(out)
    plan = load_study(file)
    part = read_part(shard) if shard is not None else WHOLE
    watcher = Bar(not as_json)
    try:
        with ended_by_signals(), watcher:
            results = run_study(
                plan,
                out,
                engine=engine,
                workers=workers,
                address=address,
                limit=limit,
                part=part,
                retry_failed=retry_failed,
                mix_versions=mix_versions,
                wait=wait,
                timeout=timeout,
                watcher=watcher,
                say=say,
            )
    except KeyboardInterrupt:
        say(f"egcam: stopped; finished work is kept in {out}: run the same command to resume")
        return STOPPED
    found = status_of(out)
    if as_json:
        print_json(found.as_dict())
    else:
        for label, table in results.tables.items():
            console().print(f"\n[bold]{label}[/bold]")
            console().print(table.render())
        say(f"{found.done:,} of {found.total:,} units are in {out}; `egcam study report {out}` writes the report")
    if watcher.smaller:
        note(
            f"{counted(watcher.smaller, 'unit')} ran out of memory and had to be repeated in smaller batches, "
            "which may change last digits"
        )
    # Includes units that failed in an earlier run: a script that repeats this until it succeeds must not miss them.
    failed, lacking = results.shortfall(limit, part)
    if failed:
        note(f"{counted(failed, 'unit')} failed; `egcam study status {out}` says why, --retry-failed tries again")
    if lacking:
        note(f"{counted(lacking, 'unit')} of what was asked for changed under way and are missing: run it again")
    return SOME_FAILED if failed or lacking else DONE


@_command("egcam study status results")
def status(
    results: Folder,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="How many workers share what is left.")] = 1,
    as_json: opt.Json = False,
) -> None:
    """Show what is done, what is left, what failed and why, and the time left."""
    from egcam.studies.progress import status as status_of

    _check_lasting(results)
    with progress_bar("reading the results", wanted=not as_json) as share:
        found = status_of(results, workers, share)
    if as_json:
        print_json(found.as_dict())
    else:
        console().print(found.render())


@_command("egcam study report results --out report")
def report(
    results: Folder,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where to write the report; default: RESULTS/report."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="METHOD", help="The method to compare with; default: grad-cam.")
    ] = None,
    sharpness: Annotated[
        float, typer.Option(metavar="P", min=1, help="Raise the examples' maps to the power of P in pictures.")
    ] = 1.0,
    as_json: opt.Json = False,
) -> None:
    """Write the report: Markdown, LaTeX, CSV and one web page with tables, intervals, ranks, curves and maps."""
    from egcam.studies.report import write_report

    _check_lasting(results)
    # In the folder of results, unless that is somewhere in the cloud.
    beside = Path("report") if "://" in results else Path(results) / "report"
    with progress_bar("report", wanted=not as_json) as share:
        written = write_report(
            results,
            out or beside,
            baseline=baseline,
            sharpness=sharpness,
            say=lambda text: None if as_json else say(text),
            progress=share,
        )
    if as_json:
        print_json({"files": [str(file) for file in written]})
    else:
        for file in written:
            console().print(str(file), markup=False)


def _check_lasting(folder: str) -> None:
    """What is in memory ends with the command, and no other command can find it."""
    if "memory://" in folder:
        from egcam.studies.config import StudyError

        raise StudyError(
            f"{folder} would be lost when this command ends: give a folder, or a URL of persistent storage"
        )
