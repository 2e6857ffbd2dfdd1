"""Whether a network looks at signals, images, or volumes and video: 1, 2 or 3 dimensions in which things have a place.

A tensor alone does not say: (3, 224, 224) may be one image or three signals, (3, 16, 32, 32) three images or one
volume. The network's convolutions tell; where they are of several kinds, a dry run shows which the input meets first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from egcam.errors import EgcamError, InputError
from egcam.models.inputs import ExtraInputs
from egcam.models.layer_output import convolution_dimensions, shape_in_words
from egcam.models.trace import Call, dry_run

_SEVERAL = {1: "signals", 2: "images", 3: "volumes or video"}
_SHAPES = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}
_ONE = {2: "one image", 3: "one volume or video"}
_First: TypeAlias = tuple[bool, Call | None]


def dimensions_of(
    model: nn.Module,
    images: Tensor,
    said: int | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> int:
    """1 for signals (N, C, L), 2 for images (N, C, H, W), 3 for volumes (N, C, D, H, W) and video (N, C, T, H, W).

    Each may come without its first axis, for one alone.

    Args:
        model: the network.
        images: what it looks at.
        said: what the user says; None is found out.
        args: additional positional inputs of the network.
        kwargs: additional keyword inputs.
    """
    shape = tuple(images.shape)
    if said is not None:
        return _checked(said, shape)
    extra = tuple(args), dict(kwargs or {})

    def first(dimensions: int) -> _First:
        """Whether the network runs with the input read so, and the first convolution that the input meets."""
        batch = as_batch(images, dimensions)
        try:
            trace = dry_run(model, batch, ExtraInputs(len(batch), *extra))
        except EgcamError:
            raise
        except Exception:  # read so, the network does not take it
            return False, None
        calls = [call for call in trace.calls_on_image if call.dimensions]
        return True, min(calls, key=lambda call: call.started, default=None)

    possible = [dimensions for dimensions in (len(shape) - 2, len(shape) - 1) if 1 <= dimensions <= 3]
    kinds = {dimensions for module in model.modules() if (dimensions := convolution_dimensions(module))}
    by_convolutions = [dimensions for dimensions in possible if dimensions in kinds]
    if by_convolutions == [2] or (not by_convolutions and len(shape) == 4):
        return 2
    if len(shape) == 3 and not by_convolutions:
        # One image, unless the network runs with signals as well.
        if first(1)[0]:
            raise _asked(shape)
        return 2
    if len(shape) == 5 and not kinds:
        return 3
    if not by_convolutions:
        raise _refused(shape, kinds)
    firsts = {dimensions: first(dimensions) for dimensions in by_convolutions}
    fitting = [dimensions for dimensions in firsts if _fits(firsts[dimensions][1], as_batch(images, dimensions).shape)]
    if len(fitting) == 1:
        return fitting[0]
    if len(by_convolutions) > 1:
        raise _asked(shape)
    # The only kind of convolution does not meet the input as it should.
    (dimensions,) = by_convolutions
    runs, call = firsts[dimensions]
    if runs and call is not None:
        raise InputError(
            f"the input is {shape}, and the network's first convolution gets {call.shape_in} of it: its axes are not "
            f"{shape_in_words(dimensions)}. Pass a module that takes them in this order and passes them on as the "
            f"network expects; or pass dimensions={dimensions} if they are so after all"
        )
    # A network that does not run either way shows what is wrong in the real pass.
    others = [other for other in possible if not runs and other != dimensions and first(other)[0]]
    return others[0] if others else dimensions


def as_batch(images: Tensor, dimensions: int) -> Tensor:
    """(N, C, *size): one image without its first axis gets it."""
    return images[None] if images.ndim == dimensions + 1 else images


def _fits(call: Call | None, shape: tuple[int, ...]) -> bool:
    """Whether a convolution works on as many dimensions as (N, C, *size) has, with its channels or at its places."""
    if call is None or call.dimensions != len(shape) - 2 or len(call.shape_in) != len(shape):
        return False
    return call.shape_in[1] == shape[1] or call.shape_in[2:] == tuple(shape[2:])


def _checked(dimensions: int, shape: tuple[int, ...]) -> int:
    if isinstance(dimensions, bool) or dimensions not in _SEVERAL:
        raise InputError(f"dimensions is 1 for signals, 2 for images, 3 for volumes and video, not {dimensions!r}")
    if len(shape) not in (dimensions + 1, dimensions + 2):
        raise InputError(
            f"with dimensions={dimensions} the input has shape {shape_in_words(dimensions)}, or the same without N for "
            f"one alone, not {shape}"
        )
    return int(dimensions)


def _asked(shape: tuple[int, ...]) -> InputError:
    single, several = len(shape) - 1, len(shape) - 2
    return InputError(
        f"an input of shape {shape} may be {_SEVERAL[several]} {shape_in_words(several)} or {_ONE[single]} "
        f"{shape_in_words(single, single=True)}, and the network does not show which: pass dimensions={several} or "
        f"dimensions={single}"
    )


def _refused(shape: tuple[int, ...], kinds: set[int]) -> InputError:
    shapes = " or ".join(_SHAPES[kind] for kind in sorted(kinds or {2}))
    if len(shape) == 5:
        return InputError(
            f"images of this network have shape {shapes}, not {shape}. Where it folds frames into the batch, explain "
            "them one by one; or pass a module that takes (N, channels, frames, height, width), with dimensions=3 and "
            "a callable reshape that makes maps in this order of what the layer outputs"
        )
    return InputError(f"images must have shape {shapes}, or the same without N for one alone, not {shape}")
