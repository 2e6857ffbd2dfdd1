"""What to explain beyond a class: a class against another, a box, a mask or pixel, a similarity, one of several heads.

Each is a small object for `target=`, on its own for all images or in a list with one for each. It reads the number to
explain from one image's part of the model's output, in each sample.

May use models, which find class scores in an output and hand every target its image's part.
"""

from __future__ import annotations

from egcam.models.targets import Class, Contrast, ImageTarget
from egcam.targets.boxes import Box
from egcam.targets.heads import Head
from egcam.targets.masks import Mask, Pixel
from egcam.targets.similarity import Similarity

__all__ = [
    "Box",
    "Class",
    "Contrast",
    "Head",
    "ImageTarget",
    "Mask",
    "Pixel",
    "Similarity",
]


def __dir__() -> list[str]:
    return __all__
