"""Which axis of a layer's (N, ., ., .) output holds the channels: the first one after N, or the last.

For signals that is (N, ., .), for volumes and video (N, ., ., ., .).

Two kinds of evidence: modules that know where their channels are (a convolution, a LayerNorm), and the image, whose
height and width the map's are proportional to.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Literal

from torch import nn

Axis = Literal["channels-first", "channels-last"]

_CONVOLUTIONS: dict[int, tuple[type[nn.Module], ...]] = {
    1: (nn.Conv1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}
_OF_ANY_DIMENSION = ("BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
_CHANNELS_FIRST = (
    *(kind for kinds in _CONVOLUTIONS.values() for kind in kinds),
    *(getattr(nn, f"{name}{dimensions}d") for name in _OF_ANY_DIMENSION for dimensions in _CONVOLUTIONS),
    nn.GroupNorm,
    nn.Upsample,
    nn.PixelShuffle,
)
_PLACES = {1: "length", 2: "height, width", 3: "depth or frames, height, width"}


def convolution_dimensions(module: nn.Module) -> int:
    """Over how many dimensions a module convolves; 0 for what is no convolution.

    >>> convolution_dimensions(nn.Conv1d(2, 4, 3)), convolution_dimensions(nn.ReLU())
    (1, 0)
    """
    return next((dimensions for dimensions, kinds in _CONVOLUTIONS.items() if isinstance(module, kinds)), 0)


def shape_in_words(dimensions: int, axis: Axis = "channels-first", single: bool = False) -> str:
    """The axes of signals, images or volumes, and of a layer's maps of them.

    >>> shape_in_words(1), shape_in_words(2, "channels-last"), shape_in_words(2, single=True)
    ('(N, channels, length)', '(N, height, width, channels)', '(channels, height, width)')
    """
    both = ("channels", _PLACES[dimensions])
    return f"({'' if single else 'N, '}{', '.join(both if axis == 'channels-first' else both[::-1])})"


@lru_cache(maxsize=4096)
def fits(grid: tuple[int, ...], image: tuple[int, ...]) -> bool:
    """Whether a map of this (height, width) can lie over the image: both are the image's over one whole stride.

    Depth and frames have a stride of their own.

    >>> fits((4, 8), (64, 128)), fits((8, 192), (64, 128)), fits((7, 7), (224, 224))
    (True, False, True)
    >>> fits((16,), (250,)), fits((8, 7, 7), (16, 112, 112)), fits((64, 8, 7), (16, 112, 112))
    (True, True, False)
    """
    if len(grid) != len(image):
        return False
    if len(image) == 3:
        return fits(grid[:1], image[:1]) and fits(grid[1:], image[1:])
    if len(image) == 2 and image[0] == image[1]:
        return grid[0] == grid[1]
    return any(
        all(over in (side // stride, -(-side // stride)) for over, side in zip(grid, image, strict=True))
        for stride in range(1, max(image) + 1)
    )


def axis_of_module(module: nn.Module, shape: tuple[int, ...], tokens: bool = False) -> Axis | None:
    """Where a module that returned (N, ., ., .) has its channels, if its kind says so.

    Of what may be `tokens` (N, length, channels) linear layers say nothing: those that mix tokens work on
    (N, channels, length).

    >>> axis_of_module(nn.Conv2d(3, 8, 3), (1, 8, 8, 8)), axis_of_module(nn.LayerNorm(8), (1, 8, 8, 8))
    ('channels-first', 'channels-last')
    >>> axis_of_module(nn.LayerNorm(8), (1, 17, 8), True), axis_of_module(nn.Linear(8, 8), (1, 17, 8), True)
    ('channels-last', None)
    >>> axis_of_module(nn.ReLU(), (1, 8, 8, 8)) is None
    True
    >>> axis_of_module(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (1, 8, 8, 8))
    'channels-first'
    """
    if len(shape) < 3:
        return None
    if type(module).forward is nn.Sequential.forward:
        return _axis_of_sequence(list(module.children()), shape, tokens)
    if isinstance(module, _CHANNELS_FIRST):
        return "channels-first"
    if isinstance(module, nn.Linear):
        return None if tokens else "channels-last"
    return _axis_of_norm(module, shape, tokens)


def _axis_of_sequence(modules: list[nn.Module], shape: tuple[int, ...], tokens: bool) -> Axis | None:
    """That of the last module which is no mere function of single numbers."""
    kept = ("torch.nn.modules.activation", "torch.nn.modules.dropout")
    telling = [module for module in modules if type(module).__module__ not in kept]
    return axis_of_module(telling[-1], shape, tokens) if telling else None


def normalised_axis(module: nn.Module) -> int | None:
    """The size of the one axis a module normalises, as LayerNorms of transformers do; None for other modules."""
    sizes = getattr(module, "normalized_shape", None)
    return int(sizes[0]) if isinstance(sizes, tuple | list) and len(sizes) == 1 else None


def _axis_of_norm(module: nn.Module, shape: tuple[int, ...], tokens: bool) -> Axis | None:
    size = normalised_axis(module)
    first, last = shape[1] == size, shape[-1] == size
    if first and last:
        # Subclasses for convolutional networks turn the axes inside; timm's for tokens has the plain name and does not.
        is_plain = type(module) is nn.LayerNorm or (tokens and type(module).__name__ == "LayerNorm")
        return "channels-last" if is_plain else None
    return "channels-first" if first else "channels-last" if last else None


def axis_of_shape(shape: tuple[int, ...], image: tuple[int, ...], claimed: set[Axis]) -> Axis | None:
    """The axis of (N, ., ., .) over an image (height, width), None if the evidence is contradictory or missing.

    Args:
        shape: of the layer's output.
        image: (height, width), (length,) or (depth, height, width).
        claimed: what modules that output or take this tensor, or one of its shape, say.

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
    first = fits(shape[2:], image)
    # A single place would be no map.
    last = prod(shape[1:-1]) > 1 and fits(shape[1:-1], image)
    if claimed == {"channels-first"}:
        return "channels-first"
    if claimed == {"channels-last"}:
        return None if first and not last else "channels-last"
    # Nothing suggests channels-last: then it is torch's own order.
    return None if last else "channels-first"
