"""Whether a network looks at signals, images, or volumes and video: 1, 2 or 3 dimensions in which things have a place.

A tensor alone does not say: (3, 224, 224) may be one image or three signals, (3, 16, 32, 32) three images or one
volume. The network's convolutions tell; where they are of several kinds, a dry run shows which the input meets first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from egcam.errors import EgcamError, InputError
from egcam.models.inputs import ExtraInputs
from egcam.models.layer_output import convolution_dimensions, shape_in_words
from egcam.models.trace import Call, dry_run

_SEVERAL = {1: "signals", 2: "images", 3: "volumes or video"}
_SHAPES = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}
_ONE = {2: "one image", 3: "one volume or video"}


@dataclass(frozen=True)
class _Question:
    """How many dimensions a network's input has."""

    model: nn.Module
    images: Tensor
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def seen(self, dimensions: int) -> tuple[bool, Call | None]:
        """Whether the network runs with the input read so, and the first convolution that the input meets."""
        batch = as_batch(self.images, dimensions)
        try:
            trace = dry_run(self.model, batch, ExtraInputs(len(batch), tuple(self.args), dict(self.kwargs)))
        except EgcamError:
            raise
        except Exception:  # read so, the network does not take it
            return False, None
        calls = [call for call in trace.calls_on_image if call.dimensions]
        return True, min(calls, key=lambda call: call.started, default=None)

    def fits(self, dimensions: int) -> bool:
        """Whether the first convolution works on this many dimensions, with the input's channels or at its places."""
        _, call = self.seen(dimensions)
        size = as_batch(self.images, dimensions).shape[1:]
        if call is None or call.dimensions != dimensions or len(call.shape_in) != dimensions + 2:
            return False
        return call.shape_in[1] == size[0] or call.shape_in[2:] == tuple(size[1:])


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

    Example:
        >>> import torch
        >>> [dimensions_of(nn.Conv1d(2, 4, 3), torch.zeros(shape)) for shape in [(8, 2, 50), (2, 50)]]
        [1, 1]
        >>> dimensions_of(nn.Conv2d(3, 4, 3), torch.zeros(3, 50, 50))
        2
    """
    if said is not None:
        return _checked(said, images)
    shape = tuple(images.shape)
    possible = [dimensions for dimensions in (len(shape) - 2, len(shape) - 1) if 1 <= dimensions <= 3]
    kinds = {found for module in model.modules() if (found := convolution_dimensions(module))}
    by_convolutions = [dimensions for dimensions in possible if dimensions in kinds]
    if by_convolutions == [2] or (not by_convolutions and len(shape) == 4):
        return 2
    question = _Question(model, images, args, kwargs or {})
    if len(shape) == 3 and not by_convolutions:
        return _without_convolutions(question)
    if len(shape) == 5 and not kinds:
        return 3
    if not by_convolutions:
        raise _refused(shape, kinds)
    fitting = [dimensions for dimensions in by_convolutions if question.fits(dimensions)]
    if len(fitting) == 1:
        return fitting[0]
    if len(by_convolutions) > 1:
        raise _asked(shape)
    return _against_the_convolutions(question, by_convolutions[0], possible)


def as_batch(images: Tensor, dimensions: int) -> Tensor:
    """(N, C, *size): one image without its first axis gets it."""
    return images[None] if images.ndim == dimensions + 1 else images


def _checked(said: int, images: Tensor) -> int:
    if isinstance(said, bool) or said not in _SEVERAL:
        raise InputError(f"dimensions is 1 for signals, 2 for images, 3 for volumes and video, not {said!r}")
    if images.ndim not in (said + 1, said + 2):
        raise InputError(
            f"with dimensions={said} the input has shape {shape_in_words(said)}, or the same without N for one alone, "
            f"not {tuple(images.shape)}"
        )
    return int(said)


def _without_convolutions(question: _Question) -> int:
    """One image, unless the network runs with signals as well."""
    if question.seen(1)[0]:
        raise _asked(tuple(question.images.shape))
    return 2


def _against_the_convolutions(question: _Question, by_convolutions: int, possible: list[int]) -> int:
    """What there is to say when the only kind of convolution does not meet the input as it should."""
    runs, call = question.seen(by_convolutions)
    others = [dimensions for dimensions in possible if dimensions != by_convolutions and question.seen(dimensions)[0]]
    if runs and call is not None:
        raise InputError(
            f"the input is {tuple(question.images.shape)}, and the network's first convolution gets {call.shape_in} of "
            f"it: its axes are not {shape_in_words(by_convolutions)}. Pass a module that takes them in this order and "
            f"passes them on as the network expects; or pass dimensions={by_convolutions} if they are so after all"
        )
    # A network that does not run either way shows what is wrong in the real pass.
    return others[0] if others and not runs else by_convolutions


def _asked(shape: tuple[int, ...]) -> InputError:
    one, several = len(shape) - 1, len(shape) - 2
    return InputError(
        f"an input of shape {shape} may be {_SEVERAL[several]} {shape_in_words(several)} or {_ONE[one]} "
        f"{shape_in_words(one, single=True)}, and the network does not show which: pass dimensions={several} or "
        f"dimensions={one}"
    )


def _refused(shape: tuple[int, ...], kinds: set[int]) -> InputError:
    wanted = " or ".join(_SHAPES[kind] for kind in sorted(kinds or {2}))
    if len(shape) == 5:
        return InputError(
            f"images of this network have shape {wanted}, not {shape}. Where it folds frames into the batch, explain "
            "them one by one; or pass a module that takes (N, channels, frames, height, width), with dimensions=3 and "
            "a callable reshape that makes maps in this order of what the layer outputs"
        )
    return InputError(f"images must have shape {wanted}, or the same without N for one alone, not {shape}")
