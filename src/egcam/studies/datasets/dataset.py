"""What every data set gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from egcam.errors import EgcamError

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
