"""Finding files and folders, and saying where they were looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from egcam.errors import near_misses
from egcam.studies.datasets.dataset import DataError


def folder_at(path: str | Path, expected: str) -> Path:
    """The folder at `path`; an error with the expected layout if there is none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    what = "is a file, not a folder" if folder.exists() else f"does not exist{_similar(folder)}"
    raise DataError(f"the data's folder {folder} {what}; expected is {expected}")


def named(path: str | Path, folders: Iterable[Path], expected: str) -> Path:
    """The file or folder the user named: as written, or within one of `folders`."""
    written = Path(path).expanduser()
    places = [written] if written.is_absolute() else [written, *(folder / written for folder in folders)]
    there = first(places, Path.exists)
    if there is None:
        raise DataError(f"{path} does not exist; {looked(places)}; expected is {expected}")
    return there


def first(places: Iterable[Path], there: Callable[[Path], bool] = Path.is_file) -> Path | None:
    """The first place that is there."""
    return next((place for place in places if there(place)), None)


def looked(places: Iterable[Path]) -> str:
    """The places looked at, as a clause."""
    return "looked at " + ", ".join(dict.fromkeys(str(place) for place in places))


def _similar(folder: Path) -> str:
    if not folder.parent.is_dir():
        return f" (nor does {folder.parent})"
    beside = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()]
    return f" ({near_misses(folder.name, beside)})" if beside else ""
