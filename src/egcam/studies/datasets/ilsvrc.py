"""What comes with ILSVRC2012's images: the development kit's labels, Kaggle's solution, the box files."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

from egcam.errors import require
from egcam.studies.datasets.dataset import DataError
from egcam.studies.datasets.masks import Box
from egcam.studies.datasets.wnids import index_of, wnids

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
META = "meta.mat"
SOLUTION = "LOC_val_solution.csv"
MAPPING = "LOC_synset_mapping.txt"

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True)
class Boxes:
    """The boxes of an image, and the size of the image they were drawn on, if it is known."""

    boxes: tuple[Box, ...]
    width: int | None = None
    height: int | None = None


def validation_number(stem: str) -> int | None:
    """The number in an official validation file's name.

    Example:
        >>> validation_number("ILSVRC2012_val_00000021")
        21
    """
    match = _NUMBER.match(stem)
    return int(match[1]) if match else None


def devkit_labels(folder: Path, stems: Sequence[str]) -> dict[str, int]:
    """Class indices by file stem, from the development kit's data folder.

    Line n of the ground truth is the ILSVRC id (1 to 1000) of validation image n. Those ids are not the networks'
    indices: meta.mat says which WordNet id each stands for, and the rank of that is the index.
    """
    truth, meta = folder / GROUND_TRUTH, folder / META
    if not meta.is_file():
        raise DataError(
            f"{truth} is there, but {meta} is missing: without it the ILSVRC ids in the ground truth do not say which "
            "classes they are; both are in ILSVRC2012_devkit_t12/data"
        )
    try:
        ids = [int(line) for line in truth.read_text(encoding="utf-8").split()]
    except ValueError as error:
        raise DataError(f"{truth} is not a list of ILSVRC ids, one number a line ({error})") from error
    names = _synsets(meta)
    labels: dict[str, int] = {}
    for stem in stems:
        number = validation_number(stem)
        if number is None:
            raise DataError(f"{stem} is not called ILSVRC2012_val_00000001 and the like, so it has no line in {truth}")
        if not 1 <= number <= len(ids):
            raise DataError(f"{truth} has {len(ids)} lines, but there is an image {stem}")
        identifier = ids[number - 1]
        if identifier not in names:
            raise DataError(f"{truth}, line {number}: no class in {meta} has the ILSVRC id {identifier}")
        labels[stem] = index_of(names[identifier], str(meta))
    return labels


def _synsets(meta: Path) -> dict[int, str]:
    """WordNet ids by ILSVRC id. Those with children are groups of classes, not classes."""
    require("scipy", "study", f"reading {META}")
    try:
        synsets = import_module("scipy.io").loadmat(meta, squeeze_me=True)["synsets"].reshape(-1)
        return {
            int(identifier): str(wnid)
            for identifier, wnid, children in zip(
                synsets["ILSVRC2012_ID"], synsets["WNID"], synsets["num_children"], strict=True
            )
            if int(children) == 0
        }
    # SciPy answers a damaged file in many ways.
    except Exception as error:
        raise DataError(
            f"{meta} is not the development kit's {META} ({type(error).__name__}: {error}); expected is the struct "
            "'synsets' with ILSVRC2012_ID, WNID and num_children"
        ) from error


def is_solution(file: Path) -> bool:
    """Whether a CSV is Kaggle's list of labels and boxes, by its header."""
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        return [word.strip() for word in stream.readline().split(",")] == ["ImageId", "PredictionString"]


def solution(file: Path) -> dict[str, tuple[int, Boxes]]:
    """Class index and boxes by file stem, from Kaggle's solution: lines "ImageId,n01440764 x1 y1 x2 y2 n01440764 …"."""
    found: dict[str, tuple[int, Boxes]] = {}
    _check_mapping(file.with_name(MAPPING))
    with file.open(newline="", encoding="utf-8-sig") as stream:
        for row in csv.DictReader(stream):
            where, words = f"{file}, {row['ImageId']}", row["PredictionString"].split()
            if not words or len(words) % 5:
                raise DataError(f"{where}: {row['PredictionString']!r} is not wnid x1 y1 x2 y2, once or more often")
            objects = [words[start : start + 5] for start in range(0, len(words), 5)]
            # Every object in an image of the validation set is of the image's class.
            boxes = tuple(Box(*map(float, corners)) for _, *corners in objects)
            found[row["ImageId"]] = index_of(words[0], where), Boxes(boxes)
    return found


def _check_mapping(file: Path) -> None:
    """Kaggle's list of classes, where it is there, must be in the order networks have."""
    if not file.is_file():
        return
    listed = [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if tuple(listed) != wnids()[: len(listed)]:
        raise DataError(f"{file} does not list ImageNet's classes in the order of the networks' outputs")


def read_boxes(file: Path, wnid: str | None) -> Boxes:
    """The boxes in an ILSVRC (or VOC) box file; those of class `wnid` if it is given."""
    try:
        tree = ElementTree.parse(file).getroot()
        size = tree.find("size")
        objects = [entry for entry in tree.iter("object") if wnid is None or entry.findtext("name") == wnid]
        boxes = tuple(
            Box(*(float(str(entry.findtext(f"bndbox/{edge}"))) for edge in ("xmin", "ymin", "xmax", "ymax")))
            for entry in objects
        )
        if size is None:
            return Boxes(boxes)
        return Boxes(boxes, int(str(size.findtext("width"))), int(str(size.findtext("height"))))
    except (ElementTree.ParseError, ValueError, OSError) as error:
        raise DataError(f"{file} is not a box file of ILSVRC ({error})") from error
