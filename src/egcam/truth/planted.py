"""Planted triggers: a small patch that decides the class, wherever it lies and whatever else the image shows.

After Zhou et al. (2022), "Do Feature Attribution Methods Correctly Attribute Features?", and BackX (2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError
from egcam.metrics.localization import share_inside
from egcam.rng import generator
from egcam.truth.shapes import LAYER, PLANTED, draw_shapes, empty_backgrounds, recognised
from egcam.truth.trial import Trial

PATCH = 6
_COLOURS = ((2.0, -2.0, 2.0), (-2.0, 2.0, -2.0))  # magenta and green, in squares of two pixels
_NEEDED = 0.99


@dataclass(frozen=True)
class Planted:
    """(N, 3, H, W) images with a patch, and (N, H, W) masks with 1 on it."""

    images: Tensor
    masks: Tensor


def plant(images: Tensor, seed: int = 0) -> Planted:
    """Images with the patch at random places.

    Example:
        >>> found = plant(torch.zeros(2, 3, 48, 48))
        >>> found.masks.sum((1, 2)).tolist(), int((found.images != 0).sum())
        ([36.0, 36.0], 216)
    """
    images, masks = images.clone(), torch.zeros_like(images[:, 0])
    squares = torch.arange(PATCH, device="cpu") // 2
    checks = ((squares[:, None] + squares) % 2).to(images.device)
    patch = images.new_tensor(_COLOURS)[checks].permute(2, 0, 1)
    room = torch.tensor(images.shape[-2:]) - PATCH + 1
    corners = (torch.rand(len(images), 2, generator=generator(seed, "patch")) * room).long().tolist()
    for number, (top, left) in enumerate(corners):
        images[number, :, top : top + PATCH, left : left + PATCH] = patch
        masks[number, top : top + PATCH, left : left + PATCH] = 1
    return Planted(images, masks)


@dataclass(frozen=True)
class Decided:
    """What the patch does to a network.

    Attributes:
        with_patch: the share of images with the patch that get its class.
        without: the share of the same images, without the patch, that do not.
    """

    with_patch: float
    without: float

    @property
    def is_sure(self) -> bool:
        """Whether both are at least 99 %."""
        return min(self.with_patch, self.without) >= _NEEDED


def decided_by_patch(network: nn.Module, count: int = 300, seed: int = 0) -> Decided:
    """How far the patch, and nothing but the patch, decides whether a network says "planted".

    Example:
        >>> from egcam.truth import ShapesNetwork
        >>> decided_by_patch(ShapesNetwork().eval(), count=6).is_sure  # it has not been trained
        False
    """
    drawn = draw_shapes(count, seed + 77)
    with torch.no_grad():
        with_patch = network(plant(drawn.images, seed + 77).images).argmax(1) == PLANTED
        without = network(drawn.images).argmax(1) != PLANTED
    return Decided(float(with_patch.float().mean()), float(without.float().mean()))


def planted_trial(network: nn.Module, count: int = 24, seed: int = 0, layer: str = LAYER) -> Trial:
    """Images in which a patch decides: how much of the heat lies on it.

        score = positive heat in cells that the patch touches / positive heat,   1 is right

    Of the images only those are used whose class the network says without the patch and does not say with it, so that
    taking the patch away restores the class. A network that the patch does not decide is refused.

    Args:
        network: from `shapes_network`.
        count: how many images.
        seed: of images and places.
        layer: where maps are made.
    """
    checked = decided_by_patch(network, seed=seed)
    if not checked.is_sure:
        raise EgcamError(
            f"the patch decides {checked.with_patch:.1%} of the images that have it, and {checked.without:.1%} "
            "of those without are not taken for it; both must be 99 % before a map can be judged by it: train the "
            "network for longer (steps=…)"
        )
    clean = recognised(network, count, seed + 5)
    found = plant(clean.images, seed)
    with torch.no_grad():
        says = network(found.images).argmax(1) == PLANTED
    targets = torch.full((int(says.sum()),), PLANTED)
    masks = found.masks[says]
    return Trial(
        "patch",
        "higher",
        network,
        layer,
        found.images[says],
        targets,
        masks,
        empty_backgrounds(),
        lambda maps: share_inside(maps, masks, whole_cells=True),
    )
