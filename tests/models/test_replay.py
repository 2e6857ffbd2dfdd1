"""Ablation-CAM runs only what comes after the layer: with the numbers of the whole network, or else by running that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

import egcam
from support.small_models import Kept, pictures, seeded

pytestmark = pytest.mark.usefixtures("one_thread")


def by_brute_force(model: nn.Module, images: Tensor, layer: str, score: Callable[[Any], Tensor]) -> Tensor:
    """(N, h, w) sum_k (y - y_k) / |y| A^k, every y_k from the whole network, image by image."""
    module = model.get_submodule(layer)
    maps = []
    with torch.no_grad():
        for image in images:
            seen: list[Tensor] = []
            watch = module.register_forward_hook(lambda _, __, out, seen=seen: seen.append(_tensor(out).clone()))
            before = score(model(image[None].clone()))[0]
            watch.remove()
            (activations,) = seen[0]
            drops = []
            for channel in range(len(activations)):
                ablate = module.register_forward_hook(lambda _, __, out, channel=channel: _ablated(out, channel))
                drops.append((before - score(model(image[None].clone()))[0]) / before.abs())
                ablate.remove()
            maps.append((torch.stack(drops)[:, None, None] * activations).sum(0))
    return torch.stack(maps)


def _tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else next(iter(output.values()))


def _ablated(output: Any, channel: int) -> Any:
    if not isinstance(output, Tensor):
        first = next(iter(output))
        return OrderedDict({**output, first: _ablated(output[first], channel)})
    output = output.clone()
    output[:, channel] = 0
    return output


def checked(
    model: nn.Module, layer: str, target: Any = 1, count: int = 2, side: int = 12, **how: Any
) -> egcam.Explanation:
    """The explanation, once it equals brute force and has left everything as it was."""
    images = pictures(count, side=side, dtype=torch.float64)
    score = target if callable(target) else lambda output: output[:, target]
    truth = by_brute_force(model, images, layer, score)
    kept = Kept(model, images)
    found = egcam.AblationCAM(model, layer, signed=True, **how)(images, target)
    kept.check()
    assert truth.abs().max() > 0
    assert torch.allclose(found.maps, truth, rtol=1e-7, atol=1e-9 * float(truth.abs().max()))
    return found


def double(build: Callable[[], nn.Module]) -> nn.Module:
    return seeded(build).double().eval()


# -- networks that write into what an earlier module returned ----------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_residual_network_that_adds_in_place(count):
    # As ResNet-18, but one block where that has two.
    model = double(lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5))
    found = checked(model, "layer2.0.downsample", count=count, side=32)
    assert found.passes == count


class _WritesInPlace(nn.Module):
    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.side = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 144, 5)
        self.write = write

    def forward(self, images: Tensor) -> Tensor:
        earlier = self.stem(images)
        return self.head(self.write(earlier, self.side(images)).tanh().flatten(1))


def _each_row(earlier: Tensor, new: Tensor) -> Tensor:
    for row in range(len(earlier)):
        earlier[row].mul_(new[row].sigmoid())
    return earlier


@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize(
    "write",
    [lambda a, b: a.add_(b), lambda a, b: a.mul_(b.sigmoid()) + b, lambda a, b: nn.functional.relu_(a) + b, _each_row],
    ids=["add", "mul", "relu", "row by row"],
)
def test_operations_in_place_do_not_reach_the_memory(write, batch_size):
    checked(double(lambda: _WritesInPlace(write)), "side", batch_size=batch_size)


# -- networks whose tail is more than modules ----------------------------------------------------------


class _Reads(nn.Module):
    """A forward pass that reads from a module that ran before the layer."""

    def __init__(self, read: Callable[[_Reads], Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 144, 5)
        self.read = read

    def forward(self, images: Tensor) -> Tensor:
        earlier = self.stem(images).tanh()
        return self.head(self.body(earlier).tanh().flatten(1)) * self.read(self)


@pytest.mark.parametrize(
    "read",
    [
        lambda net: net.stem.out_channels,
        lambda net: net.stem.weight.mean(),
        lambda net: net.stem._conv_forward(net.stem.weight, net.stem.weight, None).mean(),
    ],
    ids=["number", "weight", "method"],
)
def test_what_is_read_from_a_module_is_read_from_the_original(read):
    found = checked(double(lambda: _Reads(read)), "body")
    assert found.passes == 2


class _Keeps(nn.Module):
    """An encoder that leaves its skip connection behind as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        self.skip = self.conv(images)
        return self.skip.tanh()


class _Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = _Keeps()
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 144, 5)

    def forward(self, images: Tensor) -> Tensor:
        code = self.encoder(images)
        return self.head((self.body(code).tanh() + self.encoder.skip).flatten(1))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_skip_connection_left_on_a_module(count):
    model = double(_Skips)
    images = pictures(count, dtype=torch.float64)
    truth = by_brute_force(model, images, "body", lambda output: output[:, 1])
    found = egcam.AblationCAM(model, "body", signed=True)(images, 1)
    assert torch.allclose(found.maps, truth, rtol=1e-7, atol=1e-12)


class _Uncopyable(_Reads):
    """As sharded modules are: making one without the constructor's arguments fails."""

    def __new__(cls, *args: Any) -> _Uncopyable:
        if not args:
            raise TypeError("__init__() missing 1 required positional argument")
        return super().__new__(cls)


class _IsOfAKind(_Reads):
    """Runs differently with a module of another type in its place."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) if isinstance(self.stem, nn.Conv2d) else self.stem[0](images)


class _TwoMaps(nn.Module):
    """Its layer outputs a dictionary, its output is a list with a dictionary for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = _Pyramid()
        self.head = nn.Linear(4 * 144, 5)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        levels = self.body(self.stem(images).tanh())
        mixed = levels["fine"].tanh() + levels["coarse"]
        return [{"scores": self.head(one.flatten())} for one in mixed]


class _Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(4, 4, 3, padding=1)
        self.coarse = nn.Conv2d(4, 4, 5, padding=2)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return OrderedDict(fine=self.fine(images), coarse=self.coarse(images))


@pytest.mark.parametrize("kind", [_Uncopyable, _IsOfAKind])
def test_networks_that_cannot_be_replayed_are_run_as_a_whole(kind):
    found = checked(double(lambda: kind(lambda net: net.stem.out_channels)), "body")
    assert found.passes == 2 * (1 + 4)


def test_a_layer_and_an_output_made_of_several_tensors():
    checked(double(_TwoMaps), "body", lambda output: torch.stack([one["scores"][1] for one in output]))


class _Undefined(_Reads):
    """One of its outputs is no number."""

    def forward(self, images: Tensor) -> Tensor:
        output = super().forward(images)
        return torch.cat([output, output[:, :1].abs().neg().sqrt()], 1)


def test_outputs_that_are_no_numbers_prove_nothing():
    found = checked(double(lambda: _Undefined(lambda net: 1.0)), "body")
    assert found.passes == 2 * (1 + 4)


def test_an_error_of_the_network_itself_is_raised():
    class Limited(_Reads):
        def forward(self, images: Tensor) -> Tensor:
            if len(images) > 2:
                raise ValueError("two at a time")
            return super().forward(images)

    model = double(lambda: Limited(lambda net: 1.0))
    with pytest.raises(ValueError, match="two at a time"):
        egcam.AblationCAM(model, "body")(pictures(dtype=torch.float64), 1)
