"""Expected Grad-CAM whose heat maps are raised to a power before they are measured: a plugin of
`studies/evidence-sharpness.toml`. In the package sharpness is of pictures alone, and metrics see the map itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

import egcam


class Sharpened:
    """Expected Grad-CAM with maps of the image's size, in [0, 1], to the power of `exponent`."""

    def __init__(self, explainer: egcam.ExpectedGradCAM, exponent: float) -> None:
        self.explainer, self.exponent = explainer, exponent
        self.passes = explainer.passes

    def __call__(self, images: Tensor, target: Any = None) -> egcam.Explanation:
        """Explain, then sharpen."""
        explanation = self.explainer(images, target)
        return replace(explanation, maps=explanation.heatmaps**self.exponent)


def sharpened(
    model: nn.Module,
    layer: Any = None,
    reference: Any = None,
    samples: int = 32,
    seed: int = 0,
    exponent: float = 2.0,
) -> Any:
    """The default with an exponent."""
    cam = egcam.ExpectedGradCAM(model, layer, reference=reference, samples=samples, seed=seed)
    return Sharpened(cam, exponent)


egcam.register("expected-sharpened", sharpened)
