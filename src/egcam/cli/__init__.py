"""The `egcam` command."""

from egcam.cli.commands import app, main

__all__ = ["app", "main"]
