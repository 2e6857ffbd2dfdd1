"""What needs no network answers before torch, which takes seconds to import, could be."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import egcam


def imported(*arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a call imports, and what it said."""
    command = [sys.executable, "-X", "importtime", "-m", "egcam", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}, done


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, f"egcam {egcam.__version__}"),
        (["--help"], 0, "explain"),
        (["explain", "--help"], 0, "--target"),
        (["figure", "-h"], 0, "contrast"),
        (["study", "run", "--help"], 0, "--workers"),
        (["explain"], 2, "IMAGE"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_help_version_and_wrong_calls_do_not_import_torch(arguments: list[str], code: int, said: str) -> None:
    modules, done = imported(*arguments)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "egcam.cli" in modules
    assert not modules & {"torch", "numpy", "PIL", "matplotlib", "pandas"}


def test_names_come_when_they_are_asked_for() -> None:
    script = """
import sys, egcam
assert "torch" not in sys.modules
assert {"SlopeCAM", "explain", "zoo", "metrics"} <= set(dir(egcam))
from egcam import GradCAM, references
assert "torch" in sys.modules
assert egcam.GradCAM is GradCAM and egcam.GradCAM.__module__ == "egcam.attribution.cam"
assert egcam.references is sys.modules["egcam.attribution.references"] is references
assert egcam.attribution.registry.methods() == egcam.methods()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_type_checkers_read_is_what_is_loaded() -> None:
    tree = ast.parse(Path(egcam.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "egcam"]
    told = {alias.asname: node.module for node in imports for alias in node.names}
    assert len(told) > 50
    assert told == egcam._MODULES
    for name, module in told.items():
        assert name in vars(import_module(module)) or import_module(f"{module}.{name}")
