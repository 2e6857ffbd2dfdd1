"""Normalised images in their own colours, to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from egcam.attribution.references import seeming_normalisation
from egcam.errors import InputError
from egcam.models.preprocessing import Preprocessing

Colour: TypeAlias = float | Sequence[float]

_HAIR = 0.02  # resampling overshoots by so much


def unnormalised(images: Tensor, mean: Colour, std: Colour, axes: int = 2) -> Tensor:
    """(…, C, *size) images * std + mean, clipped to [0, 1].

    Example:
        >>> unnormalised(torch.tensor([-1.0, 0.0, 1.0]).reshape(3, 1, 1), 0.5, 0.5).flatten().tolist()
        [0.0, 0.5, 1.0]
    """
    channels = images.shape[-axes - 1]
    columns = []
    for name, values in (("mean", mean), ("std", std)):
        column = torch.as_tensor(values, dtype=torch.float32, device=images.device).reshape(-1, *[1] * axes)
        if len(column) not in (1, channels):
            raise InputError(f"{name} has {len(column)} numbers and the images {channels} channels: pass one for each")
        columns.append(column)
    return (images.detach().float() * columns[1] + columns[0]).clamp(0, 1)


def in_own_colours(images: Tensor, preprocessing: Preprocessing | None = None) -> Tensor:
    """(N, C, H, W) in [0, 1] as the pictures were before they were normalised, or as they are if that is not known.

    Args:
        images: (N, C, H, W) or (C, H, W).
        preprocessing: how they were normalised; None is inferred from each image's values, where it has 3 channels:
            in [-1, 1] they are taken to be shifted and scaled by a half, and beyond that to have ImageNet's mean and
            std, if that leads back to [0, 1].

    Example:
        >>> grey = torch.full((3, 1, 2), 0.5)
        >>> grey[:, :, 1] = torch.tensor([[0.9], [0.1], [0.0]])
        >>> mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).reshape(2, 3, 1, 1)
        >>> shown = in_own_colours((grey - mean) / std)
        >>> bool((shown - grey).abs().max() < 1e-6)
        True
    """
    if preprocessing is not None:
        return preprocessing.colours(images)
    if images.ndim == 3:
        return _seeming(images)
    shown = [_seeming(image) for image in images]
    # Of several images those that are left as they are may be of another dtype.
    return torch.stack([image.float() for image in shown])


def _seeming(image: Tensor) -> Tensor:
    image = image.detach()
    low, high = float(image.min()), float(image.max())
    if len(image) != 3 or low >= -1e-3:
        return image
    mean, std = (
        image.new_tensor(one, dtype=torch.float32).reshape(-1, 1, 1) for one in seeming_normalisation(low, high)
    )
    found = image.float() * std + mean
    return found.clamp(0, 1) if float(found.min()) >= -_HAIR and float(found.max()) <= 1 + _HAIR else image
