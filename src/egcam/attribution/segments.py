"""Superpixels of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from egcam.errors import InputError, require
from egcam.imageops import size_of


def superpixels(images: Tensor, wanted: int) -> Tensor:
    """(N, H, W) SLIC superpixels, numbered from 0, of each image stretched to [0, 1].

    Stretched so that the segments do not depend on how the model wants its images normalised.
    """
    if images.ndim == 3:
        raise InputError("superpixels are made of images and volumes: for signals pass segments=…, one number a sample")
    require("skimage", "study", "dividing an image into superpixels (or pass segments=…)")
    from skimage.segmentation import slic

    found = []
    for image in images.detach().cpu().double():
        low, high = image.min(), image.max()
        stretched = ((image - low) / (high - low if high > low else 1.0)).movedim(0, -1).numpy()
        labels = slic(stretched, n_segments=wanted, start_label=0, channel_axis=-1)
        found.append(torch.from_numpy(labels).long())
    return torch.stack(found).to(images.device)


def as_segments(segments: Any, images: Tensor) -> Tensor:
    """(N, H, W) the user's own segments, one set for all images or one per image."""
    labels = torch.as_tensor(segments, device=images.device)
    if labels.ndim == images.ndim - 2:
        labels = labels.expand(len(images), *labels.shape)
    if labels.shape != (len(images), *size_of(images)):
        raise InputError(f"segments must be (N, H, W) or (H, W) like the images, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or bool((labels < 0).any()):
        raise InputError("segments must be whole numbers from 0")
    return labels.long()
