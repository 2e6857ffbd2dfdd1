"""Images by their content: whether an image is still the one that finished units were made from.

The content of an image is a short text, "pixels label mask": checksums of the stored pixels and of the mask, and the
label as it is. It is taken when an image is read to be explained, and kept in the outcome with the stamp of its files
(size and time, `Dataset.stamp`). A resumed run compares stamps, and reads again only the images whose stamp
differs, such as copies on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from egcam.studies.datasets.dataset import Dataset, Picture
from egcam.studies.records import Outcome, failed
from egcam.studies.storage import StoreError, listed

_CHECKSUM_LENGTH = 24
_READ_AT_ONCE = 8


@dataclass(frozen=True)
class StoredInput:
    """An image as a finished unit had it: content, and stamp of its files."""

    image: int
    content: str
    stamp: str


def content_of(picture: Picture) -> str:
    """The content of a picture.

    Example:
        >>> from PIL import Image
        >>> content_of(Picture("a.png", Image.new("RGB", (2, 2)), label=7)).split()[1:]
        ['7', '-']
    """
    image = picture.image
    pixels = _checksum(f"{image.mode} {image.size}", image.tobytes())
    mask = "-"
    if picture.mask is not None:
        mask = _checksum(str(picture.mask.shape), np.packbits(picture.mask).tobytes())
    return f"{pixels} {'-' if picture.label is None else picture.label} {mask}"


def difference(old: str, new: str) -> str:
    """A description of how two contents differ; empty if they are equal.

    Example:
        >>> difference("abc 3 -", "abd 4 -")
        'other pixels, label 3 -> 4'
    """
    (old_pixels, old_label, old_mask), (new_pixels, new_label, new_mask) = old.split(), new.split()
    found = ["other pixels"] if old_pixels != new_pixels else []
    found += [f"label {old_label} -> {new_label}"] if old_label != new_label else []
    found += ["another mask"] if old_mask != new_mask else []
    return ", ".join(found)


def other_images(where: str, changes: Sequence[str]) -> StoreError:
    """The error for images that have changed: a line for each."""
    return StoreError(
        f"{where} holds results of other images under the same names, and they do not mix:\n{listed(changes)}\n"
        "Put the old files back, or use another --out."
    )


def sampled(data: Dataset, count: int) -> dict[str, str]:
    """The contents of some images, evenly spread, by name: enough to notice other data under the same names.

    Images that cannot be read are left out: they may be repaired later.
    """
    found = {}
    for index in range(0, len(data), max(1, len(data) // count)):
        try:
            found[data.names[index]] = content_of(data[index])
        except Exception:
            # The units that need it will report what is wrong.
            continue
    return found


def check_unchanged(data: Dataset, seen: Iterable[StoredInput], where: str) -> dict[int, str]:
    """The contents of the images finished units were made from, or an error that names those that have changed."""
    known: dict[int, dict[str, set[str]]] = {}
    for one in seen:
        known.setdefault(one.image, {}).setdefault(one.content, set()).add(one.stamp)
    doubtful = [image for image, contents in known.items() if not _is_as_stamped(data, image, contents)]
    with ThreadPoolExecutor(_READ_AT_ONCE, "egcam inputs") as pool:
        found = pool.map(lambda image: _change(data, image, known[image]), doubtful)
        changes = [f"{data.names[image]}: {change}" for image, change in zip(doubtful, found, strict=True) if change]
    if changes:
        raise other_images(where, changes)
    return {image: next(iter(contents)) for image, contents in known.items()}


class Inputs:
    """Checks that all units of an image see the same content, even if the file changes during the run.

    Args:
        known: contents by image.
        metrics: names of the metrics, for units that fail here.
        names: of the images, which outcomes are kept under.
    """

    def __init__(self, known: Mapping[int, str], metrics: tuple[str, ...], names: Sequence[str]) -> None:
        self._known, self._metrics, self._names = dict(known), metrics, names

    def checked(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes; those of an image that has changed as failures."""
        # An engine that lost a worker does not know the image's name.
        named = (one if one.name else replace(one, name=self._names[one.unit.image]) for one in outcomes)
        return [self._checked(one) for one in named]

    def _checked(self, outcome: Outcome) -> Outcome:
        image = outcome.unit.image
        if not outcome.content or self._known.setdefault(image, outcome.content) == outcome.content:
            return outcome
        change = difference(self._known[image], outcome.content)
        cause = f"{outcome.name} is not what it was when its other units were done: {change}; put the old file back"
        return replace(failed(outcome.unit, self._metrics, cause, outcome.name), seconds=outcome.seconds)


def _is_as_stamped(data: Dataset, image: int, contents: Mapping[str, set[str]]) -> bool:
    if len(contents) > 1:
        return False
    stamp = data.stamp(image)
    return bool(stamp) and stamp in next(iter(contents.values()))


def _change(data: Dataset, image: int, contents: Mapping[str, set[str]]) -> str:
    """What is not as it was; nothing if all is."""
    try:
        new = content_of(data[image])
    except Exception as error:
        return f"it cannot be read any more ({' '.join(str(error).split())})"
    return next((difference(old, new) for old in contents if old != new), "")


def _checksum(about: str, data: bytes) -> str:
    return sha256(about.encode() + b"\n" + data).hexdigest()[:_CHECKSUM_LENGTH]
