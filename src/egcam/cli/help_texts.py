"""Help that flows at any width and says only what a reader needs."""

from __future__ import annotations

from inspect import getdoc
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


def flowing(documented: object) -> str:
    """A docstring with one line for each paragraph, so that the terminal breaks it, not its author.

    Example:
        >>> flowing(type("Example", (), {"__doc__": "One\\n    two.\\n\\n    Three."}))
        'One two.\\n\\nThree.'
    """
    return "\n\n".join(" ".join(part.split()) for part in (getdoc(documented) or "").split("\n\n"))


class _NoTypes:
    """Arguments and flags without Typer's `<list[Path]>` and `<bool>`: their names say what they are."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, without a type where it says nothing."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperArgument) or getattr(param, "is_flag", False):
                param.display_type_rich = lambda ctx: None
        return params


class PlainCommand(_NoTypes, TyperCommand):
    """A command whose help is plain."""


class PlainGroup(_NoTypes, TyperGroup):
    """A group of commands whose help is plain."""
