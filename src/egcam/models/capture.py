"""One pass through the network: activations, output and gradients at some layers.

Nothing before the first layer is recorded for the backward pass, and the backward pass goes no further than that
layer and computes no parameter's gradient: a gradient at a late layer costs about one plain forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from egcam.errors import LayerError, ModelError
from egcam.models.inputs import ExtraInputs, Layout
from egcam.models.layer_output import Reader, Reshape, Ways
from egcam.models.nested import tensor_in, with_first_tensor
from egcam.models.restore import add_hook
from egcam.models.trace import Trace, dry_run

if TYPE_CHECKING:
    from egcam.models.layers import LayerPoint
    from egcam.models.slopes import Recording, SlopeGraph


@dataclass(frozen=True)
class ForwardPass:
    """What one pass showed. Lists have one entry per layer."""

    activations: list[Tensor]  # each (B, K, h, w)
    raw: list[Tensor]  # the same as the layer puts it out, before any reshaping
    output: Any  # the model's


@dataclass(frozen=True)
class GradientPass:
    """What one pass with gradients showed. Lists have one entry per layer, each (B, K, h, w)."""

    activations: list[Tensor]
    gradients: list[Tensor]  # of the scores
    scores: Tensor  # (B,) the explained numbers
    output: Any  # the model's


class _Stop(BaseException):
    """Ends a forward pass once the last wanted layer has run; a BaseException so that no model catches it."""


def _taken_apart(layer: str) -> LayerError:
    return LayerError(
        f"layer {layer!r} runs more than once in a forward pass, each time for some of the images: the network takes a "
        "batch apart. Pass batch_size=1"
    )


@dataclass(eq=False)
class _Tap:
    """A forward hook on one layer that takes the activations and, on request, starts the gradient there."""

    point: LayerPoint
    with_gradient: bool
    images: int
    on_seen: Callable[[], None] | None
    mark: Callable[[Tensor], Tensor]
    calls: int = 0
    tensor: Tensor | None = None
    gradients_were_off: bool = False

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> object:
        self.calls += 1
        if self.point.call is not None and self.calls != self.point.call:
            return None
        if self.tensor is not None:
            if self.point.call is None and len(self.tensor) < self.images:
                raise _taken_apart(self.point.name)
            raise LayerError(
                f"layer {self.point.name!r} runs more than once in a forward pass; say which call to explain, "
                f"e.g. '{self.point.name}:1' for the first, or choose a module that runs once"
            )
        tensor = output if isinstance(output, Tensor) else tensor_in(output)
        if tensor is None:
            raise LayerError(f"layer {self.point.name!r} outputs no tensor but a {type(output).__name__}")
        if is_functorch_wrapped_tensor(tensor):
            raise LayerError(
                f"layer {self.point.name!r} runs inside torch.vmap or another transform of torch.func, where its "
                "output belongs to several networks at once: explain one of them, or choose a layer outside"
            )
        if self.with_gradient:
            self.gradients_were_off = not torch.is_grad_enabled()
            torch.set_grad_enabled(True)
            self.tensor = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
            replacement = self.mark(self.tensor).clone()
        else:
            # A copy, because the next module may work in place.
            self.tensor = tensor.detach().clone()
            replacement = self.mark(tensor)
        if self.on_seen is not None:
            self.on_seen()
        if replacement is tensor:
            return None
        return replacement if tensor is output else with_first_tensor(output, replacement)


class Probe:
    """A model seen through some of its layers.

    Args:
        model: the plain module (see `egcam.models.inputs.plain_model`).
        points: the layers; the network's input is `egcam.models.layers.INPUT`.
        extra: further inputs of the model.
        reshape: how a layer's output becomes (B, K, h, w) where it is not one already; see `egcam.models.layer_output`.
        layout: what is known of the memory layout the model takes; used for passes that are asked to be `fast`.
        trace: gives a dry run of the model with such images, or None if there is none; made when needed.
        ways: how layers were read before.
    """

    def __init__(
        self,
        model: nn.Module,
        points: Sequence[LayerPoint],
        extra: ExtraInputs,
        reshape: Reshape | None = None,
        layout: Layout | None = None,
        trace: Callable[[Tensor], Trace | None] | None = None,
        ways: Ways | None = None,
    ) -> None:
        self.layout = Layout() if layout is None else layout
        self.model = model
        self.points = tuple(points)
        self.extra = extra
        self.reshape = reshape
        self.trace = self._dry_run if trace is None else trace
        self._reader = Reader(model, reshape, {} if ways is None else ways)

    def forward(self, images: Tensor, rows: Tensor, fast: bool = False) -> ForwardPass:
        """Activations and output, without gradients. Row b of `images` is a variant of image `rows[b]`."""

        def attempt(layout: torch.memory_format) -> ForwardPass:
            with torch.no_grad(), self._taps(len(images), with_gradient=False) as taps:
                output = self._run(images, rows, layout)
            raw = [self._tapped(tap, images) for tap in taps]
            return ForwardPass(self._activations(taps, images), raw, output)

        return self.layout.run(images, attempt) if fast else attempt(torch.preserve_format)

    def features(self, images: Tensor, rows: Tensor) -> list[Tensor]:
        """The activations only; the pass ends at the last of the layers, and is fast."""
        raw = self._raw(images, rows)
        return [self.as_maps(point, tensor, images) for point, tensor in zip(self.points, raw, strict=True)]

    def settle(self, images: Tensor, at_once: int) -> None:
        """Make sure, once for each layer and size, that the cells of its maps lie where the maps show them.

        By passes of the first image, of at most `at_once` rows.
        """
        for point in self.points:
            if point.module is not None:
                run = partial(self.at(point)._output_of_layer, at_once=at_once)
                self._reader.settle(point, images[:1], run, lambda: self.trace(images))

    def _output_of_layer(self, images: Tensor, at_once: int) -> Tensor:
        """What the one layer outputs for variants of the first image."""
        parts = torch.split(images, at_once)
        return torch.cat([self._raw(part, torch.zeros(len(part), dtype=torch.long, device="cpu"))[0] for part in parts])

    def _raw(self, images: Tensor, rows: Tensor) -> list[Tensor]:
        """What the layers output; the pass ends at the last of them, and is fast."""
        if all(point.module is None for point in self.points):
            return [images for _ in self.points]

        def attempt(layout: torch.memory_format) -> list[Tensor]:
            with torch.no_grad(), self._taps(len(images), with_gradient=False, stop=True) as taps, suppress(_Stop):
                self._run(images, rows, layout)
            return [self._tapped(tap, images) for tap in taps]

        return self.layout.run(images, attempt)

    def recorded(self, images: Tensor, rows: Tensor, recording: Recording) -> ForwardPass:
        """A pass whose operations behind the layer are written down; see `egcam.models.slopes`."""
        with (
            torch.no_grad(),
            self._taps(len(images), with_gradient=False, mark=recording.mark) as taps,
            recording.watching(self.model),
        ):
            output = self._run(images, rows, torch.preserve_format)
        return ForwardPass([], [self._tapped(tap, images) for tap in taps], output)

    def graph(self, images: Tensor, rows: Tensor, graph: SlopeGraph) -> tuple[Tensor, Any]:
        """What the layer returned, (n, …), and the model's output, with the graph of what lies between."""
        with (
            torch.no_grad(),
            self._taps(len(images), with_gradient=True, mark=graph.mark) as taps,
            graph.watching(self.model),
        ):
            output = self._run(images, rows, torch.preserve_format)
        return self._tapped(taps[0], images), output

    def replaced(self, images: Tensor, rows: Tensor, activations: Tensor) -> Any:
        """The model's output for images when the layer returns `activations` (B, …) in place of its own."""
        (point,) = self.points
        calls, with_gradient = 0, torch.is_grad_enabled()

        def put(module: nn.Module, args: tuple[object, ...], output: object) -> object:
            nonlocal calls
            calls += 1
            if calls != (point.call or 1):
                return None
            tensor = tensor_in(output)
            if tensor is not None and len(tensor) < len(activations):
                raise _taken_apart(point.name)
            torch.set_grad_enabled(with_gradient)
            return with_first_tensor(output, activations.clone())

        assert point.module is not None
        handle = add_hook(point.module, put)
        try:
            with torch.no_grad():
                return self._run(images, rows, torch.preserve_format)
        finally:
            handle.remove()

    def gradients(
        self, images: Tensor, rows: Tensor, score: Callable[[Any], Tensor], fast: bool = False
    ) -> GradientPass:
        """Activations, output, scores and d(score)/d(activations), each row for itself.

        Row b of `images` is a variant of image `rows[b]`; a `fast` pass is one of many, so that trying the fast layout
        pays.
        """

        attempt = partial(self._gradients, images, rows, score)
        return self.layout.run(images, attempt) if fast else attempt(torch.preserve_format)

    def _gradients(
        self, images: Tensor, rows: Tensor, score: Callable[[Any], Tensor], layout: torch.memory_format
    ) -> GradientPass:
        names = ", ".join(repr(point.name) for point in self.points)
        try:
            result = self._try_gradients(images, rows, score, layout, torch.no_grad())
            if result is None:
                # The network switches gradients off around the layer and, leaving that block, back to what was before.
                result = self._try_gradients(images, rows, score, layout, torch.enable_grad(), is_last_try=True)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                raise ModelError(
                    f"no gradient at {names}: the network overwrites, in place, what its own gradient needs, so it "
                    "could not be trained as it is either. Write the operation after an activation without its final "
                    f"underscore or `+=`, or choose a later layer. Torch says: {str(error).partition(' Hint')[0]}"
                ) from error
            # Torch's word for it, where a checkpoint holds the layer or comes after it.
            if "use_reentrant" not in str(error):
                raise
            raise LayerError(
                f"no gradient at {names}: the network recomputes activations with torch.utils.checkpoint and "
                "use_reentrant=True, which gives gradients of parameters only; set use_reentrant=False, or switch "
                "checkpointing off"
            ) from error
        assert result is not None
        return result

    def _try_gradients(
        self,
        images: Tensor,
        rows: Tensor,
        score: Callable[[Any], Tensor],
        layout: torch.memory_format,
        before_layer: Any,
        is_last_try: bool = False,
    ) -> GradientPass | None:
        at_input = any(point.module is None for point in self.points)
        leaf = images.detach().requires_grad_() if at_input else images
        with before_layer, self._taps(len(images), with_gradient=True) as taps:
            if at_input:
                torch.set_grad_enabled(True)
            output = self._run(leaf, rows, layout)
            with torch.enable_grad():
                scores = score(output)
            sources = [self._tapped(tap, leaf) for tap in taps]
            gradients = gradients_of(scores, sources) if scores.requires_grad or is_last_try else None
        if gradients is None:
            if is_last_try:
                self._refuse_independent([tap for tap in taps if tap is not None])
            return None
        return GradientPass(
            [self.as_maps(point, tensor, images) for point, tensor in zip(self.points, sources, strict=True)],
            [self.as_maps(point, tensor, images) for point, tensor in zip(self.points, gradients, strict=True)],
            scores.detach(),
            output,
        )

    def _refuse_independent(self, taps: Sequence[_Tap]) -> None:
        names = ", ".join(repr(point.name) for point in self.points)
        if any(tap.tensor is not None and tap.tensor.is_inference() for tap in taps):
            raise ModelError(
                f"{type(self.model).__name__} runs its network in torch.inference_mode(), which leaves no gradients: "
                "pass the network inside it, as model.model of ultralytics' YOLO"
            )
        if any(tap.gradients_were_off for tap in taps):
            raise LayerError(
                f"no gradient at {names}: the network switches gradients off around it, with torch.no_grad() or by "
                "torch.utils.checkpoint with use_reentrant=True; set use_reentrant=False, or choose another layer"
            )
        raise does_not_reach(names)

    @contextmanager
    def _taps(
        self,
        images: int,
        with_gradient: bool,
        stop: bool = False,
        mark: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> Iterator[list[_Tap | None]]:
        """Hooks on every layer for the length of the block; None stands for the input.

        What is handed on of a layer's output is given to `mark` first.
        """
        taps: list[_Tap | None] = []
        handles = []

        unseen = sum(point.module is not None for point in self.points)

        # Holds no reference to the taps: a cycle would keep their tensors until the garbage collector runs.
        def stop_at_last() -> None:
            nonlocal unseen
            unseen -= 1
            if unseen == 0:
                raise _Stop

        try:
            for point in self.points:
                if point.module is None:
                    taps.append(None)
                    continue
                tap = _Tap(point, with_gradient, images, stop_at_last if stop else None, mark)
                taps.append(tap)
                handles.append(add_hook(point.module, tap))
            yield taps
        finally:
            for handle in handles:
                handle.remove()

    def _run(self, images: Tensor, rows: Tensor, layout: torch.memory_format) -> Any:
        args, kwargs = self.extra.rows(rows)
        # A copy, because the model may write into its input.
        return self.model(self.extra.images(images.clone(memory_format=layout)), *args, **kwargs)

    def _activations(self, taps: list[_Tap | None], images: Tensor) -> list[Tensor]:
        return [
            self.as_maps(point, self._tapped(tap, images), images) for point, tap in zip(self.points, taps, strict=True)
        ]

    def _tapped(self, tap: _Tap | None, images: Tensor) -> Tensor:
        if tap is None:
            return images
        if tap.tensor is None:
            times = "never runs" if tap.calls == 0 else f"runs only {tap.calls} time(s)"
            raise LayerError(
                f"layer {tap.point.name!r} {times} in the model's forward pass, so it has nothing to explain; "
                "choose a module that the forward pass calls. Of one that prepares a network at its first call, as "
                "ultralytics' YOLO does, pass the network inside it, model.model"
            )
        return tap.tensor

    def as_maps(self, point: LayerPoint, tensor: Tensor, images: Tensor) -> Tensor:
        """What a layer outputs for `images`, or a gradient there, as (B, K, h, w)."""
        if point.module is None:
            return tensor.detach()
        return self._reader.maps(point, tensor.detach(), images, lambda: self.trace(images))

    def at(self, point: LayerPoint) -> Probe:
        """The same model seen through one of the layers alone."""
        alone = copy(self)
        alone.points = (point,)
        return alone

    def channel_axis(self, point: LayerPoint) -> int | None:
        """Which axis of what a layer outputs holds its channels; None if a callable reads it."""
        return self._reader.channel_axis(point)

    def _dry_run(self, images: Tensor) -> Trace | None:
        try:
            return dry_run(self.model, images, self.extra)
        except Exception:  # only evidence is lost; a model that cannot run shows it in the real pass
            return None


def gradients_of(scores: Tensor, sources: Sequence[Tensor], create_graph: bool = False) -> list[Tensor] | None:
    """d(sum of the scores)/d(each source), or None if the scores do not depend on all of them.

    Scores that depend on nothing and are exactly 0 are those of targets that found nothing to read: a box that no
    detection matches. Their gradient is 0.
    """
    if not scores.requires_grad:
        return None if bool(scores.any()) else [torch.zeros_like(source) for source in sources]
    with torch.enable_grad():
        total = scores.sum()
    gradients = torch.autograd.grad(total, sources, allow_unused=True, create_graph=create_graph)
    return None if any(gradient is None for gradient in gradients) else list(gradients)


def does_not_reach(layers: str) -> LayerError:
    """The error for layers at which the score has no gradient."""
    return LayerError(
        f"the explained score does not depend on {layers} through differentiable operations; choose a layer between "
        "the image and the score (and a target that does not detach it)"
    )
