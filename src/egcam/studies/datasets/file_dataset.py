"""A data set of image files, each with what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from egcam.evaluation.numbers import counted
from egcam.photos.files import read_image
from egcam.studies.datasets.dataset import DataError, Dataset, Mask, Picture

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
