"""Short checksums of what was explained, and of what explained it, so that a saved map can be traced back to both."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation

_LENGTH = 16  # hexadecimal digits
_LOOKED_AT = 512  # numbers of each tensor


def checksum_of_weights(model: nn.Module) -> str:
    """The first digits of a sha256 of a model's parameters and buffers: names, shapes, dtypes and some numbers.

    It is taken at every explanation, so of a large tensor evenly spread numbers are read, from 512 to 1023, and of a
    smaller one all. A step of training changes nearly every number, and so the checksum; a few weights that are
    written by hand it may miss.

    Example:
        >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> same = nn.Linear(2, 3)
        >>> _ = same.load_state_dict(one.state_dict())
        >>> [checksum_of_weights(each) == checksum_of_weights(one) for each in (same, other)]
        [True, False]
    """
    state = (*model.named_parameters(), *model.named_buffers())
    found = sha256()
    for name, tensor in state:
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
    for numbers in some_numbers([tensor for _, tensor in state if tensor.layout == torch.strided], _LOOKED_AT):
        found.update(numbers)
    return found.hexdigest()[:_LENGTH]


def some_numbers(tensors: Iterable[Tensor], count: int) -> list[bytes]:
    """About that many evenly spread numbers of each tensor, in as few copies from the device as there are kinds."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if not tensor.is_meta:
            flat = tensor.detach().reshape(-1)
            kinds.setdefault((tensor.dtype, tensor.device), []).append(flat[:: max(1, len(flat) // count)])
    return [_bytes(torch.cat(parts)) for parts in kinds.values()]


def checksums_of_images(explanation: Explanation) -> tuple[str, ...] | None:
    """For each image, the first digits of a sha256 of its tensor as the model got it; None where it is not known."""
    if explanation.images is None:
        return explanation.image_checksums
    images = explanation.images.detach()
    batch = images[None] if explanation.is_single else images
    return tuple(_checksum(image) for image in batch)


def _checksum(tensor: Tensor) -> str:
    kind = f"{tuple(tensor.shape)} {tensor.dtype};"
    return sha256(kind.encode() + _bytes(tensor)).hexdigest()[:_LENGTH]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
