"""Where what a layer outputs has its channels and its cells, and the output as maps (N, channels, height, width).

Of signals maps are (N, channels, length), of volumes and video (N, channels, depth or frames, height, width). Tokens of
a transformer are (N, length, channels): a grid of patches, row by row, after a few others (class token, distillation
token, registers). `Trace` and `Reader` both ask here; README.md beside this file has the idea.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from egcam.errors import LayerError, ModelError
from egcam.models.place_check import Axis, Grid, Order, Picked, Run, Way, arranged, seen_at, settled
from egcam.models.session import session_of

if TYPE_CHECKING:
    from egcam.models.layers import LayerPoint
    from egcam.models.trace import Call, Trace

Reshape: TypeAlias = str | tuple[int, ...] | Callable[[Tensor], Tensor]
Ways: TypeAlias = dict[tuple[str, tuple[int, ...]], Way]
LookThrough: TypeAlias = Callable[[], "Trace | None"]

_POOLS = (_AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd)
_CHANNELS_FIRST = (_ConvNd, _NormBase, *_POOLS, nn.GroupNorm, nn.Upsample, nn.PixelShuffle)
_BY_PLACE = ("torch.nn.modules.activation", "torch.nn.modules.dropout")
_PLACES = {1: "length", 2: "height, width", 3: "depth or frames, height, width"}
_MOST_OTHERS = 16
_MOST_OTHERS_UNSEEN = 9  # eight registers and a class token; where no grid is seen, more would fit too much
_NAMES = ("tokens", "channels-first", "channels-last")
_CALLABLE = "a callable"


# -- axes -----------------------------------------------------------------------------------------


def convolution_dimensions(module: nn.Module) -> int:
    """Over how many dimensions a module convolves; 0 for what is no convolution."""
    return len(module.kernel_size) if isinstance(module, _ConvNd) else 0


def shape_in_words(dimensions: int, axis: Axis = "channels-first", single: bool = False) -> str:
    """The axes of signals, images or volumes, and of a layer's maps of them."""
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
    """
    if type(module).forward is nn.Sequential.forward:
        telling = [child for child in module.children() if type(child).__module__ not in _BY_PLACE]
        return axis_of_module(telling[-1], shape, tokens) if telling else None
    if isinstance(module, _CHANNELS_FIRST):
        return "channels-first"
    if isinstance(module, nn.Linear):
        return None if tokens else "channels-last"
    # A normalisation over one axis, as transformers have it.
    sizes = getattr(module, "normalized_shape", None)
    size = sizes[0] if isinstance(sizes, tuple | list) and len(sizes) == 1 else None
    if shape[1] == shape[-1] == size:
        # Subclasses for convolutional networks turn the axes inside; timm's for tokens has the plain name and does not.
        is_plain = type(module) is nn.LayerNorm or (tokens and type(module).__name__ == "LayerNorm")
        return "channels-last" if is_plain else None
    return "channels-first" if shape[1] == size else "channels-last" if shape[-1] == size else None


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
    """
    if claimed == {"channels-first"}:
        return "channels-first"
    # A single place would be no map.
    last = prod(shape[1:-1]) > 1 and fits(shape[1:-1], image)
    if claimed == {"channels-last"}:
        return "channels-last" if last or not fits(shape[2:], image) else None
    # Nothing suggests channels-last: then it is torch's own order.
    return None if last else "channels-first"


