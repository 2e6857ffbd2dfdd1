"""How long an explanation takes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from egcam.metrics.case import Case
from egcam.metrics.explaining import maps_of
from egcam.metrics.inputs import check_positive
from egcam.metrics.registry import ExplainerMetric, register
from egcam.models.targets import of_images


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@register(
    "running-time",
    group="efficiency",
    better="lower",
    label="s/img",
    meaning="Seconds for one explanation, on this machine under its current load.",
    timed=True,
    paper=True,
)
@dataclass(frozen=True)
class RunningTime(ExplainerMetric):
    """Seconds per explanation, images one after the other; lower is better.

    Conventions: the first image is explained `warmup` times unmeasured; then every image by itself, `repeats`
    times, the device synchronised before and after, and the median taken. Predictions are found beforehand
    and not timed. Wall-clock time of this machine as it is now.

    Attributes:
        warmup: unmeasured explanations.
        repeats: measurements per image.
    """

    warmup: int = 1
    repeats: int = 3

    def scores(self, case: Case) -> Tensor:
        images, repeats = case.images, check_positive("repeats", self.repeats)
        asked = case.asked

        def seconds(image: int) -> float:
            of_image = of_images(asked, slice(image, image + 1))
            own = case.extra.part(torch.tensor([image], device="cpu"))
            synchronise(images.device)
            start = perf_counter()
            maps_of(case.explainer, images[image : image + 1], of_image, own)
            synchronise(images.device)
            return perf_counter() - start

        for _ in range(self.warmup):
            seconds(0)
        return torch.tensor([median(seconds(image) for _ in range(repeats)) for image in range(len(images))])
