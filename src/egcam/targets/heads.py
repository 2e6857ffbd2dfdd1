"""The output of one head of a network that has several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from egcam.errors import TargetError, near_misses
from egcam.models.targets import Class, ForeignTarget, ImageTarget, Places, Setting


@dataclass(frozen=True)
class Head(ImageTarget):
    """One of several outputs: `inner` is read from that part of the output alone.

    Args:
        head: its key in a dictionary, its attribute in a dataclass or named tuple, or its place in a tuple or list.
        inner: a class by index or name, another target, or a callable for one image's part.

    Example:
        >>> import torch
        >>> Head("colour", 1)({"colour": torch.tensor([1.0, 3.0]), "shape": torch.tensor([5.0])})
        tensor(3.)
    """

    head: str | int
    inner: int | str | ImageTarget | Callable[[Any], Tensor]

    def __call__(self, output: Any) -> Tensor:
        """The inner target's number in one image's part of the head's output."""
        return self._inner(self._picked(output))

    def of_row(self, output: Any, count: int, row: int) -> Tensor:
        """The same of a batch: the head is picked first, for each may part by image in its own way."""
        return self._inner.of_row(self._picked(output), count, row)

    @property
    def description(self) -> str:
        """The head, and what of it."""
        return f"{self.head}: {self._inner.description}"

    @property
    def places(self) -> Places | None:
        """Those of the inner target."""
        return self._inner.places

    @property
    def reads_embedding(self) -> bool:
        """Whether the inner target does."""
        return self._inner.reads_embedding

    def settled(self, setting: Setting) -> Self:
        """With the inner target settled."""
        return type(self)(self.head, self._inner.settled(setting))

    @property
    def _inner(self) -> ImageTarget:
        if isinstance(self.inner, ImageTarget):
            return self.inner
        return ForeignTarget(self.inner) if callable(self.inner) else Class(self.inner)

    def _picked(self, output: Any) -> Any:
        head = self.head
        if isinstance(output, Mapping) and head in output:
            return output[head]
        if isinstance(head, str) and hasattr(output, head) and not isinstance(output, Tensor):
            return getattr(output, head)
        if isinstance(head, int) and isinstance(output, tuple | list) and -len(output) <= head < len(output):
            return output[head]
        raise TargetError(f"the model's output has no head {head!r}; {_heads(output, head)}")


def _heads(output: Any, head: str | int) -> str:
    if isinstance(output, Mapping):
        return near_misses(str(head), map(str, output))
    if isinstance(output, tuple | list) and not hasattr(output, "_fields"):
        return f"it is a {type(output).__name__} with heads 0 to {len(output) - 1}"
    if isinstance(output, Tensor):
        return "it is one tensor, which has no heads"
    names = getattr(output, "_fields", None) or vars(output)
    return near_misses(str(head), names)
