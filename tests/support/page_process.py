"""`egcam app` as a process of its own, with a home and a place for temporary files that hold nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OWN = """
import sys
sys.path.insert(0, {tests!r})
from support.tiny_page import tiny_classifier as make
"""


@dataclass(frozen=True)
class Page:
    process: subprocess.Popen[str]
    url: str
    space: Path


@contextmanager
def command(folder: Path, home: Path, *options: str, **variables: str) -> Iterator[Page]:
    """The page of the tiny classifier, once it is served."""
    (folder / "own.py").write_text(OWN.format(tests=str(Path(__file__).parents[1])))
    space = folder / "space"
    space.mkdir()
    environment = {**os.environ, "TMPDIR": str(space), "HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
    environment = {name: value for name, value in environment.items() if not name.startswith(("XDG_", "MPL", "HF_"))}
    typed = [sys.executable, "-m", "egcam", "app", "--model", f"{folder / 'own.py'}:make", "--port", "0", "--no-open"]
    with subprocess.Popen(
        [*typed, *options], stderr=subprocess.PIPE, text=True, env=environment, cwd=folder, preexec_fn=_hear_signals
    ) as process:
        try:
            assert process.stderr is not None
            lines = [""]
            while "is at http" not in lines[-1]:
                lines.append(process.stderr.readline())
                assert lines[-1], f"it ended: {''.join(lines)}"
            yield Page(process, lines[-1].split("is at ")[1].split()[0], space)
        finally:
            process.kill()


def _hear_signals() -> None:
    """Tests that run in the background of a shell, or under nohup, inherit that some signals are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
