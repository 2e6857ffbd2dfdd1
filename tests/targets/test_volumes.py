"""Masks in volumes and signals, and the layers of networks that segment them, or also classify."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam.errors import TargetError
from egcam.targets import Mask, Pixel

KINDS = {1: (nn.Conv1d, nn.ConvTranspose1d), 2: (nn.Conv2d, nn.ConvTranspose2d), 3: (nn.Conv3d, nn.ConvTranspose3d)}


class UNet(nn.Module):
    """Two resolutions and a connection between them, for inputs with 1, 2 or 3 axes; with a second head if asked."""

    def __init__(self, axes: int, classifies: bool = False) -> None:
        super().__init__()
        conv, back = KINDS[axes]
        self.down1 = nn.Sequential(conv(1, 4, 3, padding=1), nn.Tanh())
        self.down2 = nn.Sequential(conv(4, 6, 3, stride=2, padding=1), nn.Tanh())
        self.middle = nn.Sequential(conv(6, 6, 3, padding=1), nn.Tanh())
        self.up = back(6, 4, 2, stride=2)
        self.answer = conv(4, 3, 1)
        self.classify = nn.Linear(6, 5) if classifies else None

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        fine = self.down1(images)
        coarse = self.middle(self.down2(fine))
        masks = self.answer(self.up(coarse) + fine)
        return masks if self.classify is None else (masks, self.classify(coarse.flatten(2).mean(2)))


def network(axes: int, classifies: bool = False) -> UNet:
    torch.manual_seed(axes)
    return UNet(axes, classifies).double().eval()


def example(axes: int) -> tuple[Tensor, Tensor]:
    size = (8, 12, 16)[:axes]
    mask = torch.zeros(size, dtype=torch.bool)
    mask[tuple(slice(1, 4) for _ in size)] = True
    return torch.rand(2, 1, *size, dtype=torch.float64), mask


def by_hand(model: UNet, images: Tensor, layer: str, score: object) -> Tensor:
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output))
    total = score(model(images)).sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(total, kept[0])
    return (gradient * kept[0]).sum(1).detach()


@pytest.mark.parametrize("classifies", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_mask_is_explained_at_the_deepest_layer(axes: int, classifies: bool) -> None:
    """Not at the answer itself, where all heat is inside the mask by construction."""
    model, (images, mask) = network(axes, classifies), example(axes)
    found = egcam.explain(model, images, "hires-cam", target=Mask(1, mask), signed=True)
    assert found.layer == "middle"

    def score(output: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return (output[0] if classifies else output)[:, 1][:, mask].mean(1)

    torch.testing.assert_close(found.scores, score(model(images)).detach())
    torch.testing.assert_close(found.maps, by_hand(model, images, "middle", score), rtol=1e-9, atol=1e-14)


def test_a_callable_of_a_volume_is_explained_at_the_deepest_layer_too() -> None:
    images, mask = example(3)
    found = egcam.explain(network(3), images, "hires-cam", target=lambda maps: maps[:, 1][:, mask].mean(1))
    assert found.layer == "middle"


def test_a_coarser_volume_is_enlarged_to_the_mask() -> None:
    maps, mask = torch.rand(3, 4, 6, 8), example(3)[1]
    large = functional.interpolate(maps[None], (8, 12, 16), mode="trilinear", align_corners=False)[0]
    torch.testing.assert_close(Mask(1, mask)(maps), large[1][mask].mean())
    torch.testing.assert_close(Mask(1, size=(8, 12, 16))(maps), maps[1].mean())
    torch.testing.assert_close(Mask(2, torch.tensor([0, 1, 1]))(maps[:, 0, 0, :3]), maps[2, 0, 0, 1:3].mean())


def test_masks_of_other_axes_are_refused() -> None:
    model, (images, mask) = network(3), example(3)
    with pytest.raises(TargetError, match=r"the mask is \(12, 16\), but the image is \(8, 12, 16\)"):
        egcam.explain(model, images, "hires-cam", target=Mask(1, mask[1]))
    with pytest.raises(TargetError, match=r"size \(8, 12, 16\): use Mask"):
        egcam.explain(model, images, "hires-cam", target=Pixel(1, 2, 3))
    with pytest.raises(TargetError, match="for one each image, pass a list"):
        Mask(1, torch.ones(2, 3, 4, 4))
