"""Python files that register methods, metrics, data sets or engines, imported wherever the study runs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from egcam.errors import EgcamError
from egcam.models.python_files import import_file


class PluginError(EgcamError):
    """A plugin that is not there or does not import."""


def import_plugins(files: Iterable[str]) -> None:
    """Import each file once in this process; a file that was changed since is not imported again."""
    for file in files:
        name = _module_name(file)
        if name not in sys.modules:
            _import(Path(file), name)


def plugin_checksum(file: str) -> str:
    """The sha256 of a plugin's text: it determines numbers."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _module_name(file: str) -> str:
    """The same file is the same module, whatever the way to it looks like."""
    return "_egcam_plugin_" + hashlib.sha256(str(Path(file).resolve()).encode()).hexdigest()[:16]


def _import(file: Path, name: str) -> None:
    if not file.is_file():
        raise PluginError(
            f"there is no plugin {file}: plugins are Python files that call egcam.register(…) and the like"
        )
    try:
        import_file(file, name)
    except Exception as error:
        raise PluginError(f"the plugin {file} could not be imported: {type(error).__name__}: {error}") from error
