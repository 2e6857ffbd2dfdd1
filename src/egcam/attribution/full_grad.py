"""FullGrad: the score shared out over the pixels and the biases of every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import IncompleteMapWarning, MethodError, warn_user
from egcam.imageops import Size, by_row, size_of, upsampled, wide_enough
from egcam.models.restore import add_hook

_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)
_MISSING = 0.1  # the share of the score that may be missing without a warning


@register(
    "full-grad",
    label="FullGrad",
    summary="gradient times input, and gradient times bias of every layer, added up",
    group="input",
    line=("blue", ":", "d"),
)
class FullGrad(Explainer):
    """FullGrad (Srinivas and Fleuret, 2019): the parts of y = sum x dy/dx + sum_l b_l dy/db_l, as one map.

        map = sum_c psi(x dy/dx) + sum_l sum_c psi(b_l dy/do_l),    psi = upsampled(scaled(|.|))
        signed=True: the parts themselves, each layer's enlarged so that its total stays

    o_l is what layer l outputs and b_l its bias: a convolution's own; for batch normalisation beta - gamma mu/sigma;
    for a smooth activation f the implicit one, f(z) - f'(z) z. `scaled` maps each layer's values from [minimum,
    maximum] to [0, 1], all channels together, as in the authors' code. Biases without a position in the image (dense
    layers, tokens) are in no pixel. If the parts do not add up to the logit, an `egcam.errors.IncompleteMapWarning`
    says so: something outside modules shifts the numbers, such as an activation called as a function.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
        >>> FullGrad(net)(torch.rand(1, 1, 8, 8), target=0).maps.shape
        torch.Size([1, 8, 8])
    """

    at_input = True

    def __init__(self, model: nn.Module, **common: Unpack[Common]) -> None:
        super().__init__(model, None, **common)

    def _explain(self, task: Task) -> Maps:
        parts: list[Tensor] = []
        with _calls_seen(self.model) as calls:
            weights = {id(parameter) for parameter in self.model.parameters()}

            def is_image(leaf: Tensor) -> bool:
                return id(leaf) not in weights and leaf.shape == task.images.shape

            def take_parts(scores: Tensor) -> None:
                _refuse_dense_signals(calls, task.images)
                parts.extend(_bias_parts(scores, calls, is_image))

            seen = task.first_gradients(take_parts)
        parts = [wide_enough(task.images) * wide_enough(seen.gradients[0]), *parts]
        self._warn_if_incomplete(task, parts)
        size = size_of(task.images)
        return Maps([torch.stack([self._drawn(part, size) for part in parts if part.ndim == task.images.ndim]).sum(0)])

    def _drawn(self, part: Tensor, size: Size) -> Tensor:
        if self.signed:
            return upsampled(part.sum(1), size) * (prod(size_of(part)) / prod(size))
        return upsampled(_scaled(part.abs()).sum(1), size)

    def _warn_if_incomplete(self, task: Task, parts: list[Tensor]) -> None:
        scores = task.scores
        if self.score != "logit" or task.indices is None or scores.dtype not in (torch.float32, torch.float64):
            return
        total = torch.stack([part.flatten(1).sum(1).to(scores) for part in parts]).sum(0)
        size = torch.stack([part.flatten(1).abs().sum(1).to(scores) for part in parts]).sum(0)
        missing = (scores - total).abs()
        # Rounding grows with what is added up, not with the sum.
        if bool((missing > _MISSING * scores.abs() + 1e-3 * size).any()):
            worst = int((missing / scores.abs().clamp_min(1e-12)).argmax())
            warn_user(
                f"{self.method}: of the logit {float(scores[worst]):.3g} the pixels and biases account for "
                f"{float(total[worst]):.3g}: this network shifts numbers outside of its convolutions, normalisations "
                "and activation modules, so the map leaves a part out",
                IncompleteMapWarning,
            )


def _scaled(values: Tensor) -> Tensor:
    """From minimum to maximum to 0 to 1, over all of an image's values; what is the same everywhere becomes 0."""
    flat = values.flatten(1)
    low, high = by_row(flat.amin(1), values), by_row(flat.amax(1), values)
    extent = high - low
    return (values - low) / extent.masked_fill(extent == 0, 1)


