"""ImageNet's 1,000 WordNet ids: a network's class index is an id's rank among them, sorted."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from egcam.errors import EgcamError, near_misses
from egcam.models.class_scores import class_index, imagenet_classes
from egcam.studies.datasets.dataset import DataError

_WNID = re.compile(r"n\d{8}")


@cache
def wnids() -> tuple[str, ...]:
    """The WordNet ids of ILSVRC2012's classes, in the order of the networks' outputs.

    Example:
        >>> len(wnids()), wnids()[340]
        (1000, 'n02391049')
    """
    text = files("egcam.studies.datasets").joinpath("imagenet_wnids.txt").read_text(encoding="utf-8")
    return tuple(text.split())


@cache
def _indices() -> dict[str, int]:
    return {wnid: index for index, wnid in enumerate(wnids())}


def is_wnid(text: str) -> bool:
    """Whether `text` is written like a WordNet id: n and eight digits."""
    return _WNID.fullmatch(text) is not None


def index_of(wnid: str, where: str) -> int:
    """The class index of a WordNet id; `where` appears in the error.

    Example:
        >>> index_of("n02391049", "the folder's name")
        340
    """
    index = _indices().get(wnid)
    if index is None:
        raise DataError(f"{where}: {wnid!r} is none of ImageNet's 1,000 classes; {near_misses(wnid, wnids())}")
    return index


def imagenet_class(word: str) -> int:
    """The class index meant by a WordNet id, an index or a class name.

    Example:
        >>> imagenet_class("zebra"), imagenet_class("n02391049"), imagenet_class("340")
        (340, 340, 340)
    """
    if is_wnid(word):
        return index_of(word, "classes")
    if word.isdecimal() and int(word) < len(wnids()):
        return int(word)
    try:
        return class_index(word, imagenet_classes(), len(wnids()))
    except EgcamError as error:
        raise DataError(f"classes: {error}") from error
