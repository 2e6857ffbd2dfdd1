"""Data flows down the page of CONTRIBUTING.md: no module imports from a part that stands below its own there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
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


def when_loaded(nodes: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """The imports that run when a module is loaded."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef) and "TYPE_CHECKING" not in ast.dump(node):
            yield from when_loaded([inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)])


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


def test_no_chain_of_imports_is_longer_than_a_reader_can_follow() -> None:
    files = {".".join(file.relative_to(SOURCE.parent).with_suffix("").parts): file for file in SOURCE.rglob("*.py")}
    files = {name.removesuffix(".__init__"): file for name, file in files.items()}

    @cache
    def chain(module: str) -> tuple[str, ...]:
        behind = set()
        for node in when_loaded(ast.parse(files[module].read_text()).body):
            for alias in node.names:
                behind.update([name for name in (f"{node.module}.{alias.name}", node.module) if name in files][:1])
        return module, *max((chain(name) for name in behind - {module}), key=len, default=())

    longest = max(map(chain, files), key=len)
    assert len(longest) <= 14, " > ".join(longest)


def test_a_package_says_what_lies_in_it_and_names_nothing_else() -> None:
    for folder in [file.parent for file in SOURCE.rglob("__init__.py") if file.parent != SOURCE]:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        named = set(re.findall(r"`([a-z_]+)`", text)) - {"egcam", "names", "register"}
        assert text.count(" ") > 8, folder
        assert named <= {path.stem for path in (*folder.iterdir(), *SOURCE.iterdir())}, (folder, named)
