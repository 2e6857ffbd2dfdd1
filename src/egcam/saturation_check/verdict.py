"""From the measured numbers to plain words: does the network saturate, and can the plain gradient be trusted?"""

from __future__ import annotations

from dataclasses import dataclass
from math import acos, degrees, isnan
from typing import Literal, TypeAlias

Trust: TypeAlias = Literal["yes", "with care", "no", "unclear"]

# A network linear in the pixels spends a tenth of the path within 10 % of the end; one that spends half of it there
# rests on a plateau.
SATURATED_FROM = 0.5
# A gradient shorter than half its mean length along the path says less of what raised the output than the path does.
SIZE_FROM = 0.5
# Below this cosine (an angle of 26 degrees) the gradient at the image weighs channels and places differently from the
# path does, and its map is another map.
AGREEMENT_FROM = 0.9


@dataclass(frozen=True)
class Verdict:
    """Means over the images, and what follows from them.

    The output counts as saturated when at least half of the path (0.5) lies within 10 % of the logit's end. The
    gradient counts as kept when, at the image, it is at least half (0.5) as long as on average along the path and its
    cosine to the path's mean gradient is at least 0.9. The plain gradient can be trusted if it is kept, saturated or
    not. If it is not kept, it cannot be trusted where the output is saturated, and only with care where it is not.

    Example:
        >>> Verdict(25, 0.4, 0.6, 0.3, 0.7, gradient_size=0.2, agreement=0.3).trust
        'no'
    """

    images: int  # how many were measured
    reach: float  # the smallest a after which the logit stays at or above 90 % of its rise from black to the image
    saturated: float  # the share of the path on which the logit is within 10 % of its end
    score_reach: float  # as `reach`, for the softmax score
    score_saturated: float  # as `saturated`, for the softmax score
    gradient_size: float  # the gradient's length at the image over its mean along the path
    agreement: float  # the cosine of the gradient at the image and the mean gradient over the path
    layer: str = "this layer"

    @property
    def is_saturated(self) -> bool:
        """Whether at least half of the path is saturated."""
        return self.saturated >= SATURATED_FROM

    @property
    def is_gradient_kept(self) -> bool:
        """Whether the gradient at the image is neither much shorter than along the path nor turned from it."""
        return self.gradient_size >= SIZE_FROM and self.agreement >= AGREEMENT_FROM

    @property
    def trust(self) -> Trust:
        """Whether the plain gradient can be trusted at this layer."""
        if any(isnan(number) for number in (self.saturated, self.gradient_size, self.agreement)):
            return "unclear"
        if self.is_gradient_kept:
            return "yes"
        return "no" if self.is_saturated else "with care"

    @property
    def text(self) -> str:
        """The verdict in plain words, with its numbers."""
        if self.trust == "unclear":
            return (
                "The logit is the same for black and for the image, or its gradient is zero all the way: there is no "
                "path to judge. Look at another label or layer."
            )
        return f"{self._output()} {self._gradient()} {self._advice()}"

    def _output(self) -> str:
        state = "is saturated" if self.is_saturated else "is not saturated"
        return (
            f"The output {state}: the logit is within 10% of its final value on {self.saturated:.0%} of the way from "
            f"black to the image, from a = {self.reach:.2f} on (a linear network: 10%, a = 0.90)."
        )

    def _gradient(self) -> str:
        angle = degrees(acos(max(-1.0, min(1.0, self.agreement))))
        return (
            f"At the image the gradient at {self.layer} is {self.gradient_size:.2f} times as long as on average along "
            f"the way, and turned from the mean gradient by {angle:.0f}°."
        )

    def _advice(self) -> str:
        if self.trust == "yes":
            return "So the plain gradient can be trusted at this layer: averaged over the way it is nearly the same."
        if self.trust == "no":
            return (
                "So the plain gradient cannot be trusted at this layer: it is not that of the way up. Use SlopeCAM, or "
                "a layer nearer the output."
            )
        return (
            "So take the plain gradient with care: the output still rises at the image, but the gradient there is not "
            "that of the way up. Compare with SlopeCAM."
        )
