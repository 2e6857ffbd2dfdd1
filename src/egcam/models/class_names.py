"""Class names from a file."""

from __future__ import annotations

import json
from pathlib import Path

from egcam.errors import TargetError


def read_classes(file: str | Path | None) -> list[str] | None:
    """Class names from a file: a JSON list, or text with one name on each line."""
    if file is None:
        return None
    file = Path(file)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{file} could not be read: --classes is a text file with one name on each line") from error
    if not text.startswith("["):
        return text.splitlines()
    try:
        return [str(name) for name in json.loads(text)]
    except ValueError as error:
        raise TargetError(f"{file} is not valid JSON: --classes is a JSON list, or one name on each line") from error
