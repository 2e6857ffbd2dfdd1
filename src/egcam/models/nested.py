"""Tensors inside whatever goes into a model and comes out of it: tuples, lists, dicts, dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from egcam.errors import TargetError


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in the value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from tensors_in(getattr(value, entry.name))


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The value with `function` of all that is not a tuple, list or dict in it."""
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, item in value.items():
            changed[key] = mapped(item, function)
        return changed
    if isinstance(value, tuple | list):
        items = [mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value)


def mapped_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The value with `function` of each tensor in its tuples, lists, dicts and dataclasses."""

    def changed(item: Any) -> Any:
        if isinstance(item, Tensor):
            return function(item)
        if not is_dataclass(item) or not any(True for _ in tensors_in(item)):
            return item
        result = copy.copy(item)
        for entry in fields(item):
            object.__setattr__(result, entry.name, mapped_tensors(getattr(item, entry.name), function))
        return result

    return mapped(value, changed)


def named_or_only(output: Any, keys: Iterable[str], fits: Callable[[Tensor], bool], what: str, target: str) -> Tensor:
    """Of the tensors in an output that fit, the one under the first of the keys, else the only one there is.

    Args:
        output: of one image.
        keys: of a dictionary.
        fits: whether a tensor can be what is looked for.
        what: is looked for, for the error.
        target: the target that could read it from a named part.
    """
    named = [output[key] for key in keys if key in output] if isinstance(output, Mapping) else []
    by_name = [one for one in named if isinstance(one, Tensor) and fits(one)]
    possible = by_name[:1] or [tensor for tensor in tensors_in(output) if fits(tensor)]
    if len(possible) == 1:
        return possible[0]
    shapes = [tuple(tensor.shape) for tensor in tensors_in(output)]
    raise TargetError(
        f"which part of the model's output is {what} is unclear (of one image it is {shapes}); say so with "
        f"egcam.targets.Head(name, egcam.targets.{target}(…))"
    )


def tensor_in(output: object) -> Tensor | None:
    """The tensor a module outputs: itself, or the first one of a tuple, list or dict."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


def with_first_tensor(output: Any, new: Tensor) -> Any:
    """A layer's output with `new` in place of the tensor that `tensor_in` finds in it."""
    old = tensor_in(output)
    return mapped_tensors(output, lambda tensor: new if tensor is old else tensor)
