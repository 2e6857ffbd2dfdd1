from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from egcam import metrics


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counting(nn.Module):
    """A model that counts the images it is shown."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen = 0
        self.largest = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        self.largest = max(self.largest, len(images))
        return self.inner(images)


def network(channels: int = 3, size: int = 12, classes: int = 4, seed: int = 0) -> nn.Module:
    """A small double-precision network with a normalisation layer and curvature everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(channels, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Softplus(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 5, 3, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(5 * (size // 2) ** 2, classes),
        ).double()
        net[1].running_mean.normal_(0, 0.3)
        net[1].running_var.uniform_(0.5, 1.5)
        net[1].weight.data.uniform_(0.5, 1.5)
        net[1].bias.data.normal_(0, 0.3)
        net[7].weight.data *= 3
    return net.eval()


@dataclass
class Scene:
    """A model, images, maps, masks and classes, as tensors; and the model as a NumPy function."""

    model: nn.Module
    images: Tensor
    maps: Tensor
    masks: Tensor
    target: Tensor

    def predict(self, images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.model(torch.from_numpy(np.ascontiguousarray(images))).numpy()

    def each(self):
        """Image, map, class of one image after the other, as NumPy."""
        return zip(self.images.numpy(), self.maps.numpy(), self.target.tolist(), strict=True)


def make_scene(count: int = 3, channels: int = 3, size: int = 12, seed: int = 1) -> Scene:
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(count, channels, size, size, generator=source, dtype=torch.float64)
    maps = torch.rand(count, size, size, generator=source, dtype=torch.float64)
    masks = torch.zeros(count, size, size, dtype=torch.bool)
    for number in range(count):
        masks[number, 2 + number % 3 : 8, 1 : 6 + number % 4] = True
    target = torch.tensor([(2 * number + 1) % 4 for number in range(count)])
    return Scene(network(channels, size), images, maps, masks, target)


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def measured(kind: str | type[metrics.Metric], *given, protocol: str = "default", **more) -> Tensor:
    """The scores of a metric, whose options stand among what else the call is given."""
    kind = metrics.metric(kind) if isinstance(kind, str) else kind
    options = {key: more.pop(key) for key in kind.options() if key in more}
    return kind.made(protocol, **options)(*given, **more)
