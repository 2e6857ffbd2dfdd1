"""The code of a user's model: its file, and the files beside it that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path


def source_checksums(file: str | Path) -> dict[str, str]:
    """SHA-256 of a Python file and of the modules it imports from its own folder, by path from there.

    Imports are followed from file to file, wherever in the text they are; of a package, all files count. Installed
    packages are known by their versions instead.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "model.py").write_text("from blocks import Block")
        >>> _ = (folder / "blocks.py").write_text("class Block: pass")
        >>> list(source_checksums(folder / "model.py"))
        ['blocks.py', 'model.py']
    """
    root = Path(file).resolve().parent
    waiting, found = [Path(file).resolve()], dict[str, str]()
    while waiting:
        one = waiting.pop()
        name = one.relative_to(root).as_posix()
        if name not in found:
            text = one.read_bytes()
            found[name] = sha256(text).hexdigest()
            waiting += [near for module in _imported(text) for near in _files(root, module)]
    return dict(sorted(found.items()))


def _imported(text: bytes) -> Iterator[str]:
    """The first names of all modules a text imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(root: Path, module: str) -> list[Path]:
    if (root / module / "__init__.py").is_file():
        return sorted((root / module).rglob("*.py"))
    return [root / f"{module}.py"] if (root / f"{module}.py").is_file() else []
