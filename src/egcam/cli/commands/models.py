"""`egcam models`: the networks that can be named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from egcam.cli import options as opt
from egcam.cli.console import out, print_json
from egcam.errors import near_misses

_TIMM_EXAMPLE = "timm/convnext_tiny"


def models(
    part: Annotated[
        str | None, typer.Argument(metavar="PART", help="List only names that contain this.", show_default=False)
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the models known by name; timm's are listed only if you give part of a name."""
    from egcam.models.zoo import models as known_models

    groups = known_models()
    missing = [group for group, names in groups.items() if not names]
    if part is not None:
        known = dict.fromkeys(name for names in groups.values() for name in names)
        groups = {group: [name for name in names if part in name] for group, names in groups.items()}
    if as_json:
        print_json(groups)
        return
    console = out()
    if part is not None and not any(groups.values()):
        console.print(f"no model has {part!r} in its name; {near_misses(part, known)}", markup=False)
        _print_missing(missing)
        return
    for group, names in groups.items():
        if part is not None and not names:
            continue
        console.print(f"[bold]{group}[/bold] {_how(group, len(names))}")
        if part is not None or group != "timm":
            console.print("  " + ", ".join(names), markup=False)
    if part is not None:
        _print_missing(missing)
    console.print("[bold]Hugging Face[/bold] hf:NAME of its hub, or a folder written by save_pretrained")
    console.print("[bold]your own[/bold] path/to/file.py:function, a function that returns the network")


def _print_missing(groups: Sequence[str]) -> None:
    if groups:
        names = ", ".join(groups)
        out().print(f"not installed, so not searched: {names}; pip install 'egcam[vision]'", markup=False)


def _how(group: str, count: int) -> str:
    if group == "embedded":
        return "(the default; needs no download)"
    if count == 0:
        return "(not installed: pip install 'egcam\\[vision]')"
    if group == "timm":
        return f"({count} names; write {_TIMM_EXAMPLE}, or search: egcam models convnext)"
    return f"({count} names)"
