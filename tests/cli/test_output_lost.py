"""An answer that cannot be written ends in a sentence and an exit code that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def ended(shell: str) -> subprocess.CompletedProcess[str]:
    typed = f'exec "{sys.executable}" -m egcam {shell}'
    return subprocess.run(["sh", "-c", typed], stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("command", ["methods --json", "methods", "methods nonsense --json"])
def test_a_full_disk_is_exit_code_4(command: str) -> None:
    found = ended(f"{command} > /dev/full")
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr
    if "nonsense" in command:
        assert found.returncode == 2
    else:
        assert found.stderr == "egcam: error: [Errno 28] No space left on device\n"
        assert found.returncode == 4


def test_json_into_a_closed_output_is_an_error() -> None:
    found = ended("methods --json >&-")
    assert "standard output is closed" in found.stderr
    assert found.returncode == 2
