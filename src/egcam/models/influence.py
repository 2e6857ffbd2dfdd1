"""Which places of a layer's output the model's scores depend on.

A transformer that reads its class token alone does not depend on what its last block outputs at the patches: a map
there would be zero. One backward pass that starts with NaN instead of a gradient shows it for all layers, whatever the
weights are: NaN times anything is NaN, and where nothing is passed back the gradient is exactly zero.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError
from egcam.models.nested import mapped_tensors, tensor_in, tensors_in
from egcam.models.restore import add_hook, untouched
from egcam.rng import generator

if TYPE_CHECKING:
    from egcam.models.trace import Call

CallKey = tuple[str, int]
"""The name of a module, and which of its calls, from 1."""


@dataclass(frozen=True)
class Influence:
    """A model and what it takes, to find out what its scores depend on.

    Args:
        model: the plain module, weakly: a session keeps what is found out about a model, and must not keep the model.
        shape: (1, C, H, W) of an image. It is filled with noise: a black one may switch off what any other switches on.
        dtype: of the image.
        device: of the image.
        args: further inputs of the model.
        kwargs: further named inputs of the model.
    """

    model: ReferenceType[nn.Module]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def _model(self) -> nn.Module:
        model = self.model()
        assert model is not None
        return model

    def places(self, calls: dict[CallKey, Call]) -> dict[CallKey, Tensor]:
        """For each of some calls, (length,) on which of its tokens the scores depend; of (1, ., ., .) whether at all.

        Empty where no gradient comes back, as in a network that switches gradients off.
        """
        try:
            # NaN is what the search for anomalies would stop at.
            with untouched(self._model, self.device), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
                return self._places(calls)
        except Exception:  # whatever is wrong with the model shows in the real pass
            return {}

    def _places(self, calls: dict[CallKey, Call]) -> dict[CallKey, Tensor]:
        taken: dict[CallKey, Tensor] = {}
        counts: Counter[str] = Counter()
        thread = threading.get_ident()

        def take(name: str, module: nn.Module, args: tuple[object, ...], output: object) -> object:
            if threading.get_ident() != thread:
                return None
            counts[name] += 1
            found = tensor_in(output)
            if (name, counts[name]) not in calls or found is None or not found.requires_grad:
                return None
            taken[name, counts[name]] = found
            # A copy is passed on, because the next module may work in place.
            copy = found.clone()
            return mapped_tensors(output, lambda tensor: copy if tensor is found else tensor)

        with ExitStack() as stack:
            for name, module in self._model.named_modules():
                if any(name == wanted for wanted, _ in calls):
                    stack.callback(add_hook(module, partial(take, name)).remove)
            noise = torch.randn(self.shape, generator=generator(0, "influence"), device="cpu")
            # A copy: the model may write into its input, which a tensor that gradients start from does not allow.
            image = noise.to(self.device, self.dtype).requires_grad_().clone()
            scores = [part for part in _scores(self._model(image, *self.args, **self.kwargs)) if part.requires_grad]
        if not scores or not taken:
            return {}
        nothing = [torch.full_like(part, float("nan")) for part in scores]
        found = torch.autograd.grad(scores, list(taken.values()), nothing, allow_unused=True)
        return {
            key: _by_token(torch.zeros_like(tensor, dtype=torch.bool) if gradient is None else gradient.isnan())
            for (key, tensor), gradient in zip(taken.items(), found, strict=True)
        }


def _by_token(reached: Tensor) -> Tensor:
    return reached[0].any(1).cpu() if reached.ndim == 3 else reached.any().cpu()


def _scores(output: Any) -> list[Tensor]:
    """The class scores, or all tensors in the output where it is unclear which those are."""
    from egcam.models.targets import class_scores

    try:
        return [class_scores(output, 1)]
    except EgcamError:
        return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
