"""What every data set gives, and data sets of image files on a disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from egcam.errors import EgcamError, near_misses
from egcam.evaluation.numbers import counted
from egcam.photos.files import read_image

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class DataError(EgcamError):
    """Data that are missing or not laid out as expected; the text says what is missing and where it was looked for."""


@dataclass(frozen=True)
class Picture:
    """An image with what is known of it.

    Attributes:
        name: unique in the data set, the same on every machine: a path relative to the data's folder, or a number.
        image: RGB, upright, as stored (before any resize or crop).
        label: its class as the network numbers them, or None.
        mask: (height, width) of the stored image: where the labelled object is, or None.
    """

    name: str
    image: Image.Image
    label: int | None = None
    mask: Mask | None = None


class Dataset(ABC):
    """Images by number. Opening one reads its listing only; an image is read when asked for.

    Attributes:
        description: one line for reports: what it is, how many images, which labels or masks.
        names: of all images, in order: what identifies the choice of images across machines.
        has_labels: whether every picture has a label.
        has_masks: whether every picture has a mask.
    """

    description: str
    names: list[str]
    has_labels: bool = False
    has_masks: bool = False

    @property
    def groups(self) -> list[str]:
        """For each image the class a choice is spread over: its label or class name; "" where unknown."""
        return [""] * len(self)

    @property
    def parts(self) -> list[str]:
        """For each image the part of the data it belongs to, such as "train"; "" if there are no parts."""
        return [""] * len(self)

    @property
    def whole(self) -> Dataset:
        """All there is on disk, where this is a choice of it: what references are drawn from."""
        return self

    def require_labels(self) -> None:
        """Raise `DataError`, which says what is missing, unless every picture has a label."""
        if not self.has_labels:
            raise DataError(f"not every image has a label ({self.description}); use target = 'prediction'")

    def require_masks(self) -> None:
        """Raise `DataError`, which says what is missing, unless every picture has a mask."""
        if not self.has_masks:
            raise DataError(f"not every image has a mask ({self.description}); leave metrics that need masks out")

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def __getitem__(self, index: int) -> Picture:
        """The picture numbered `index`.

        `egcam.errors.InputError` where its file cannot be read, `DataError` where its mask does not fit it.
        """


MaskReader: TypeAlias = Callable[[Image.Image], Mask | None]


@dataclass(frozen=True)
class Entry:
    """An image file before it is read.

    Attributes:
        name: unique in the data set, the same on every machine.
        file: where it is.
        label: its class index, or None.
        group: the class a choice is spread over.
        mask: given the upright image, where the object is; None if nothing is known of that.
        part: the part of the data it belongs to.
    """

    name: str
    file: Path
    label: int | None = None
    group: str = ""
    mask: MaskReader | None = None
    part: str = ""


@dataclass(frozen=True)
class Missing:
    """What to say when labels or masks are asked for that are not there: what is missing, and where it was looked."""

    labels: str = ""
    masks: str = ""


class FileDataset(Dataset):
    """Image files with labels and masks.

    Args:
        title: what the data are, for reports.
        entries: the files.
        missing: what is said when labels or masks are needed and some are not there.
    """

    def __init__(self, title: str, entries: Sequence[Entry], missing: Missing | None = None) -> None:
        self._entries, self._missing = list(entries), missing or Missing()
        self.names = [entry.name for entry in self._entries]
        doubled = len(self.names) - len(set(self.names))
        labels = sum(entry.label is not None for entry in self._entries)
        masks = sum(entry.mask is not None for entry in self._entries)
        self.has_labels, self.has_masks = labels == len(self), masks == len(self)
        known = [_share(labels, len(self), "labels"), _share(masks, len(self), "masks")]
        self.description = f"{title}: {counted(len(self), 'image')}, {', '.join(known)}"
        if doubled:
            raise DataError(f"{title}: {doubled} images have the name of another one; give every image its own name")

    @property
    def groups(self) -> list[str]:
        """The class of each image."""
        return [entry.group for entry in self._entries]

    @property
    def parts(self) -> list[str]:
        """The part of each image."""
        return [entry.part for entry in self._entries]

    def require_labels(self) -> None:
        """Raise `DataError`, which says what is missing, unless every picture has a label."""
        if not self.has_labels and self._missing.labels:
            raise DataError(f"{self.description}: {self._missing.labels}, or use target = 'prediction'")
        super().require_labels()

    def require_masks(self) -> None:
        """Raise `DataError`, which says what is missing, unless every picture has a mask."""
        if not self.has_masks and self._missing.masks:
            raise DataError(f"{self.description}: {self._missing.masks}, or leave metrics that need masks out")
        super().require_masks()

    def __getitem__(self, index: int) -> Picture:
        entry = self._entries[index]
        image = read_image(entry.file)
        mask = None if entry.mask is None else entry.mask(image)
        return Picture(entry.name, image, entry.label, mask)


def _share(count: int, total: int, what: str) -> str:
    if count == total:
        return what
    return f"{what} for {count:,}" if count else f"no {what}"


def of_classes(entries: Sequence[Entry], wanted: Sequence[str], groups: Sequence[str], title: str) -> list[Entry]:
    """The entries whose class is one of `groups`, which is what the words `wanted` stand for; one each at least."""
    if not wanted:
        return list(entries)
    there = {entry.group for entry in entries}
    absent = [word for word, group in zip(wanted, groups, strict=True) if group not in there]
    if absent:
        raise DataError(f"{title}: no image of class {', '.join(map(repr, absent))}; there are {len(there)} classes")
    return [entry for entry in entries if entry.group in set(groups)]


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
