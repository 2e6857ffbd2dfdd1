"""`egcam methods`: what there is to explain with."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from egcam.cli import options as opt
from egcam.cli.console import out, print_json, table

if TYPE_CHECKING:
    from egcam.attribution.registry import Method


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One method, with its options.", show_default=False)
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the methods and what each does; with a NAME, that method's options and their defaults."""
    from egcam.attribution.registry import GROUPS, method, records

    shown = list(records(controls=True)) if name is None else [method(name)]
    if as_json:
        print_json({"methods": [_as_dict(one) for one in shown]})
        return
    console = out()
    if name is not None:
        (one,) = shown
        console.print(f"[bold]{escape(one.label)}[/bold] {escape(one.summary)}")
        rows = [(key, _plain(value)) for key, value in one.options().items()]
        console.print(table(("option", "default"), rows, whole={"option"}))
        return
    console.print(table(("method", "what it does"), [(one.name, one.summary) for one in shown], whole={"method"}))
    yours = [one.name for one in shown if one.group == "yours"]
    if yours:
        console.print(f"{GROUPS['yours']}: {', '.join(yours)}", markup=False)
    console.print("The options of one:  egcam methods NAME", markup=False)


def _as_dict(one: Method) -> dict[str, Any]:
    options = one.options()
    return {
        "name": one.name,
        "label": one.label,
        "summary": one.summary,
        "group": one.group,
        "options": sorted(options),
        "defaults": {key: _plain(value) for key, value in options.items()},
    }


def _plain(value: Any) -> str:
    """A default as one would type it; what must be given has none."""
    return "required" if value is Parameter.empty else value if isinstance(value, str) else str(value)
