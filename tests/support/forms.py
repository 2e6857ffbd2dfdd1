"""SlopeCAM along a path of images: the form most tests of sampling are about, since its points are images."""

from __future__ import annotations

from typing import Any

from torch import nn

import egcam


def along_images(
    model: nn.Module,
    layer: Any = None,
    *,
    weighting: Any = "elementwise",
    negative: Any = "agreed",
    samples: int = 32,
    reference: Any = None,
    **options: Any,
) -> egcam.GradientCAM:
    """`options` are those of `egcam.Expected`, or those all explainers take."""
    shared = {key: options.pop(key) for key in list(options) if key in _COMMON}
    gradient = egcam.Expected(reference, samples, **options)
    return egcam.GradientCAM(model, layer, gradient=gradient, weighting=weighting, negative=negative, **shared)


_COMMON = ("score", "classes", "signed", "batch_size", "memory", "reshape")
