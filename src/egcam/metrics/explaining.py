"""Call an explainer, ours or any callable, and get maps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import Tensor

from egcam.errors import InputError, ZeroMapWarning
from egcam.metrics.inputs import chunks
from egcam.models.inputs import ExtraInputs
from egcam.models.targets import Target, of_images

Explainer: TypeAlias = Callable[..., Any]
"""A callable (images, target) -> maps, or one of egcam's explainers, whose heat maps are taken.

For a model with further inputs, a callable (images, target, inputs, keywords)."""


def made_by(
    explainer: Explainer, images: Tensor, target: Target, extra: ExtraInputs | None = None, warn: bool = False
) -> Any:
    """What an explainer returns for the images, with `extra` as further inputs of the model.

    Zero maps raise no warning unless `warn`: those of perturbed images and randomised models are for the metric to
    judge, not for the user to fix.
    """
    with torch.enable_grad(), warnings.catch_warnings():
        if not warn:
            warnings.simplefilter("ignore", ZeroMapWarning)
        # A copy, because a callable may run a model that writes into its input.
        more = {} if extra is None else extra.for_call()
        if more:
            _check_takes_more(explainer)
        return explainer(images.clone(), target, **more)


def _check_takes_more(explainer: Explainer) -> None:
    """Refuse a callable that cannot take the model's further inputs, and so would explain something else."""
    try:
        signature(explainer).bind(None, None, inputs=(), keywords={})
    except TypeError:
        raise InputError(
            "the model has further inputs, and this explainer does not take them: it must be one of egcam's, or a "
            "callable (images, target, inputs, keywords) -> maps"
        ) from None
    except ValueError:  # a callable without a signature raises its own error for arguments it does not take
        return


def maps_in(made: Any, images: Tensor) -> Tensor:
    """(N, h, w) the maps in what an explainer returned, detached, in the explainer's own resolution."""
    made = getattr(made, "heatmaps", made)
    maps = made if isinstance(made, Tensor) else torch.as_tensor(made)
    maps = maps.detach().to(images.device)
    if maps.ndim == images.ndim and maps.shape[1] == 1:
        maps = maps[:, 0]
    if maps.ndim != images.ndim - 1 or len(maps) != len(images):
        raise InputError(
            f"the explainer returned {tuple(maps.shape)} for {len(images)} image(s); maps are (N, H, W), one per image"
        )
    return maps.float() if maps.dtype in (torch.float16, torch.bfloat16) or not maps.is_floating_point() else maps


def maps_of(explainer: Explainer, images: Tensor, target: Target, extra: ExtraInputs | None = None) -> Tensor:
    """(N, h, w) the maps an explainer gives."""
    return maps_in(made_by(explainer, images, target, extra), images)


def maps_in_batches(
    explainer: Explainer, images: Tensor, target: Target, batch_size: int, extra: ExtraInputs | None = None
) -> Tensor:
    """(N, h, w) the maps of any number of images; `target` is one per image (a tensor) or one for all."""
    parts = []
    for part in chunks(len(images), batch_size):
        own = None if extra is None else extra.part(torch.arange(part.start, part.stop, device="cpu"))
        parts.append(maps_of(explainer, images[part], of_images(target, part), own))
    return torch.cat(parts)
