"""Which axis of a layer's (N, ., ., .) output holds the channels: the first one after N, or the last.

Two kinds of evidence: modules that know where their channels are (a convolution, a LayerNorm), and the image, whose
height and width the map's are proportional to.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from torch import nn

Axis = Literal["channels-first", "channels-last"]

_CHANNELS_FIRST = (
    nn.Conv2d,
    nn.ConvTranspose2d,
    nn.BatchNorm2d,
    nn.InstanceNorm2d,
    nn.GroupNorm,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.Upsample,
    nn.PixelShuffle,
)


@lru_cache(maxsize=4096)
def fits(grid: tuple[int, int], image: tuple[int, int]) -> bool:
    """Whether a map of this (height, width) can lie over the image: both are the image's over one whole stride.

    >>> fits((4, 8), (64, 128)), fits((8, 192), (64, 128)), fits((7, 7), (224, 224))
    (True, False, True)
    """
    if image[0] == image[1]:
        return grid[0] == grid[1]
    return any(
        all(over in (side // stride, -(-side // stride)) for over, side in zip(grid, image, strict=True))
        for stride in range(1, max(image) + 1)
    )


def axis_of_module(module: nn.Module, shape: tuple[int, ...]) -> Axis | None:
    """Where a module that put out (N, ., ., .) has its channels, if its kind says so.

    >>> axis_of_module(nn.Conv2d(3, 8, 3), (1, 8, 8, 8)), axis_of_module(nn.LayerNorm(8), (1, 8, 8, 8))
    ('channels-first', 'channels-last')
    >>> axis_of_module(nn.ReLU(), (1, 8, 8, 8)) is None
    True
    >>> axis_of_module(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (1, 8, 8, 8))
    'channels-first'
    """
    if len(shape) != 4:
        return None
    if type(module).forward is nn.Sequential.forward:
        return _axis_of_sequence(list(module.children()), shape)
    if isinstance(module, _CHANNELS_FIRST):
        return "channels-first"
    if isinstance(module, nn.Linear):
        return "channels-last"
    return _axis_of_norm(module, shape)


def _axis_of_sequence(modules: list[nn.Module], shape: tuple[int, ...]) -> Axis | None:
    """That of the last module which is no mere function of single numbers."""
    kept = ("torch.nn.modules.activation", "torch.nn.modules.dropout")
    telling = [module for module in modules if type(module).__module__ not in kept]
    return axis_of_module(telling[-1], shape) if telling else None


def normalised_axis(module: nn.Module) -> int | None:
    """The size of the one axis a module normalises, as LayerNorms of transformers do; None for other modules."""
    sizes = getattr(module, "normalized_shape", None)
    return int(sizes[0]) if isinstance(sizes, tuple | list) and len(sizes) == 1 else None


def _axis_of_norm(module: nn.Module, shape: tuple[int, ...]) -> Axis | None:
    size = normalised_axis(module)
    first, last = shape[1] == size, shape[3] == size
    if first and last:
        # Subclasses for convolutional networks turn the axes inside.
        return "channels-last" if type(module) is nn.LayerNorm else None
    return "channels-first" if first else "channels-last" if last else None


def axis_of_shape(shape: tuple[int, ...], image: tuple[int, int], told: set[Axis]) -> Axis | None:
    """The axis of (N, ., ., .) over an image (height, width), None where the evidence is contradictory or missing.

    Args:
        shape: of the layer's output.
        image: (height, width).
        told: what modules that put out or take this tensor, or one of its shape, say.

    Example:
        >>> axis_of_shape((1, 16, 16, 128), (64, 512), set())
        'channels-first'
        >>> axis_of_shape((1, 7, 7, 768), (224, 224), {"channels-last"})
        'channels-last'
        >>> axis_of_shape((1, 8, 8, 8), (64, 64), set()) is None
        True
        >>> axis_of_shape((1, 1, 1, 4), (1, 4), set())
        'channels-first'
    """
    first = fits((shape[2], shape[3]), image)
    # A single place would be no map.
    last = shape[1] * shape[2] > 1 and fits((shape[1], shape[2]), image)
    if told == {"channels-first"}:
        return "channels-first"
    if told == {"channels-last"}:
        return None if first and not last else "channels-last"
    # Nothing speaks for channels-last: then it is torch's own order.
    return None if last else "channels-first"
