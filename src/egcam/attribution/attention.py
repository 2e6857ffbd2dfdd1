"""Methods for transformers: which patches reach the tokens that the scores are read from, by the attention itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import ModelError
from egcam.imageops import wide_enough
from egcam.models.attention import Attention, recorded_attention
from egcam.models.layer_output import are_tokens, token_grid
from egcam.models.layers import LayerPoint
from egcam.models.place_check import Grid
from egcam.models.trace import Call, Trace

_INSTEAD = "class activation maps such as 'grad-cam' explain such a network"
_COMPUTED_ANEW = (
    "the explained score does not depend on all of the network's attention, or some of it is recomputed on the way "
    f"back: switch gradient checkpointing off, else {_INSTEAD}"
)


class _FromAttention(Explainer):
    """What flows from the patches to the tokens that the scores are read from, layer by layer.

    With M_l the (length, length) mixing of layer l, averaged over heads, R = I before the first layer, and R_l made of
    R_(l-1) and M_l R_(l-1), the map is the mean of R's rows of the tokens that are read (the class token, or all
    patches), at the patches. Where attention pools the tokens, M_pool R is in place of that mean.
    """

    def __init__(self, model: nn.Module, **common: Unpack[Common]) -> None:
        super().__init__(model, None, **common)
        # As at the input: nothing is taken from a layer, and gradients go all the way back.
        self._points = (LayerPoint("attention", None),)

    @abstractmethod
    def _run(self, task: Task) -> None:
        """The first pass, in one of its forms."""

    @abstractmethod
    def _mixing(self, attention: Attention) -> Tensor:
        """(n, queries, keys) how much of each key is in each query, from an attention (n, heads, queries, keys)."""

    @abstractmethod
    def _through(self, flow: Tensor, mixed: Tensor) -> Tensor:
        """R after a layer, from R before it and M R: both contribute, because a skip connection bypasses attention."""

    def _explain(self, task: Task) -> Maps:
        with recorded_attention() as seen:
            self._run(task)
        if not all(one.is_applied for one in seen) or any(_is_difference(module) for module in self.model.modules()):
            raise ModelError(f"{self.method}: the network mixes or subtracts attention before applying it; {_INSTEAD}")
        layers, pooling = _between_all_tokens(seen, len(task.images))
        length = layers[0].matrix.shape[-1]
        grid, read = self._tokens(task, length)
        flow = torch.eye(length).to(layers[0].matrix).expand(len(task.images), -1, -1)
        for attention in layers:
            flow = self._through(flow, self._mixing(attention) @ flow)
        rows = flow[:, read] if pooling is None else self._mixing(pooling) @ flow
        return Maps([rows.mean(1)[:, length - grid[0] * grid[1] :].reshape(-1, *grid)])

    def _tokens(self, task: Task, length: int) -> tuple[Grid, Tensor]:
        """The grid of the patches, which come last, and the numbers of the tokens that the scores are read off."""
        trace = task.probe.trace(task.images[:1])
        last = None if trace is None else _last_tokens(trace, length)
        if trace is None or last is None:
            raise ModelError(f"{self.method}: its attention is not between patches of the image; {_INSTEAD}")
        read = trace.tokens_read(last)
        if read is None or not bool(read.any()):
            raise ModelError(
                f"{self.method}: which tokens the scores are read from cannot be determined: the network switches "
                f"gradients off after its last attention; {_INSTEAD}"
            )
        grid = self._reshape if isinstance(self._reshape, tuple) else token_grid(length, trace.image_size, trace, last)
        return grid, read.nonzero()[:, 0].to(task.images.device)


def _is_difference(module: nn.Module) -> bool:
    """Whether it is differential attention, which subtracts one attention from another, each of which is applied."""
    return type(module).__name__.startswith("Diff") and "Atten" in type(module).__name__


def _last_tokens(trace: Trace, length: int) -> Call | None:
    """The last call that returned that many tokens."""
    calls = sorted(trace.calls_on_image, key=lambda call: -call.finished)
    plain = (call for call in calls if not call.in_attention and not call.pooling and call.shape[1:2] == (length,))
    return next((call for call in plain if are_tokens(trace, call)), None)


def _between_all_tokens(seen: Sequence[Attention], images: int) -> tuple[list[Attention], Attention | None]:
    """The attention of each layer as (n, heads, length, length), and that of a last one which pools; or a refusal."""
    if not seen:
        raise ModelError(f"this network has no attention to show; {_INSTEAD}")
    found = [_by_image(one, images) for one in seen]
    shapes = [(0, 0) if one is None else tuple(one.matrix.shape[2:]) for one in found]
    length = shapes[0][1]
    pools = len(found) > 1 and shapes[-1] == (1, length)
    if length < 2 or any(shape != (length, length) for shape in (shapes[:-1] if pools else shapes)):
        raise ModelError(
            "attention can be followed through a network only if that of every layer is between all tokens of the "
            "image, and here some is inside windows, between merged or pooled tokens, or from a class token alone; "
            f"{_INSTEAD}"
        )
    layers = [one for one in found if one is not None]
    return (layers[:-1], layers[-1]) if pools else (layers, None)


def _by_image(attention: Attention, images: int) -> Attention | None:
    """As (n, heads, queries, keys) in a precision to calculate with; None where rows do not count images."""
    shape = attention.matrix.shape
    heads_apart = len(shape) == 4 and shape[0] == images
    if not heads_apart and (len(shape) != 3 or shape[0] % images):
        return None

    def shaped(tensor: Tensor) -> Tensor:
        return wide_enough(tensor).reshape(images, -1, *shape[-2:])

    gradient = attention.gradient
    return Attention(shaped(attention.matrix), None if gradient is None else shaped(gradient))


@register(
    "attention-rollout",
    label="Attention rollout",
    summary="for transformers: attention traced from the patches to the output, whatever the class",
    group="attention",
    line=("black", "--", "v"),
)
class AttentionRollout(_FromAttention):
    """Attention rollout (Abnar and Zuidema, 2020): R_l = (mean_heads(A_l) R_(l-1) + R_(l-1)) / 2.

    The map does not depend on the class.

    Args:
        model: a transformer whose attention is between all tokens of the image.
        common: the options all explainers take; `reshape=(height, width)` sets the grid.
    """

    def _run(self, task: Task) -> None:
        task.first_pass()

    def _mixing(self, attention: Attention) -> Tensor:
        return attention.matrix.mean(1)

    def _through(self, flow: Tensor, mixed: Tensor) -> Tensor:
        return (flow + mixed) / 2


@register(
    "attention-relevance",
    label="Attention relevance",
    summary="for transformers: attention that raises the class score, traced from the patches to the output",
    group="attention",
    line=("black", "-.", "^"),
)
class AttentionRelevance(_FromAttention):
    """Attention relevance (Chefer et al., 2021): R_l = R_(l-1) + mean_heads(relu(dy/dA_l * A_l)) R_(l-1).

    Args:
        model: a transformer whose attention is between all tokens of the image.
        common: the options all explainers take; `reshape=(height, width)` sets the grid.
    """

    def _run(self, task: Task) -> None:
        try:
            task.first_gradients()
        except CheckpointError as error:
            raise ModelError(_COMPUTED_ANEW) from error

    def _mixing(self, attention: Attention) -> Tensor:
        if attention.gradient is None:
            raise ModelError(_COMPUTED_ANEW)
        return (attention.gradient * attention.matrix).relu().mean(1)

    def _through(self, flow: Tensor, mixed: Tensor) -> Tensor:
        return flow + mixed
