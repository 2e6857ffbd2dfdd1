"""What a score depends on: operations on the way from the image, as autograd's graph shows them, and places of layers.

A transformer that reads its class token alone does not depend on what its last block outputs at the patches: a map
there would be zero. One backward pass that starts with NaN instead of a gradient shows it for all layers, whatever the
weights are: NaN times anything is NaN, and where nothing is passed back the gradient is exactly zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError
from egcam.models.class_scores import class_scores
from egcam.models.nested import mapped_tensors, tensor_in, tensors_in
from egcam.models.restore import add_hook, untouched
from egcam.rng import generator

if TYPE_CHECKING:
    from egcam.models.trace import Call

CallKey = tuple[str, int]
"""The name of a module, and which of its calls, from 1."""


class Ways:
    """The operations of a dry run, as numbers, and the ways between the image and the score.

    Args:
        image: the node of autograd's graph that the image came from; None where there is no graph.
        score: the one that holds the score; None where that is unknown.
        outputs: those of all that modules returned.
    """

    def __init__(self, image: Any, score: Any, outputs: Sequence[Any]) -> None:
        self._numbers: dict[Any, int] = {}
        waiting = [node for node in (image, score, *outputs) if node is not None]
        while waiting:
            node = waiting.pop()
            if node not in self._numbers:
                self._numbers[node] = len(self._numbers)
                waiting += [earlier for earlier, _ in node.next_functions if earlier is not None]
        self._before = [
            [self._numbers[earlier] for earlier, _ in node.next_functions if earlier is not None]
            for node in self._numbers
        ]
        self._after: list[list[int]] = [[] for _ in self._before]
        for node, sources in enumerate(self._before):
            for source in sources:
                self._after[source].append(node)
        self._image, self._score = self._numbers.get(image, -1), self._numbers.get(score, -1)
        self._from_image = set() if self._image < 0 else _reached(self._image, self._after, ())
        self._to_score = set() if self._score < 0 else _reached(self._score, self._before, ())

    @property
    def are_known(self) -> bool:
        """Whether at least one way leads from the image to the score."""
        return self._score in self._from_image

    def sees_image(self, node: Any) -> bool:
        """Whether a node of autograd's graph depends on the image."""
        return self._numbers.get(node, -1) in self._from_image

    def number(self, node: Any) -> int:
        """The number of a node of autograd's graph; -1 for one that the score does not depend on."""
        number = self._numbers.get(node, -1)
        return number if number in self._to_score else -1

    def forget_graph(self) -> None:
        """Let go of autograd's nodes; the numbers stay."""
        self._numbers.clear()

    def sources(self, node: int) -> set[int]:
        """The numbers of all that a node depends on, and its own."""
        return _reached(node, self._before, ())

    def beside(self, cut: Collection[int]) -> set[int]:
        """The numbers of what lies on ways from the image to the score that go through none of some nodes."""
        return _reached(self._score, self._before, cut) & _reached(self._image, self._after, cut)


def _reached(start: int, steps: Sequence[Sequence[int]], cut: Collection[int]) -> set[int]:
    reached: set[int] = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node not in reached and node not in cut:
            reached.add(node)
            waiting += steps[node]
    return reached


@dataclass(frozen=True)
class Influence:
    """A model and what it takes, to find out what its scores depend on."""

    model: ReferenceType[nn.Module]  # weakly: a session keeps what is found out about a model, not the model
    image: tuple[tuple[int, ...], torch.dtype, torch.device]  # (1, C, H, W), filled with noise: black may switch off
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def places(self, calls: dict[CallKey, Call]) -> dict[CallKey, Tensor]:
        """For each of some calls, (length,) on which of its tokens the scores depend; of (1, ., ., .) whether at all.

        Empty where no gradient comes back, as in a network that switches gradients off.
        """
        model = self.model()
        assert model is not None
        try:
            # NaN is what the search for anomalies would stop at.
            with untouched(model, self.image[2]), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
                return self._places(model, calls)
        except Exception:  # whatever is wrong with the model shows in the real pass
            return {}

    def _places(self, model: nn.Module, calls: dict[CallKey, Call]) -> dict[CallKey, Tensor]:
        taken: dict[CallKey, Tensor] = {}
        counts: Counter[str] = Counter()

        def take(name: str, module: nn.Module, args: tuple[object, ...], output: object) -> object:
            counts[name] += 1
            tensor = tensor_in(output)
            if (name, counts[name]) not in calls or tensor is None or not tensor.requires_grad:
                return None
            taken[name, counts[name]] = tensor
            # A copy is passed on, because the next module may work in place.
            copy = tensor.clone()
            return mapped_tensors(output, lambda value: copy if value is tensor else value)

        names = {name for name, _ in calls}
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name in names:
                    stack.callback(add_hook(module, partial(take, name)).remove)
            shape, dtype, device = self.image
            noise = torch.randn(shape, generator=generator(0, "influence"), device="cpu")
            # A copy: the model may write into its input, which a tensor that gradients start from does not allow.
            image = noise.to(device, dtype).requires_grad_().clone()
            scores = [part for part in _scores(model(image, *self.args, **self.kwargs)) if part.requires_grad]
        if not scores or not taken:
            return {}
        starts = [torch.full_like(part, float("nan")) for part in scores]
        gradients = torch.autograd.grad(scores, list(taken.values()), starts, allow_unused=True)
        return {
            key: _by_token(torch.zeros_like(tensor, dtype=torch.bool) if gradient is None else gradient.isnan())
            for (key, tensor), gradient in zip(taken.items(), gradients, strict=True)
        }


def _by_token(reached: Tensor) -> Tensor:
    return reached[0].any(1).cpu() if reached.ndim == 3 else reached.any().cpu()


def _scores(output: Any) -> list[Tensor]:
    """The class scores, or all tensors in the output where it is unclear which those are."""
    try:
        return [class_scores(output, 1)]
    except EgcamError:
        return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
