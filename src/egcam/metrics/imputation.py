"""ROAD: remove pixels so that the model cannot see where they were, by filling them in from their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from egcam.errors import InputError
from egcam.metrics.case import Case, within_run
from egcam.metrics.filling_in import fill_in
from egcam.metrics.noise import Noise
from egcam.metrics.perturb import Curve, relevance_ranks
from egcam.metrics.registry import ModelMetric, register
from egcam.metrics.scoring import CurveScore

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@register(
    "road",
    group="faithfulness",
    better="lower",
    label="ROAD",
    title="ROAD",
    meaning="Pixels are filled in from their neighbours, the most important ones first; the mean class score. Low if "
    "the map finds what the network cannot do without.",
)
@dataclass(frozen=True)
class Road(ModelMetric):
    """Mean score after the most relevant pixels were imputed (Rong et al. 2022); lower is better.

        ROAD = mean_q p_y(x with its share q of most relevant pixels imputed)

    A removed pixel becomes the weighted mean of its neighbours (1/6 beside, 1/12 across corners), all removed
    pixels solved together, plus a little noise: unlike black pixels, that does not tell the model what was
    removed.

    Conventions: shares 10 % to 90 %; score="accuracy" is the published form, whether the class is still
    predicted; least relevant first (`most_relevant_first=False`) turns the direction, higher is then better.
    Only the order of the map matters, ties in reading order.

    Attributes:
        shares: the shares of pixels removed.
        noise: standard deviation of the noise on filled-in pixels.
        most_relevant_first: which end of the order goes.
        score: "probability", "accuracy", "logit" or "sigmoid".
        seed: of the noise, which depends on the share only.
    """

    shares: tuple[float, ...] = SHARES
    noise: float = 0.01
    most_relevant_first: bool = True
    score: CurveScore = "probability"
    seed: int = 0

    @within_run
    def curve(self, case: Case) -> Curve:
        """The score after filling in the shares of the pixels."""
        images, maps, shares = case.images, case.maps, self.shares
        if images.ndim != 4:
            raise InputError(
                "ROAD fills in pixels of images from their eight neighbours, which signals, volumes and video do not "
                "have: use deletion or pixel-flipping with a baseline such as 'blur' or 'mean'"
            )
        if not shares or not all(0 < share < 1 for share in shares) or list(shares) != sorted(set(shares)):
            raise InputError(f"shares must rise and lie between 0 and 1, got {shares}")
        pixels = maps[0].numel()
        counts = torch.tensor([min(int(share * pixels), pixels - 1) for share in shares], device=images.device)
        places = relevance_ranks(maps, descending=self.most_relevant_first)
        grain = torch.zeros(len(shares), *images.shape[1:], device=images.device, dtype=images.dtype)
        if self.noise > 0:
            drawn = Noise("normal", 0.0, self.noise)
            grain = torch.stack([drawn.draw(self.seed, number, images[0]) for number in range(len(shares))])
        rows = torch.arange(len(images), device=images.device).repeat_interleave(len(shares))
        numbers = torch.arange(len(shares), device=images.device).repeat(len(images))

        def make(part: slice) -> Tensor:
            row, number = rows[part], numbers[part]
            removed = places[row] < counts[number].view(-1, 1, 1)
            return fill_in(images[row], removed) + grain[number] * removed[:, None]

        scorer = case.scorer(self.score)
        altered = scorer.altered(rows, make).view(len(images), len(shares))
        scores = torch.cat([scorer.clean[:, None], altered], 1)
        fractions = torch.cat([counts.new_zeros(1), counts]).to(scores) / pixels
        return Curve(fractions.expand(len(images), -1), scores)

    def scores(self, case: Case) -> Tensor:
        return self.curve(case).scores[:, 1:].mean(1)


@register(
    "road-both-orders",
    group="faithfulness",
    better="higher",
    label="ROAD±",
    title="ROAD, both orders",
    meaning="How much more of the class score is left when the least important pixels are filled in than when the most "
    "important ones are.",
)
@dataclass(frozen=True)
class RoadBothOrders(ModelMetric):
    """Half the gap between ROAD with the least and with the most relevant pixels imputed first; higher is better.

        score = mean_q ( p_y(x without its least relevant q) - p_y(x without its most relevant q) ) / 2

    Rong et al. (2022) show that the two orders may rank methods differently; this is the half difference that
    pytorch-grad-cam calls ROADCombined. A map in random order scores about 0, whatever the holes do to the network.

    Attributes:
        shares: the shares of pixels removed.
        noise: standard deviation of the noise on filled-in pixels.
        score: "probability", "accuracy", "logit" or "sigmoid".
        seed: of the noise, which depends on the share only.
    """

    shares: tuple[float, ...] = SHARES
    noise: float = 0.01
    score: CurveScore = "probability"
    seed: int = 0

    def scores(self, case: Case) -> Tensor:
        options = (self.score, self.seed)
        least, most = (Road(self.shares, self.noise, first, *options).scores(case) for first in (False, True))
        return (least - most) / 2
