"""The `egcam` command."""

from egcam.cli.main import app, main

__all__ = ["app", "main"]