class _Call(NamedTuple):
    """One run of a module that has a bias, of its own or implied."""

    module: nn.Module
    given: Tensor
    made: Tensor


@contextmanager
def _calls_seen(model: nn.Module) -> Iterator[list[_Call]]:
    """What goes into and comes out of every module with a bias, while the block runs, in this thread."""
    calls: list[_Call] = []
    pending: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        if not args or not isinstance(args[0], Tensor):
            return None
        pending[:] = [args[0]]
        # A copy is passed on, here and below, because what follows may work in place.
        return (args[0].clone(), *args[1:])

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if not pending or not isinstance(output, Tensor):
            return None
        if output.requires_grad:
            calls.append(_Call(module, pending.pop(), output))
            return output.clone()
        return None

    handles = []
    try:
        for module in model.modules():
            if _has_bias(module):
                handles += [add_hook(module, before, before=True), add_hook(module, after)]
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        calls.clear()


def _has_bias(module: nn.Module) -> bool:
    own = getattr(module, "bias", None) is not None
    is_affine = isinstance(module, _ConvNd | nn.Linear | nn.LayerNorm | nn.GroupNorm) and own
    return is_affine or _is_elementwise(module)


def _is_elementwise(module: nn.Module) -> bool:
    """Whether each number it outputs is made of one that goes in, and not in proportion to it."""
    if isinstance(module, _BatchNorm):
        return True
    if isinstance(module, nn.ReLU | nn.LeakyReLU | nn.PReLU):
        return False
    mixing = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.MultiheadAttention)
    return type(module).__module__ == nn.ReLU.__module__ and not isinstance(module, mixing)


def _refuse_dense_signals(calls: list[_Call], images: Tensor) -> None:
    """(N, places, channels), as dense layers output, has as many axes as (N, channels, length)."""
    if images.ndim == 3 and any(isinstance(call.module, _CHANNELS_LAST) and call.made.ndim == 3 for call in calls):
        raise MethodError(
            "FullGrad cannot tell channels from places in a network with dense layers along the signal; use "
            "'integrated-gradients' or 'expected-gradients'"
        )


def _depending_on_image(scores: Tensor, is_image: Callable[[Tensor], bool]) -> set[Any]:
    """The operations behind `scores` that the image goes through: those of other inputs have biases of no pixel."""
    users: dict[Any, list[Any]] = {scores.grad_fn: []}
    todo = [scores.grad_fn]
    while todo:
        node = todo.pop()
        for before, _ in node.next_functions if node is not None else ():
            if before is not None and before not in users:
                todo.append(before)
            users.setdefault(before, []).append(node)
    found: set[Any] = set()
    todo = [node for node in users if hasattr(node, "variable") and is_image(node.variable)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += users[node]
    return found


def _bias_parts(scores: Tensor, calls: list[_Call], image_leaf: Callable[[Tensor], bool]) -> Iterator[Tensor]:
    """b dy/do of every call that the image goes through, in the shape of its output."""
    if not calls or not scores.requires_grad:
        return
    with torch.enable_grad():
        total = scores.sum()
    on_image = _depending_on_image(scores, image_leaf)
    calls = [call for call in calls if call.made.grad_fn in on_image and len(call.made) == len(scores)]
    tensors = [tensor for call in calls for tensor in (call.given, call.made)]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    found = torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True)
    gradients = {id(tensor): gradient for tensor, gradient in zip(wanted, found, strict=True)}
    for call in calls:
        behind = gradients.get(id(call.made))
        if behind is None:
            continue
        behind, made = wide_enough(behind), wide_enough(call.made.detach())
        if _is_elementwise(call.module):
            before = gradients.get(id(call.given))
            implied = behind * made
            yield implied if before is None else implied - wide_enough(before) * wide_enough(call.given.detach())
        else:
            bias = wide_enough(call.module.bias.detach())  # type: ignore[operator]
            is_last = isinstance(call.module, _CHANNELS_LAST)
            yield behind * (bias if is_last else bias.reshape(-1, *[1] * (behind.ndim - 2)))
