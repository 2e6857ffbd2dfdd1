"""Tiny float64 networks whose two halves, up to the layer and after it, tests can run by themselves.

Every network is `head(features(x))`, and the layer explained is "features". Inputs are (N, 2, 6, 5), not square; the
layer outputs (N, 4, 4, 3). Seeds are such that no channel is dead and no map zero for `pictures(3)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

IMAGE = (2, 6, 5)
CHANNELS, HEIGHT, WIDTH = 4, 4, 3
CLASSES = 3


class TwoHalves(nn.Module):
    """A classifier cut at the layer "features"."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A float64 network in eval mode with weights of its own, made without touching the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def _convolutions(activation: type[nn.Module], last: bool = True) -> nn.Sequential:
    layers = [nn.Conv2d(2, 3, 3, padding=1), activation(), nn.Conv2d(3, CHANNELS, 3)]
    return nn.Sequential(*layers, *([activation()] if last else []))


def _perceptron(activation: nn.Module, steep: bool = False) -> nn.Sequential:
    hidden = nn.Linear(CHANNELS * HEIGHT * WIDTH, 8)
    hidden = _widened(hidden) if steep else hidden
    return nn.Sequential(nn.Flatten(), hidden, activation, _widened(nn.Linear(8, CLASSES)))


def _widened(linear: nn.Linear) -> nn.Linear:
    """Larger weights, so that logits, probabilities and maps differ by more than rounding."""
    with torch.no_grad():
        linear.weight *= 4
    return linear


def perceptron_head(seed: int = 13) -> nn.Module:
    """conv - relu - conv - relu, then a perceptron with a hidden ReLU layer: the gradient depends on the point."""
    return seeded(lambda: TwoHalves(_convolutions(nn.ReLU), _perceptron(nn.ReLU())), seed)


def smooth_everywhere(seed: int = 7) -> nn.Module:
    """No kinks: softplus in place of every ReLU."""
    return seeded(lambda: TwoHalves(_convolutions(nn.Softplus), _perceptron(nn.Tanh(), steep=True)), seed)


def signed_activations(seed: int = 3) -> nn.Module:
    """The layer is a convolution: its activations have both signs."""
    head = lambda: nn.Sequential(nn.Tanh(), *_perceptron(nn.Softplus()))  # noqa: E731
    return seeded(lambda: TwoHalves(_convolutions(nn.ReLU, last=False), head()), seed)


def in_place_relu(seed: int = 0) -> nn.Module:
    """What follows the layer writes into the layer's own output."""
    head = lambda: nn.Sequential(nn.ReLU(inplace=True), *_perceptron(nn.ReLU(inplace=True)))  # noqa: E731
    return seeded(lambda: TwoHalves(_convolutions(nn.ReLU, last=False), head()), seed)


def pooled_linear_head(seed: int = 8) -> nn.Module:
    """Global average pooling and one linear layer, as CAM asks for."""
    head = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), _widened(nn.Linear(CHANNELS, CLASSES)))  # noqa: E731
    return seeded(lambda: TwoHalves(_convolutions(nn.ReLU), head()), seed)


def flat_linear_head(seed: int = 8) -> nn.Module:
    """One linear layer on all positions: the gradient is constant in the point, not in the position."""
    head = lambda: nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * HEIGHT * WIDTH, CLASSES))  # noqa: E731
    return seeded(lambda: TwoHalves(_convolutions(nn.ReLU), head()), seed)


class Saturated(nn.Module):
    """y_0 = min(1, the sum of the bright pixels), flat from there on; y_1 = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU())
        nn.init.ones_(self.features[0].weight)

    def forward(self, images: Tensor) -> Tensor:
        total = self.features(images).sum((1, 2, 3))
        reached = total.clamp(max=1.0)
        return torch.stack([reached, 0 * reached], 1)


def saturated() -> nn.Module:
    """See `Saturated`."""
    return Saturated().double().eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron_head,
    "signed": signed_activations,
    "in-place": in_place_relu,
    "pooled": pooled_linear_head,
}


def pictures(count: int = 2, seed: int = 0, shape: tuple[int, ...] = IMAGE) -> Tensor:
    """Float64 images with pixels of both signs."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@contextmanager
def watched(network: nn.Module) -> Iterator[list[Tensor]]:
    """All batches the network is shown inside the block, in order, but for those that find out about the network."""
    shown: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        names, frame = set(), sys._getframe()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if not names & {"dry_run", "settle"}:
            shown.append(args[0].detach().clone())

    handle = network.register_forward_pre_hook(look)
    try:
        yield shown
    finally:
        handle.remove()
