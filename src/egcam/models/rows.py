"""Whether additional inputs of a model really have one row per image, as their shape suggests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.models.inputs import ExtraInputs
from egcam.models.nested import mapped_tensors, tensors_in
from egcam.models.restore import untouched
from egcam.models.shadow import meta_copy


def check_rows(model: nn.Module, images: Tensor, extra: ExtraInputs) -> None:
    """Refuse a further input that looks like one row for each image but makes the columns of the output.

    As many text prompts as images have the images' number of rows. But with one row of them the model outputs one
    column, with two rows two. What belongs to the images leaves the columns as they are.
    """
    names = extra.by_row()
    if not names:
        return
    one, two = (_columns(model, images, extra, count) for count in (1, 2))
    if one is None or two is None or one == two:
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
    given = (extra.images(images[:1].detach().expand(count, *images.shape[1:]).clone()), *args)
    with untouched(model, images.device), torch.no_grad():
        try:
            output = meta_copy(model)(*mapped_tensors(given, _to_meta), **mapped_tensors(kwargs, _to_meta))
        except Exception:  # data-dependent code, tensors held outside buffers, operators without meta kernels
            try:
                output = model(*given, **kwargs)
            except Exception:
                return None
    return [tuple(tensor.shape[1:]) for tensor in tensors_in(output) if tensor.ndim and len(tensor) == count]


def _to_meta(tensor: Tensor) -> Tensor:
    return tensor.detach().to("meta")
