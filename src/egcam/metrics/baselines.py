"""What a removed pixel becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from egcam.attribution.references import Normalisation, shade
from egcam.errors import InputError, check_known
from egcam.imageops import along, of_dimension, places
from egcam.rng import OwnDraws, generator

Baseline: TypeAlias = str | float | Tensor | Callable[[Tensor], Tensor]


def darkest(images: Tensor) -> Tensor:
    """The smallest value of each image, which Quantus and the paper call black."""
    return images.amin((1, *places(images)), keepdim=True)


def lightest(images: Tensor) -> Tensor:
    """The largest value of each image."""
    return images.amax((1, *places(images)), keepdim=True)


def mean(images: Tensor) -> Tensor:
    """The mean colour of each image, channel by channel."""
    return images.mean(places(images), keepdim=True)


def grey(images: Tensor) -> Tensor:
    """One mean over all channels of each image."""
    return images.mean((1, *places(images)), keepdim=True)


def zero(images: Tensor) -> Tensor:
    """Zero: the mean of the training data for images that were normalised with it."""
    return images.new_zeros([1] * images.ndim)


def blur(images: Tensor, size: int = 11, sigma: float = 5.0) -> Tensor:
    """Each image under a Gaussian window; the border pixels are repeated outwards, so that edges do not darken."""
    offsets = torch.arange(size, dtype=images.dtype, device=images.device) - size // 2
    window = torch.exp(-0.5 * (offsets / sigma) ** 2)
    window = window / window.sum()
    channels, axes = images.shape[1], places(images)
    blurred = functional.pad(images, (size // 2,) * (2 * len(axes)), mode="replicate")
    convolve = of_dimension("conv", len(axes))
    for axis in reversed(axes):
        weights = along(window, axis, images.ndim)
        blurred = convolve(blurred, weights.expand(channels, *weights.shape[1:]), groups=channels)
    return blurred


NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "darkest": darkest,
    "lightest": lightest,
    "mean": mean,
    "grey": grey,
    "zero": zero,
    "blur": blur,
}


# These depend on how the images were normalised: 0 and 1 before it.
SHADES = {"black": 0.0, "white": 1.0}


def replacement(baseline: Baseline, images: Tensor, normalisation: Normalisation | None = None) -> Tensor:
    """What replaces the pixels of `images`, in a shape that broadcasts to theirs.

    Args:
        baseline: one of "black", "white", "darkest" and "lightest" (each image's smallest and largest value), "mean",
            "grey", "zero" and "blur"; a number; a tensor that broadcasts to the images; or a function from images to
            such a tensor.
        images: (N, C, H, W).
        normalisation: their mean and standard deviation, for black and white; None lets each image's values decide how
            it seems to be normalised, as for `egcam.references.black`.

    Example:
        >>> image = torch.tensor([3.0, 1.0, 2.0, 5.0]).view(1, 1, 2, 2)
        >>> replacement("darkest", image).item(), replacement("black", image, ((0.5,), (0.5,)))[0, 0, 0, 0].item()
        (1.0, -1.0)
    """
    if isinstance(baseline, str):
        check_known(baseline, [*SHADES, *NAMED], "baseline")
        return shade(images, SHADES[baseline], normalisation) if baseline in SHADES else NAMED[baseline](images)
    with OwnDraws(generator(0, "baseline")):  # a user's function may draw, and the same call gives the same scores
        made = baseline(images) if callable(baseline) and not isinstance(baseline, Tensor) else baseline
    tensor = torch.as_tensor(made, dtype=images.dtype, device=images.device)
    tensor = tensor.reshape((1,) * (images.ndim - tensor.ndim) + tuple(tensor.shape))
    try:
        tensor.expand_as(images)
    except RuntimeError:
        shapes = f"{tuple(tensor.shape)} against {tuple(images.shape)}"
        raise InputError(f"the baseline does not fit the images: {shapes}") from None
    if not tensor.isfinite().all():
        raise InputError("the baseline holds NaN or infinite values")
    return tensor
