"""Call an explainer, ours or any callable, and get maps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from egcam.errors import InputError, ZeroMapWarning
from egcam.metrics.inputs import chunks
from egcam.models.targets import Target

Explainer: TypeAlias = Callable[..., Any]
"""A callable (images, target) -> maps, or one of egcam's explainers, whose heat maps are taken."""


def made_by(explainer: Explainer, images: Tensor, target: Target, warn: bool = False) -> Any:
    """What an explainer returns for the images.

    Zero maps raise no warning unless `warn`: those of perturbed images and randomised models are for the metric to
    judge, not for the user to fix.
    """
    with torch.enable_grad(), warnings.catch_warnings():
        if not warn:
            warnings.simplefilter("ignore", ZeroMapWarning)
        # A copy, for a callable may run a model that writes into its input.
        return explainer(images.clone(), target)


def maps_in(made: Any, images: Tensor) -> Tensor:
    """(N, h, w) the maps in what an explainer returned, detached, in the explainer's own resolution."""
    made = getattr(made, "heatmaps", made)
    maps = made if isinstance(made, Tensor) else torch.as_tensor(made)
    maps = maps.detach().to(images.device)
    if maps.ndim == 4 and maps.shape[1] == 1:
        maps = maps[:, 0]
    if maps.ndim != 3 or len(maps) != len(images):
        raise InputError(
            f"the explainer returned {tuple(maps.shape)} for {len(images)} image(s); maps are (N, H, W), one per image"
        )
    return maps.float() if maps.dtype in (torch.float16, torch.bfloat16) or not maps.is_floating_point() else maps


def maps_of(explainer: Explainer, images: Tensor, target: Target) -> Tensor:
    """(N, h, w) the maps an explainer gives."""
    return maps_in(made_by(explainer, images, target), images)


def maps_in_batches(explainer: Explainer, images: Tensor, target: Target, batch_size: int) -> Tensor:
    """(N, h, w) the maps of any number of images; `target` is one per image (a tensor) or one for all."""
    parts = []
    for part in chunks(len(images), batch_size):
        of_part = target[part] if isinstance(target, Tensor) else target
        parts.append(maps_of(explainer, images[part], of_part))
    return torch.cat(parts)
