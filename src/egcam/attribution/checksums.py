"""Short checksums of the images that were explained, so that a saved map can be traced back to them."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from torch import Tensor

from egcam.models.weight_checksum import CHECKSUM_DIGITS, bytes_of

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation


def checksums_of_images(explanation: Explanation) -> tuple[str, ...] | None:
    """For each image, the first digits of a sha256 of its tensor as the model got it; None if it is not known."""
    if explanation.images is None:
        return explanation.image_checksums
    images = explanation.images.detach()
    batch = images[None] if explanation.is_single else images
    return tuple(_checksum(image) for image in batch)


def _checksum(tensor: Tensor) -> str:
    kind = f"{tuple(tensor.shape)} {tensor.dtype};"
    return sha256(kind.encode() + bytes_of(tensor)).hexdigest()[:CHECKSUM_DIGITS]
