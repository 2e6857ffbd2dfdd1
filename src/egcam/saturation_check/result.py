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
    """Curves from black (a = 0) to the image (a = 1): what `egcam.saturation` returns.

    Attributes:
        alphas: (S,) the values of a, rising from 0 to 1.
        cosine: (N, S) the cosine similarity of the layer's output to its output for the full image.
        logit: (N, S) the label's logit.
        probability: (N, S) the label's softmax score.
        gradient: (N, S) the length of the gradient of the logit at the layer.
        agreement: (N,) the cosine similarity of the gradient at the image to the mean gradient over the path.
        targets: (N,) the labels.
        layer: the layer's name.
        spacing: how the values of a were chosen.
        passes: how many single-image passes through the network it took.
    """

    alphas: Tensor
    cosine: Tensor
    logit: Tensor
    probability: Tensor
    gradient: Tensor
    agreement: Tensor
    targets: Tensor
    layer: str
    spacing: str
    passes: int

    def __len__(self) -> int:
        return len(self.logit)

    def curve(self, of: Quantity) -> Tensor:
        """(N, S) one of the measured quantities."""
        check_known(of, QUANTITIES, "quantity")
        found: Tensor = getattr(self, of)
        return found

    def mean(self, of: Quantity) -> Tensor:
        """(S,) the mean over the images."""
        return self.curve(of).mean(0)

    def spread(self, of: Quantity) -> Tensor:
        """(S,) two standard deviations over the images; zero for a single image."""
        values = self.curve(of)
        return 2 * values.std(0) if len(values) > 1 else torch.zeros_like(values[0])

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
        """What the numbers say about the plain gradient at this layer."""
        return Verdict(
            images=len(self),
            reach=_mean(self.reach()),
            saturated=_mean(self.saturated_share),
            score_reach=_mean(self.reach(of="probability")),
            score_saturated=_mean(self.share_within(of="probability")),
            gradient_size=_mean(self.gradient_size),
            agreement=_mean(self.agreement),
        )


def _mean(values: Tensor) -> float:
    """The mean of those images where the number is defined; NaN if it is for none."""
    return float(values.nanmean())
