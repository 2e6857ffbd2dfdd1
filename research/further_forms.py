"""Forms of SlopeCAM that were tried and are no default: a plugin of `studies/default-grid.toml`.

`expected-agreed`: negative evidence is weighted by how far the samples agree on its sign, on either path.
"""

from __future__ import annotations

from typing import Any

from torch import nn

import egcam


def agreed(
    model: nn.Module,
    layer: str | None = None,
    *,
    reference: Any = None,
    samples: int = 16,
    path: str = "linear",
    difference: str = "none",
    weighting: str = "elementwise",
    seed: int = 0,
) -> egcam.Explainer:
    gradient = egcam.Expected(reference, samples, path=path, difference=difference, seed=seed)
    return egcam.GradientCAM(model, layer, gradient=gradient, weighting=weighting, negative="agreed")


egcam.register("expected-agreed", agreed, label="agreed", summary="negative evidence weighted by agreement")
