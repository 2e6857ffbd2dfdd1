"""How the tokens of a transformer lie over the image: a grid of patches, row by row, after a few others.

The others (class token, distillation token, registers) come first. How many there are is read off a dry run: the patch
embedding shows the grid, and what the tokens are more than it are the others.
"""

from __future__ import annotations

from math import gcd, prod

from torch import Tensor

from egcam.errors import LayerError
from egcam.models.trace import Call, Trace

Grid = tuple[int, int]

_MOST_OTHERS = 16
_MOST_OTHERS_UNSEEN = 9  # eight registers and a class token; where no grid is seen, more would fit too much


def grids_over(image: Grid, tokens: int) -> list[Grid]:
    """The grids of patches over the image that leave at most 9 of the tokens over, the largest first.

    They have the image's proportions; if none does, one whole stride in both directions.

    >>> grids_over((64, 128), 33), grids_over((28, 28), 9)
    ([(4, 8)], [(3, 3), (2, 2)])
    """
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
        image: (height, width).
        trace: a dry run, where there is one.
        before: the call of that run which puts out the tokens; what runs before it shows their grid.
    """
    seen, others = ([], None) if trace is None else _shown(trace, before)
    for grid in reversed(seen):
        if _are_others(tokens - _places(grid)):
            return grid
    # No grid that was seen fits: tokens were merged since, and the others stayed, or they are more than can be placed.
    possible = [] if seen and tokens > _places(seen[-1]) else grids_over(image, tokens)
    fitting = [grid for grid in possible if others is None or tokens - _places(grid) == others]
    if len(fitting) == 1:
        return fitting[0]
    raise LayerError(_why_not(tokens, image, possible))


def _shown(trace: Trace, before: Call | None) -> tuple[list[Grid], int | None]:
    """The grids seen before a call, in order, and how many tokens there were beyond the last that fits."""
    grids: list[Grid] = []
    others = None
    for call in trace.calls_on_image:
        if before is not None and call.finished > before.finished:
            break
        if call.in_attention or call.pooling or not call.shape or call.shape[0] != 1:
            continue
        if len(call.shape) == 4 and trace.axis(call) is not None:
            _, height, width = trace.map_shape(call)
            grids += [(height, width)] if height * width > 1 else []
        elif len(call.shape) == 3:
            grids += [] if grids else _grid_of_patches(call, trace)
            if grids and _are_others(call.shape[1] - _places(grids[-1])):
                others = call.shape[1] - _places(grids[-1])
    return grids, others


def _grid_of_patches(call: Call, trace: Trace) -> list[Grid]:
    """The grid of a call that takes or puts out the image cut into patches: (1, patches, pixels), every pixel once."""
    for shape in (call.shape_in, call.shape):
        if len(shape) == 3 and prod(shape) == prod(trace.image_shape):
            return [grid for grid in grids_over(trace.image_size, shape[1]) if _places(grid) == shape[1]]
    return []


def _places(grid: Grid) -> int:
    return grid[0] * grid[1]


def _are_others(count: int) -> bool:
    return 0 <= count <= _MOST_OTHERS


def _why_not(tokens: int, image: Grid, possible: list[Grid]) -> str:
    what_to_do = "pass the grid, reshape=(height, width), or a function that makes (N, channels, height, width) of them"
    shape = f"{image[0]} x {image[1]}"
    if not possible:
        return f"reshape='tokens': {tokens} tokens fill no grid over an image of {shape}; {what_to_do}"
    ways = " or ".join(f"{h} x {w} after {tokens - h * w} others" for h, w in possible)
    return f"reshape='tokens': {tokens} tokens over an image of {shape} may be {ways}; {what_to_do}"


def tokens_to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """(N, length, K) tokens as (N, K, height, width): the last height * width of them, row by row.

    >>> import torch
    >>> tokens_to_map(torch.arange(7.0).reshape(1, 7, 1), (2, 3))
    tensor([[[[1., 2., 3.],
              [4., 5., 6.]]]])
    """
    if tokens.ndim != 3:
        raise LayerError(f"tokens are a layer's output (N, length, channels), and it is {tuple(tokens.shape)}")
    if tokens.shape[1] < _places(grid):
        raise LayerError(f"{tokens.shape[1]} tokens cannot fill a grid of {grid[0]} x {grid[1]}")
    patches = tokens[:, tokens.shape[1] - _places(grid) :]
    return patches.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], *grid)
