"""Data sets opened as a study's file would open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from egcam.studies.datasets import Dataset, open_dataset
from egcam.studies.specs import DataSpec

COMMON = ("images", "size", "part", "seed")


def opened(kind: str, path: str | Path, **keys: Any) -> Dataset:
    """The data set a table `[data]` with these keys asks for."""
    common = {key: keys.pop(key) for key in COMMON if key in keys}
    return open_dataset(DataSpec(kind, str(path), **common, options=keys))
