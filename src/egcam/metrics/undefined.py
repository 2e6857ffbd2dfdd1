"""Scores that have no value: named, never silent, and never the end of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from egcam.errors import warn_user


class UndefinedScoreWarning(UserWarning):
    """Some images have no score; the text names each image and why.

    The score of such an image is NaN and every other image keeps its own. To stop instead, turn the warning
    into an error: ``warnings.simplefilter("error", egcam.metrics.UndefinedScoreWarning)``.
    """


class Causes(dict[int, str]):
    """Why an image has no score, by image number; the first cause found is kept."""

    def mark(self, images: Tensor, cause: str) -> None:
        """Record `cause` for every image at which the (N,) boolean `images` is true."""
        for image in images.nonzero().flatten().tolist():
            self.setdefault(image, cause)


_collected: ContextVar[Causes | None] = ContextVar("egcam_undefined_scores", default=None)


@contextmanager
def causes_collected() -> Iterator[Causes]:
    """Gather the causes of undefined scores in a dictionary, in place of warnings.

    Example:
        >>> with causes_collected() as causes:
        ...     settle("sparseness", torch.tensor([0.5, float("nan")]), {1: "the map holds NaN"}).tolist()
        [0.5, nan]
        >>> causes
        {1: 'the map holds NaN'}
    """
    causes = Causes()
    token = _collected.set(causes)
    try:
        yield causes
    finally:
        _collected.reset(token)


def settle(metric: str, scores: Tensor, causes: Mapping[int, str]) -> Tensor:
    """(N,) scores with NaN at the images in `causes`, after naming those images and any other without a number."""
    found = Causes(causes)
    unexplained = ~scores.isfinite()
    if found:
        scores = scores.clone()
        scores[torch.tensor(list(found), device=scores.device)] = float("nan")
    found.mark(unexplained, "the score is not a finite number: the model's output is not finite there")
    scores = torch.where(unexplained, float("nan"), scores)
    if found:
        _report(metric, found)
    return scores


def _report(metric: str, causes: Causes) -> None:
    collected = _collected.get()
    if collected is not None:
        for image, cause in causes.items():
            collected.setdefault(image, cause)
        return
    named = "; ".join(f"image {image}: {cause}" for image, cause in sorted(causes.items())[:8])
    more = f"; and {len(causes) - 8} more" if len(causes) > 8 else ""
    warn_user(f"{metric} is undefined for {named}{more}", UndefinedScoreWarning)
