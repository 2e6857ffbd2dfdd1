"""What is wrong between a model and what it is given, in a sentence that says what to pass instead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError, InputError, ModelError
from egcam.models.inputs import ExtraInputs
from egcam.models.nested import tensors_in
from egcam.models.restore import untouched
from egcam.models.weights import one_line

_OF_TORCH = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def model_error(error: Exception, model: nn.Module, images: Tensor, extra: ExtraInputs) -> EgcamError | None:
    """What to raise in place of an error that the model alone would raise, too.

    None for others: of egcam's, of the user's own callables, or for want of memory.
    """
    if isinstance(error, EgcamError | torch.cuda.OutOfMemoryError):
        return None
    if isinstance(error, AssertionError):
        if not str(error).startswith("Guard failed"):
            return None
        return ModelError(
            f"this network was exported for inputs of one shape ({error}), and methods run batches of several sizes: "
            "explain the network it was exported from, or export it with a dynamic batch dimension"
        )
    # Errors of kinds of their own say what they mean, and are told apart by it.
    cause = _own_error(model, images, extra) if type(error) in _OF_TORCH else None
    if cause is None:
        return None
    return InputError(
        f"the model alone, without egcam, raises an error with images {tuple(images.shape)}: {one_line(cause)}"
        f"{_hint(model, images, extra.listed, cause)}"
    )


def _own_error(model: nn.Module, images: Tensor, extra: ExtraInputs) -> Exception | None:
    """What the model raises with the first of the images, without anything else."""
    args, kwargs = extra.rows(torch.zeros(1, dtype=torch.long, device="cpu"))
    try:
        with torch.no_grad():
            model(extra.images(images[:1].clone()), *args, **kwargs)
    except Exception as error:
        return error
    return None


def _hint(model: nn.Module, images: Tensor, is_list: bool, error: Exception) -> str:
    if is_list:
        return ". If it takes a batch rather than a list, pass torch.stack(images)"
    if isinstance(error, TypeError) and "missing" in str(error):
        return ". Pass its further inputs, inputs=(…,) or keywords={…}"
    first = next(((name, module) for name, module in model.named_modules() if isinstance(module, _CONVOLUTIONS)), None)
    if first is None or images.ndim < 3 or first[1].in_channels == images.shape[1]:
        return ""
    places = ", ".join(["-1"] * (images.ndim - 2))
    hint = f". Its first convolution, {first[0]!r}, takes {first[1].in_channels} channels, the images have "
    grey = f": pass images.expand(-1, {first[1].in_channels}, {places}) of grey ones" if images.shape[1] == 1 else ""
    return f"{hint}{images.shape[1]}{grey}"


def check_rows(model: nn.Module, images: Tensor, extra: ExtraInputs) -> None:
    """Refuse a further input that looks like one row for each image but makes the columns of the output.

    As many text prompts as images have the images' number of rows. But with one row of them the model outputs one
    column, with two rows two. What belongs to the images leaves the columns as they are.
    """
    names = extra.by_row()
    if not names:
        return
    single, double = (_columns(model, images, extra, count) for count in (1, 2))
    if single is None or double is None or single == double:
        return
    raise InputError(
        f"{' or '.join(names)} has as many rows as there are images ({extra.count}), but not one for each image: every "
        "row adds a column to the model's output, as text prompts do. Say that all images have it in common by passing "
        "egcam.shared(…), e.g. inputs=(egcam.shared(prompts),)"
    )


def _columns(model: nn.Module, images: Tensor, extra: ExtraInputs, count: int) -> list[tuple[int, ...]] | None:
    """The shapes of the model's outputs for `count` copies of the first image, without their first dimension.

    None if the model fails: the real pass will report the error.
    """
    args, kwargs = extra.rows(torch.zeros(count, dtype=torch.long, device="cpu"))
    inputs = (extra.images(images[:1].detach().expand(count, *images.shape[1:]).clone()), *args)
    with untouched(model, images.device), torch.no_grad():
        try:
            output = model(*inputs, **kwargs)
        except Exception:
            return None
    return [tuple(tensor.shape[1:]) for tensor in tensors_in(output) if tensor.ndim and len(tensor) == count]
