"""Forms of Expected Grad-CAM that were tried and are not in the package: a plugin of `studies/screen-references.toml`.

`expected-same-kind`, `expected-other-kinds`: references are those images of the pool that the network itself takes for
the kind of thing explained, or for another; kinds are the eight of `networks.py`.
`expected-fused`: the map of the layer and a neighbouring one, averaged.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import egcam

sys.path.append(str(Path(__file__).parent))
from networks import CLASSES, coarse_class

NEIGHBOURS = {"features.12": "features.9", "features.9": "features.12", "features.14": "features.17"}
NEIGHBOURS |= {"_blocks.10": "_blocks.14"}


class KindReferences:
    """Expected Grad-CAM with references of the same kind as the class explained, or of the others."""

    def __init__(self, model: nn.Module, same: bool, pool: Any, options: dict[str, Any]) -> None:
        self.model, self.same, self.options = model, same, options
        self.passes: int = egcam.ExpectedGradCAM(model, **options).passes
        self._pool = pool
        self._kinds: Tensor | None = None

    def __call__(self, images: Tensor, target: Tensor) -> Any:
        """Explain one image."""
        [label] = target.tolist()
        if self._kinds is None:
            self._kinds = torch.tensor([self._kind(image[None]) for image in self._pool.pool])
        alike = self._kinds == self._named(label, self._outputs)
        chosen = self._pool.pool[alike if self.same else ~alike]
        return egcam.ExpectedGradCAM(self.model, reference=chosen, **self.options)(images, target)

    @torch.no_grad()
    def _kind(self, image: Tensor) -> int:
        scores = self.model(image)
        self._outputs = scores.shape[1]
        return self._named(int(scores.argmax()), self._outputs)

    @staticmethod
    def _named(label: int, outputs: int) -> int:
        return label if outputs == len(CLASSES) else coarse_class(label)


def same_kind(model: nn.Module, layer: Any = None, reference: Any = None, samples: int = 32, seed: int = 0) -> Any:
    """References of the same kind."""
    return KindReferences(model, True, reference, {"layer": layer, "samples": samples, "seed": seed})


def other_kinds(model: nn.Module, layer: Any = None, reference: Any = None, samples: int = 32, seed: int = 0) -> Any:
    """References of the other kinds."""
    return KindReferences(model, False, reference, {"layer": layer, "samples": samples, "seed": seed})


def fused(model: nn.Module, layer: Any = None, reference: Any = None, samples: int = 32, seed: int = 0) -> Any:
    """The layer and its neighbour."""
    layers = None if layer is None else [layer, NEIGHBOURS[layer]]
    return egcam.ExpectedGradCAM(model, layers, reference=reference, samples=samples, seed=seed)


egcam.register("expected-same-kind", same_kind)
egcam.register("expected-other-kinds", other_kinds)
egcam.register("expected-fused", fused)
