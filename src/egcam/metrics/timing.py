"""How long an explanation takes."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from egcam.metrics.explaining import Explainer, maps_of
from egcam.metrics.inputs import as_images, check_positive
from egcam.metrics.scoring import Scorer, forward_only
from egcam.models.targets import Target


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def running_time(
    model: nn.Module,
    images: Any,
    explainer: Explainer,
    target: Target = None,
    *,
    warmup: int = 1,
    repeats: int = 3,
    batch_size: int | None = None,
) -> Tensor:
    """Seconds per explanation, images one after the other; lower is better.

    Conventions: the first image is explained `warmup` times unmeasured; then every image by itself, `repeats`
    times, the device synchronised before and after, and the median taken. Wall-clock time of this machine as
    it is now.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        explainer: a callable (images, target) -> maps, or one of egcam's explainers.
        target: the explained classes; None is the prediction, found beforehand and not timed.
        warmup: unmeasured explanations.
        repeats: measurements per image.
        batch_size: of the pass that finds the predictions.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> bool((running_time(model, torch.rand(2, 3, 4, 4), lambda x, y: x.mean(1)) > 0).all())
        True
    """
    images = as_images(images)
    check_positive("repeats", repeats)
    with forward_only(model, images.device):
        classes = Scorer(model, images, target, "logit", batch_size).classes
        asked: Target = classes if classes is not None else target

        def seconds(image: int) -> float:
            of_image = asked[image : image + 1] if isinstance(asked, Tensor) else asked
            synchronise(images.device)
            start = perf_counter()
            maps_of(explainer, images[image : image + 1], of_image)
            synchronise(images.device)
            return perf_counter() - start

        for _ in range(warmup):
            seconds(0)
        taken = [median(seconds(image) for _ in range(repeats)) for image in range(len(images))]
    return torch.tensor(taken)
