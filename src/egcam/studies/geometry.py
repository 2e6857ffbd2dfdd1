"""From a stored picture to what the network gets: the same resize and crop for the image and its mask.

Without `size` a network sees an image as its own preprocessing says. With `size`,

- an image larger than that is cut as the network's preprocessing cuts: its shorter side becomes size x resize / input,
  with the network's own resize and input (256 / 224 for most), and the centre of size x size is taken;
- an image that is not larger, such as CIFAR-10's 32 x 32 at 96 or 224, is enlarged as a whole to size x size
  (bicubic), for a centre cut would throw away pixels that are already few.

Masks are resampled with "nearest", so a pixel is in the object or it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egcam.errors import EgcamError
from egcam.imagefiles import opened
from egcam.models.preprocessing import Preprocessing
from egcam.studies.datasets.dataset import DataError, Dataset, Picture
from egcam.studies.datasets.subset import even_order

_QUALITY = 90
_FORMATS = ("JPEG", "PNG")
# Far more than any network sees: results may be somebody else's.
_MEGAPIXELS = 16.0
_LONGEST_SHOWN = 1024


def encoded(preprocessing: Preprocessing, image: Image.Image) -> bytes:
    """What the network sees of an image, as a JPEG."""
    view = preprocessing.view(image)
    view.thumbnail((max(preprocessing.size), max(preprocessing.size)))
    file = BytesIO()
    view.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def shown(picture: bytes, name: str) -> Image.Image:
    """The picture for a page, in RGB and with sides of 1024 pixels at most; `name` is for errors."""
    with opened(picture, name, _FORMATS, _MEGAPIXELS) as image:
        image.thumbnail((_LONGEST_SHOWN, _LONGEST_SHOWN))
        return image.convert("RGB")


def height_and_width(picture: bytes, name: str) -> tuple[int, int]:
    """(height, width) of the picture as it was kept."""
    with opened(picture, name, _FORMATS, _MEGAPIXELS) as image:
        return image.height, image.width


def resized_preprocessing(preprocessing: Preprocessing, size: int | None) -> Preprocessing:
    """The network's preprocessing for inputs of `size` x `size`, with the share of the image it cuts off kept.

    Example:
        >>> small = resized_preprocessing(Preprocessing(size=(224, 224), resize=256), 96)
        >>> small.size, small.resize
        ((96, 96), 110)
    """
    if size is None or preprocessing.size == (size, size):
        return preprocessing
    if size < 1:
        raise DataError(f"size = {size}: a side in pixels, such as 224")
    resize = preprocessing.resize
    if resize is not None:
        resize = round(resize * size / min(preprocessing.size))
    return replace(preprocessing, size=(size, size), resize=resize)


def fitting_preprocessing(preprocessing: Preprocessing, size: int | None, image: Image.Image) -> Preprocessing:
    """The preprocessing for one image: as `resized_preprocessing`, or the whole image where it is not larger.

    Example:
        >>> fitting_preprocessing(Preprocessing(), 96, Image.new("RGB", (32, 32))).resize is None
        True
    """
    resized = resized_preprocessing(preprocessing, size)
    if size is None or max(image.size) > size:
        return resized
    return replace(resized, resize=None, interpolation="bicubic")


def prepared(picture: Picture, preprocessing: Preprocessing, size: int | None = None) -> tuple[Tensor, Tensor | None]:
    """The network's input (C, H, W), and the picture's mask (H, W), of type bool, under the same resize and crop.

    The mask is None if the picture has none, and False everywhere where the object is cut off.

    Args:
        picture: as the data set gives it.
        preprocessing: the network's own.
        size: side of the input in pixels, where it is not to be the network's own.

    Example:
        >>> mask = np.zeros((256, 384), dtype=bool)
        >>> mask[:, 192:] = True
        >>> image, seen = prepared(Picture("a", Image.new("RGB", (384, 256)), mask=mask), Preprocessing())
        >>> image.shape, seen[0].tolist() == [False] * 112 + [True] * 112
        (torch.Size([3, 224, 224]), True)
    """
    seen = fitting_preprocessing(preprocessing, size, picture.image)
    image = seen(picture.image)
    if picture.mask is None:
        return image, None
    if picture.mask.shape != (picture.image.height, picture.image.width):
        raise DataError(
            f"{picture.name}: the mask has shape {picture.mask.shape}, the image is "
            f"{picture.image.height} high and {picture.image.width} wide"
        )
    # With the same operations as the image, so that no rounding of sizes or corners can shift the two.
    return image, seen.of_masks(Image.fromarray(picture.mask.astype(np.uint8) * 255))[0] > 0.5


def reference_pool(
    dataset: Dataset,
    preprocessing: Preprocessing,
    size: int | None = None,
    count: int = 64,
    seed: int = 0,
    on_read: Callable[[Picture], None] = lambda picture: None,
) -> Tensor:
    """(M, C, H, W) images to compare with, M = `count` or as many as there are, evenly spread over the classes.

    They are drawn from all the data, not from the study's choice alone, and do not depend on how many images the study
    takes. They are taken from the end of the order the choice takes from the beginning of, given the same seed, so the
    two meet only where the data are few; the explained image itself is never used, for
    `egcam.attribution.references.Images` leaves it out. Files that cannot be read are passed over, and an image that
    is in the data several times is taken once.

    Args:
        dataset: the study's data.
        preprocessing: the network's own.
        size: side of the input in pixels, where it is not to be the network's own.
        count: how many.
        seed: of the draw; the seed of the choice keeps the two apart.
        on_read: called with each image that was read, also one that is then left out.

    Raises:
        DataError: when no image can be read.
    """
    if count < 1:
        raise DataError(f"count = {count}: a pool of references needs at least one image")
    whole = dataset.whole
    images: dict[bytes, Tensor] = {}
    problem: EgcamError | None = None
    for index in even_order(whole.names, whole.groups, seed, backwards=True):
        if len(images) == count:
            break
        try:
            picture = whole[index]
            on_read(picture)
            image, _ = prepared(replace(picture, mask=None), preprocessing, size)
        except EgcamError as error:
            problem = problem or error
            continue
        images.setdefault(blake2b(image.numpy().tobytes()).digest(), image)
    if not images:
        raise DataError(f"no image of {whole.description} can be read as a reference: {problem or 'there is none'}")
    return torch.stack(list(images.values()))
