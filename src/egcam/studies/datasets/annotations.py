"""Labels and boxes people keep in a CSV or JSON file beside their images."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egcam.errors import near_misses
from egcam.studies.datasets.dataset import DataError
from egcam.studies.datasets.masks import Box
from egcam.studies.datasets.wnids import index_of, is_wnid

FILE_KEYS = ("file", "image", "file_name", "filename", "path", "name")
LABEL_KEYS = ("label", "class_index", "imagenet_index", "index", "class", "target")
WNID_KEYS = ("wnid", "synset")
MASK_KEYS = ("mask", "trimap")
CORNERS = ("x1", "y1", "x2", "y2")
EXPECTED = (
    "expected is a CSV with a header such as file,label or file,label,x1,y1,x2,y2 or file,label,boxes "
    '(boxes: "x1 y1 x2 y2; x1 y1 x2 y2"), or a JSON file with {file: label} or a list of such objects'
)


@dataclass(frozen=True)
class Annotation:
    """What a file says of an image."""

    file: str  # the image's path as written
    label: int | None = None  # its class index, if given
    wnid: str | None = None  # its WordNet id, if given
    boxes: tuple[Box, ...] = ()  # where the object is
    mask: str | None = None  # the path of its mask as written
    part: str = ""  # the part of the data it belongs to, where there are parts


def read_annotations(path: Path) -> list[Annotation]:
    """What a CSV or JSON file says of images: a record for each, in order; rows of one image are put together.

    The columns (or keys) are found by name: the file under "file", "image", "file_name", "path"; the label under
    "label", "class_index", "class", as an index or a WordNet id; boxes under x1, y1, x2, y2 or in one column whose
    name begins with "boxes"; the mask's file under "mask" or "trimap"; the part under "part".
    """
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path} lists no image; {EXPECTED}")
    merged: dict[str, Annotation] = {}
    for number, row in enumerate(rows, 1):
        record = _annotation(row, f"{path}, entry {number}")
        merged[record.file] = _merged(merged[record.file], record, path) if record.file in merged else record
    return list(merged.values())


def _merged(first: Annotation, second: Annotation, path: Path) -> Annotation:
    if (first.label, first.wnid, first.part) != (second.label, second.wnid, second.part):
        raise DataError(f"{path} has conflicting entries for {first.file}: {first.label} and {second.label}")
    return Annotation(first.file, first.label, first.wnid, first.boxes + second.boxes, first.mask, first.part)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.is_file():
        raise DataError(f"there is no file {path} with labels; {EXPECTED}")
    if path.suffix.lower() == ".json":
        yield from _json_rows(path)
        return
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.DictReader(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file ({error}); {EXPECTED}") from error


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not a JSON file ({error}); {EXPECTED}") from error
    if isinstance(content, dict):
        content = [{"file": file, **_as_row(value)} for file, value in content.items()]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise DataError(f"{path} holds neither an object nor a list of objects; {EXPECTED}")
    yield from content


def _as_row(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {"label": value}


def _annotation(row: Mapping[str, Any], where: str) -> Annotation:
    known = {
        str(key).strip().lower(): value for key, value in row.items() if key is not None and value not in (None, "")
    }
    file = _first(known, FILE_KEYS)
    if file is None:
        raise DataError(f"{where} names no image: it has {', '.join(map(repr, known)) or 'nothing'}; {EXPECTED}")
    label, wnid = _label(_first(known, LABEL_KEYS), where)
    named = _first(known, WNID_KEYS)
    mask = _first(known, MASK_KEYS)
    return Annotation(
        str(file),
        label,
        str(named) if named is not None else wnid,
        tuple(_boxes(known, where)),
        None if mask is None else str(mask),
        str(known.get("part", "")),
    )


def _first(row: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((row[key] for key in keys if key in row), None)


def _label(value: Any, where: str) -> tuple[int | None, str | None]:
    """The label as an index, and as the WordNet id it was written as."""
    if value is None:
        return None, None
    text = str(value).strip()
    if is_wnid(text):
        return index_of(text, where), text
    if text.removesuffix(".0").isdecimal():
        return int(text.removesuffix(".0")), None
    raise DataError(f"{where}: the label {text!r} is neither a class index (0, 1, …) nor a WordNet id (n02391049)")


def _boxes(row: Mapping[str, Any], where: str) -> Iterator[Box]:
    if any(corner in row for corner in CORNERS):
        missing = [corner for corner in CORNERS if corner not in row]
        if missing:
            raise DataError(f"{where}: a box is x1, y1, x2, y2, and {', '.join(missing)} is missing")
        yield _box([row[corner] for corner in CORNERS], where)
    for value in (value for key, value in row.items() if key.startswith("box")):
        written = [part.split() for part in value.split(";") if part.strip()] if isinstance(value, str) else value
        if not isinstance(written, list):
            raise DataError(f"{where}: boxes are written {value!r}; {EXPECTED}")
        flat = bool(written) and not isinstance(written[0], list)
        for numbers in [written] if flat else written:
            yield _box(numbers, where)


def _box(numbers: list[Any], where: str) -> Box:
    try:
        left, top, right, bottom = (float(number) for number in numbers)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: a box is four numbers, x1 y1 x2 y2, not {numbers!r}") from error
    return Box(left, top, right, bottom)


def located(annotations: Sequence[Annotation], table: Path, folders: Sequence[Path]) -> list[tuple[Annotation, Path]]:
    """Each annotation with its image's file, which lies in one of `folders`; an error where files are missing."""
    pairs = [(annotation, found(annotation.file, folders)) for annotation in annotations]
    missing = [annotation.file for annotation, file in pairs if file is None]
    if missing:
        raise not_found(missing, len(pairs), table, folders)
    return [(annotation, file) for annotation, file in pairs if file is not None]


def found(written: str, folders: Iterable[Path]) -> Path | None:
    """The file written so, in the first folder that has it."""
    return next((folder / written for folder in folders if (folder / written).is_file()), None)


def not_found(missing: list[str], total: int, listed_in: Path, folders: Iterable[Path]) -> DataError:
    """The error for listed files that are not there."""
    looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
    nearby = [file.name for folder in dict.fromkeys(folders) if folder.is_dir() for file in folder.iterdir()]
    hint = f"; for the first, {near_misses(missing[0], nearby)}" if nearby else ""
    return DataError(
        f"{len(missing)} of {total} files listed in {listed_in} are missing, the first is {missing[0]}; "
        f"looked in {looked}{hint}"
    )