# -- tokens ---------------------------------------------------------------------------------------


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
    step, strides = gcd(height, width), range(1, max(image) + 1)
    alike = {(height // step * times, width // step * times) for times in range(1, step + 1)}
    strided = {(height // stride, width // stride) for stride in strides}
    strided |= {(-(-height // stride), -(-width // stride)) for stride in strides}
    for grids in (alike, strided):
        fitting = [grid for grid in grids if 0 <= tokens - prod(grid) <= _MOST_OTHERS_UNSEEN and prod(grid) > 1]
        if fitting:
            return sorted(fitting, key=prod, reverse=True)
    return []


def token_grid(tokens: int, image: Grid, trace: Trace | None = None, before: Call | None = None) -> Grid:
    """The grid of some tokens.

    Args:
        tokens: how many there are, the others included.
        image: (height, width), (length,) of a signal, (depth, height, width) of a volume.
        trace: a dry run, where there is one.
        before: the call of that run which outputs the tokens; what runs before it shows their grid.
    """
    shown, others = ([], None) if trace is None else _shown(trace, before)
    exact = [grid for grid in shown if tokens - prod(grid) == others]
    for grid in reversed(exact or shown):
        if 0 <= tokens - prod(grid) <= _MOST_OTHERS:
            return grid
    # No grid that was shown fits: tokens were merged since, and the others stayed, or they are more than can be placed.
    possible = [] if shown and tokens > prod(shown[-1]) else grids_over(image, tokens)
    fitting = [grid for grid in possible if others in (None, tokens - prod(grid))]
    if len(fitting) == 1:
        return fitting[0]
    raise LayerError(_why_no_grid(tokens, image, possible))


def _shown(trace: Trace, before: Call | None) -> tuple[list[Grid], int | None]:
    """The grids shown before a call, in order, and how many tokens there were beyond the last that fits."""
    grids: list[Grid] = []
    others: dict[bool, int] = {}
    for call in trace.calls_on_image:
        if before is not None and call.finished > before.finished:
            break
        if call.in_attention or call.pooling or not call.shape or call.shape[0] != 1:
            continue
        axis = trace.axis(call) if len(call.shape) in (3, 1 + len(trace.image_shape)) else None
        if len(call.shape) == 1 + len(trace.image_shape) and axis is not None:
            grid = trace.map_shape(call)[1:]
            grids += [grid] if prod(grid) > 1 else []
        elif len(call.shape) == 3 and axis != "channels-first":
            grids += [] if grids else _grid_of_patches(call, trace)
            if grids and 0 <= call.shape[1] - prod(grids[-1]) <= _MOST_OTHERS:
                others[axis is not None] = call.shape[1] - prod(grids[-1])
    # What is known to be tokens counts before what may be (N, channels, length).
    return grids, others.get(True, others.get(False))


def _grid_of_patches(call: Call, trace: Trace) -> list[Grid]:
    """The grid of a call that takes or outputs the image cut into patches: (1, patches, pixels), every pixel once."""
    for shape in (call.shape_in, call.shape):
        if len(shape) == 3 and prod(shape) == prod(trace.image_shape):
            return [grid for grid in grids_over(trace.image_size, shape[1]) if prod(grid) == shape[1]]
    return []


def _why_no_grid(tokens: int, image: Grid, possible: list[Grid]) -> str:
    axes = {1: "length,", 2: "height, width"}.get(len(image), "frames, height, width")
    what_to_do = f"pass the grid, reshape=({axes}), or a function that makes {shape_in_words(len(image))} of them"
    shape = " x ".join(map(str, image))
    if not possible:
        return f"{tokens} tokens fill no grid over an image of {shape}; {what_to_do}"
    ways = " or ".join(f"{h} x {w} after {tokens - h * w} others" for h, w in possible)
    return f"{tokens} tokens over an image of {shape} may be {ways}; {what_to_do}"


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
        return tokens - prod(token_grid(tokens, trace.image_size, trace, call))
    except LayerError:
        return None


# -- what a user says of a layer ------------------------------------------------------------------


def as_reshape(reshape: Reshape | None) -> Reshape | None:
    """What the user said, checked: "tokens", (height, width), "channels-first", "channels-last", a callable or None."""
    if reshape is None or callable(reshape) or reshape in _NAMES:
        return reshape
    if isinstance(reshape, str):
        names = ", ".join(map(repr, _NAMES))
        raise ModelError(f"unknown reshape {reshape!r}; known are {names}, a grid (height, width), or pass a callable")
    numbers = tuple(reshape) if isinstance(reshape, tuple | list) else ()
    if not 1 <= len(numbers) <= 3 or not all(type(number) is int and number > 0 for number in numbers):
        raise ModelError(f"reshape is a name, a grid (height, width) of tokens or a callable, not {reshape!r}")
    return numbers


@dataclass(frozen=True)
class LostReshape:
    """In place of a callable that was not saved with the maps it made."""

    def __call__(self, output: Tensor) -> Tensor:
        """An error that says so."""
        raise LayerError("the maps were made with a callable reshape, which is not saved with them: pass it again")


def picklable_reshape(reshape: Reshape | None) -> Reshape | None:
    """The reshape, if another process could find it: a lambda, say, it could not."""
    try:
        pickle.dumps(reshape)
    except Exception:
        return LostReshape()
    return reshape


def saved_reshape(reshape: Reshape | None) -> str | list[int] | None:
    """What is written of a reshape into a file; a callable cannot be."""
    if callable(reshape):
        return _CALLABLE
    return list(reshape) if isinstance(reshape, tuple) else reshape


def loaded_reshape(saved: object) -> Reshape | None:
    """The reshape that was saved, or an error."""
    if saved == _CALLABLE:
        return LostReshape()
    if not isinstance(saved, str | list | None):
        raise ValueError(f"its reshape cannot be {saved!r}")
    return as_reshape(tuple(saved) if isinstance(saved, list) else saved)


# -- reading --------------------------------------------------------------------------------------


@dataclass
class Reader:
    """Turns what layers of a model output into maps, the same way in every pass.

    Args:
        model: the plain module.
        reshape: what the user said of the layers' outputs:

            - None: (N, channels, height, width), or (N, height, width, channels) or tokens (N, length, channels) where
              the evidence is clear;
            - "channels-first", "channels-last": the one or the other;
            - "tokens": (N, length, channels), the grid read off the network and the image;
            - (height, width): such tokens, on this grid;
            - a callable that does it.
        ways: how each layer was read for each shape of its output.
    """

    _model: nn.Module
    _reshape: Reshape | None
    _ways: Ways = field(default_factory=dict)

    def maps(self, point: LayerPoint, tensor: Tensor, images: Tensor, look_through: LookThrough) -> Tensor:
        """(N, channels, height, width) of the layer's output for `images`.

        Args:
            point: the layer.
            tensor: what it returned, or a gradient with respect to that.
            images: (N, C, H, W).
            look_through: gives a dry run.
        """
        shape, image = tuple(tensor.shape), tuple(images.shape[2:])
        if callable(self._reshape):
            maps = self._reshape(tensor)
            _check_images(point, tuple(maps.shape), len(images), "the reshape of layer")
        else:
            _check_images(point, shape, len(images))
            key = (point.name, shape[1:])
            if key not in self._ways:
                self._ways[key] = self._first_way(point, shape, image, look_through())
            maps = arranged(tensor, self._ways[key])
        if maps.ndim != images.ndim or prod(maps.shape[2:]) < 2:
            raise _no_map(point, tuple(maps.shape), len(image))
        return maps

    def channel_axis(self, point: LayerPoint) -> int | None:
        """Which axis of a layer that was read holds its channels; None if a callable reads it."""
        way = next((way for (name, _), way in self._ways.items() if name == point.name), None)
        if way is None or callable(self._reshape):
            return None
        return way.axes[0] if isinstance(way, Order) else 1 if way == "channels-first" else -1

    def settle(self, point: LayerPoint, image: Tensor, run: Run, look_through: LookThrough) -> None:
        """Check by a few passes, once for each layer and size of images, that the cells lie where the map shows them.

        Args:
            point: the layer.
            image: (1, C, H, W).
            run: from (B, C, H, W) to what the layer outputs.
            look_through: as for `maps`.
        """
        reshape = self._reshape

        def checked() -> tuple[tuple[int, ...], Way | None]:
            plain = run(image)
            self.maps(point, plain, image, look_through)
            shape = tuple(plain.shape[1:])
            if not callable(reshape):
                return shape, self._settled(point, self._ways[point.name, shape], plain, image, run)
            self._settled(point, "channels-first", reshape(plain), image, lambda images: reshape(run(images)))
            return shape, None

        key = ("settled", point.name, tuple(image.shape[1:]), id(reshape) if callable(reshape) else reshape)
        shape, way = session_of(self._model).fact(key, checked)
        if way is not None:
            self._ways[point.name, shape] = way

    def _settled(self, point: LayerPoint, way: Way, plain: Tensor, image: Tensor, run: Run) -> Way:
        better = settled(way, plain, image, run, point.name)
        if better != way and not self._allows(better):
            raise LayerError(
                f"layer {point.name!r}, read by reshape={self._reshape!r}, does not lie over the image: "
                f"{seen_at(way, plain, image, run)}. Leave reshape out to have the layer read by such measurements"
            )
        return better

    def _allows(self, way: Way) -> bool:
        """Whether what the user said of the layer leaves room for a reading."""
        if callable(self._reshape):
            return False
        if isinstance(way, Picked):
            return self._reshape in (None, "tokens", way.grid)
        if not isinstance(way, Order) or self._reshape is None:
            return True
        return way.axes[0] == (1 if self._reshape == "channels-first" else len(way.axes))

    def _first_way(self, point: LayerPoint, shape: tuple[int, ...], image: Grid, trace: Trace | None) -> Way:
        """The reading as shapes and modules tell it."""
        reshape, call = self._reshape, None if trace is None else self._call(point, trace)
        if reshape == "tokens" or isinstance(reshape, tuple):
            return self._grid(point, shape, image, trace, call)
        if reshape is None and len(shape) == 3 and len(image) > 1:
            if trace is not None and call is not None and call.shape[0] == 1 and trace.axis(call) == "channels-first":
                raise _no_map(point, shape, len(image))
            grid = self._grid(point, shape, image, trace, call)
            if trace is not None and call is not None and are_tokens(trace, call):
                return grid
            raise LayerError(
                f"layer {point.name!r} outputs {shape}, and whether that is (N, length, channels) is "
                "unclear: pass reshape='tokens' if it is, or a callable that makes (N, channels, height, width) of it"
            )
        if len(shape) != 2 + len(image):
            raise _no_map(point, shape, len(image))
        if reshape in ("channels-first", "channels-last"):
            return "channels-last" if reshape == "channels-last" else "channels-first"
        axis = axis_of_shape(shape, image, set()) if trace is None or call is None else trace.axis(call)
        if axis is None:
            raise LayerError(
                f"layer {point.name!r} outputs {shape}, and whether that is {shape_in_words(len(image))} or "
                f"{shape_in_words(len(image), 'channels-last')} cannot be determined: pass reshape='channels-first' "
                "or 'channels-last'"
            )
        return axis

    def _grid(
        self, point: LayerPoint, shape: tuple[int, ...], image: Grid, trace: Trace | None, call: Call | None
    ) -> Grid:
        if len(shape) != 3:
            raise LayerError(
                f"reshape={self._reshape!r} is for tokens (N, length, channels), and layer {point.name!r} "
                f"outputs {shape}"
            )
        if call is not None:
            _check_images(point, call.shape, 1)
        if not isinstance(self._reshape, tuple):
            return token_grid(shape[1], image, trace, call)
        if len(self._reshape) != len(image):
            raise LayerError(f"reshape={self._reshape} is no grid over an input of size {image}")
        return self._reshape

    def _call(self, point: LayerPoint, trace: Trace) -> Call | None:
        """The layer's call in a dry run."""
        # By the name the dry run knows it under: a module may have several.
        name = next(name for name, module in self._model.named_modules() if module is point.module)
        return next(iter(trace.calls_of(name)[(point.call or 1) - 1 :]), None)


def _check_images(point: LayerPoint, shape: tuple[int, ...], images: int, what: str = "layer") -> None:
    if shape[:1] != (images,):
        raise LayerError(
            f"{what} {point.name!r} outputs {shape} for {images} image(s): its first dimension does not count the "
            "images, so its maps cannot be assigned to images. Choose a layer whose output has one row for each image, "
            "or pass a callable reshape that makes (N, channels, height, width) of it"
        )


def _no_map(point: LayerPoint, shape: tuple[int, ...], dimensions: int) -> LayerError:
    places = {1: "along the signal", 2: "with height and width", 3: "with depth or frames, height and width"}
    return LayerError(
        f"layer {point.name!r} outputs {shape}: no map {places[dimensions]}. Choose a layer "
        f"that outputs {shape_in_words(dimensions)}, such as the last convolution, leave layer=None to have "
        "it found, or pass reshape='tokens' for (N, length, channels)"
    )
