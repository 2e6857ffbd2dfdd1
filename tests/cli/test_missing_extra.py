"""Without the extra `study` each of its commands ends in a sentence that names the extra, and in exit code 3."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from support.tiny_study import write_study

# Newer versions of typer need pydantic themselves: packages are missing for egcam only.
RUN_WITHOUT = """
import builtins, importlib.util, sys

missing = set(sys.argv[1].split(","))
usual, found = builtins.__import__, importlib.util.find_spec

def imported(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0 and name.partition(".")[0] in missing and (globals or {}).get("__name__", "").startswith("egcam"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return usual(name, globals, locals, fromlist, level)

builtins.__import__ = imported
importlib.util.find_spec = lambda name, package=None: None if name in missing else found(name, package)
sys.argv[1:] = sys.argv[2:]
from egcam.__main__ import main
main()
"""

MODULES = {"scikit-image": "skimage"}


def of_extra(extra: str) -> list[str]:
    """The modules of an extra of the package as it is installed."""
    named = [one for one in requires("egcam") or [] if f"extra == '{extra}'" in one or f'extra == "{extra}"' in one]
    packages = [one.partition(">")[0].partition("[")[0].strip() for one in named]
    return ["pydantic_core", *(MODULES.get(package, package) for package in packages)]


COMMANDS = ("new", "presets", "estimate study.toml", "run study.toml", "status results", "report results")
# These need results, and so packages that the others do without.
WRITERS = COMMANDS[3:]


@pytest.mark.parametrize(
    ("command", "missing"),
    [(command, of_extra("study")) for command in COMMANDS]
    + [(command, [name for name in of_extra("study") if not name.startswith("pydantic")]) for command in WRITERS],
)
def test_a_command_of_studies_names_the_extra(tmp_path: Path, command: str, missing: list[str]) -> None:
    write_study(tmp_path, images=1)
    ran = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT, ",".join(missing), "study", *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "Traceback" not in ran.stderr
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("egcam: error: ")
    assert last.endswith("pip install 'egcam[study]'")
    assert ran.returncode == 3
