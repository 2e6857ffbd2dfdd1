"""What the saturation study measures for one network at one layer, and what can be read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from egcam.errors import check_known
from egcam.saturation_check import curves
from egcam.saturation_check.verdict import Verdict

Quantity: TypeAlias = Literal["cosine", "logit", "probability", "gradient"]

QUANTITIES: tuple[Quantity, ...] = ("cosine", "logit", "probability", "gradient")


@dataclass(frozen=True, eq=False)
class Saturation:
    """Curves from black (a = 0) to the image (a = 1): what `egcam.saturation` returns."""

    alphas: Tensor  # (S,) the values of a, rising from 0 to 1
    cosine: Tensor  # (N, S) the cosine similarity of the layer's output to its output for the full image
    logit: Tensor  # (N, S) the label's logit
    probability: Tensor  # (N, S) the label's softmax score
    gradient: Tensor  # (N, S) the length of the gradient of the logit at the layer
    agreement: Tensor  # (N,) the cosine similarity of the gradient at the image to the mean gradient over the path
    targets: Tensor  # (N,) the labels
    layer: str
    spacing: str  # how the values of a were chosen
    passes: int  # single-image passes through the network

    def __len__(self) -> int:
        return len(self.logit)

    def curve(self, of: Quantity) -> Tensor:
        """(N, S) one of the measured quantities."""
        check_known(of, QUANTITIES, "quantity")
        found: Tensor = getattr(self, of)
        return found

    def reach(self, share: float = 0.9, of: Quantity = "logit") -> Tensor:
        """(N,) the smallest a from which on the output stays at or above `share` of its way from black to the image.

        See `egcam.saturation_check.curves.reach`; NaN if the output is the same at both ends.
        """
        return curves.reach(self.alphas, self.curve(of), share)

    def share_within(self, tolerance: float = 0.1, of: Quantity = "logit") -> Tensor:
        """(N,) the share of the path on which the output is within `tolerance` of its end."""
        return curves.share_within(self.alphas, self.curve(of), tolerance)

    @property
    def saturated_share(self) -> Tensor:
        """(N,) the share of the path on which the logit is within 10 % of its end; 0.1 for a linear network."""
        return self.share_within()

    @property
    def gradient_size(self) -> Tensor:
        """(N,) the length of the gradient at the image over its mean length along the path; NaN if all are zero."""
        along = torch.trapezoid(self.gradient, self.alphas.to(self.gradient), dim=1)
        return self.gradient[:, -1] / torch.where(along > 0, along, torch.full_like(along, float("nan")))

    @property
    def verdict(self) -> Verdict:
        """What the numbers say about the plain gradient at this layer: of means over the images that have them."""
        return Verdict(
            images=len(self),
            layer=self.layer,
            **{name: float(values.nanmean()) for name, values in self.numbers.items()},
        )

    @property
    def numbers(self) -> dict[str, Tensor]:
        """(N,) each: what the verdict takes the means of, NaN where a number is not defined."""
        return {
            "reach": self.reach(),
            "saturated": self.saturated_share,
            "score_reach": self.reach(of="probability"),
            "score_saturated": self.share_within(of="probability"),
            "gradient_size": self.gradient_size,
            "agreement": self.agreement,
        }
