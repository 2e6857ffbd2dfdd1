"""How the tokens of a transformer lie over the image: a grid of patches, row by row, after a few others.

The others (class token, distillation token, registers) come first. How many there are is read off a dry run: the patch
embedding shows the grid, and what the tokens are more than it are the others.
"""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING

from torch import Tensor

from egcam.errors import LayerError
from egcam.models.axes import shape_in_words

if TYPE_CHECKING:
    from egcam.models.trace import Call, Trace

Grid = tuple[int, ...]

_MOST_OTHERS = 16
_MOST_OTHERS_UNSEEN = 9  # eight registers and a class token; where no grid is seen, more would fit too much


def grids_over(image: Grid, tokens: int) -> list[Grid]:
    """The grids of patches over the image that leave at most 9 of the tokens over, the largest first.

    They have the image's proportions; if none does, one whole stride in both directions. Signals, volumes and video,
    whose axes have strides of their own, show nothing in this way.

    >>> grids_over((64, 128), 33), grids_over((28, 28), 9)
    ([(4, 8)], [(3, 3), (2, 2)])
    """
    if len(image) != 2:
        return []
    height, width = image
    strides = range(1, max(image) + 1)
    down = {(height // stride, width // stride) for stride in strides}
    up = {(-(-height // stride), -(-width // stride)) for stride in strides}
    step = gcd(height, width)
    alike = {(height // step * times, width // step * times) for times in range(1, step + 1)}
    for grids in (alike, down | up):
        fitting = [grid for grid in grids if 0 <= tokens - _places(grid) <= _MOST_OTHERS_UNSEEN and _places(grid) > 1]
        if fitting:
            return sorted(fitting, key=_places, reverse=True)
    return []


def token_grid(tokens: int, image: Grid, trace: Trace | None = None, before: Call | None = None) -> Grid:
    """The grid of some tokens.

    Args:
        tokens: how many there are, the others included.
        image: (height, width), (length,) of a signal, (depth, height, width) of a volume.
        trace: a dry run, where there is one.
        before: the call of that run which outputs the tokens; what runs before it shows their grid.
    """
    if trace is not None and not trace.keeps_order and tokens > _fewest(trace):
        raise LayerError(
            f"the {tokens} tokens of this layer are not in the order of the image's rows, as Hiera has them before its "
            "last stage; choose a layer of that one, or pass a callable reshape that puts them in order"
        )
    seen, others = ([], None) if trace is None else _shown(trace, before)
    exact = [grid for grid in seen if tokens - _places(grid) == others]
    for grid in reversed(exact or seen):
        if _are_others(tokens - _places(grid)):
            return grid
    # No grid that was seen fits: tokens were merged since, and the others stayed, or they are more than can be placed.
    possible = [] if seen and tokens > _places(seen[-1]) else grids_over(image, tokens)
    fitting = [grid for grid in possible if others is None or tokens - _places(grid) == others]
    if len(fitting) == 1:
        return fitting[0]
    raise LayerError(_why_not(tokens, image, possible))


def _fewest(trace: Trace) -> int:
    plain = [call.shape for call in trace.calls_on_image if not call.in_attention and not call.pooling]
    return min(shape[1] for shape in plain if len(shape) == 3 and shape[0] == 1 and shape[1] > 1)


def grid_of(trace: Trace, call: Call) -> Grid:
    """The grid of the tokens (1, length, channels) that a call returned."""
    return token_grid(call.shape[1], trace.image_size, trace, call)


def are_tokens(trace: Trace, call: Call) -> bool:
    """Whether a call returned tokens (1, length, channels) on a grid that can be determined, not (1, channels, length).

    A normalisation over the channels shows which axis they are; else the one whose size is that of a grid and the
    tokens that were seen beside one, if only one is.
    """
    if not trace.may_be_tokens(call) or call.shape[0] != 1 or call.shape[1] < 2:
        return False
    axis = trace.axis(call)
    beyond = _beyond_grid(trace, call, call.shape[1])
    if beyond and not _have_weights(call.shape[1], trace):
        return False
    if axis is not None:
        return axis == "channels-last" and beyond is not None
    others = _shown(trace, call)[1] or 0
    return beyond == others != _beyond_grid(trace, call, call.shape[2])


def _have_weights(tokens: int, trace: Trace) -> bool:
    """Whether linear layers act on so many tokens, as in every transformer.

    What is only normalised and pooled, beside a network of convolutions, are states that lie nowhere in the image.
    """
    return any(
        call.multiplications and len(shape) == 3 and shape[1] == tokens and trace.axis(call) != "channels-first"
        for call in trace.calls
        for shape in (call.shape, call.shape_in)
    )


def _beyond_grid(trace: Trace, call: Call, tokens: int) -> int | None:
    """How many of some tokens are not on a grid; None where no grid can be determined."""
    try:
        return tokens - _places(token_grid(tokens, trace.image_size, trace, call))
    except LayerError:
        return None


def _shown(trace: Trace, before: Call | None) -> tuple[list[Grid], int | None]:
    """The grids seen before a call, in order, and how many tokens there were beyond the last that fits."""
    grids: list[Grid] = []
    others: dict[bool, int] = {}
    for call in trace.calls_on_image:
        if before is not None and call.finished > before.finished:
            break
        if call.in_attention or call.pooling or not call.shape or call.shape[0] != 1:
            continue
        if len(call.shape) == 1 + len(trace.image_shape) and trace.axis(call) is not None:
            _, *grid = trace.map_shape(call)
            grids += [tuple(grid)] if prod(grid) > 1 else []
        elif len(call.shape) == 3 and trace.axis(call) != "channels-first":
            grids += [] if grids else _grid_of_patches(call, trace)
            if grids and _are_others(call.shape[1] - _places(grids[-1])):
                others[trace.axis(call) is not None] = call.shape[1] - _places(grids[-1])
    # What is known to be tokens counts before what may be (N, channels, length).
    return grids, others.get(True, others.get(False))


def _grid_of_patches(call: Call, trace: Trace) -> list[Grid]:
    """The grid of a call that takes or outputs the image cut into patches: (1, patches, pixels), every pixel once."""
    for shape in (call.shape_in, call.shape):
        if len(shape) == 3 and prod(shape) == prod(trace.image_shape):
            return [grid for grid in grids_over(trace.image_size, shape[1]) if _places(grid) == shape[1]]
    return []


def _places(grid: Grid) -> int:
    return prod(grid)


def _are_others(count: int) -> bool:
    return 0 <= count <= _MOST_OTHERS


def _why_not(tokens: int, image: Grid, possible: list[Grid]) -> str:
    axes = {1: "length,", 2: "height, width"}.get(len(image), "frames, height, width")
    maps = shape_in_words(len(image))
    what_to_do = f"pass the grid, reshape=({axes}), or a function that makes {maps} of them"
    shape = " x ".join(map(str, image))
    if not possible:
        return f"{tokens} tokens fill no grid over an image of {shape}; {what_to_do}"
    ways = " or ".join(f"{h} x {w} after {tokens - h * w} others" for h, w in possible)
    return f"{tokens} tokens over an image of {shape} may be {ways}; {what_to_do}"


def tokens_to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """(N, length, K) tokens as (N, K, height, width): the last height * width of them, row by row.

    Of a signal (N, K, length), of a volume or video (N, K, depth, height, width).

    >>> import torch
    >>> tokens_to_map(torch.arange(7.0).reshape(1, 7, 1), (2, 3))
    tensor([[[[1., 2., 3.],
              [4., 5., 6.]]]])
    """
    if tokens.ndim != 3:
        raise LayerError(f"tokens are a layer's output (N, length, channels), and it is {tuple(tokens.shape)}")
    if tokens.shape[1] < _places(grid):
        raise LayerError(f"{tokens.shape[1]} tokens cannot fill a grid of {' x '.join(map(str, grid))}")
    patches = tokens[:, tokens.shape[1] - _places(grid) :]
    return patches.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], *grid)
