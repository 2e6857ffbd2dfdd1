"""The `egcam` command: what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from egcam._version import __version__
from egcam.cli.commands.compare import compare
from egcam.cli.commands.demo import demo
from egcam.cli.commands.detect import detect
from egcam.cli.commands.explain import explain
from egcam.cli.commands.figure import figure
from egcam.cli.commands.layers import layers
from egcam.cli.commands.methods import methods
from egcam.cli.commands.metrics import metrics
from egcam.cli.commands.models import models
from egcam.cli.commands.saturation import saturation
from egcam.cli.commands.segment import segment
from egcam.cli.commands.study import study
from egcam.cli.commands.truth import truth
from egcam.cli.commands.web import web
from egcam.cli.console import EXIT_CODES, answering, clear_errors
from egcam.cli.help_texts import PlainCommand, PlainGroup, flowing

app = typer.Typer(
    name="egcam",
    cls=PlainGroup,
    help="Why did the network say that? Heat maps of what an image classifier looked at.\n\n"
    "SlopeCAM and the methods it is compared with, for any PyTorch image classifier.",
    epilog="Start with:  egcam demo   and then:  egcam explain photo.jpg\n\n" + EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"egcam {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A Python file that registers your own methods; comes before the command."),
    ] = None,
) -> None:
    if plugin:
        from egcam.studies.plugins import import_plugins

        with clear_errors():
            import_plugins(str(file) for file in plugin)


def _add(command: Callable[..., Any], name: str, example: str) -> None:
    epilog = f"Example:  {example}\n\n{EXIT_CODES}"
    app.command(name, cls=PlainCommand, help=flowing(command), epilog=epilog)(answering(command))


_add(explain, "explain", "egcam explain cat.jpg dog.png --target tabby --reference my_photos/ --out maps")
_add(compare, "compare", "egcam compare cat.jpg --methods grad-cam,layer-cam,slope-cam")
_add(detect, "detect", "egcam detect street.jpg --threshold 0.7 --most 4")
_add(segment, "segment", "egcam segment garden.jpg --class dog")
_add(saturation, "saturation", "egcam saturation photos/ --model efficientnet-lite0 --layer _blocks.10 --out saturated")
_add(truth, "truth", "egcam truth --quick --methods grad-cam,hires-cam,slope-cam --out truth")
_add(demo, "demo", "egcam demo --out demo --open")
_add(methods, "methods", "egcam methods slope-cam")
_add(metrics, "metrics", "egcam metrics --json")
_add(models, "models", "egcam models resnet")
_add(layers, "layers", "egcam layers resnet50")
_add(figure, "figure", "egcam figure grid cat.jpg --out grid.png --out grid.svg")
_add(web, "app", "egcam app --model resnet50 --open")
app.add_typer(study, name="study")


def main() -> None:
    """Run the command."""
    app()
