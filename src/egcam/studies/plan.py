"""Which units a study has, in which order, and how they are split between runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from egcam.studies.config import StudyError
from egcam.studies.records import Unit
from egcam.studies.specs import Study

Part = tuple[int, int]
"""(i, n): part i of n, counted from 1."""

WHOLE: Part = (1, 1)


def planned(study: Study, images: int, part: Part = WHOLE) -> Iterator[Unit]:
    """All units of a part, model by model and image by image, so that whatever is done compares all methods.

    A part takes every n-th image, with all its methods and models.
    """
    mine, parts = part
    for model in study.models:
        for image in range(mine - 1, images, parts):
            for method in study.methods:
                yield Unit(model.label, method.name, image)


def shards(units: Iterable[Unit], most: int) -> Iterator[list[Unit]]:
    """Units handed to a worker together: of one model and one image, which is then read and prepared once.

    Example:
        >>> units = [Unit("m", method, image) for image in (0, 1) for method in ("a", "b", "c")]
        >>> [[(unit.image, unit.method) for unit in shard] for shard in shards(units, most=2)]
        [[(0, 'a'), (0, 'b')], [(0, 'c')], [(1, 'a'), (1, 'b')], [(1, 'c')]]
    """
    for _, together in groupby(units, key=lambda unit: (unit.model, unit.image)):
        listed = list(together)
        for start in range(0, len(listed), most):
            yield listed[start : start + most]


def shard_size(units: int, workers: int, methods: int) -> int:
    """As many methods of an image as leave every worker enough shards to end at about the same time."""
    return max(1, min(methods, units // (8 * max(1, workers))))


def read_part(text: str) -> Part:
    """The part that "i/n" means.

    Example:
        >>> read_part("2/8")
        (2, 8)
    """
    found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
    if found is not None:
        mine, parts = int(found[1]), int(found[2])
        if 1 <= mine <= parts:
            return mine, parts
    raise StudyError(f"{text!r} is not a part of a study: write i/n with i from 1 to n, such as 1/4")
