"""Heads that begin with a linear layer on all activations of a layer, as those of AlexNet and VGG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from egcam.models.replay import Replay, gradients_at
from egcam.models.restore import add_hook
from egcam.models.slopes import Record, record_at, slopes_at
from egcam.rng import generator

_ROWS = 64  # of the weight taken at once, so that the product stays in the processor's cache


class DenseHead:
    """A linear layer on the flattened activations A (K, …) of a layer, and what follows it.

        M(A) = sum_k weight_k * A_k               (H, places): what each place adds to each of the H hidden numbers
        u(A) = bias + sum over places of M(A)     (H,)

    On a straight line from A' to A the hidden numbers lie on a straight line too, and with v = dy/du

        sum_k (A - A')_k * dy/dA_k = (M(A) - M(A'))^T v

    so the linear layer, mostly the largest of the head, is run neither forwards nor backwards for the points of a path.
    The same holds for the slopes v of a step from A' to A.

    Args:
        linear: the first layer of the head.
        tail: what follows the explained layer, for the images of one pass.
    """

    def __init__(self, linear: nn.Linear, tail: Replay) -> None:
        self._linear, self._layer = linear, tail.layer
        self.contributions = self.contributions_of(tail.activations)
        self.hidden = self.hidden_of(self.contributions)
        self._rest = tail.beyond(linear, self.hidden)

    @property
    def is_proven(self) -> bool:
        """Whether the true hidden numbers gave the true output."""
        return self._rest is not None

    def contributions_of(self, activations: Tensor) -> Tensor:
        """(n, H, places) M of activations (n, K, …)."""
        images, channels = len(activations), activations.shape[1]
        flat = activations.detach().reshape(images, channels, -1)
        found = flat.new_empty(images, self._linear.out_features, flat.shape[2])
        with torch.no_grad():
            for first in range(0, self._linear.out_features, _ROWS):
                weight = self._linear.weight[first : first + _ROWS].reshape(-1, channels, flat.shape[2])
                for image in range(images):
                    found[image, first : first + _ROWS] = (weight * flat[image]).sum(1)
        return found

    def hidden_of(self, contributions: Tensor) -> Tensor:
        """(n, H) u of contributions (n, H, places)."""
        hidden = contributions.sum(-1)
        return hidden if self._linear.bias is None else hidden + self._linear.bias.detach()

    def gradients(self, hidden: Tensor, own: Tensor, score: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """(B,) the scores at hidden numbers (B, H), row b for image number `own[b]`, and their gradient, (B, H)."""
        return gradients_at(hidden, lambda leaf: score(self._output(leaf, own)), self._layer)

    def record(self, hidden: Tensor, own: Tensor, score: Callable[[Any], Tensor]) -> tuple[Tensor, Record]:
        """As `Replay.record`, at hidden numbers (B, H)."""
        return record_at(hidden, lambda rows: score(self._output(rows, own)))

    def slopes(
        self, hidden: Tensor, own: Tensor, upper: Record, score: Callable[[Any], Tensor], recorded: bool = True
    ) -> tuple[Tensor, Tensor, Record]:
        """As `Replay.slopes`, at hidden numbers (B, H)."""
        return slopes_at(hidden, upper, lambda rows: score(self._output(rows, own)), self._layer, recorded)

    def _output(self, hidden: Tensor, own: Tensor) -> Any:
        assert self._rest is not None
        return self._rest(hidden, own)


def linear_on_all_of(model: nn.Module, tail: Replay) -> nn.Linear | None:
    """The one linear layer that has as many inputs as the explained layer has activations."""
    inputs = tail.activations[0].numel()
    fitting = {id(one): one for one in model.modules() if type(one) is nn.Linear and one.in_features == inputs}
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def can_be_skipped(linear: nn.Linear, tail: Replay) -> bool:
    """Whether the layer may be computed here in its stead: as precise as its input, and no hooks of a user's."""
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    precise = linear.weight.dtype in (torch.float32, torch.float64)
    return precise and linear.weight.dtype == tail.activations.dtype and not any(hooks)


def takes_all_of(tail: Replay, linear: nn.Linear) -> bool:
    """Whether the linear layer's input is the flattened output of the explained layer, tried with random numbers."""
    here = tail.activations[:1]
    drawn = torch.randn(here.shape, generator=generator(0, "dense head"), device="cpu", dtype=torch.float32).to(here)
    taken: list[Tensor] = []
    handle = add_hook(linear, lambda module, inputs, output: taken.append(inputs[0].detach().clone()))
    try:
        with tail.trial():
            tail.run(drawn, torch.zeros(1, dtype=torch.long, device="cpu"))
    finally:
        handle.remove()
    # The run may have been checked with the image as a further row.
    return len(taken) == 1 and taken[0].ndim == 2 and torch.equal(taken[0][:1], drawn.flatten(1))
