"""Data flows down the page of CONTRIBUTING.md: no module imports from a part that stands below its own there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "egcam"

# What photographs are read and explained with is a matter of the zoo's classifiers, which load it when they are called.
ALLOWED = {("models", "attribution"), ("models", "photos")}


def parts_in_order() -> list[str]:
    """The parts of the package as CONTRIBUTING.md lists them, top to bottom."""
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("src/egcam/\n")[2].partition("\n\n")[0]
    return [
        name.removesuffix(".py").removesuffix("/")
        for line in tree.splitlines()
        if re.match(r" {6}\S", line)
        for name in re.findall(r"\w+(?:\.py|/)", line.split("   ")[2] if line.startswith("      ") else line)
    ]


def imported(file: Path) -> set[tuple[str, bool]]:
    """The parts a module imports from, and whether only when a function of it is called."""
    tree = ast.parse(file.read_text())
    nested = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node)}
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("egcam") and id(node) not in typing:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update((name.split(".")[1], id(node) in nested) for name in names if "." in name)
    return found


def test_the_page_names_every_part() -> None:
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__", "__main__", "_version"} == set(parts_in_order())


def test_nothing_imports_upwards() -> None:
    order = {name: place for place, name in enumerate(parts_in_order())}
    upwards = []
    for file in sorted(SOURCE.rglob("*.py")):
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other, _ in imported(file):
            if own in order and order.get(other, -1) > order[own] and (own, other) not in ALLOWED:
                upwards.append(f"{file.relative_to(SOURCE)} imports {other}")
    assert not upwards, "\n".join(sorted(set(upwards)))
