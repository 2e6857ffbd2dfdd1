"""Python files of the user's, imported by path: models and plugins."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

# The modules that user files brought in from their own folders, and from which.
_neighbours: dict[str, str] = {}


class _FromSource(SourceFileLoader):
    """Compiles the file anew: to Python, a compiled copy is up to date if the file has the same size and second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def import_file(file: Path, name: str) -> ModuleType:
    """The module in a file, under a name of its own in `sys.modules`; what it raises is raised.

    While it is imported it finds its neighbours: what lies in its folder can be imported by name. Files in another
    folder get neighbours of their own, also where these have the same names.
    """
    loader = _FromSource(name, str(file)) if file.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent.resolve())
    # Dataclasses look their module up by name.
    sys.modules[name] = module
    for neighbour in [stale for stale, where in _neighbours.items() if where != folder]:
        sys.modules.pop(neighbour, None)
        del _neighbours[neighbour]
    before = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    finally:
        # The file may have changed the path itself.
        with suppress(ValueError):
            sys.path.remove(folder)
        for new in set(sys.modules) - before - {name}:
            if str(getattr(sys.modules[new], "__file__", None) or "").startswith(folder):
                _neighbours[new] = folder
    return module
