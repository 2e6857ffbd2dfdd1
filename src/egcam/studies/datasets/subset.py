"""Which images a study takes: evenly spread over the classes, the same on every machine, and nested.

All images are put into one order, in rounds: each round takes one image of every class that has one left. Within a
class, and among classes, the order comes from a hash of the seed and the name, so it depends neither on the order of
files on disk nor on what else is there. A choice of N is the first N of this order; hence the first k of it are the
choice of k, and what was computed for k images serves for N.
"""

from __future__ import annotations

from collections.abc import Sequence

from egcam.errors import near_misses
from egcam.rng import generator
from egcam.studies.datasets.dataset import DataError, Dataset, Picture


def even_order(names: Sequence[str], groups: Sequence[str], seed: int = 0, backwards: bool = False) -> list[int]:
    """The numbers of all images, in rounds over their classes.

    Args:
        names: one for each image, unique.
        groups: the class of each image.
        seed: of the order.
        backwards: begin with the last class and with each class's last image. Its beginning shares no image with the
            beginning of the forward order as long as there are classes, or images within the classes, enough.

    Example:
        >>> even_order(["a", "b", "c", "d"], ["cat", "cat", "cat", "dog"])
        [3, 1, 2, 0]
        >>> even_order(["d", "c", "b", "a"], ["dog", "cat", "cat", "cat"])
        [0, 2, 1, 3]
    """
    members: dict[str, list[int]] = {}
    for index in sorted(range(len(names)), key=lambda index: _key(seed, "image", names[index])):
        members.setdefault(groups[index], []).append(index)
    order = sorted(members, key=lambda group: _key(seed, "class", group))
    queues = [members[group] for group in order]
    if backwards:
        queues = [queue[::-1] for queue in queues[::-1]]
    rounds = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(rounds) for queue in queues if turn < len(queue)]


class Subset(Dataset):
    """Some images of a data set, in the order given."""

    def __init__(self, whole: Dataset, indices: Sequence[int], note: str = "") -> None:
        self._whole, self._indices = whole, list(indices)
        self.description = f"{whole.description}{note}"
        names = whole.names
        self.names = [names[index] for index in self._indices]
        self.has_labels, self.has_masks = whole.has_labels, whole.has_masks

    @property
    def groups(self) -> list[str]:
        """The classes of the images taken."""
        groups = self._whole.groups
        return [groups[index] for index in self._indices]

    @property
    def parts(self) -> list[str]:
        """The parts of the images taken."""
        parts = self._whole.parts
        return [parts[index] for index in self._indices]

    @property
    def whole(self) -> Dataset:
        """What the images were taken from."""
        return self._whole

    def require_labels(self) -> None:
        """As the whole data set says it."""
        self._whole.require_labels()

    def require_masks(self) -> None:
        """As the whole data set says it."""
        self._whole.require_masks()

    def __getitem__(self, index: int) -> Picture:
        return self._whole[self._indices[index]]


def take(whole: Dataset, images: int | None = None, seed: int = 0, part: str | None = None) -> Dataset:
    """`images` of the data set's images, or all of them, in the even order.

    Raises:
        DataError: when there are fewer, or no part is called so.
    """
    everything = even_order(whole.names, whole.groups, seed)
    indices = everything if part is None else _of_part(whole, everything, part)
    if images is None:
        images = len(indices)
    if images < 1:
        raise DataError(f"images = {images}: a study needs at least one image")
    if images > len(indices):
        raise DataError(
            f"images = {images}, but there are {len(indices)}{f' in part {part!r}' if part else ''} "
            f"({whole.description}); set images = {len(indices)}"
        )
    taken = f"; {images:,} of them taken, seed {seed}" if images < len(whole) else ""
    return Subset(whole, indices[:images], f"{taken}, part {part!r}" if part else taken)


def _of_part(whole: Dataset, indices: list[int], part: str) -> list[int]:
    parts = whole.parts
    found = [index for index in indices if parts[index] == part]
    if not found:
        known = sorted(set(parts) - {""})
        hint = near_misses(part, known) if known else 'the data have no parts (no column "part" in their CSV)'
        raise DataError(f"no image is in part {part!r}; {hint}")
    return found


def _key(seed: int, kind: str, name: str) -> tuple[int, str]:
    # The seed a keyed generator starts with is a hash of its key: equal on every machine and torch version, which the
    # numbers drawn from it need not be.
    return generator(seed, "choice", kind, name).initial_seed(), name
