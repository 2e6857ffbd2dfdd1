"""Ctrl-C while a command begins: one line, exit code 130, no traceback, whatever is being imported just then."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The signal comes when a module is looked for, not after some time: the same on every machine.
CODE = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["egcam", *{arguments!r}]
from egcam.__main__ import main
main()
"""


def _interrupted(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = CODE.format(module=module, arguments=list(arguments))
    # Tests in the background of a shell inherit that the signal is ignored.
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--version"]),
        ("egcam.cli.commands.compare", ["methods"]),
        ("egcam.attribution.registry", ["methods"]),
        ("torch", ["explain", "photo.png"]),
        ("torch.nn", ["demo"]),
        ("egcam.studies.progress", ["study", "status", "results"]),
        ("egcam.models.zoo", ["app"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_interrupt_while_a_command_is_loaded_ends_it_quietly(module: str, arguments: list[str]) -> None:
    ended = _interrupted(module, *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "egcam: stopped\n")


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    code = CODE.format(module="typer", arguments=["--version"])
    ignored = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{code}"
    ended = subprocess.run([sys.executable, "-c", ignored], capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("egcam ")
