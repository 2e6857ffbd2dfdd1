"""A network, images and the right answer: what every test with a known answer comes down to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from egcam.attribution.registry import create, options_for
from egcam.errors import NonFiniteMapWarning, ZeroMapWarning
from egcam.models.layer_output import Reshape


@dataclass(frozen=True)
class Trial:
    """Images, and a layer of a network for which it is known what decides the score."""

    name: str  # the test's; trials of one name belong together
    better: Literal["higher", "lower"]
    model: nn.Module
    layer: str  # where maps are made
    images: Tensor  # (N, C, H, W)
    targets: Tensor  # (N,) the explained outputs
    truth: Tensor  # (N, H, W) positive where the evidence is, negative where evidence against it is, 0 elsewhere
    references: Tensor  # (M, C, H, W) for methods that use references
    score: Callable[[Tensor], Tensor]  # from signed maps (N, h, w) to (N,) scores
    reshape: Reshape | None = None  # how the layer's output becomes maps, where it is not read rightly

    def maps(self, method: str, **options: Any) -> Tensor:
        """(N, h, w) signed maps of a method by name, at the trial's layer and with its references."""
        usual: dict[str, Any] = {"layer": self.layer, "reference": self.references, "signed": True}
        if self.reshape is not None:
            usual["reshape"] = self.reshape
        explainer = create(method, self.model, **options_for(method, usual, options))
        with warnings.catch_warnings():
            # A map that is zero where it should not be has its score for that.
            for category in (ZeroMapWarning, NonFiniteMapWarning):
                warnings.simplefilter("ignore", category)
            return explainer(self.images, self.targets).maps.detach().cpu()

    def scores(self, method: str, **options: Any) -> Tensor:
        """(N,) float64 the scores of a method by name."""
        return self.score(self.maps(method, **options)).double()
