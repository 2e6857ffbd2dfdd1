"""The picture people expect of a heat map: a trace for a signal, an overlay for an image, a montage for a volume."""

from __future__ import annotations

from PIL import Image
from torch import Tensor

from egcam.drawing.montages import montage
from egcam.drawing.overlays import heatmap_image, overlay_image, to_pil
from egcam.drawing.palette import OPACITY, Pixels
from egcam.drawing.traces import trace


def drawn(
    image: Tensor | None,
    heat: Pixels,
    alpha: float = OPACITY,
    sharpness: float = 1.0,
    colormap: str | None = None,
    signed: bool | None = None,
) -> Image.Image:
    """A heat map over what it explains, or by itself.

    Args:
        image: (C, *size), or None.
        heat: (L,), (H, W) or (D, H, W).
        alpha: how opaque the most important place is.
        sharpness: an exponent of what is shown.
        colormap: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        signed: from -1 rather than from 0; None is where there are negative values.

    Example:
        >>> import numpy as np
        >>> drawn(None, np.ones(50)).size, drawn(None, np.ones((5, 4))).size
        ((900, 176), (4, 5))
    """
    if heat.ndim == 1:
        return trace(image, heat, alpha, colormap, sharpness, signed=signed)
    if heat.ndim == 3:
        return montage(image, heat, alpha, colormap, sharpness, signed=signed)
    if image is None:
        return heatmap_image(heat, colormap, sharpness, signed)
    return overlay_image(to_pil(image)[0], heat, alpha, colormap, sharpness, signed)
