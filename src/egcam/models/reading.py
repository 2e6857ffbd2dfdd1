"""Read a layer's output as maps (N, channels, height, width), one for each image, or say why that cannot be.

Of signals maps are (N, channels, length), of volumes and video (N, channels, depth or frames, height, width).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from torch import Tensor, nn

from egcam.errors import LayerError, ModelError
from egcam.models.axes import Axis, axis_of_module, axis_of_shape, normalised_axis, shape_in_words
from egcam.models.layers import LayerPoint
from egcam.models.place_check import Order, Picked, Run, Way, arranged, seen_at, settled
from egcam.models.session import session_of
from egcam.models.tokens import Grid, are_tokens, token_grid
from egcam.models.trace import Call, Trace

Reshape: TypeAlias = str | tuple[int, ...] | Callable[[Tensor], Tensor]
LookThrough: TypeAlias = Callable[[], Trace | None]

_NAMES = ("tokens", "channels-first", "channels-last")
_CALLABLE = "a callable"


def as_reshape(reshape: Reshape | None) -> Reshape | None:
    """What the user said, checked: "tokens", (height, width), "channels-first", "channels-last", a callable or None."""
    if reshape is None or callable(reshape):
        return reshape
    if isinstance(reshape, str):
        if reshape in _NAMES:
            return reshape
        known = ", ".join(map(repr, _NAMES))
        raise ModelError(f"unknown reshape {reshape!r}; known are {known}, a grid (height, width), or pass a callable")
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


@dataclass(frozen=True)
class _Seen:
    """A layer's output in need of reading."""

    point: LayerPoint
    shape: tuple[int, ...]
    image: Grid
    look_through: LookThrough


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
    """

    def __init__(self, model: nn.Module, reshape: Reshape | None) -> None:
        self._model = model
        self._reshape = reshape
        self._known: dict[tuple[str, tuple[int, ...]], Way] = {}

    def maps(self, point: LayerPoint, tensor: Tensor, images: Tensor, look_through: LookThrough) -> Tensor:
        """(N, channels, height, width) of the layer's output for `images`.

        Args:
            point: the layer.
            tensor: what it returned, or a gradient with respect to that.
            images: (N, C, H, W).
            look_through: makes a dry run; called only where the shapes alone do not tell.
        """
        if callable(self._reshape):
            maps = self._reshape(tensor)
            _check_images(point, maps, len(images), "the reshape of layer")
        else:
            _check_images(point, tensor, len(images), "layer")
            way = self._way(_Seen(point, tuple(tensor.shape), tuple(images.shape[2:]), look_through))
            maps = arranged(tensor, way)
        if maps.ndim != images.ndim or prod(maps.shape[2:]) < 2:
            raise _no_map(point, tuple(maps.shape), images.ndim - 2)
        return maps

    def channel_axis(self, point: LayerPoint) -> int | None:
        """Which axis of a layer that was read holds its channels; None if a callable reads it."""
        ways = [way for (name, _), way in self._known.items() if name == point.name]
        if callable(self._reshape) or not ways:
            return None
        if isinstance(ways[0], Order):
            return ways[0].axes[0]
        return 1 if ways[0] == "channels-first" else -1

    def settle(self, point: LayerPoint, image: Tensor, run: Run, look_through: LookThrough) -> None:
        """Check by a few passes, once for each layer and size of images, that the cells lie where the map shows them.

        Args:
            point: the layer.
            image: (1, C, H, W).
            run: from (B, C, H, W) to what the layer outputs.
            look_through: as for `maps`.
        """
        reshape = id(self._reshape) if callable(self._reshape) else self._reshape
        key = ("settled", point.name, tuple(image.shape[1:]), reshape)
        shape, way = session_of(self._model).fact(key, lambda: self._first_settled(point, image, run, look_through))
        if way is not None:
            self._known[point.name, shape] = way

    def _first_settled(
        self, point: LayerPoint, image: Tensor, run: Run, look_through: LookThrough
    ) -> tuple[tuple[int, ...], Way | None]:
        plain = run(image)
        self.maps(point, plain, image, look_through)
        return tuple(plain.shape[1:]), self._settled(point, plain, image, run)

    def _settled(self, point: LayerPoint, plain: Tensor, image: Tensor, run: Run) -> Way | None:
        """The reading of a layer, after the check; None where a callable reads it."""
        reshape = self._reshape
        way = "channels-first" if callable(reshape) else self._known[point.name, tuple(plain.shape[1:])]

        def read(images: Tensor) -> Tensor:
            return reshape(run(images)) if callable(reshape) else run(images)

        plain = reshape(plain) if callable(reshape) else plain
        found = settled(way, plain, image, read, point.name)
        if found != way and not self._allows(found):
            raise LayerError(
                f"layer {point.name!r}, read by reshape={self._reshape!r}, does not lie over the image: "
                f"{seen_at(way, plain, image, read)}. Leave reshape out to have the layer read by such measurements"
            )
        return None if callable(reshape) else found

    def _allows(self, way: Way) -> bool:
        """Whether what the user said of the layer leaves room for a reading."""
        if callable(self._reshape):
            return False
        if isinstance(way, Picked):
            return self._reshape in (None, "tokens", way.grid)
        if not isinstance(way, Order) or self._reshape is None:
            return True
        return way.axes[0] == (1 if self._reshape == "channels-first" else len(way.axes))

    def _way(self, seen: _Seen) -> Way:
        key = (seen.point.name, seen.shape[1:])
        if key not in self._known:
            self._known[key] = self._find_way(seen)
        return self._known[key]

    def _find_way(self, seen: _Seen) -> Axis | Grid:
        if self._reshape == "tokens" or isinstance(self._reshape, tuple):
            return self._grid(seen)
        if self._reshape is None and len(seen.shape) == 3 and len(seen.image) > 1:
            return self._grid_if_clear(seen)
        if len(seen.shape) != 2 + len(seen.image):
            raise _no_map(seen.point, seen.shape, len(seen.image))
        if self._reshape == "channels-last":
            return "channels-last"
        return "channels-first" if self._reshape == "channels-first" else self._axis(seen)

    def _grid(self, seen: _Seen) -> Grid:
        if len(seen.shape) != 3:
            raise LayerError(
                f"reshape={self._reshape!r} is for tokens (N, length, channels), and layer {seen.point.name!r} "
                f"outputs {seen.shape}"
            )
        trace, call = self._dry_run(seen)
        if call is not None and call.shape[:1] != (1,):
            raise _not_by_image(seen.point, "layer", call.shape, 1)
        if isinstance(self._reshape, tuple):
            if len(self._reshape) != len(seen.image):
                raise LayerError(f"reshape={self._reshape} is no grid over an input of size {seen.image}")
            return self._reshape
        return token_grid(seen.shape[1], seen.image, trace, call)

    def _grid_if_clear(self, seen: _Seen) -> Grid:
        trace, call = self._dry_run(seen)
        if trace is not None and call is not None and call.shape[:1] == (1,) and trace.axis(call) == "channels-first":
            raise _no_map(seen.point, seen.shape, len(seen.image))
        grid = self._grid(seen)
        if trace is None or call is None or not are_tokens(trace, call):
            raise LayerError(
                f"layer {seen.point.name!r} outputs {seen.shape}, and whether that is (N, length, channels) is "
                "unclear: pass reshape='tokens' if it is, or a callable that makes (N, channels, height, width) of it"
            )
        return grid

    def _axis(self, seen: _Seen) -> Axis:
        assert seen.point.module is not None
        claimed = axis_of_module(seen.point.module, seen.shape)
        axis = axis_of_shape(seen.shape, seen.image, {claimed} if claimed else set())
        if claimed != "channels-first" and (axis is None or self._has_norms()):
            trace, call = self._dry_run(seen)
            axis = axis if trace is None or call is None else trace.axis(call)
        if axis is None:
            raise LayerError(
                f"layer {seen.point.name!r} outputs {seen.shape}, and whether that is "
                f"{shape_in_words(len(seen.image))} or {shape_in_words(len(seen.image), 'channels-last')} cannot be "
                "determined: pass reshape='channels-first' or 'channels-last'"
            )
        return axis

    def _has_norms(self) -> bool:
        """Whether the model normalises single axes: where channels come last, it does."""
        return any(normalised_axis(module) is not None for module in self._model.modules())

    def _dry_run(self, seen: _Seen) -> tuple[Trace | None, Call | None]:
        """A dry run, and the layer's call in it, as far as there are such."""
        trace = seen.look_through()
        if trace is None:
            return None, None
        # By the name the dry run knows it under: a module may have several.
        names = [name for name, module in self._model.named_modules() if module is seen.point.module]
        calls = trace.calls_of(names[0])
        number = seen.point.call or 1
        return trace, calls[number - 1] if len(calls) >= number else None


def _check_images(point: LayerPoint, tensor: Tensor, images: int, what: str) -> None:
    if tensor.ndim == 0 or tensor.shape[0] != images:
        raise _not_by_image(point, what, tuple(tensor.shape), images)


def _not_by_image(point: LayerPoint, what: str, shape: tuple[int, ...], images: int) -> LayerError:
    return LayerError(
        f"{what} {point.name!r} outputs {shape} for {images} image(s): its first dimension does not count the images, "
        "so its maps cannot be assigned to images. Choose a layer whose output has one row for each image, or pass a "
        "callable reshape that makes (N, channels, height, width) of it"
    )


def _no_map(point: LayerPoint, shape: tuple[int, ...], dimensions: int) -> LayerError:
    places = {1: "along the signal", 2: "with height and width", 3: "with depth or frames, height and width"}
    return LayerError(
        f"layer {point.name!r} outputs {shape}: no map {places[dimensions]}. Choose a layer "
        f"that outputs {shape_in_words(dimensions)}, such as the last convolution, leave layer=None to have "
        "it found, or pass reshape='tokens' for (N, length, channels)"
    )
