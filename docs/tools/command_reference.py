"""Write docs/commands.md, the reference of the command line, from the commands themselves.

python docs/tools/command_reference.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from egcam.cli import app

PAGE = Path(__file__).parents[1] / "commands.md"
HEAD = """# Commands

`egcam COMMAND -h` shows the same in the terminal; `egcam --version` the version. Written by `python docs/tools/command_reference.py`.
"""  # noqa: E501


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, command in _commands(typer.main.get_command(app), "egcam"):
        parts.append(f"## {name}\n\n{_plain(command.help or '')}\n")
        if epilog := getattr(command, "epilog", None):
            parts.append(f"{_plain(epilog)}\n")
        parts.append(_parameters(command))
    return "\n".join(part for part in parts if part)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner, one in command.commands.items():
        if not one.hidden:
            yield from _commands(one, f"{name} {inner}")


def _parameters(command: Any) -> str:
    context = command.make_context("egcam", [], resilient_parsing=True)
    rows = []
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-"))
        names = names or f"`{parameter.metavar or parameter.name.upper()}`"
        rows.append(f"| {names} | {_cell(parameter.help or '')} | {_default(parameter)} |")
    return "| option | what it does | default |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required or value is None or value is False or callable(value) or value in ((), []):
        return "required" if parameter.required else ""
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Without the terminal's markup."""
    return re.sub(r"\[/?(?:bold|dim|italic|cyan)\]", "", text).replace("<", "&lt;").strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {len(page().split())} words")
