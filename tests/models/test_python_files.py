"""Python files imported by path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from egcam.models.python_files import import_file


def test_a_file_that_changed_within_a_second_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "model.py"
    for value in (1, 2):
        file.write_text(f"value = {value}")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert import_file(file, f"_changed_{value}").value == value


def test_what_is_no_python_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("value = 1")
    with pytest.raises(ImportError, match=r"must end in \.py"):
        import_file(tmp_path / "model.txt", "_no_python_file")
