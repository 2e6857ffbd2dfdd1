"""Random draws that are seeded, local and keyed: the same key gives the same draw, whatever else was drawn."""

from __future__ import annotations

from hashlib import blake2b
from numbers import Integral

import torch
from torch import Tensor

from egcam.errors import SamplingError


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator for one purpose, independent of every other key and of torch's global state.

    Draws are made on the CPU, so the numbers do not depend on the device.

    >>> torch.equal(torch.rand(2, generator=generator(0, "a")), torch.rand(2, generator=generator(0, "a")))
    True
    """
    given: object = seed
    if not isinstance(given, Integral):
        raise SamplingError(f"a seed is a whole number, not {seed!r}; the same seed gives the same draws")
    digest = blake2b(repr((int(seed), *key)).encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)


def like(drawn: Tensor, images: Tensor) -> Tensor:
    """A draw moved to the device and dtype of the images."""
    return drawn.to(images.device, images.dtype)
