"""The ways from the image to the explained score, as autograd's graph shows them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class Ways:
    """The operations between the image and the score, as numbers; nothing of the graph is kept alive.

    Args:
        image: the node of autograd's graph that the image came from.
        score: the one that holds the score; None where that is unknown.
    """

    def __init__(self, image: Any, score: Any) -> None:
        self._numbers: dict[Any, int] = {}
        self._before: list[list[int]] = []
        waiting = [] if image is None or score is None else [score]
        while waiting:
            node = waiting.pop()
            if self.number(node) >= 0:
                continue
            self._numbers[node] = len(self._numbers)
            waiting += [earlier for earlier, _ in node.next_functions if earlier is not None]
        for node in self._numbers:
            self._before.append([self._numbers[earlier] for earlier, _ in node.next_functions if earlier is not None])
        self._image = self.number(image)

    @property
    def are_known(self) -> bool:
        """Whether at least one way leads from the image to the score."""
        return self._image >= 0

    def number(self, node: Any) -> int:
        """The number of a node of autograd's graph; -1 for one that the score does not depend on."""
        return self._numbers.get(node, -1)

    def forget_graph(self) -> None:
        """Let go of autograd's nodes; the numbers stay."""
        self._numbers.clear()

    def sources(self, node: int) -> set[int]:
        """The numbers of all that a node depends on, and its own."""
        found: set[int] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self._before[one]
        return found

    def beside(self, cut: Collection[int]) -> set[int]:
        """The numbers of what lies on ways from the image to the score that go through none of some nodes."""
        seen: set[int] = set()
        after: dict[int, list[int]] = {}
        waiting = [0] if 0 not in cut else []
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            for earlier in self._before[node]:
                if earlier not in cut:
                    after.setdefault(earlier, []).append(node)
                    waiting.append(earlier)
        found: set[int] = set()
        waiting = [self._image] if self._image in seen else []
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += after.get(node, [])
        return found
