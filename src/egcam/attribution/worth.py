"""What the parts of a picture are worth: regions of a map that matter, in units of the score, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from egcam.attribution.regions import pieces_of
from egcam.drawing.overlays import smoothed
from egcam.imageops import area_mean, upsampled

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation

_PART = 0.5  # of the map's maximum, from which on a place belongs to a region
_LEAST = 0.03  # of the whole, below which a region is not shown
_SURE = 2.0  # standard errors, above which a place is shown at full strength


@dataclass(frozen=True)
class Region:
    """A connected part of the picture where the map is hot."""

    mask: npt.NDArray[np.bool_]  # (H, W), of the explained image's size
    share: float  # what it adds to the score
    whole: float  # what all of the picture adds
    error: float | None  # at most the standard error of the share: were the errors of all its cells of one kind

    @property
    def label(self) -> str:
        """Such as "+2.0 ± 0.3 of 9.3"."""
        spread = "" if self.error is None else f" ± {self.error:.1f}"
        return f"{self.share:+.1f}{spread} of {self.whole:.1f}".replace("-", "−")


def regions_of(explanation: Explanation, index: int = 0, most: int = 2) -> list[Region]:
    """The regions of one image's map that add most to the score; none unless the method is complete.

    A region is where the map, as pictures show it, has half of its maximum or more. Those that add less than
    three hundredths of the whole are left out.

    Args:
        explanation: of images.
        index: which image.
        most: how many regions.
    """
    complete = explanation.completeness
    if complete is None or complete.attributions is None or len(explanation.size) != 2:
        return []
    one = explanation if explanation.is_single else explanation[index]
    assert one.completeness is not None
    whole = float(one.completeness.expected)
    found = []
    heat = smoothed(one.heatmaps.float().cpu().numpy(), tuple(one.maps.shape[-2:]))
    for mask in pieces_of((heat >= _PART * heat.max()) & (heat > 0)):
        mask = _without_holes(mask)
        inside = torch.from_numpy(mask)
        share = float(one.share(inside))
        if abs(share) >= _LEAST * abs(whole):
            found.append(Region(mask, share, whole, _error(one, inside)))
    return sorted(found, key=lambda region: -region.share)[:most]


def _without_holes(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The mask with what it encloses."""
    around = np.pad(~mask, 1, constant_values=True)
    # What lies around it all touches the first corner.
    outside = next(piece for piece in pieces_of(around) if piece[0, 0])
    return ~outside[1:-1, 1:-1]


def _error(one: Explanation, inside: torch.Tensor) -> float | None:
    """The sum of the standard errors of a region's cells, each by the part of it that the region covers."""
    if one.error is None:
        return None
    covered = area_mean(inside[None].to(one.error), (one.error.shape[-2], one.error.shape[-1]))[0]
    return float((one.error * covered).sum())


def certainty(explanation: Explanation, index: int = 0) -> npt.NDArray[np.float32] | None:
    """(H, W) from 0 to 1: how sure each place is, 1 from two standard errors on; None where no error is known."""
    if explanation.error is None or len(explanation.size) != 2:
        return None
    one = explanation if explanation.is_single else explanation[index]
    assert one.error is not None
    sure = (one.maps.abs() / (_SURE * one.error).clamp(min=1e-30)).clamp(0, 1).float()
    smooth: npt.NDArray[np.float32] = upsampled(sure[None], one.size)[0].cpu().numpy()
    return smooth
