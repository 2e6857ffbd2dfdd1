"""The `egcam` command."""

from egcam.cli.app import app, main

__all__ = ["app", "main"]
