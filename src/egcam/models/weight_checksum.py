"""Which weights a model has: a short checksum, quick enough to be taken at every explanation."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

CHECKSUM_DIGITS = 16  # hexadecimal
_LOOKED_AT = 512  # numbers of each tensor
_PLAIN = (Tensor, nn.Parameter)  # others, as sharded ones, may have no memory of their own


@dataclass(frozen=True)
class Weights:
    """A model's parameters and buffers as they are now."""

    checksum: str  # the first digits of a sha256 of names, shapes, dtypes and some numbers of each
    places: Hashable  # where each lies in memory, and how often torch has seen it written


def weights_of(model: nn.Module) -> Weights:
    """Read a model's weights.

    Of a large tensor evenly spread numbers are read, from 512 to 1023, and of a smaller one all. A step of training
    changes nearly every number, and so the checksum; a few weights that are written by hand it may miss.
    """
    names, places = [], []
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            lazy = is_lazy(tensor)
            names.append(f"{prefix}.{name} {'' if lazy else tuple(tensor.shape)} {tensor.dtype};")
            readable = not lazy and not tensor.is_meta and tensor.layout == torch.strided
            version = 0 if lazy or tensor.is_inference() else tensor._version
            place = tensor.data_ptr() if readable and type(tensor) in _PLAIN else id(tensor)
            places.append((place, version, tensor.dtype, tensor.device))
            if readable:
                kinds.setdefault((tensor.dtype, tensor.device), []).append(_some_numbers(tensor.detach()))
    digest = sha256("".join(names).encode())
    for parts in kinds.values():
        # One copy from the device for all tensors of a kind.
        digest.update(bytes_of(torch.cat(parts)))
    return Weights(digest.hexdigest()[:CHECKSUM_DIGITS], tuple(places))


def _some_numbers(tensor: Tensor) -> Tensor:
    # Of weights that several processes share, the part that lies here.
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    count = tensor.numel()
    step = max(1, count // _LOOKED_AT)
    if type(tensor) in _PLAIN and tensor.is_contiguous():
        # One operation: a network has hundreds of weights.
        return tensor.as_strided((-(-count // step),), (step,))
    return tensor.detach().reshape(-1)[::step]


def bytes_of(tensor: Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory, in the order of its places."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
