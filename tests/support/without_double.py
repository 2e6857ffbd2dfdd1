"""Tensors as on a device that has no float64 (Apple's MPS): they refuse to become one before they are on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class WithoutDouble(Tensor):
    """Whatever is computed from such a tensor is one, until `.cpu()` makes it a plain tensor."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = super().__torch_function__(function, types, args, kwargs)
        if function is Tensor.cpu or (function is Tensor.to and "cpu" in map(str, (*args[1:], *kwargs.values()))):
            return found.as_subclass(Tensor)
        parts = found if isinstance(found, tuple | list) else (found,)
        if any(isinstance(part, cls) and part.dtype == torch.float64 for part in parts):
            raise TypeError("this device has no float64")
        return found
