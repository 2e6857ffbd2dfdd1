"""A gradient CAM of the gradient averaged along paths of images: what most tests of sampling are about."""

from __future__ import annotations

from typing import Any

from torch import nn

import egcam


def along_images(
    model: nn.Module,
    layer: Any = None,
    *,
    weighting: Any = "elementwise",
    samples: int = 32,
    reference: Any = None,
    **options: Any,
) -> egcam.GradientCAM:
    """`options` are those of `egcam.Expected`, or those all explainers take."""
    shared = {key: options.pop(key) for key in list(options) if key in _COMMON}
    gradient = egcam.Expected(reference, samples, **options)
    return egcam.GradientCAM(model, layer, gradient=gradient, weighting=weighting, **shared)


_COMMON = ("score", "classes", "signed", "batch_size", "memory", "reshape")
